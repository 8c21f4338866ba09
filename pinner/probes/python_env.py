"""The Python environment, aspect `python`: built by pinner and sealed, or in place.

Owns the protocol; the two kinds are in probes/python_sealed.py and probes/python_in_place.py.
"""

from __future__ import annotations

from pathlib import Path

from pinner.errors import ManifestError, UnknownFact
from pinner.model.facts import Observation, compare_facts
from pinner.model.lock import Lock, PythonPin
from pinner.probes import python_in_place, python_sealed
from pinner.probes.base import Judgement, LiveScene, Scene, Wish
from pinner.probes.findings import key_of
from pinner.probes.python_sealed import Damaged, seal, seal_base

__all__ = [
    "NAME",
    "Damaged",
    "capture",
    "compare",
    "observe",
    "observe_live",
    "pin",
    "seal",
    "seal_base",
    "site_packages",
]

NAME = "python"


def site_packages(env: Path) -> Path:
    """The site-packages of a built environment. FileNotFoundError if it has none."""
    found = python_sealed.site_directories(env)
    if not found:
        raise FileNotFoundError(2, "no site-packages in the environment", str(env))
    return found[0]


def pin(wish: Wish) -> PythonPin:
    """Pin an environment in place; one that is resolved is pinned by its pylock, in deploy/resolve.py."""
    path = wish.manifest.python.path
    if path is None:
        raise ManifestError("python.path: is missing; only an environment in place is pinned by its files")
    pinned, notes = python_in_place.pin(wish.directory, path, wish.memory)
    for note in notes:
        wish.warn(note)
    return pinned


def observe(scene: Scene) -> Observation:
    """What the environment holds now, and which interpreter it has. UnknownFact before it is built."""
    if scene.lock.python.path is not None:
        found = python_in_place.look(scene, scene.lock.python)
    elif scene.workspace is not None:
        found = python_sealed.look(scene, scene.workspace)
    else:
        raise UnknownFact("nothing is materialized to look at")
    return Observation(
        aspect=NAME,
        facts=found.facts,
        sealed=found.sealed,
        evidence=found.evidence,
        notes_by_key=found.notes_by_key,
        notes=tuple(found.notes),
        how="; ".join(found.how),
    )


def observe_live(_live: LiveScene) -> None:
    """Nothing yet: which libraries and modules the processes have loaded comes with the probe of libraries."""


def compare(lock: Lock, observation: Observation) -> Judgement:
    """Pure: the lock's pins, and for a built environment what it was sealed with."""
    python = lock.python
    pinned = {"interpreter": python.version, **python.loose}
    pinned |= {key_of(one.name): one.content for one in python.distributions}
    return compare_facts(pinned, observation)


def capture(scene: Scene) -> PythonPin | None:
    """The pin that an environment in place would have now; None for a built one, which has its lock."""
    path = scene.lock.python.path
    return None if path is None else python_in_place.pin(scene.directory, path, scene.memory)[0]
