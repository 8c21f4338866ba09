"""Why a measurement does not count: each reason, and that sound ones give none."""

from __future__ import annotations

from typing import Any

import pytest

from pinner.measure.evidence import Measured, against_machine, against_measured, worth_knowing
from pinner.measure.telemetry import GpuSample, Sample
from pinner.model.bench import Bench
from pinner.model.gpus import Gpu


def measured(**keys: Any) -> Measured:
    sound = {"began": 0.0, "duration_s": 1.0, "metrics": {"output_throughput": 9.0}, "requests": 10, "lag_ms": 1.0}
    return Measured(**(sound | keys))


@pytest.mark.parametrize(
    ("keys", "is_flushed", "said"),
    [
        ({"failures": {"timeout": 2, "truncated": 1}, "said": "broke off"}, True,
         "3 of 10 requests failed: 2 timeout, 1 truncated: broke off"),
        ({"failures": {"client limit": 1}}, True, "client limit: the load generator ran out of open files"),
        ({"metrics": {}}, True, "nothing was measured"),
        ({"lag_ms": 51.0}, True, "the client was the limit: it was 51.0 ms late itself"),
        ({"cpu_share": 0.95}, True, "the client was the limit: it used 95% of a processor"),
        ({"cached_share": 0.5}, False, "50% of the input came from a cache that could not be emptied"),
    ],
)  # fmt: skip
def test_a_measurement_that_does_not_count(keys: dict[str, Any], is_flushed: bool, said: str) -> None:
    found = against_measured(Bench(), measured(**keys), is_flushed=is_flushed)
    assert len(found) == 1 and found[0].startswith(said)


def test_a_sound_measurement_counts() -> None:
    assert against_measured(Bench(), measured(), is_flushed=True) == []
    assert against_measured(Bench(), measured(cached_share=0.9), is_flushed=True) == []
    assert against_measured(Bench(), measured(cached_share=0.9), is_flushed=None) == []
    assert against_measured(Bench(allowed_errors=1), measured(failures={"timeout": 1}), is_flushed=True) == []
    # Files that the client lacked are its own fault, whatever is allowed.
    allowed = Bench(allowed_errors=9)
    assert against_measured(allowed, measured(failures={"client limit": 1}), is_flushed=True)


def sample(at: float, seconds: float) -> Sample:
    return Sample(at=at, throttled={"engine": (1, seconds)})


def test_a_quota_that_held_the_engine_up() -> None:
    assert against_machine([sample(0, 5.0), sample(10, 7.0)], []) == [
        "the control group of the engine was held up by its CPU quota for 2.0 s"
    ]
    assert against_machine([sample(0, 5.0), sample(10, 5.05)], []) == []


BUSY = {"utilisation-percent": 99, "pstate": 0, "reasons": 0, "pcie-generation-now": 5, "pcie-generation-max": 5}


def gpus(*facts: dict[str, Any]) -> list[GpuSample]:
    return [
        GpuSample(float(at), (Gpu(index=0, bus_id="0000:41:00.0", facts=BUSY | one),))
        for at, one in enumerate(facts)
    ]


@pytest.mark.parametrize(
    ("facts", "said"),
    [
        ({"reasons": 0x80}, "GPU 0000:41:00.0 was slowed down by hw-power-brake in 1 of 2 samples"),
        ({"reasons": 0x60}, "GPU 0000:41:00.0 was slowed down by sw-thermal, hw-thermal in 1 of 2 samples"),
    ],
)
def test_a_gpu_that_was_held_down(facts: dict[str, Any], said: str) -> None:
    assert against_machine([], gpus({}, facts)) == [said]


def test_h19_a_power_cap_at_work_is_no_fault() -> None:
    assert against_machine([], gpus({"reasons": 0x4})) == []


def test_a_link_below_what_it_can_do_counts_only_under_load() -> None:
    slow = {"pcie-generation-now": 1}
    assert against_machine([], gpus(slow, slow)) == [
        "GPU 0000:41:00.0: PCIe generation 1 under load, and the link can do 5"
    ]
    assert against_machine([], gpus(slow, {})) == [], "it trains up when work comes"
    assert against_machine([], gpus({**slow, "utilisation-percent": 0, "reasons": 1})) == []


def test_a_gpu_that_fell_off_the_bus() -> None:
    lost = [GpuSample(0.0, (Gpu(index=0, broken="the GPU is lost"),))]
    assert against_machine([], lost) == ["GPU index-0: the GPU is lost"]


def test_replays_are_worth_knowing() -> None:
    assert worth_knowing(gpus({"pcie-replays": 3}, {"pcie-replays": 10})) == [
        "GPU 0000:41:00.0: 7 PCIe replays while it was measured"
    ]
    assert worth_knowing(gpus({"pcie-replays": 3}, {"pcie-replays": 3})) == []
