"""The facts of GPUs that can be expected of a machine, and their sections in manifest and lock.

Owns which facts there are, their units and how each is compared by default. Must not read them:
pinner/probes/hardware.py does.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from pinner.model.expectations import FactPin, FactSpec, Given
from pinner.model.facts import Class
from pinner.model.sections import Part, Section, Text

MACHINE_FACTS: dict[str, FactSpec] = {
    "count": FactSpec(int, "GPUs that the engine can see"),
    "driver": FactSpec(str, "version of the driver"),
    "cuda-driver": FactSpec(str, "CUDA version that the driver offers"),
}
# A link trains down when nothing uses it, so that its present generation says nothing on an idle GPU.
GPU_FACTS: dict[str, FactSpec] = {
    "name": FactSpec(str, "model"),
    "vbios": FactSpec(str, "version of the video BIOS"),
    "memory-total-bytes": FactSpec(int, "memory"),
    "pcie-max-generation": FactSpec(int, "highest PCIe generation of GPU and slot"),
    "pcie-width": FactSpec(int, "present PCIe lanes"),
    "power-limit-watts": FactSpec(float, "power limit", Class.WITHIN, 1.0),
    "ecc": FactSpec(bool, "ECC in use"),
    "mig": FactSpec(bool, "MIG in use"),
    "persistence": FactSpec(bool, "persistence mode", Class.RECORD_ONLY),
}


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
    """One GPU as it was captured."""

    uuid: str
    bus_id: str
    facts: dict[str, FactPin] = {}


class HardwarePin(Part, frozen=True, kw_only=True):
    """The facts that are demanded: of the machine, of every visible GPU, and of single ones by UUID or bus id.

    `captured` are the GPUs of the machine on which `lock --capture` was called.
    """

    machine: dict[str, FactPin] = {}
    uuids: tuple[str, ...] = ()
    gpu: dict[str, FactPin] = {}
    gpus: dict[str, dict[str, FactPin]] = {}
    captured: tuple[GpuPin, ...] = ()
