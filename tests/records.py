"""Records made by hand: a workload, starts, measurements with the metrics that a test wants."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from pinner.explain.pins import Package
from pinner.model.bench import Bench
from pinner.model.lock import (
    EnginePin,
    EnvironmentPin,
    FilePin,
    Lock,
    PythonPin,
    ServePin,
    SourcePin,
    WeightsPin,
)
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


def capped(watts: float) -> dict[str, Any]:
    """The machine with all its GPUs at another power limit."""
    return {"hardware": {key: watts if key.endswith("-watts") else value for key, value in GPUS.items()}}


def lock(**fields: Any) -> Lock:
    """A small lock; any field can be given."""
    given: dict[str, Any] = {
        "version": 1,
        "requires_pinner": "0.1.0",
        "manifest": "sha256:" + "0" * 64,
        "engine": engine(),
        "python": PythonPin(version="3.11", patch_level="3.11.7", pylock="sha256:" + "1" * 64),
        "model": WeightsPin(path="model", files=(FilePin(path="model.safetensors", size=9, sha256="sha256:aa"),)),
        "env": EnvironmentPin(set={"NCCL_PROTO": "Simple"}, secret={"HF_TOKEN": "HF_TOKEN"}),
        "serve": ServePin(
            host="127.0.0.1", port=30000, start_timeout_s=60, generate_timeout_s=60, stop_timeout_s=30
        ),
    }
    return Lock(**{**given, **fields})


def engine(commit: str = "a" * 40, argv: str = "--tp-size 8 --enable-metrics", **fields: Any) -> EnginePin:
    """The engine's part of a lock, at a commit and with arguments."""
    source = SourcePin(
        type="git", url="https://example.com/engine.git", wish="main", commit=commit, tree=commit[::-1]
    )
    words = ("-m", "sglang.launch_server", "--model-path", "{model}", *argv.split())
    return EnginePin(kind="sglang", source=source, argv=words, **fields)


def pylock(**versions: str) -> dict[str, Package]:
    """Packages as a pylock names them; underscores stand for dashes."""
    return {
        name.replace("_", "-"): (version, frozenset({f"sha256:{name}{version}"}))
        for name, version in versions.items()
    }
