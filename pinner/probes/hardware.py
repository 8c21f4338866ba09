"""The GPUs that the engine will see, and their driver, as NVML tells.

Owns the aspect "hardware". A GPU is found again by UUID, then bus id, then model, never by its index. Only reads:
no setting of a GPU is ever changed. Without a demand in the lock NVML is asked only for an engine that uses GPUs,
and then only what is broken counts.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Set
from typing import Any

import msgspec

from pinner.engines import engine_for
from pinner.errors import OperationFailed
from pinner.host import gpus as reading
from pinner.host import procfs
from pinner.host.process import Started
from pinner.model.expectations import FactPin
from pinner.model.facts import ABSENT, Class, Fact, Observation, Unknown, compare_facts
from pinner.model.gpus import VARIABLE, Gpu, GpuProcess, Gpus, NvmlFailure, Visible, visible_gpus
from pinner.model.hardware import UNDER_LOAD, HardwarePin, pin_hardware
from pinner.model.lock import EnvironmentPin, Lock
from pinner.model.manifest import Manifest
from pinner.probes import environment, gpu_facts, gpu_pins
from pinner.probes.base import Findings, Judgement, LiveScene, RunningServer, Scene, Wish
from pinner.probes.gpu_pins import Pair

NAME = "hardware"
_LOCKED = "as locked"
_NOT_VISIBLE = "a process that is not visible from here"
_UNITS = {"-watts": "W", "-mhz": "MHz", "-celsius": "°C", "-bytes": "bytes"}
_NAMELESS = "a GPU that is broken does not tell its UUID"
_VERY_CARDS = "the manifest pins the very cards, by UUID"


class Foreign(msgspec.Struct, frozen=True):
    """A process that uses a GPU and is none of the deployment's."""

    gpu: str
    pid: int
    memory_bytes: int | None
    command: str

    @property
    def sentence(self) -> str:
        memory = "memory not told" if self.memory_bytes is None else f"{self.memory_bytes / 2**30:.1f} GiB"
        return f"pid {self.pid} ({self.command}) uses GPU {self.gpu}: {memory}"


def pin(wish: Wish) -> HardwarePin | None:
    """What the manifest demands, with the machine as it was captured; `wish.capture` captures it now."""
    demands = from_manifest(wish.manifest)
    previous = wish.previous.hardware if wish.previous else None
    captured = _capture(wish) if wish.capture else previous.captured if previous else None
    if captured is None:
        return demands
    return msgspec.structs.replace(demands or HardwarePin(), captured=captured)


def from_manifest(manifest: Manifest) -> HardwarePin | None:
    """The part that follows from the manifest alone."""
    return pin_hardware(manifest.hardware)


def without_capture(pinned: HardwarePin | None) -> HardwarePin | None:
    """The same part of a lock."""
    if pinned is None:
        return None
    rest = msgspec.structs.replace(pinned, captured=None)
    return None if rest == HardwarePin() else rest


def ask(lock: Lock) -> Started | NvmlFailure | None:
    """Start asking NVML where a check needs it; `observe` must follow."""
    return reading.ask() if lock.hardware is not None or uses_gpus(lock) else None


def uses_gpus(lock: Lock) -> bool:
    """Whether the engine computes on GPUs with these arguments."""
    return engine_for(lock.engine.kind).uses_gpus(lock.engine.argv)


def observe(scene: Scene) -> Observation | None:
    """Facts of the visible GPUs; None where nothing asks for them."""
    asked = scene.nvml or ask(scene.lock)
    if asked is None:
        return None
    findings, pinned = Findings(), scene.lock.hardware
    found = reading.answer(asked)
    if isinstance(found, NvmlFailure):
        if pinned is None and found.is_absent:
            findings.notes.append(f"{found.sentence}, although the engine uses GPUs")
        else:
            _unknown(findings, "nvml", found.sentence)
        return findings.observation(NAME)
    visible = visible_gpus(visible_value(scene.lock.env, os.environ), found.gpus)
    _judge_visible(findings, scene.lock, visible, found)
    if pinned is not None:
        _judge_machine(findings, pinned, found, visible)
        _judge_gpus(findings, pinned, visible.gpus)
    for gpu in visible.gpus:
        if gpu.broken:
            _unknown(findings, f"gpu.{gpu.title}", gpu.broken)
    for sentence in (gpu_facts.left_over_cap, gpu_facts.slowed_down, gpu_facts.memory_errors, gpu_facts.shared):
        findings.notes += gpu_facts.told(visible.gpus, sentence)
    count = len(visible.gpus)
    if count == 0 and pinned is None:
        findings.notes.append("the engine uses GPUs, and there is none that it would see")
    findings.how.append("1 GPU" if count == 1 else f"{count} GPUs")
    return findings.observation(NAME)


