"""Which pinned GPU is which of those that are there, and pins of GPUs as they are.

Pure. An index is no identity: NVML's order may change over a reboot, so that UUID, then bus id, then model decide.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from pinner.model.expectations import FactPin
from pinner.model.facts import Class, Fact, Unknown
from pinner.model.gpus import Gpu, Gpus
from pinner.model.hardware import GPU_FACTS, MACHINE_FACTS, UNDER_LOAD, CapturedPin, GpuPin, HardwarePin
from pinner.probes.gpu_facts import has_no_value, is_at_work, observed


class Pair(msgspec.Struct, frozen=True):
    """A captured GPU with the one that is now in its place; `uuid` and `pin` are None for one that is new."""

    uuid: str | None
    pin: GpuPin | None
    gpu: Gpu | None

    @property
    def sentence(self) -> str | None:
        """What is worth telling of a GPU that is not where or who it was."""
        if self.pin is None or self.gpu is None or self.gpu.broken:
            return None
        if self.uuid != self.gpu.uuid:
            where = "" if self.pin.bus_id == self.gpu.bus_id else f", then at {self.pin.bus_id}"
            return f"{self.gpu.title}: another card, {self.gpu.uuid} in place of {self.uuid}{where}"
        if self.pin.bus_id != self.gpu.bus_id:
            return f"{self.gpu.title}: was at {self.pin.bus_id} before ({self.uuid})"
        return None


def pairs(captured: CapturedPin | None, gpus: Sequence[Gpu]) -> list[Pair]:
    """Every captured GPU and every one that is there, each once."""
    pins = dict(captured.gpus) if captured else {}
    left = list(gpus)
    found: dict[str, Gpu] = {}
    rules: tuple[Callable[[str, GpuPin, Gpu], bool], ...] = (
        lambda uuid, _pin, gpu: gpu.uuid == uuid,
        lambda _uuid, pin, gpu: gpu.bus_id == pin.bus_id and gpu.bus_id is not None,
        lambda _uuid, pin, gpu: "name" in pin.facts and gpu.facts.get("name") == pin.facts["name"].value,
        # One that is lost and cannot say who it is stands for one that is missed.
        lambda _uuid, _pin, gpu: gpu.broken is not None and gpu.bus_id is None,
    )
    for is_same in rules:
        for uuid, pin in pins.items():
            if uuid in found:
                continue
            match = next((gpu for gpu in left if is_same(uuid, pin, gpu)), None)
            if match is not None:
                found[uuid] = match
                left.remove(match)
    known = [Pair(uuid, pin, found.get(uuid)) for uuid, pin in pins.items()]
    return [*known, *(Pair(None, None, gpu) for gpu in left)]


def demanded(pin: HardwarePin, pair: Pair) -> dict[str, FactPin]:
    """The facts that the lock demands of one GPU; what the manifest says wins over what was captured."""
    facts = dict(pair.pin.facts) if pair.pin else {}
    if pair.gpu is not None and is_at_work(pair.gpu):
        # Heat comes and goes with the load: a note tells of it, and only who asks for it gets drift.
        facts.pop("slowdown", None)
    facts.update(pin.gpu)
    if pair.gpu is not None:
        for name in (pair.gpu.bus_id, pair.gpu.uuid):
            facts.update(pin.gpus.get(name or "", {}))
    return facts


def demanded_of_machine(pin: HardwarePin) -> dict[str, FactPin]:
    """The same of the machine."""
    return {**(pin.captured.machine if pin.captured else {}), **pin.machine}


def captured(machine: Gpus, visible: Sequence[Gpu]) -> tuple[CapturedPin, list[str]]:
    """Pins of the machine as it is, and what of it could not be read and is not pinned."""
    missing: list[str] = []
    facts: dict[str, Fact] = {**machine.machine, "count": len(visible)}
    pins = {}
    for at, gpu in enumerate(visible):
        seen = {key: fact for key, fact in observed(gpu).items() if key not in UNDER_LOAD}
        missing += [f"{gpu.title}.{key}: {fact.reason}" for key, fact in seen.items() if isinstance(fact, Unknown)]
        pins[gpu.uuid or gpu.title] = GpuPin(
            bus_id=gpu.bus_id or "",
            facts={key: _pin(key, fact) for key, fact in seen.items() if not isinstance(fact, Unknown)},
            links={
                other.uuid or other.title: gpu.links[other.title]
                for other in visible[at + 1 :]
                if other.title in gpu.links
            },
        )
    own = {key: FactPin(value=facts[key]) for key in MACHINE_FACTS if not isinstance(facts[key], Unknown)}
    return CapturedPin(machine=own, gpus=pins), missing


def _pin(key: str, fact: Fact) -> FactPin:
    spec = GPU_FACTS[key]
    if has_no_value(fact):
        return FactPin(value=fact)
    tolerance = spec.tolerance if spec.comparison is Class.WITHIN else None
    return FactPin(value=fact, comparison=spec.comparison, tolerance=tolerance)
