"""The facts of GPUs that can be expected of a machine, and their sections in manifest and lock.

Owns which facts there are, their units and how each is compared by default. Must not read them:
pinner/probes/hardware.py does.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from pinner.model.expectations import FactPin, FactSpec, Given, expected_problems, pin_expected
from pinner.model.facts import Class
from pinner.model.gpus import bus_id
from pinner.model.sections import Part, Section, Text

MACHINE_FACTS: dict[str, FactSpec] = {
    "count": FactSpec(int, "GPUs that the engine can see"),
    "driver": FactSpec(str, "version of the driver"),
    "cuda-driver": FactSpec(str, 'CUDA version that the driver offers, such as "13.1"'),
}
GPU_FACTS: dict[str, FactSpec] = {
    "name": FactSpec(str, "model"),
    "vbios": FactSpec(str, "version of the video BIOS"),
    "memory-total-bytes": FactSpec(int, "memory"),
    # A link trains down when nothing uses it, so that an idle GPU is judged by what its link can do.
    "pcie-generation": FactSpec(
        int, "PCIe generation: the present one under load, else the highest", Class.AT_LEAST
    ),
    "pcie-width": FactSpec(int, "present PCIe lanes", Class.AT_LEAST),
    "nvlinks": FactSpec(int, "active NVLinks"),
    "power-limit-watts": FactSpec(float, "power limit: the lower of set and enforced", Class.WITHIN, 1.0),
    "clock-sm-max-mhz": FactSpec(int, "highest clock of the processors"),
    "clock-memory-max-mhz": FactSpec(int, "highest clock of the memory"),
    "clock-application-graphics-mhz": FactSpec(int, "application clock, where the GPU has one"),
    "clock-application-memory-mhz": FactSpec(int, "application clock of the memory"),
    "slowdown": FactSpec(str, '"none", or what slows the clocks down: hw-slowdown, hw-thermal, hw-power-brake, …'),
    "ecc": FactSpec(bool, "ECC in use"),
    "mig": FactSpec(bool, "MIG in use"),
    "persistence": FactSpec(bool, "persistence mode; without it a power limit is lost when the driver unloads"),
    "compute-mode": FactSpec(str, '"default", "exclusive-process" or "prohibited"'),
    "virtualization": FactSpec(str, '"none", "passthrough", "vgpu", …'),
    "clock-sm-mhz": FactSpec(int, "present clock of the processors", Class.RECORD_ONLY),
    "clock-memory-mhz": FactSpec(int, "present clock of the memory", Class.RECORD_ONLY),
    "power-watts": FactSpec(float, "present power draw", Class.RECORD_ONLY),
    "temperature-celsius": FactSpec(int, "present temperature", Class.RECORD_ONLY),
}
# They mean something only while the deployment computes, and no capture pins them.
UNDER_LOAD = frozenset({"clock-sm-mhz", "clock-memory-mhz", "power-watts", "temperature-celsius"})


class Hardware(Section, frozen=True, kw_only=True):
    """What a manifest expects of the GPUs.

    The machine's own facts stand in the section itself; `gpu` holds for every visible GPU, `gpus` for one of them,
    named by its UUID or PCI bus id. `uuids` pins the very cards.
    """

    count: Given | None = None
    driver: Given | None = None
    cuda_driver: Given | None = None
    uuids: tuple[Text, ...] = ()
    gpu: dict[str, Given] = {}
    gpus: dict[Annotated[str, Meta(min_length=4)], dict[str, Given]] = {}


class GpuPin(Part, frozen=True, kw_only=True):
    """One GPU as it was captured; `links` tells by UUID how those that follow it are reached."""

    bus_id: str
    facts: dict[str, FactPin] = {}
    links: dict[str, str] = {}


class CapturedPin(Part, frozen=True, kw_only=True):
    """The machine on which `lock --capture` was called: its own facts, and its GPUs by UUID."""

    machine: dict[str, FactPin] = {}
    gpus: dict[str, GpuPin] = {}


class HardwarePin(Part, frozen=True, kw_only=True):
    """The facts that are demanded: of the machine, of every visible GPU, and of single ones by UUID or bus id.

    These follow from the manifest and win over `captured`, which does not.
    """

    machine: dict[str, FactPin] = {}
    uuids: tuple[str, ...] = ()
    gpu: dict[str, FactPin] = {}
    gpus: dict[str, dict[str, FactPin]] = {}
    captured: CapturedPin | None = None


def pin_hardware(hardware: Hardware | None) -> HardwarePin | None:
    """What a manifest alone demands; None where that is nothing."""
    if hardware is None:
        return None
    pin = HardwarePin(
        machine=_pins(MACHINE_FACTS, _machine(hardware)),
        uuids=hardware.uuids,
        gpu=_pins(GPU_FACTS, hardware.gpu),
        gpus={gpu_name(name): _pins(GPU_FACTS, facts) for name, facts in sorted(hardware.gpus.items())},
    )
    return None if pin == HardwarePin() else pin


def hardware_problems(hardware: Hardware | None) -> list[tuple[str, str]]:
    """Everything wrong in the section, as (key path, sentence)."""
    if hardware is None:
        return []
    found = expected_problems("hardware", MACHINE_FACTS, _machine(hardware))
    found += expected_problems("hardware.gpu", GPU_FACTS, hardware.gpu)
    for name, facts in hardware.gpus.items():
        key = f"hardware.gpus.{name}"
        if bus_id(name) is None and not name.startswith("GPU-"):
            found.append((key, "is neither a UUID (GPU-…) nor a PCI bus id (0000:41:00.0)"))
        found += expected_problems(key, GPU_FACTS, facts)
    for index, uuid in enumerate(hardware.uuids):
        if not uuid.startswith("GPU-"):
            found.append((f"hardware.uuids[{index}]", f"{uuid!r} is not a UUID of a GPU (GPU-…)"))
    return found


def gpu_name(text: str) -> str:
    """One spelling of a UUID or bus id that names a GPU."""
    return bus_id(text) or text


def _machine(hardware: Hardware) -> dict[str, Given]:
    given = {key: getattr(hardware, key.replace("-", "_")) for key in MACHINE_FACTS}
    return {key: one for key, one in given.items() if one is not None}


def _pins(specs: dict[str, FactSpec], given: dict[str, Given]) -> dict[str, FactPin]:
    pins = {key: pin_expected(specs[key], one) for key, one in sorted(given.items())}
    return {key: pin for key, pin in pins.items() if pin is not None}
