"""The verdict on B against A: which metrics count, how sure it is, and what is said of the whole.

Owns the choice of metrics and the split of the probability of a false alarm over them; the statistics themselves
are in pinner/measure/statistics.py. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import StrEnum

import msgspec

from pinner.errors import ExitCode
from pinner.explain.comparable import Comparability, common_loads, comparability
from pinner.measure import statistics
from pinner.measure.foreign_log import BENCH as FROM_LOG
from pinner.measure.statistics import ALPHA, Change
from pinner.model.bench import ACCEPT_LENGTH, IS_TIME, METRICS
from pinner.model.facts import Override
from pinner.model.record import Load, Record

TOLERANCE = 0.02
# What decides, by the kind of load; besides, the accept length wherever there is one.
COUNTED: dict[str, tuple[str, ...]] = {
    "concurrency": ("output_throughput",),
    "rate": ("ttft_median_ms", "tpot_median_ms"),
}
# One token a step is what decoding without a draft gives: the draft is never accepted.
ACCEPTS_NOTHING = 1.05
ACCEPTS_SOMETHING = 1.2


class Word(StrEnum):
    """What is said of a metric and of the whole."""

    BETTER = "better"
    WORSE = "worse"
    EQUIVALENT = "equivalent"
    INCONCLUSIVE = "inconclusive"
    UNKNOWN = "unknown"
    NOT_COMPARABLE = "not-comparable"


class Metric(msgspec.Struct, frozen=True, kw_only=True):
    """One metric at one load. `change` is None where it could not be told, and `reason` says why.

    `counts`: whether the overall verdict comes from it. `alpha` is its share of the probability of a false alarm.
    """

    load: str
    name: str
    counts: bool
    verdict: Word
    change: Change | None = None
    reason: str = ""
    starts: tuple[int, int] = (0, 0)
    alpha: float = ALPHA

    @property
    def less_is_better(self) -> bool:
        return self.name in IS_TIME

    @property
    def title(self) -> str:
        return f"{self.name} at {self.load}"

    def is_no_worse(self, tolerance: float) -> bool:
        """Whether it certainly lost no more than the tolerance; gains are no matter."""
        return self.change is not None and statistics.is_no_worse(
            self.change, tolerance, less_is_better=self.less_is_better
        )


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """B against A. `alpha` is for all that counts together; `shares` into how many parts it was split."""

    verdict: Word
    comparability: Comparability
    metrics: tuple[Metric, ...] = ()
    tolerance: float = TOLERANCE
    alpha: float = ALPHA
    shares: int = 1

    @property
    def counted(self) -> tuple[Metric, ...]:
        return tuple(metric for metric in self.metrics if metric.counts)

    @property
    def deciding(self) -> tuple[Metric, ...]:
        """The metrics because of which the verdict is what it is."""
        return tuple(metric for metric in self.counted if metric.verdict is self.verdict)

    @property
    def more_starts(self) -> int | None:
        """How many more starts each side lacks to settle what is open; None: more than 200."""
        open_ = [metric.change for metric in self.counted if metric.verdict is Word.INCONCLUSIVE]
        needed = [change.more_starts for change in open_ if change is not None]
        return None if None in needed else max((one for one in needed if one is not None), default=0)


def compare(
    a: Record,
    b: Record,
    *,
    tolerance: float = TOLERANCE,
    alpha: float = ALPHA,
    overrides: Sequence[Override] = (),
) -> Comparison:
    """Compare B with A. Nothing is measured where they cannot be compared."""
    comparable = comparability(a, b, overrides)
    if not comparable.is_comparable:
        return Comparison(verdict=Word.NOT_COMPARABLE, comparability=comparable, tolerance=tolerance, alpha=alpha)
    rows = [row for load in common_loads(a, b) for row in _rows(a, b, load)]
    # What gave one and the same value in every start has no noise that could raise a false alarm.
    shares = max(1, sum(row.counts and not row.reason and not row.is_constant for row in rows))
    metrics = tuple(_judged(row, tolerance, alpha / shares if row.counts else alpha) for row in rows)
    return Comparison(
        verdict=overall(metric.verdict for metric in metrics if metric.counts),
        comparability=comparable,
        metrics=metrics,
        tolerance=tolerance,
        alpha=alpha,
        shares=shares,
    )


def overall(words: Iterable[Word]) -> Word:
    """One word for all that counts: the worst that is certain. Nothing that counts is nothing known."""
    found = list(words)
    order = (Word.WORSE, Word.UNKNOWN, Word.INCONCLUSIVE, Word.BETTER, Word.EQUIVALENT)
    return next((word for word in order if word in found), Word.UNKNOWN)


def exit_code(word: Word) -> ExitCode:
    """What the process tells its caller of a verdict."""
    if word in (Word.BETTER, Word.EQUIVALENT):
        return ExitCode.OK
    if word is Word.WORSE:
        return ExitCode.DIFFERENT
    return ExitCode.INVALID if word is Word.NOT_COMPARABLE else ExitCode.FAILED


class _Row(msgspec.Struct, frozen=True, kw_only=True):
    """One metric at one load: its values by start on both sides, and why it cannot be told, if so."""

    load: str
    name: str
    counts: bool
    a: list[list[float]]
    b: list[list[float]]
    reason: str = ""
    in_pairs: bool = False

    @property
    def is_constant(self) -> bool:
        if self.in_pairs:
            return self.a == self.b
        return statistics.is_constant(self.a) and statistics.is_constant(self.b)


def _rows(a: Record, b: Record, load_name: str) -> Iterable[_Row]:
    load = next(one.load for one in a.counting() if one.load.name == load_name)
    counted = _counted(a, b, load)
    for name in METRICS:
        sides = [_values(record, load_name, name) for record in (a, b)]
        missing = [_missing(side, record, load_name, name) for side, record in (("A", a), ("B", b))]
        missing.append(_other_quantity(name, a, b))
        has = [any(values) for values in sides]
        if name not in counted and not all(has):
            continue
        pairs = _pairs(a, b, load_name) if name == ACCEPT_LENGTH else None
        sides = list(pairs) if pairs is not None else sides
        yield _Row(
            load=load_name,
            name=name,
            counts=name in counted,
            a=sides[0],
            b=sides[1],
            reason="; ".join(filter(None, missing)),
            in_pairs=pairs is not None,
        )


def _counted(a: Record, b: Record, load: Load) -> tuple[str, ...]:
    """What counts at this load; the accept length where either has one, unless a side has no draft by wish."""
    names = COUNTED[load.kind]
    has = [any(_values(record, load.name, ACCEPT_LENGTH)) for record in (a, b)]
    without_draft = any(record.workload is not None and not record.workload.speculation for record in (a, b))
    return (*names, ACCEPT_LENGTH) if any(has) and not without_draft else names


def _values(record: Record, load: str, name: str) -> list[list[float]]:
    """Values of the repeats by start, of those starts that were put under this load."""
    by_start: dict[int, list[float]] = {}
    for one in record.counting():
        if one.load.name == load:
            values = by_start.setdefault(one.start, [])
            if name in one.metrics:
                values.append(one.metrics[name])
    return [by_start[number] for number in sorted(by_start)]


def _pairs(a: Record, b: Record, load: str) -> tuple[list[list[float]], list[list[float]]] | None:
    """Accept lengths of those repeats that both have, by start: in the same place they had the same prompts.

    None where that is not so, or fewer than two starts are left.
    """
    if not a.workload_digest or a.workload_digest != b.workload_digest:
        return None
    told = [
        {
            (one.start, one.repeat): one.metrics.get(ACCEPT_LENGTH)
            for one in record.counting()
            if one.load.name == load
        }
        for record in (a, b)
    ]
    sides: tuple[dict[int, list[float]], dict[int, list[float]]] = ({}, {})
    for place in sorted(told[0].keys() & told[1].keys()):
        before, after = told[0][place], told[1][place]
        if before is not None and after is not None:
            sides[0].setdefault(place[0], []).append(before)
            sides[1].setdefault(place[0], []).append(after)
    if len(sides[0]) < statistics.LEAST_STARTS:
        return None
    return list(sides[0].values()), list(sides[1].values())


def _missing(side: str, record: Record, load: str, name: str) -> str:
    """Why a metric of one side cannot be told; "" where every measurement has it."""
    at_load = [one for one in record.counting() if one.load.name == load]
    lacking = sum(name not in one.metrics for one in at_load)
    if not lacking:
        return ""
    return (
        f"{side} does not tell it"
        if lacking == len(at_load)
        else (f"{side} does not tell it in {lacking} of {len(at_load)} measurements")
    )


def _other_quantity(name: str, a: Record, b: Record) -> str:
    """Why the same name stands for two things; "" where it does not."""
    from_log = [record.origin == "foreign" and record.bench == FROM_LOG for record in (a, b)]
    if not name.endswith("_throughput") or from_log[0] == from_log[1]:
        return ""
    return f"{'A' if from_log[0] else 'B'} is a log, which tells the speed of decoding alone"


def _judged(row: _Row, tolerance: float, alpha: float) -> Metric:
    metric = Metric(
        load=row.load,
        name=row.name,
        counts=row.counts,
        verdict=Word.UNKNOWN,
        reason=row.reason,
        starts=(len(row.a), len(row.b)),
        alpha=alpha,
    )
    if row.reason:
        return metric
    try:
        change = (statistics.compare_pairs if row.in_pairs else statistics.compare)(
            row.a, row.b, less_is_better=metric.less_is_better, tolerance=tolerance, alpha=alpha
        )
    except ValueError as error:
        return msgspec.structs.replace(metric, reason=str(error))
    verdict, reason = Word(change.verdict.value), ""
    if row.name == ACCEPT_LENGTH and change.after < ACCEPTS_NOTHING and change.before > ACCEPTS_SOMETHING:
        # No question of noise: with one token a step no draft is ever accepted.
        verdict, reason = (
            Word.WORSE,
            "the draft is never accepted any more: one token a step is decoding without it",
        )
        change = msgspec.structs.replace(change, more_starts=0)
    return msgspec.structs.replace(metric, verdict=verdict, change=change, reason=reason)
