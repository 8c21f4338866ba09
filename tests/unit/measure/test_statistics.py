"""The verdict of a comparison: its promise on identical code, its words at the edges."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from pinner.measure.statistics import Starts, Verdict, compare, overall


def measured(random: np.random.Generator, starts: int, mean: float, between: float) -> Starts:
    means = mean * (1 + between * random.standard_normal(starts))
    return [[float(own * (1 + 0.005 * random.standard_normal())) for _ in range(3)] for own in means]


@pytest.mark.parametrize("between", [0.05, 0.10])
@pytest.mark.parametrize("starts", [2, 3, 5])
def test_identical_code_is_called_different_in_at_most_5_percent(starts: int, between: float) -> None:
    random = np.random.default_rng(7)
    pairs = [[measured(random, starts, 100, between) for _ in range(2)] for _ in range(1000)]
    verdicts = [compare(a, b, less_is_better=False, tolerance=0.02).verdict for a, b in pairs]
    wrong = sum(verdict in (Verdict.BETTER, Verdict.WORSE) for verdict in verdicts)
    assert 0 < wrong <= 50


def test_a_third_slower_is_found_and_two_percent_is_not_claimed() -> None:
    random = np.random.default_rng(3)
    found = {}
    for loss in (0.02, 0.33):
        pairs = [[measured(random, 5, mean, 0.05) for mean in (100, 100 * (1 - loss))] for _ in range(200)]
        verdicts = [compare(a, b, less_is_better=False, tolerance=0.02).verdict for a, b in pairs]
        found[loss] = verdicts.count(Verdict.WORSE) / len(verdicts)
    assert found[0.33] == 1.0
    assert found[0.02] < 0.2


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ([[100.0, 102.0], [110.0], [95.0, 97.0, 96.0]], [[80.0], [85.0], [70.0]]),
        ([[100.0, 102.0], [110.0], [95.0, 97.0, 96.0]], [[80.0], [85.0], [70.0], [79.0]]),
        ([[100.0], [101.0]], [[80.0], [85.0], [70.0], [79.0]]),
    ],
)
def test_the_interval_is_the_wider_of_welch_s_and_student_s_over_start_means(a: Starts, b: Starts) -> None:
    logs = [[math.log(sum(one) / len(one)) for one in side] for side in (a, b)]
    intervals = [
        stats.ttest_ind(logs[1], logs[0], equal_var=pooled).confidence_interval(0.95) for pooled in (False, True)
    ]
    low, high = min(one.low for one in intervals), max(one.high for one in intervals)
    change = compare(a, b, less_is_better=False, tolerance=0.0)
    assert (change.low, change.high) == pytest.approx((math.expm1(low), math.expm1(high)))
    if len(a) == len(b):
        assert change.low == pytest.approx(math.expm1(intervals[0].low))


@pytest.mark.parametrize(
    ("a", "b", "less", "verdict"),
    [
        ([[100.0], [101.0]], [[150.0], [151.0]], False, Verdict.BETTER),
        ([[100.0], [101.0]], [[150.0], [151.0]], True, Verdict.WORSE),
        ([[2.9], [2.9]], [[2.9], [2.9]], False, Verdict.EQUIVALENT),
        ([[3.1], [3.1]], [[1.0], [1.0]], False, Verdict.WORSE),
        ([[100.0], [100.5], [99.5]], [[100.2], [100.4], [99.8]], False, Verdict.EQUIVALENT),
        ([[100.0]], [[60.0]], False, Verdict.INCONCLUSIVE),
    ],
)
def test_the_words(a: Starts, b: Starts, less: bool, verdict: Verdict) -> None:
    assert compare(a, b, less_is_better=less, tolerance=0.02).verdict is verdict


def test_one_start_says_nothing_and_asks_for_more() -> None:
    change = compare([[100.0, 100.1]], [[60.0, 60.1]], less_is_better=False, tolerance=0.02)
    assert (change.low, change.high, change.more_starts) == (-1.0, math.inf, 1)


def test_as_many_more_starts_as_it_says_do_settle_it() -> None:
    a, b = [[100.0], [108.0], [94.0]], [[96.0], [104.0], [91.0]]
    change = compare(a, b, less_is_better=False, tolerance=0.02)
    assert (change.verdict, change.more_starts) == (Verdict.INCONCLUSIVE, 25)
    times = 10  # 30 starts, of which 28 are needed
    assert compare(a * times, b * times, less_is_better=False, tolerance=0.02).verdict is Verdict.WORSE


@pytest.mark.parametrize("wrong", [0.0, -1.0, math.nan, math.inf])
def test_what_is_no_measurement_is_refused(wrong: float) -> None:
    with pytest.raises(ValueError, match="positive"):
        compare([[wrong]], [[1.0]], less_is_better=False, tolerance=0.02)
    with pytest.raises(ValueError, match="nothing"):
        compare([], [[1.0]], less_is_better=False, tolerance=0.02)


def test_the_worst_certain_verdict_is_the_whole_one() -> None:
    words = Verdict
    assert overall([words.BETTER, words.WORSE]) is words.WORSE
    assert overall([words.BETTER, words.INCONCLUSIVE]) is words.INCONCLUSIVE
    assert overall([words.EQUIVALENT, words.BETTER]) is words.BETTER
    assert overall([]) is words.EQUIVALENT
