"""What a record says at a glance: for each load the means of its metrics.

Pure. The unit is the start: a mean is one over starts, of the means over the repeats within each.
"""

from __future__ import annotations

import math

import msgspec

from pinner.model.record import Load, Record


class LoadSummary(msgspec.Struct, frozen=True, kw_only=True):
    """The metrics at one load, from so many starts and measurements that count, and how many do not."""

    load: Load
    metrics: dict[str, float]
    starts: int
    measurements: int
    not_counted: int


def summaries(record: Record) -> list[LoadSummary]:
    """One for each load, in the order of the measurements."""
    counting = record.counting()
    found = []
    for load in dict.fromkeys(one.load for one in record.measurements):
        at = [one for one in counting if one.load == load]
        by_metric: dict[str, dict[int, list[float]]] = {}
        for one in at:
            for metric, value in one.metrics.items():
                by_metric.setdefault(metric, {}).setdefault(one.start, []).append(value)
        found.append(
            LoadSummary(
                load=load,
                metrics={
                    metric: _mean([_mean(values) for values in starts.values()])
                    for metric, starts in by_metric.items()
                },
                starts=len({one.start for one in at}),
                measurements=len(at),
                not_counted=sum(one.load == load for one in record.measurements) - len(at),
            )
        )
    return found


def _mean(values: list[float]) -> float:
    return math.fsum(values) / len(values)
