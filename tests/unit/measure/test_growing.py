"""Statistics of data that grow: looks share the false alarms, single starts, starts in pairs."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from pinner.measure.statistics import (
    Starts,
    Verdict,
    compare,
    compare_pairs,
    is_constant,
    is_no_worse,
    looks,
)

COUNT = 1000


def drawn(random: np.random.Generator, starts: int, mean: float, between: float) -> list[list[float]]:
    means = mean * (1 + between * random.standard_normal(starts))
    return [[float(own * (1 + 0.005 * random.standard_normal())) for _ in range(3)] for own in means]


def one_by_one(a: Starts, b: Starts, most: int, tolerance: float) -> tuple[Verdict, int]:
    """The verdict of looking as `looks` plans, and after how many starts it fell."""
    for look in looks(most):
        found = compare(a, b[: look.starts], less_is_better=False, tolerance=tolerance, alpha=look.alpha).verdict
        if found is not Verdict.INCONCLUSIVE:
            return found, look.starts
    return Verdict.INCONCLUSIVE, most


def test_the_plan_of_looks() -> None:
    assert [(look.starts, look.alpha) for look in looks(8)] == [(2, 0.05 / 3), (4, 0.05 / 3), (8, 0.05 / 3)]
    assert [look.starts for look in looks(5, 0.01)] == [2, 4, 5]
    assert [look.starts for look in looks(2)] == [2]
    assert sum(look.alpha for look in looks(100, 0.01)) == pytest.approx(0.01)


@pytest.mark.parametrize(("had", "between"), [(2, 0.05), (3, 0.10), (5, 0.10)])
def test_looking_again_and_again_raises_no_more_false_alarms(had: int, between: float) -> None:
    random = np.random.default_rng(5)
    wrong = 0
    for _ in range(COUNT):
        a, b = drawn(random, had, 100, between), drawn(random, 8, 100, between)
        wrong += one_by_one(a, b, 8, 0.02)[0] in (Verdict.BETTER, Verdict.WORSE)
    assert wrong <= 0.05 * COUNT


def test_a_third_slower_ends_it_early() -> None:
    random = np.random.default_rng(6)
    ends = [one_by_one(drawn(random, 3, 100, 0.02), drawn(random, 8, 67, 0.02), 8, 0.02) for _ in range(200)]
    assert sum(verdict is Verdict.WORSE for verdict, _ in ends) >= 195
    assert sum(starts <= 4 for _, starts in ends) >= 180


@pytest.mark.parametrize("single", ["a", "b"])
def test_a_single_start_is_taken_to_scatter_as_the_others_do(single: str) -> None:
    random = np.random.default_rng(8)
    wrong = 0
    for _ in range(COUNT):
        sides = [drawn(random, 1, 100, 0.07), drawn(random, 5, 100, 0.07)]
        a, b = sides if single == "a" else sides[::-1]
        wrong += compare(a, b, less_is_better=False, tolerance=0.02).verdict in (Verdict.BETTER, Verdict.WORSE)
    assert 0.02 * COUNT < wrong <= 0.06 * COUNT
    assert (
        compare([[94.0]], [[60.0], [61.0], [59.0]], less_is_better=False, tolerance=0.02).verdict is Verdict.WORSE
    )


def test_pairs_are_student_s_over_the_steps() -> None:
    a, b = [[3.0, 3.2], [2.5], [3.4]], [[2.9, 3.0], [2.45], [3.2]]
    steps = [math.log(2.95 / 3.1), math.log(2.45 / 2.5), math.log(3.2 / 3.4)]
    interval = stats.ttest_1samp(steps, 0.0).confidence_interval(0.95)
    change = compare_pairs(a, b, less_is_better=False, tolerance=0.0)
    assert (change.low, change.high) == pytest.approx((math.expm1(interval.low), math.expm1(interval.high)))


def test_what_the_prompts_alone_decide_cancels_out() -> None:
    same = [[3.02, 3.11], [2.93, 3.02], [2.97, 3.09]]
    change = compare_pairs(same, same, less_is_better=False, tolerance=0.02)
    assert (change.verdict, change.low, change.high) == (Verdict.EQUIVALENT, 0.0, 0.0)
    alone = compare_pairs([[3.0]], [[2.0]], less_is_better=False, tolerance=0.02)
    assert (alone.verdict, alone.more_starts) == (Verdict.INCONCLUSIVE, 1)


def test_no_worse_looks_at_the_end_that_hurts() -> None:
    change = compare([[100.0], [101.0], [99.5]], [[130.0], [131.0], [129.0]], less_is_better=False, tolerance=0.05)
    assert is_no_worse(change, 0.05, less_is_better=False)
    assert not is_no_worse(change, 0.05, less_is_better=True)


def test_constant_needs_several_starts() -> None:
    assert is_constant([[3.1, 3.1], [3.1]])
    assert not is_constant([[3.1]])
    assert not is_constant([[3.1], [3.2]])
