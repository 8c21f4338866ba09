"""The verdict: what counts, how the false alarms are shared, what is said of the whole."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from pinner.explain.compare import Comparison, Word, compare, overall
from pinner.measure.statistics import Verdict
from pinner.measure.statistics import compare as compare_starts
from tests.records import OPEN, WORKLOAD, measured, record, throughput

A = throughput(94.0, 95.0, 93.0)


def words(comparison: Comparison) -> dict[str, Word]:
    return {metric.title: metric.verdict for metric in comparison.counted}


def test_the_incident_is_worse_with_an_interval_that_excludes_zero() -> None:
    found = compare(A, throughput(60.0, 61.0, 59.5))
    assert found.verdict is Word.WORSE
    change = found.deciding[0].change
    assert change is not None
    assert change.high < 0
    assert change.change == pytest.approx(60.17 / 94 - 1, abs=0.005)


def test_back_again_is_better_and_the_same_is_equivalent() -> None:
    assert compare(throughput(60.0, 61.0, 59.5), A).verdict is Word.BETTER
    steady = throughput(94.0, 94.2, 93.9)
    assert compare(steady, throughput(94.1, 94.0, 93.9)).verdict is Word.EQUIVALENT


def test_one_start_each_is_inconclusive_and_says_how_many_more() -> None:
    found = compare(throughput(94.0), throughput(60.0))
    assert (found.verdict, found.more_starts) == (Word.INCONCLUSIVE, 1)


def test_open_loops_count_their_latencies_and_less_is_better() -> None:
    values = {
        "ttft_median_ms": [50.0, 50.1, 50.2],
        "tpot_median_ms": [10.0, 10.1, 9.9],
        "output_throughput": [9.0] * 3,
    }
    slower = {**values, "tpot_median_ms": [15.0, 15.2, 14.9], "output_throughput": [5.0] * 3}
    found = compare(record(measured(values, load=OPEN)), record(measured(slower, load=OPEN)))
    assert words(found) == {
        "ttft_median_ms at rate=2": Word.EQUIVALENT,
        "tpot_median_ms at rate=2": Word.WORSE,
    }
    assert found.verdict is Word.WORSE
    shown = [metric.name for metric in found.metrics if not metric.counts]
    assert shown == ["output_throughput"]


def test_without_speculation_by_wish_there_is_no_accept_length_to_miss() -> None:
    whole = record(measured({"output_throughput": [94.0, 95.0, 93.0], "accept_length": [3.1, 3.1, 3.1]}))
    plain = throughput(50.0, 50.2, 49.9, workload=msgspec.structs.replace(WORKLOAD, speculation=False))
    assert compare(whole, plain).verdict is Word.WORSE
    assert compare(plain, whole).verdict is Word.BETTER


def test_what_cannot_be_compared_has_no_metrics() -> None:
    found = compare(A, throughput(5.0, invalid=("throttled",)))
    assert (found.verdict, found.metrics) == (Word.NOT_COMPARABLE, ())


def test_a_metric_that_only_the_prompts_decide_costs_the_others_nothing() -> None:
    metrics = {"output_throughput": [94.0, 95.0, 93.0], "accept_length": [3.1, 2.9, 3.3]}
    faster = {**metrics, "output_throughput": [94.5, 95.1, 93.2]}
    found = compare(record(measured(metrics)), record(measured(faster)))
    assert found.shares == 1
    assert words(found)["accept_length at concurrency=8"] is Word.EQUIVALENT
    noisy = {**metrics, "accept_length": [3.1, 2.8, 3.4]}
    assert compare(record(measured(metrics)), record(measured(noisy))).shares == 2


def test_accept_lengths_of_other_prompts_are_not_paired() -> None:
    metrics = {"output_throughput": [94.0, 95.0, 93.0], "accept_length": [3.1, 2.9, 3.3]}
    a = record(measured(metrics), workload_digest="")
    assert words(compare(a, a))["accept_length at concurrency=8"] is Word.INCONCLUSIVE


def test_a_repeat_that_one_side_lacks_is_left_out_of_the_pairs() -> None:
    """Otherwise the prompts of the missing repeat would look like a change."""
    a = record(
        (
            *measured({"output_throughput": [94.0, 95.0], "accept_length": [3.0, 3.0]}, repeats=1),
            *(
                changed_repeat
                for one in measured({"output_throughput": [94.0, 95.0], "accept_length": [2.0, 2.0]}, repeats=1)
                for changed_repeat in [msgspec.structs.replace(one, repeat=1)]
            ),
        )
    )
    b = record(tuple(one for one in a.measurements if (one.start, one.repeat) != (1, 1)))
    found = next(metric for metric in compare(a, b).metrics if metric.name == "accept_length")
    assert found.change is not None
    assert (found.change.change, found.verdict) == (0.0, Word.EQUIVALENT)


@pytest.mark.parametrize(
    ("found", "whole"),
    [
        ([Word.WORSE, Word.UNKNOWN], Word.WORSE),
        ([Word.BETTER, Word.UNKNOWN], Word.UNKNOWN),
        ([Word.BETTER, Word.INCONCLUSIVE], Word.INCONCLUSIVE),
        ([Word.EQUIVALENT, Word.BETTER], Word.BETTER),
        ([], Word.UNKNOWN),
    ],
)
def test_the_worst_certain_word_is_the_whole_one(found: list[Word], whole: Word) -> None:
    assert overall(found) is whole


def test_many_metrics_raise_no_more_false_alarms_than_one() -> None:
    """Four loads with accept lengths that vary: eight metrics, wrong in 5 % at most all together."""
    random = np.random.default_rng(11)
    count, wrong, alone = 500, 0, 0
    for _ in range(count):
        sides = [
            [[[float(100 * (1 + 0.07 * value))] for value in random.standard_normal(3)] for _ in range(8)]
            for _ in range(2)
        ]
        changes = [
            compare_starts(a, b, less_is_better=False, tolerance=0.02, alpha=alpha).verdict
            for alpha in (0.05 / 8, 0.05)
            for a, b in zip(*sides, strict=True)
        ]
        different = [verdict in (Verdict.BETTER, Verdict.WORSE) for verdict in changes]
        wrong += any(different[:8])
        alone += any(different[8:])
    assert wrong <= 0.05 * count
    assert alone > 0.1 * count