def observe_live(live: LiveScene) -> Observation | None:
    """What only a loaded GPU shows, and who else uses it. The rest is judged at rest, also while it runs."""
    lock = live.scene.lock
    asked = ask(lock)
    found = reading.answer(asked) if asked is not None else None
    if not isinstance(found, Gpus):
        return None
    findings = Findings()
    gpus = visible_gpus(live.env.get(VARIABLE), found.gpus).gpus
    pinned = lock.hardware
    for pair in gpu_pins.pairs(pinned.captured, gpus) if pinned is not None else ():
        gpu, demanded = pair.gpu, gpu_pins.demanded(pinned, pair) if pinned is not None else {}
        loaded = {key: one for key, one in demanded.items() if key in UNDER_LOAD}
        if gpu is None or gpu.broken or not loaded:
            continue
        if gpu_facts.is_at_work(gpu):
            _judge_facts(findings, gpu, loaded)
        else:
            findings.notes.append(f"{gpu.title}: idle; {', '.join(loaded)} can be judged only under load")
    own = {process.pid for process in live.processes}
    foreign = foreign_processes(gpus, own)
    if not any(one.pid in own for gpu in gpus for one in _processes_of(gpu)):
        # The driver may count in another PID namespace, as in a container: then these can be the engine's own.
        foreign = [one for one in foreign if one.command != _NOT_VISIBLE]
    findings.notes += [one.sentence for one in foreign]
    return findings.observation(NAME)


def compare(lock: Lock, observation: Observation) -> Judgement:  # noqa: ARG001  # the protocol's shape
    """Pure. Which pin is which GPU's is known only with the machine: both sides stand in the observation."""
    return compare_facts({}, observation)


def capture(_server: RunningServer) -> None:
    """None: a running server says nothing of the machine; `lock --capture` pins it as it is."""


def foreign_on_visible(lock: Lock, own: Set[int]) -> list[Foreign]:
    """Processes, other than `own`, on the GPUs that the engine would use; none where NVML does not tell."""
    asked = ask(lock)
    found = reading.answer(asked) if asked is not None else None
    if not isinstance(found, Gpus):
        return []
    return foreign_processes(visible_gpus(visible_value(lock.env, os.environ), found.gpus).gpus, own)


def foreign_processes(gpus: tuple[Gpu, ...], own: Set[int]) -> list[Foreign]:
    """Processes, other than `own`, that compute on these GPUs."""
    return [
        Foreign(gpu.title, one.pid, one.memory_bytes, _command(one.pid))
        for gpu in gpus
        for one in _processes_of(gpu)
        if one.pid not in own
    ]


def _processes_of(gpu: Gpu) -> tuple[GpuProcess, ...]:
    return () if isinstance(gpu.processes, Unknown) else gpu.processes


def _command(pid: int) -> str:
    try:
        seen = procfs.process(pid)
    except procfs.Unsupported:
        seen = None
    return _NOT_VISIBLE if seen is None else seen.title or seen.comm


def visible_value(pin: EnvironmentPin, caller: Mapping[str, str]) -> str | None:
    """CUDA_VISIBLE_DEVICES as the engine will have it."""
    given = pin.site.get(VARIABLE) or pin.secret.get(VARIABLE)
    return caller.get(given) if given else pin.set.get(VARIABLE)


def _judge_visible(findings: Findings, lock: Lock, visible: Visible, found: Gpus) -> None:
    """An entry that names no GPU: CUDA says nothing, and uses fewer."""
    if visible.stopped_at is None:
        return
    value = visible_value(lock.env, os.environ)
    if any(gpu.uuid is None for gpu in found.gpus):
        _unknown(findings, VARIABLE, f"{visible.stopped_at}; {_NAMELESS}")
        return
    there = ", ".join(f"{gpu.index} {gpu.title} {gpu.uuid}" for gpu in found.gpus) or "none"
    note = f"{visible.stopped_at}: CUDA stops there without a word, and uses the GPUs before it"
    findings.differs(VARIABLE, value, f"{len(visible.gpus)} GPUs", note, f"GPUs here: {there}")


def _judge_machine(findings: Findings, pinned: HardwarePin, found: Gpus, visible: Visible) -> None:
    facts: dict[str, Fact] = {**found.machine, "count": len(visible.gpus)}
    module = found.machine["kernel-module"]
    for key, one in gpu_pins.demanded_of_machine(pinned).items():
        evidence = (f"kernel module {module}, NVML {found.machine['nvml']}",) if key == "driver" else ()
        _put(findings, key, one, facts[key], evidence)
    if not pinned.uuids:
        return
    seen = {gpu.uuid: gpu for gpu in visible.gpus if gpu.uuid is not None}
    for uuid in sorted(set(pinned.uuids) - seen.keys()):
        _missing(findings, uuid, visible.gpus, _VERY_CARDS)
    for uuid in sorted(seen.keys() - set(pinned.uuids)):
        findings.differs(f"gpu.{uuid}", ABSENT, f"at {seen[uuid].title}", _VERY_CARDS)


