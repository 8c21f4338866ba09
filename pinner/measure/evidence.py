"""Why a measurement does not count: failures, a client that was the limit, a machine that was held down.

Pure: takes what was measured and the samples of the machine, gives sentences.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from pinner.measure.telemetry import GpuSample, Sample
from pinner.model.bench import Bench
from pinner.model.gpus import Gpu
from pinner.probes import gpu_facts

# Of one processor: beyond it the client waits for itself.
MOST_CLIENT_CPU = 0.9
# Of the measured time that quotas may hold the engine or the client up.
MOST_THROTTLED = 0.01
# Of the input that may come from a cache which was to be empty and could not be emptied.
MOST_CACHED = 0.01


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """One measurement as its driver tells it; `said` is what the first failed request said.

    `lag_ms` (99th percentile) and `cpu_share` of one processor are the client's own; `samples` are rows to keep.
    """

    began: float
    duration_s: float
    metrics: dict[str, float]
    requests: int
    failures: dict[str, int] = {}
    said: str = ""
    input_tokens: int = 0
    output_tokens: int = 0
    cached_share: float | None = None
    lag_ms: float | None = None
    cpu_share: float = 0.0
    samples: tuple[Any, ...] = ()


def against_measured(bench: Bench, measured: Measured, *, is_flushed: bool | None) -> list[str]:
    """What is wrong with the measurement itself."""
    found = []
    failed = sum(measured.failures.values())
    if "client limit" in measured.failures:
        found.append("client limit: the load generator ran out of open files")
    elif failed > bench.allowed_errors:
        kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(measured.failures.items()))
        allowed = f" ({bench.allowed_errors} allowed)" if bench.allowed_errors else ""
        said = f": {measured.said}" if measured.said else ""
        found.append(f"{failed} of {measured.requests} requests failed{allowed}: {kinds}{said}")
    elif not measured.metrics:
        found.append("nothing was measured")
    if measured.lag_ms is not None and measured.lag_ms > bench.client_lag_ms:
        found.append(
            f"the client was the limit: it was {measured.lag_ms:.1f} ms late itself (99th percentile; "
            f"client-lag-ms = {bench.client_lag_ms:g})"
        )
    if measured.cpu_share > MOST_CLIENT_CPU:
        found.append(f"the client was the limit: it used {measured.cpu_share:.0%} of a processor")
    if is_flushed is False and (measured.cached_share or 0.0) > MOST_CACHED:
        found.append(f"{measured.cached_share:.0%} of the input came from a cache that could not be emptied")
    return found


def against_machine(samples: Sequence[Sample], gpus: Sequence[GpuSample]) -> list[str]:
    """What the machine did that a sound one does not, during these samples."""
    return [*_throttled(samples), *_slowed_down(gpus), *_degraded(gpus)]


def worth_knowing(gpus: Sequence[GpuSample]) -> list[str]:
    """What does not make a measurement wrong, and may explain it."""
    found = []
    for place, seen in _by_place(gpus).items():
        counts = [count for gpu in seen if isinstance(count := gpu.facts.get("pcie-replays"), int)]
        if counts and counts[-1] > counts[0]:
            found.append(f"GPU {place}: {counts[-1] - counts[0]} PCIe replays while it was measured")
    return found


def _throttled(samples: Sequence[Sample]) -> list[str]:
    if len(samples) < 2:
        return []
    first, last = samples[0], samples[-1]
    seconds = last.at - first.at
    found = []
    for name, now in last.throttled.items():
        lost = now[1] - first.throttled.get(name, now)[1]
        if seconds > 0 and lost / seconds > MOST_THROTTLED:
            found.append(f"the control group of the {name} was held up by its CPU quota for {lost:.1f} s")
    return found


def _slowed_down(gpus: Sequence[GpuSample]) -> list[str]:
    found = []
    for place, seen in _by_place(gpus).items():
        broken = next((gpu.broken for gpu in seen if gpu.broken), None)
        if broken is not None:
            found.append(f"GPU {place}: {broken}")
            continue
        held = [sentence for gpu in seen if (sentence := gpu_facts.slowed_down(gpu)) is not None]
        if held:
            found.append(f"GPU {place} was {held[0]} in {len(held)} of {len(seen)} samples")
    return found


def _degraded(gpus: Sequence[GpuSample]) -> list[str]:
    """A link that stays below what GPU and slot can do, also under load."""
    found = []
    for place, seen in _by_place(gpus).items():
        busy = [gpu.facts for gpu in seen if not gpu.broken and gpu_facts.is_at_work(gpu)]
        for key, word in (("pcie-generation", "PCIe generation"), ("pcie-width", "PCIe width")):
            now = [value for facts in busy if isinstance(value := facts.get(f"{key}-now"), int)]
            most = [value for facts in busy if isinstance(value := facts.get(f"{key}-max"), int)]
            if now and most and max(now) < max(most):
                found.append(f"GPU {place}: {word} {max(now)} under load, and the link can do {max(most)}")
    return found


def _by_place(gpus: Sequence[GpuSample]) -> Mapping[str, list[Gpu]]:
    found: dict[str, list[Gpu]] = {}
    for sample in gpus:
        for gpu in sample.gpus:
            found.setdefault(gpu.title, []).append(gpu)
    return found
