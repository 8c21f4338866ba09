"""What stands against a comparison, before any verdict."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from pinner.explain.comparable import comparability
from pinner.model.facts import Override
from pinner.model.record import Start
from tests.records import GPUS, OPEN, WORKLOAD, measured, record, throughput

A = throughput(100.0, 101.0)


def capped(watts: float) -> dict[str, Any]:
    return {"hardware": {key: watts if key.endswith("-watts") else value for key, value in GPUS.items()}}


def sentences(a: object, b: object) -> list[str]:
    return [one.sentence for one in comparability(a, b).obstacles]  # type: ignore[arg-type]


def test_two_alike_are_comparable() -> None:
    found = comparability(A, throughput(60.0, 61.0))
    assert found.is_comparable
    assert (found.unknown, found.notes) == ((), ())


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


def test_other_gpus_and_unknown_ones() -> None:
    other = {"hardware": {key: "NVIDIA H100" if key.endswith("name") else value for key, value in GPUS.items()}}
    assert "model 8 × NVIDIA H200 in A, 8 × NVIDIA H100 in B" in sentences(A, throughput(1.0, machine=other))[0]
    fewer = {"hardware": {key: value for key, value in GPUS.items() if ":07:" not in key}}
    assert "8 × NVIDIA H200 in A, 7 × NVIDIA H200 in B" in sentences(A, throughput(1.0, machine=fewer))[0]
    untold = {"hardware": {**GPUS, "gpu.0000:00:00.0.power-limit-watts": {"unknown": "no permission"}}}
    found = comparability(A, throughput(1.0, machine=untold))
    assert (found.obstacles, found.unknown) == ((), ("whether the GPUs' power limit is the same",))
    assert comparability(A, throughput(1.0, machine={})).unknown == ("on which GPUs B was measured",)


@pytest.mark.parametrize(("other", "comparable"), [("AMD EPYC 9654", True), ("Intel Xeon", False)])
def test_without_gpus_the_processor_is_the_hardware(other: str, comparable: bool) -> None:
    here = throughput(1.0, machine={"host": {"cpu-model": "AMD EPYC 9654"}})
    there = throughput(1.0, machine={"host": {"cpu-model": other}})
    found = comparability(here, there)
    assert found.is_comparable is comparable
    assert [one.key for one in found.obstacles] == ([] if comparable else ["host.cpu-model"])


def test_another_workload_is_named() -> None:
    longer = throughput(
        50.0,
        workload=msgspec.structs.replace(WORKLOAD, output_tokens=512),
        workload_digest="sha256:" + "2" * 64,
    )
    assert sentences(A, longer) == ["different workloads: output-tokens 128 in A, 512 in B"]
    same_keys = throughput(50.0, workload_digest="sha256:" + "2" * 64)
    assert sentences(A, same_keys) == ["different workloads: other prompts"]
    other_load = record(measured({"ttft_median_ms": [9.0]}, load=OPEN))
    assert sentences(A, other_load) == ["no load in common: A has concurrency=8; B has rate=2"]


def test_a_foreign_record_says_what_is_unknown() -> None:
    log = throughput(60.0, origin="foreign", source="server.log", workload=None, workload_digest="", machine={})
    found = comparability(A, log)
    assert found.is_comparable
    assert found.unknown == (
        "whether the prompts and their lengths are the same: B (foreign: server.log) does not tell",
        "on which GPUs B was measured",
    )
