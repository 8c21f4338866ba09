"""GPUs as data: which are visible, what an idle one can tell, which pin is whose, what a manifest may expect."""

from __future__ import annotations

from pathlib import Path

import pytest

from pinner.deploy.load import load_manifest
from pinner.errors import ManifestError
from pinner.model.expectations import UNSUPPORTED, Expected, FactPin
from pinner.model.facts import Class, Fact, Unknown
from pinner.model.gpus import NOT_OFFERED, Gpu, Gpus, bus_id, malformed, visible_gpus
from pinner.model.hardware import CapturedPin, GpuPin, Hardware, HardwarePin, hardware_problems, pin_hardware
from pinner.probes import gpu_facts, gpu_pins
from pinner.probes.gpu_facts import is_at_work, observed
from pinner.probes.gpu_pins import Pair, captured, demanded, pairs
from tests.unit.test_load import GOOD

UUIDS = ("GPU-aaaa1111-0", "GPU-aaaa2222-0", "GPU-bbbb1111-0")


def gpu(number: int, index: int | None = None, **facts: Fact) -> Gpu:
    return Gpu(
        index=number if index is None else index,
        bus_id=f"0000:{0x41 + number:02x}:00.0",
        uuid=UUIDS[number],
        facts={name.replace("_", "-"): fact for name, fact in facts.items()},
    )


# NVML's order is another one than that of the bus.
THREE = (gpu(2, 0), gpu(0, 1), gpu(1, 2))


@pytest.mark.parametrize(
    ("value", "numbers", "stopped"),
    [
        (None, [2, 0, 1], None),
        ("", [], None),
        ("0,2", [0, 2], None),
        (" 2 , 0 ", [2, 0], None),
        ("0,-1,1", [0], None),
        ("0,7,1", [0], "7 names no GPU here"),
        ("GPU-bbbb1111-0", [2], None),
        ("GPU-bb,GPU-aaaa2", [2, 1], None),
        ("GPU-BBBB", [2], None),
        ("GPU-aaaa", [], "GPU-aaaa names more than one GPU"),
        ("GPU-bbbb,GPU-cccc,GPU-aaaa1", [2], "GPU-cccc names no GPU here"),
    ],
)
def test_h18_what_cuda_sees(value: str | None, numbers: list[int], stopped: str | None) -> None:
    seen = visible_gpus(value, THREE)
    assert [one.uuid for one in seen.gpus] == [UUIDS[number] for number in numbers]
    assert seen.stopped_at == stopped


def test_a_mig_device_means_its_gpu() -> None:
    parted = Gpu(index=0, bus_id="0000:41:00.0", uuid="GPU-1234", mig_uuids=("MIG-aa", "MIG-bb"))
    for value in ("MIG-bb", "MIG-GPU-1234/7/0", "MIG-aa,MIG-bb"):
        assert visible_gpus(value, [parted]).gpus == (parted,)


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ("0,1", None),
        ("-1", None),
        ("", None),
        ("GPU-0a,GPU-0b", None),
        ("MIG-0a12-34", None),
        ("MIG-GPU-0a/1/2", None),
        ("0;1", "'0;1' is neither"),
        ("gpu0", "'gpu0' is neither"),
        ("0,", "'' is neither"),
        ("GPU-", "'GPU-' is neither"),
        ("0,GPU-0a", "mixes"),
        ("0,1,0", "0 twice"),
    ],
)
def test_a_malformed_value_is_told(value: str, problem: str | None) -> None:
    found = malformed(value)
    assert (found is None) == (problem is None)
    assert (problem or "") in (found or "")


@pytest.mark.parametrize(
    ("text", "one"),
    [
        ("00000000:41:00.0", "0000:41:00.0"),
        ("0000:C1:00.0", "0000:c1:00.0"),
        ("00010000:01:00.0", "10000:01:00.0"),
        ("41:00.0", "0000:41:00.0"),
        ("GPU-aaaa", None),
        ("", None),
    ],
)
def test_one_spelling_of_a_bus_id(text: str, one: str | None) -> None:
    assert bus_id(text) == one