def _judge_gpus(findings: Findings, pinned: HardwarePin, gpus: tuple[Gpu, ...]) -> None:
    paired = gpu_pins.pairs(pinned.captured, gpus)
    for pair in paired:
        if pair.gpu is None:
            name = pair.pin.facts.get("name") if pair.pin else None
            findings.differs(
                f"gpu.{pair.pin.bus_id if pair.pin else pair.uuid}",
                f"{name.value if name else 'a GPU'} {pair.uuid}",
                ABSENT,
                "it was there when the machine was captured",
            )
        elif not pair.gpu.broken:
            demanded = gpu_pins.demanded(pinned, pair)
            _judge_facts(findings, pair.gpu, {key: one for key, one in demanded.items() if key not in UNDER_LOAD})
    findings.notes += [sentence for pair in paired if (sentence := pair.sentence)]
    findings.notes += gpu_facts.told(gpus, gpu_facts.idle_link)
    _judge_links(findings, paired)
    names = {name for gpu in gpus for name in (gpu.uuid, gpu.bus_id)}
    for key in sorted(pinned.gpus.keys() - names):
        _missing(findings, key, gpus, f'the manifest has [hardware.gpus."{key}"]')


def _missing(findings: Findings, name: str, gpus: tuple[Gpu, ...], note: str) -> None:
    """A GPU that is named and not there; a broken one may be it."""
    is_hidden = name.startswith("GPU-") and any(gpu.uuid is None for gpu in gpus)
    there = Unknown(_NAMELESS) if is_hidden else ABSENT
    findings.differs(f"gpu.{name}", "present", there, note)


def _judge_facts(findings: Findings, gpu: Gpu, demanded: Mapping[str, FactPin]) -> None:
    facts = gpu_facts.observed(gpu)
    for key, one in demanded.items():
        fact = facts[key]
        if gpu_facts.has_no_value(fact) and fact != one.value:
            fact = gpu_facts.no_value(key, fact)
        _put(findings, f"gpu.{gpu.title}.{key}", one, fact, gpu_facts.evidence(gpu, key))


def _judge_links(findings: Findings, paired: list[Pair]) -> None:
    """How each two captured GPUs reach each other, whichever place they have now."""
    now = {pair.uuid: pair.gpu for pair in paired if pair.gpu is not None and not pair.gpu.broken}
    for pair in paired:
        here = now.get(pair.uuid)
        if pair.pin is None or here is None:
            continue
        for uuid, level in pair.pin.links.items():
            there = now.get(uuid)
            if there is not None:
                seen = here.links.get(there.title, Unknown("NVML does not tell how they reach each other"))
                _put(findings, f"gpu.{here.title}.link-to.{there.title}", FactPin(value=level), seen, ())


def _put(findings: Findings, key: str, pinned: FactPin, observed: Fact, evidence: tuple[str, ...]) -> None:
    findings.sealed[key], findings.facts[key] = pinned.value, observed
    findings.expectations[key] = pinned.expectation
    findings.evidence[key] = evidence
    if pinned.comparison is Class.WITHIN:
        findings.notes_by_key[key] = f"within {pinned.tolerance or 0:g}{_unit(key)} would do"


def _unit(key: str) -> str:
    return next((f" {unit}" for word, unit in _UNITS.items() if key.endswith(word)), "")


def _unknown(findings: Findings, key: str, reason: str) -> None:
    findings.sealed[key], findings.facts[key] = _LOCKED, Unknown(reason)


def _capture(wish: Wish) -> Any:
    """The machine as it is. Raises OperationFailed where a part of it is broken: that is no state to keep."""
    wish.say("reading the GPUs")
    found = reading.read()
    if isinstance(found, NvmlFailure):
        if not found.is_absent:
            raise OperationFailed(f"cannot capture the GPUs: {found.words}", hint=found.hint)
        wish.warn(f"no GPU is captured: {found.words}")
        return None
    visible = visible_gpus(visible_value(environment.from_manifest(wish.manifest), os.environ), found.gpus)
    if visible.stopped_at is not None:
        raise OperationFailed(f"cannot capture the GPUs: {VARIABLE}: {visible.stopped_at}")
    for gpu in visible.gpus:
        if gpu.broken:
            raise OperationFailed(f"cannot capture the GPUs: {gpu.title}: {gpu.broken}")
    captured, missing = gpu_pins.captured(found, visible.gpus)
    names = sorted({str(gpu.facts.get("name")) for gpu in visible.gpus})
    count = "1 GPU" if len(visible.gpus) == 1 else f"{len(visible.gpus)} GPUs"
    wish.warn(f"captured {count} ({', '.join(names)}), driver {found.machine['driver']}")
    for sentence in (gpu_facts.left_over_cap, gpu_facts.slowed_down, gpu_facts.memory_errors, gpu_facts.shared):
        for text in gpu_facts.told(visible.gpus, sentence):
            wish.warn(f"captured as it is: {text}")
    for line in missing:
        wish.warn(f"not captured: {line}")
    return captured
