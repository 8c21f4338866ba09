"""What stands against a comparison, before any verdict."""

from __future__ import annotations

import msgspec
import pytest

from pinner.explain.comparable import comparability
from tests.records import GPUS, OPEN, WORKLOAD, measured, record, throughput

A = throughput(100.0, 101.0)


def sentences(a: object, b: object) -> list[str]:
    return [one.sentence for one in comparability(a, b).obstacles]  # type: ignore[arg-type]


def test_two_alike_are_comparable() -> None:
    found = comparability(A, throughput(60.0, 61.0))
    assert found.is_comparable
    assert (found.unknown, found.notes) == ((), ())


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