@pytest.mark.parametrize(
    ("facts", "at_work"),
    [
        ({"utilisation_percent": 90, "pstate": 0, "reasons": 0}, True),
        ({"utilisation_percent": 90, "pstate": 2, "reasons": 4}, True),
        ({"utilisation_percent": 0, "pstate": 0, "reasons": 0}, False),
        ({"utilisation_percent": 90, "pstate": 8, "reasons": 0}, False),
        ({"utilisation_percent": 90, "pstate": 0, "reasons": 1}, False),
        ({"utilisation_percent": UNSUPPORTED, "pstate": 0, "reasons": 0}, False),
        ({"utilisation_percent": 90, "pstate": UNSUPPORTED, "reasons": Unknown("x")}, True),
        ({}, False),
    ],
)
def test_h15_only_a_gpu_that_says_so_is_at_work(facts: dict[str, Fact], at_work: bool) -> None:
    one = gpu(0, pcie_generation_now=1, pcie_generation_max=5, **facts)
    assert is_at_work(one) == at_work
    assert observed(one)["pcie-generation"] == (1 if at_work else 5)


def test_what_has_no_value_stays_without() -> None:
    one = gpu(0, power_limit_set_watts=Unknown("x"), power_limit_enforced_watts=UNSUPPORTED, mig=NOT_OFFERED)
    facts = observed(one)
    assert facts["power-limit-watts"] == Unknown("x")
    assert facts["mig"] == NOT_OFFERED
    assert facts["name"] == facts["slowdown"] == facts["pcie-generation"] == UNSUPPORTED
    assert not any(fact == 0 for fact in facts.values())
    only_now = observed(gpu(0, pcie_generation_now=3, pcie_generation_max=UNSUPPORTED))["pcie-generation"]
    assert isinstance(only_now, Unknown)


def test_reasons_become_words_and_a_power_cap_is_none() -> None:
    assert observed(gpu(0, reasons=0x1 | 0x4))["slowdown"] == "none"
    assert observed(gpu(0, reasons=0x40 | 0x8))["slowdown"] == "hw-slowdown, hw-thermal"
    assert gpu_facts.told([gpu(0, reasons=0x80), gpu(1, reasons=0x80)], gpu_facts.slowed_down) == [
        "0000:41:00.0, 0000:42:00.0: slowed down by hw-power-brake"
    ]


def pins(*numbers: int) -> CapturedPin:
    return CapturedPin(
        gpus={
            UUIDS[number]: GpuPin(bus_id=f"0000:{0x41 + number:02x}:00.0", facts={"name": FactPin(value="A")})
            for number in numbers
        }
    )


def test_h18_a_gpu_is_found_by_uuid_then_bus_id_then_model() -> None:
    moved = Gpu(index=0, bus_id="0000:99:00.0", uuid=UUIDS[0], facts={"name": "A"})
    swapped = Gpu(index=1, bus_id="0000:42:00.0", uuid="GPU-new1", facts={"name": "B"})
    elsewhere = Gpu(index=2, bus_id="0000:77:00.0", uuid="GPU-new2", facts={"name": "A"})
    found = pairs(pins(0, 1, 2), [elsewhere, swapped, moved])
    assert [pair.gpu for pair in found] == [moved, swapped, elsewhere]
    assert [pair.sentence for pair in found] == [
        f"0000:99:00.0: was at 0000:41:00.0 before ({UUIDS[0]})",
        f"0000:42:00.0: another card, GPU-new1 in place of {UUIDS[1]}",
        f"0000:77:00.0: another card, GPU-new2 in place of {UUIDS[2]}, then at 0000:43:00.0",
    ]
    short = pairs(pins(0), [swapped])
    assert [(pair.uuid, pair.gpu) for pair in short] == [(UUIDS[0], None), (None, swapped)]


def test_the_manifest_wins_and_the_single_gpu_over_all() -> None:
    pin = HardwarePin(
        gpu={"ecc": FactPin(value=True), "mig": FactPin(value=True)},
        gpus={UUIDS[0]: {"mig": FactPin(value=False)}},
    )
    facts = {"ecc": FactPin(value=False), "vbios": FactPin(value="1"), "slowdown": FactPin(value="none")}
    one = Pair(UUIDS[0], GpuPin(bus_id="", facts=facts), gpu(0))
    values = {key: fact.value for key, fact in demanded(pin, one).items()}
    assert values == {"ecc": True, "mig": False, "vbios": "1", "slowdown": "none"}
    loaded = Pair(UUIDS[0], one.pin, gpu(0, utilisation_percent=99))
    assert "slowdown" not in demanded(pin, loaded), "heat under load is a note"


