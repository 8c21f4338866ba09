"""Cases H12, H19, H20 and H24: two records whose comparison would mislead."""

from __future__ import annotations

import msgspec
import pytest

from pinner.explain.comparable import comparability
from pinner.explain.compare import Word, compare
from pinner.explain.reproduce import Answer, judge
from pinner.model.facts import Override
from pinner.model.record import Start
from tests.records import WORKLOAD, capped, measured, record, throughput
from tests.unit.explain.test_comparable import sentences
from tests.unit.explain.test_compare import words

A = throughput(94.0, 95.0, 93.0)
SPECULATING = record(measured({"output_throughput": [94.0, 95.0, 93.0], "accept_length": [3.1, 3.0, 3.2]}))


def test_h24_warm_against_cold_by_declaration() -> None:
    warm = throughput(
        180.0,
        workload=msgspec.structs.replace(WORKLOAD, cache="warm"),
        workload_digest="sha256:" + "2" * 64,
    )
    found = sentences(A, warm)
    assert len(found) == 1
    assert found[0].startswith("warm against cold: the prefix cache was cold (flushed")


def test_h24_warm_against_cold_by_what_the_engine_told() -> None:
    cold = record(measured({"output_throughput": [100.0]}, cached_share=0.0, is_flushed=True))
    warm = record(measured({"output_throughput": [180.0]}, cached_share=0.94, is_flushed=False))
    assert sentences(cold, warm) == [
        "warm against cold: of the input tokens 0% came from the prefix cache in A, 94% in B"
    ]
    assert comparability(warm, warm).is_comparable


def test_h24_a_flush_that_failed_leaves_it_unknown() -> None:
    unflushed = record(measured({"output_throughput": [100.0]}, is_flushed=False))
    assert comparability(A, unflushed).unknown == ("how much came from the prefix cache in B: flushing it failed",)


def test_h20_an_invalid_record_is_not_compared() -> None:
    limited = record(measured({"output_throughput": [5.0]}, invalid=("client limit: too many open files",)))
    assert sentences(A, limited) == ["B is invalid: client limit: too many open files"]
    assert sentences(limited, A) == ["A is invalid: client limit: too many open files"]
    bad_start = record(
        measured({"output_throughput": [5.0]}), starts=(Start(run="r", began=1.0, invalid=("hot",)),)
    )
    assert sentences(bad_start, A) == ["A is invalid: hot"]
    assert sentences(record(), A) == ["A is invalid: nothing was measured"]


def test_h20_some_invalid_measurements_are_left_out_and_told() -> None:
    mixed = record(
        (*measured({"output_throughput": [99.0]}), *measured({"output_throughput": [9.0]}, invalid=("x",)))
    )
    assert comparability(A, mixed).notes == ("2 of 4 measurements of B are invalid and left out",)


def test_h19_other_caps_are_said_first_and_can_be_accepted() -> None:
    low = throughput(80.0, 81.0, machine=capped(230.0))
    found = comparability(A, low)
    assert [(one.key, one.sentence) for one in found.obstacles] == [
        (
            "hardware.power-limit-watts",
            "different GPUs or caps: power limit 8 × 700 W in A, 8 × 230 W in B",
        )
    ]
    accepted = Override("hardware.power-limit-watts", "the cap is what I test")
    assert comparability(A, low, [accepted]).is_comparable
    assert comparability(A, low, [accepted]).accepted == (accepted,)
    assert not comparability(A, low, [Override("hardware.name", "no")]).is_comparable


def test_h19_a_tenth_of_a_watt_is_no_cap() -> None:
    assert comparability(A, throughput(99.0, machine=capped(699.9))).is_comparable


def test_h12_accept_length_of_one_fails_though_throughput_passes() -> None:
    good = record(measured({"output_throughput": [94.0, 95.0, 93.0], "accept_length": [3.1, 3.1, 3.1]}))
    bad = record(measured({"output_throughput": [94.2, 94.8, 93.3], "accept_length": [1.0, 1.0, 1.0]}))
    found = compare(good, bad)
    assert words(found)["output_throughput at concurrency=8"] is not Word.WORSE
    assert words(found)["accept_length at concurrency=8"] is Word.WORSE
    assert found.verdict is Word.WORSE


def test_h12_a_single_start_is_enough_to_see_that_no_draft_is_accepted() -> None:
    good = record(measured({"output_throughput": [94.0], "accept_length": [3.1]}))
    bad = record(measured({"output_throughput": [94.0], "accept_length": [1.01]}))
    found = compare(good, bad)
    assert found.verdict is Word.WORSE
    assert "never accepted" in found.deciding[0].reason
    assert compare(good, good).verdict is Word.INCONCLUSIVE


@pytest.mark.parametrize("missing_in", ["A", "B"])
def test_h12_a_missing_accept_length_is_unknown_and_not_equal(missing_in: str) -> None:
    whole = record(measured({"output_throughput": [94.0, 95.0, 93.0], "accept_length": [3.1, 3.1, 3.1]}))
    sides = (A, whole) if missing_in == "A" else (whole, A)
    found = compare(*sides)
    assert found.verdict is Word.UNKNOWN
    assert found.deciding[0].reason == f"{missing_in} does not tell it"


def test_h12_missing_in_some_measurements_is_unknown_too() -> None:
    parts = (
        *measured({"output_throughput": [94.0, 95.0]}, repeats=1),
        *measured({"output_throughput": [93.0, 94.0], "accept_length": [3.1, 3.1]}, repeats=1),
    )
    whole = record(measured({"output_throughput": [94.0, 95.0], "accept_length": [3.1, 3.1]}))
    found = compare(whole, record(parts))
    assert found.verdict is Word.UNKNOWN
    assert found.deciding[0].reason == "B does not tell it in 2 of 4 measurements"


def test_h12_a_missing_accept_length_is_not_reproduced_by_silence() -> None:
    assert judge(compare(SPECULATING, throughput(94.5, 94.0, 93.5), tolerance=0.05)) is Answer.INCONCLUSIVE


def test_h24_a_warm_repetition_is_not_comparable() -> None:
    cold = record(measured({"output_throughput": [94.0, 95.0]}, cached_share=0.0))
    warm = record(measured({"output_throughput": [300.0, 301.0]}, cached_share=1.0))
    assert judge(compare(cold, warm)) is Answer.NOT_COMPARABLE
