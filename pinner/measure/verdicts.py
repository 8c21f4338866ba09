"""Whether the expectations of a bench were met: pure.

The unit is the start: what is held against an expectation is the mean over starts, of the means of those of their
measurements that count.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from pinner.errors import ExitCode
from pinner.model.bench import SPEEDUP, Bench, Expect
from pinner.model.record import Load, Measurement, Record, Verdict


def start_means(measurements: Sequence[Measurement], load: Load, metric: str) -> list[float]:
    """The mean of a metric at a load for each start that tells it."""
    by_start: dict[int, list[float]] = {}
    for one in measurements:
        if one.load == load and metric in one.metrics:
            by_start.setdefault(one.start, []).append(one.metrics[metric])
    return [math.fsum(values) / len(values) for _, values in sorted(by_start.items())]


def verdicts(bench: Bench, counting: Sequence[Measurement]) -> tuple[Verdict, ...]:
    """One for each expectation at each load. A metric that some of the measurements lack cannot be told."""
    found = []
    for metric, expect in bench.expect.items():
        for kind, value in bench.loads:
            load = Load(kind="rate" if kind == "rate" else "concurrency", value=value)
            means = start_means(counting, load, metric)
            is_whole = all(metric in one.metrics for one in counting if one.load == load)
            observed = math.fsum(means) / len(means) if means and is_whole else None
            met = None if observed is None else is_met(expect, observed)
            found.append(
                Verdict(metric=metric, load=load.name, expected=words(expect), observed=observed, is_met=met)
            )
    return tuple(found)


def is_met(expect: Expect, observed: float) -> bool:
    """Whether a value is what was expected."""
    if expect.value is not None:
        return abs(observed - expect.value) <= (expect.tolerance or 0.0) * abs(expect.value)
    return (expect.at_least is None or observed >= expect.at_least) and (
        expect.at_most is None or observed <= expect.at_most
    )


def words(expect: Expect) -> str:
    """An expectation for a person."""
    if expect.value is not None:
        return f"{expect.value:g} ± {100 * (expect.tolerance or 0.0):g} %"
    parts = ((word, bound) for word, bound in (("at least", expect.at_least), ("at most", expect.at_most)))
    return ", ".join(f"{word} {bound:g}" for word, bound in parts if bound is not None)


def with_speedup(measurements: Sequence[Measurement], baseline: Sequence[Measurement]) -> list[Measurement]:
    """Measurements with their output throughput relative to the baseline's mean over starts at the same load."""
    found = []
    for one in measurements:
        means = start_means(baseline, one.load, "output_throughput")
        if means and "output_throughput" in one.metrics:
            ratio = one.metrics["output_throughput"] / (math.fsum(means) / len(means))
            one = msgspec.structs.replace(one, metrics={**one.metrics, SPEEDUP: ratio})  # noqa: PLW2901
        found.append(one)
    return found


def exit_code(record: Record) -> ExitCode:
    """Invalid before not met, and that before what could not be told."""
    not_counting = [*(one.invalid for one in record.measurements), *(one.invalid for one in record.starts)]
    if not record.is_valid or any(not_counting):
        return ExitCode.INVALID
    if any(one.is_met is False for one in record.verdicts):
        return ExitCode.DIFFERENT
    return ExitCode.FAILED if any(one.is_met is None for one in record.verdicts) else ExitCode.OK