def test_a_capture_keeps_words_and_leaves_out_what_cannot_be_read() -> None:
    machine = Gpus(machine={"driver": "590", "cuda-driver": Unknown("x"), "kernel-module": "590"}, gpus=())
    pin, missing = captured(machine, [gpu(0, name="A", vbios=Unknown("no permission"), temperature_celsius=31)])
    facts = pin.gpus[UUIDS[0]].facts
    assert missing == ["0000:41:00.0.vbios: no permission"]
    assert facts["name"] == FactPin(value="A")
    assert facts["power-limit-watts"] == FactPin(value=UNSUPPORTED)
    assert "vbios" not in facts and "temperature-celsius" not in facts
    assert {key: fact.value for key, fact in pin.machine.items()} == {"count": 1, "driver": "590"}


def test_a_pin_takes_the_class_of_its_fact_or_of_the_manifest() -> None:
    pin = pin_hardware(
        Hardware(
            count=8,
            gpu={"power-limit-watts": 370, "clock-sm-mhz": Expected(value=2343, tolerance=20)},
            gpus={"00000000:41:00.0": {"pcie-width": 16}},
        )
    )
    assert pin is not None
    assert pin.machine == {"count": FactPin(value=8)}
    assert pin.gpu["power-limit-watts"] == FactPin(value=370.0, comparison=Class.WITHIN, tolerance=1.0)
    assert pin.gpu["clock-sm-mhz"] == FactPin(value=2343, comparison=Class.WITHIN, tolerance=20)
    assert pin.gpus == {"0000:41:00.0": {"pcie-width": FactPin(value=16, comparison=Class.AT_LEAST)}}
    assert pin_hardware(None) is None
    assert pin_hardware(Hardware()) is None


def test_what_no_gpu_is_named_by_is_refused() -> None:
    hardware = Hardware(uuids=("0",), gpus={"gpu0": {"ecc": True}, "GPU-1": {"ec": True}})
    assert [key for key, _ in hardware_problems(hardware)] == [
        "hardware.gpus.gpu0",
        "hardware.gpus.GPU-1.ec",
        "hardware.uuids[0]",
    ]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("[hardware]\nuuid = ['GPU-1']\n[env]", ["hardware.uuid", "did you mean `uuids`"]),
        ("[hardware.gpu]\npower-limit-watt = 1\n[env]", ["hardware.gpu.power-limit-watt", "power-limit-watts"]),
        ("[hardware]\ncount = 'x'\n[env]", ["hardware.count", "a whole number"]),
        ("[hardware.gpu]\necc = { value = true, clas = 'exact' }\n[env]", ["hardware"]),
        ("[env]\nCUDA_VISIBLE_DEVICES = 'all'", ["env.CUDA_VISIBLE_DEVICES", "neither an index nor a UUID"]),
        ("[env]\nCUDA_DEVICE_ORDER = 'FASTEST_FIRST'", ["env.CUDA_DEVICE_ORDER", "PCI_BUS_ID"]),
    ],
)
def test_a_wrong_section_is_refused_by_key(tmp_path: Path, change: str, said: list[str]) -> None:
    path = tmp_path / "one.toml"
    path.write_text(GOOD.replace("[env]", change, 1))
    with pytest.raises(ManifestError) as refused:
        load_manifest(path)
    for part in said:
        assert part in refused.value.message


def test_a_single_index_may_be_a_number(tmp_path: Path) -> None:
    path = tmp_path / "one.toml"
    path.write_text(GOOD.replace("[env]", "[env]\nCUDA_VISIBLE_DEVICES = 3\nCUDA_DEVICE_ORDER = 'PCI_BUS_ID'", 1))
    load_manifest(path)


def test_which_pin_is_whose_does_not_depend_on_the_order() -> None:
    gpus = [gpu(number) for number in range(3)]
    for order in (gpus, gpus[::-1], [gpus[1], gpus[2], gpus[0]]):
        found = gpu_pins.pairs(pins(0, 1, 2), order)
        assert [pair.gpu for pair in found] == gpus
