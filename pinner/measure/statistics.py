"""How far two sets of measurements differ, and how sure that is.

Pure: takes numbers, gives numbers. The unit is the start: a fresh server of the same code differs from the last
one by more than the repeats within it tell (memory layout, autotuning, clocks), so that repeats only make a
start's mean more precise and never count as evidence of their own. Start means are compared on a logarithmic
scale by Welch's t, which keeps its promise with as few starts as people can afford; a hierarchical bootstrap
over two to five starts does not (benchmarks/verdicts.py shows both). Where one side has more starts than the
other, Student's t must agree.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from enum import StrEnum

import msgspec

# Values of the repeats, by start.
Starts = Sequence[Sequence[float]]

ALPHA = 0.05
POWER = 0.8
# One start of a server says nothing of how starts differ.
LEAST_STARTS = 2
# Nobody waits for more starts than this; what needs more is told as "more than".
MOST_STARTS = 200


class Verdict(StrEnum):
    """What a comparison says of B against A."""

    BETTER = "better"
    WORSE = "worse"
    EQUIVALENT = "equivalent"
    INCONCLUSIVE = "inconclusive"


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """One metric of B against A. Relative changes: 0.03 is 3 % more.

    `before` and `after` are means over starts. The interval [`low`, `high`] holds the true change with
    probability 1 - alpha; infinite where no side has two starts. `smallest` is the least change that
    these data would have shown with a probability of 80 %. `more_starts` is how many each side lacks to settle it
    (0 where it is settled, None where more than 200 would be needed).
    """

    before: float
    after: float
    change: float
    low: float
    high: float
    smallest: float
    verdict: Verdict
    more_starts: int | None = 0


class _Asked(msgspec.Struct, frozen=True):
    """How a comparison was asked."""

    less_is_better: bool
    tolerance: float
    alpha: float


def compare(a: Starts, b: Starts, *, less_is_better: bool, tolerance: float, alpha: float = ALPHA) -> Change:
    """Compare B with A. `tolerance` is the relative change that nobody minds.

    ValueError unless every value is positive and finite and both sides have one.
    """
    means_a, means_b = _start_means(a), _start_means(b)
    logs_a, logs_b = [math.log(mean) for mean in means_a], [math.log(mean) for mean in means_b]
    return _change(
        (means_a, means_b),
        _mean(logs_b) - _mean(logs_a),
        _errors(logs_a, logs_b),
        _Asked(less_is_better, tolerance, alpha),
        lambda: _more_starts(logs_a, logs_b, tolerance, alpha),
    )


def compare_pairs(a: Starts, b: Starts, *, less_is_better: bool, tolerance: float, alpha: float = ALPHA) -> Change:
    """Compare start by start, where the starts of the same number did the very same work.

    For what depends on the prompts and hardly on time, such as the accept length: the prompts, which differ from
    start to start, then cancel out.
    """
    means_a, means_b = _start_means(a), _start_means(b)
    steps = [math.log(after / before) for before, after in zip(means_a, means_b, strict=True)]
    return _change(
        (means_a, means_b),
        _mean(steps),
        [(_variance(steps) / len(steps), float(len(steps) - 1))] if len(steps) > 1 else [],
        _Asked(less_is_better, tolerance, alpha),
        lambda: _more_pairs(steps, tolerance, alpha),
    )


def _change(
    means: tuple[Sequence[float], Sequence[float]],
    difference: float,
    errors: Sequence[_Error],
    asked: _Asked,
    more_starts: Callable[[], int | None],
) -> Change:
    half, smallest = _half_width(errors, asked.alpha)
    low, high = math.expm1(difference - half), math.expm1(difference + half)
    verdict = _verdict(low, high, asked.tolerance, less_is_better=asked.less_is_better)
    return Change(
        before=_mean(means[0]),
        after=_mean(means[1]),
        change=math.expm1(difference),
        low=low,
        high=high,
        smallest=math.expm1(smallest),
        verdict=verdict,
        more_starts=more_starts() if verdict is Verdict.INCONCLUSIVE else 0,
    )


def _start_means(starts: Starts) -> list[float]:
    means = []
    for values in starts:
        if any(not (math.isfinite(value) and value > 0) for value in values):
            raise ValueError("a measurement is not a positive number")
        if values:
            means.append(_mean(values))
    if not means:
        raise ValueError("nothing was measured")
    return means


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def _variance(values: Sequence[float]) -> float:
    mean = _mean(values)
    return math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1)


# A squared standard error of a difference, and its degrees of freedom.
_Error = tuple[float, float]


def _half_width(errors: Sequence[_Error], alpha: float) -> tuple[float, float]:
    """Half of the interval, and the smallest detectable difference: the wider of what the errors give.

    Both infinite where there is no error to go by.
    """
    if not errors:
        return math.inf, math.inf
    widths = [(0.0, 0.0)]
    for squared, freedom in errors:
        if squared > 0:
            certain, error = _quantile(1 - alpha / 2, freedom), math.sqrt(squared)
            widths.append((certain * error, (certain + _quantile(POWER, freedom)) * error))
    return max(widths)


def _errors(a: Sequence[float], b: Sequence[float]) -> list[_Error]:
    """Of the difference of two means: Welch's, and Student's, which takes both sides to scatter alike.

    Identical code does scatter alike, and Welch's alone claims too much where one side has many more starts than
    the other. With as many on both sides Welch's is the wider one. A single start has a scatter only by Student's.
    """
    freedoms = [len(side) - 1 for side in (a, b)]
    if sum(freedoms) == 0:
        return []
    variances = [_variance(side) if len(side) > 1 else 0.0 for side in (a, b)]
    pooled = math.fsum(map(operator.mul, freedoms, variances)) / sum(freedoms)
    found = [(pooled * (1 / len(a) + 1 / len(b)), float(sum(freedoms)))]
    parts = [variance / len(side) for variance, side in zip(variances, (a, b), strict=True)]
    if 0 not in freedoms and math.fsum(parts) > 0:
        # Welch and Satterthwaite's degrees of freedom.
        squares = math.fsum(part**2 / freedom for part, freedom in zip(parts, freedoms, strict=True))
        found.append((math.fsum(parts), math.fsum(parts) ** 2 / squares))
    return found


def _quantile(probability: float, freedom: float) -> float:
    from scipy.special import stdtrit  # noqa: PLC0415  # 100 ms that only a comparison has to pay

    return float(stdtrit(freedom, probability))


def _verdict(low: float, high: float, tolerance: float, *, less_is_better: bool) -> Verdict:
    if -tolerance <= low and high <= tolerance:
        return Verdict.EQUIVALENT
    if low <= 0 <= high:
        return Verdict.INCONCLUSIVE
    return Verdict.BETTER if (low > 0) != less_is_better else Verdict.WORSE


def _more_starts(a: Sequence[float], b: Sequence[float], tolerance: float, alpha: float) -> int | None:
    """How many more starts each side would need if they went on to differ, and to scatter, as they do."""
    sides = [side for side in (a, b) if len(side) > 1]
    if not sides:
        return 1
    spread = math.sqrt(_mean([_variance(side) for side in sides]))
    difference = abs(_mean(b) - _mean(a))
    margin = math.log1p(tolerance)
    have = min(len(a), len(b))
    for count in range(max(have + 1, 2), MOST_STARTS + 1):
        half = _quantile(1 - alpha / 2, 2 * count - 2) * spread * math.sqrt(2 / count)
        if half < difference or difference + half < margin:
            return count - have
    return None


def _more_pairs(steps: Sequence[float], tolerance: float, alpha: float) -> int | None:
    """The same for starts in pairs."""
    if len(steps) < 2:
        return 1
    spread, difference, margin = math.sqrt(_variance(steps)), abs(_mean(steps)), math.log1p(tolerance)
    for count in range(len(steps) + 1, MOST_STARTS + 1):
        half = _quantile(1 - alpha / 2, count - 1) * spread / math.sqrt(count)
        if half < difference or difference + half < margin:
            return count - len(steps)
    return None


class Look(msgspec.Struct, frozen=True):
    """One look of a sequential comparison: after so many starts, at this probability of a false alarm."""

    starts: int
    alpha: float


def looks(most: int, alpha: float = ALPHA) -> tuple[Look, ...]:
    """When to look at data that grow start by start, up to `most` starts.

    Who looks again and again finds something in the end, so that the looks share `alpha` in equal parts: whatever
    they have in common, the probability that any of them calls identical code different stays below it. Each look
    is at twice as many starts as the one before, since every look costs.
    """
    counts = []
    count = LEAST_STARTS
    while count < most:
        counts.append(count)
        count *= 2
    counts.append(max(most, LEAST_STARTS))
    return tuple(Look(starts, alpha / len(counts)) for starts in counts)


def is_constant(starts: Starts) -> bool:
    """Whether several starts gave the very same value, as what does not depend on time does."""
    means = [_mean(values) for values in starts if values]
    return len(means) >= LEAST_STARTS and len(set(means)) == 1


def is_no_worse(change: Change, tolerance: float, *, less_is_better: bool) -> bool:
    """Whether the whole interval is better than a loss that nobody minds."""
    return change.high <= tolerance if less_is_better else change.low >= -tolerance


def mean_and_half_width(means: Sequence[float], alpha: float = ALPHA) -> tuple[float, float | None]:
    """The mean of start means and half of the interval that holds the true one; None with a single start."""
    mean = _mean(means)
    if len(means) < 2:
        return mean, None
    error = math.sqrt(_variance(means) / len(means))
    return mean, _quantile(1 - alpha / 2, len(means) - 1) * error


def overall(verdicts: Sequence[Verdict]) -> Verdict:
    """One word for several metrics that count: the worst of them that is certain."""
    for worst in (Verdict.WORSE, Verdict.INCONCLUSIVE, Verdict.BETTER):
        if worst in verdicts:
            return worst
    return Verdict.EQUIVALENT
