"""Records made by hand: a workload, starts, measurements with the metrics that a test wants."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from pinner.model.bench import Bench
from pinner.model.record import FORMAT, READS_FORMAT, Load, Measurement, Record, Start

BEGAN = 1_780_000_000.0
WORKLOAD = Bench(concurrency=(8,))
CLOSED = Load(kind="concurrency", value=8.0)
OPEN = Load(kind="rate", value=2.0)
# Eight GPUs at 700 W, as a probe tells them.
GPUS: dict[str, Any] = {
    "count": 8,
    "driver": "570.133.20",
    **{
        f"gpu.0000:{bus:02x}:00.0.{fact}": value
        for bus in range(8)
        for fact, value in {"name": "NVIDIA H200", "power-limit-watts": 700.0, "mig": False}.items()
    },
}


def measured(
    metrics: dict[str, Sequence[float]], *, load: Load = CLOSED, repeats: int = 2, **fields: Any
) -> tuple[Measurement, ...]:
    """`metrics` gives one value for each start; the repeats within a start are alike."""
    starts = len(next(iter(metrics.values())))
    return tuple(
        Measurement(
            start=start,
            repeat=repeat,
            load=load,
            began=BEGAN + 100 * start + 10 * repeat,
            duration_s=5.0,
            metrics={name: values[start] for name, values in metrics.items()},
            requests=32,
            **fields,
        )
        for start in range(starts)
        for repeat in range(repeats)
    )


def record(measurements: tuple[Measurement, ...] = (), **fields: Any) -> Record:
    """A valid record of those measurements; any field can be given."""
    count = max((one.start for one in measurements), default=-1) + 1
    given: dict[str, Any] = {
        "format": FORMAT,
        "requires_pinner": READS_FORMAT,
        "origin": "pinner",
        "deployment": "tiny",
        "bench": "decode",
        "began": BEGAN,
        "ended": BEGAN + 600,
        "workload": WORKLOAD,
        "workload_digest": "sha256:" + "1" * 64,
        "measurements": measurements,
        "starts": tuple(Start(run=f"tiny-{number}", began=BEGAN) for number in range(count)),
        "machine": {"hardware": GPUS},
    }
    return Record(**{**given, **fields})


def throughput(*values: float, **fields: Any) -> Record:
    """A record of output throughput at concurrency 8 alone, one value a start."""
    return record(measured({"output_throughput": values}), **fields)


def changed(one: Record, **fields: Any) -> Record:
    """The same record with other fields."""
    return msgspec.structs.replace(one, **fields)
