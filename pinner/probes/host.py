"""The machine that the engine runs on, aspect `host`: kernel, processors, memory, limits, container.

Owns the choice of facts; pinner/host/machine.py reads them. What the lock does not demand is not read.
"""

from __future__ import annotations

from collections.abc import Mapping

from pinner.host import machine
from pinner.model import hostfacts
from pinner.model.expectations import FactPin
from pinner.model.facts import ABSENT, Fact, Observation, Unknown, compare_facts
from pinner.model.lock import Lock
from pinner.model.manifest import Manifest
from pinner.probes.base import Judgement, LiveScene, RunningServer, Scene, Wish

NAME = "host"


def pin(wish: Wish) -> dict[str, FactPin]:
    """What the manifest expects and, besides, the machine as it was captured, now or for the previous lock."""
    pins = from_manifest(wish.manifest)
    if wish.capture:
        # What is free at the moment would make every capture another one.
        seen = machine.read(hostfacts.HOST_FACTS.keys() - hostfacts.BEFORE_LAUNCH)
        given = wish.manifest.host
        found = {
            key: hostfacts.captured(key, value, given.get(key)) for key, value in seen.items() if _is_value(value)
        }
        unknown = sorted(key for key, value in seen.items() if isinstance(value, Unknown) and key not in pins)
        if unknown:
            wish.warn(f"host: not captured, since it cannot be read: {', '.join(unknown)}")
    else:
        old = wish.previous.host if wish.previous else {}
        found = {key: one for key, one in old.items() if one.captured}
    return dict(sorted({**found, **pins}.items()))


def from_manifest(manifest: Manifest) -> dict[str, FactPin]:
    """The pins that follow from the manifest alone."""
    return hostfacts.expected(manifest.host)


def observe(scene: Scene) -> Observation | None:
    """The demanded facts now; limits are those that an engine started from here would have."""
    pins = hostfacts.demanded(scene.lock.host)
    return _observation(pins, machine.read(pins), ()) if pins else None


def observe_live(live: LiveScene) -> Observation | None:
    """The limits that the engine's main process really has: its supervisor may have been started under others."""
    demanded = hostfacts.demanded(live.scene.lock.host)
    pins = {key: one for key, one in demanded.items() if key in hostfacts.OF_THE_PROCESS}
    if not pins:
        return None
    main = live.processes[0]
    seen = machine.read(pins, machine.Place(pid=main.pid))
    return _observation(pins, seen, (f"of pid {main.pid} ({main.title or main.comm})",))


def _observation(pins: Mapping[str, FactPin], seen: Mapping[str, Fact], evidence: tuple[str, ...]) -> Observation:
    return Observation(
        aspect=NAME,
        facts=dict(seen),
        evidence=dict.fromkeys(seen, evidence) if evidence else {},
        notes_by_key={key: hostfacts.HOST_FACTS[key].about for key in seen if key in hostfacts.HOST_FACTS},
        # A live look is at some of what the look at rest has counted.
        how="" if evidence else f"{len(pins)} facts",
    )


def compare(lock: Lock, observation: Observation) -> Judgement:
    """Pure: (differences, unknown) among the facts that were looked at."""
    pins = {key: lock.host[key] for key in observation.facts if key in lock.host}
    expectations = {key: one.expectation for key, one in pins.items()}
    met = {key: one.value for key, one in pins.items() if _has_no_limit(one, observation.facts[key])}
    seen = Observation(
        aspect=observation.aspect,
        facts={**observation.facts, **met},
        evidence=observation.evidence,
        notes_by_key=observation.notes_by_key,
    )
    return compare_facts({key: one.value for key, one in pins.items()}, seen, expectations)


def capture(_server: RunningServer) -> None:
    """None: `lock --capture` pins the host, through `pin`."""


def _has_no_limit(pin: FactPin, observed: Fact) -> bool:
    return observed == hostfacts.UNLIMITED and hostfacts.is_met_without_limit(pin)


def _is_value(fact: Fact) -> bool:
    return not isinstance(fact, Unknown) and fact != ABSENT
