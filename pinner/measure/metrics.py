"""From samples to metrics, by the field's definitions.

Pure. TTFT: from the intended send to the first token. E2EL: to the last byte. TPOT: (last token - first token) /
(tokens - 1) of a request with more than one. ITL: the time between two arrivals, spread over the tokens that
came with the second, as SGLang's own benchmark does, since one chunk may hold several. Failed requests are
counted by kind and are part of no metric.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

from pinner.measure.client import Result, Sample

_PERCENTILES = (("p90", 0.90), ("p95", 0.95), ("p99", 0.99))


def failures(result: Result) -> dict[str, int]:
    """How many requests failed, by kind."""
    return dict(Counter(sample.reply.failure.kind for sample in result.samples if sample.reply.failure))


def metrics(result: Result) -> dict[str, float]:
    """Every metric that these samples give, by name; one that cannot be told is left out."""
    good = [sample for sample in result.samples if sample.reply.failure is None]
    if not good or result.duration_s <= 0:
        return {}
    found = {
        "request_throughput": len(good) / result.duration_s,
        "input_throughput": sum(sample.reply.input_tokens for sample in good) / result.duration_s,
        "output_throughput": sum(sample.reply.output_tokens for sample in good) / result.duration_s,
    }
    times = {
        "ttft": [sample.reply.arrivals[0][0] - sample.intended for sample in good],
        "tpot": [_tpot(sample) for sample in good if sample.reply.output_tokens > 1],
        "itl": [gap for sample in good for gap in _gaps(sample)],
        "e2el": [sample.ended - sample.intended for sample in good],
    }
    for name, seconds in times.items():
        found |= _quantities(name, seconds)
    accepted = accept_length(good)
    if accepted is not None:
        found["accept_length"] = accepted
    return found


def accept_length(samples: Sequence[Sample]) -> float | None:
    """Tokens for each verification over exactly these requests; None without speculation.

    As SGLang counts it: the bonus token is included, and so is the first token of each request, which needed no
    verification.
    """
    told = [sample.reply for sample in samples if sample.reply.verify_calls]
    calls = sum(reply.verify_calls or 0 for reply in told)
    return sum(reply.output_tokens for reply in told) / calls if calls else None


def cached_share(result: Result) -> float | None:
    """The share of input tokens that the engine took from its prefix cache; None where it does not tell."""
    told = [sample.reply for sample in result.samples if sample.reply.cached_tokens is not None]
    total = sum(reply.input_tokens for reply in told)
    return sum(reply.cached_tokens or 0 for reply in told) / total if total else None


def _tpot(sample: Sample) -> float:
    arrivals = sample.reply.arrivals
    first, last = arrivals[0], arrivals[-1]
    return (last[0] - first[0]) / max(last[1] - first[1], 1)


def _gaps(sample: Sample) -> list[float]:
    gaps = []
    arrivals = sample.reply.arrivals
    for (before, had), (at, have) in pairwise(arrivals):
        gaps += [(at - before) / (have - had)] * (have - had)
    return gaps


def _quantities(name: str, seconds: Sequence[float]) -> dict[str, float]:
    if not seconds:
        return {}
    ordered = sorted(second * 1e3 for second in seconds)
    found = {f"{name}_mean_ms": statistics.fmean(ordered), f"{name}_median_ms": _percentile(ordered, 0.5)}
    return found | {f"{name}_{label}_ms": _percentile(ordered, share) for label, share in _PERCENTILES}


def _percentile(ordered: Sequence[float], share: float) -> float:
    """Linear between the two nearest ranks, as numpy's default is."""
    place = share * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)
