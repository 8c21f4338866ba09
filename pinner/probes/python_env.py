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
from pinner.probes.base_interpreter import KEY as BASE
from pinner.probes.linked import link_key
from pinner.probes.python_sealed import BYTE_CODE, Damaged, seal, seal_base
from pinner.probes.python_words import key_of

__all__ = [
    "BASE",
    "BYTE_CODE",
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
    source = wish.manifest.engine.source
    engine = wish.directory / source.path / source.subdirectory if source.path is not None else None
    pinned, notes = python_in_place.pin(wish.directory, path, wish.memory, engine=engine)
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
    return found.observation(NAME)


def observe_live(_live: LiveScene) -> None:
    """Nothing: which libraries the processes have loaded is the probe of libraries', and modules the source's."""


def compare(lock: Lock, observation: Observation) -> Judgement:
    """Pure: the lock's pins, and for a built environment what it was sealed with."""
    python = lock.python
    pinned = {"interpreter": python.version, **python.loose}
    pinned |= {link_key(name): digest for name, digest in python.linked.items()}
    if python.interpreter is not None:
        pinned[BASE] = python.interpreter
    pinned |= {key_of(one.name): one.content for one in python.distributions}
    return compare_facts(pinned, observation)


def capture(scene: Scene) -> PythonPin | None:
    """The pin that an environment in place would have now; None for a built one, which has its lock."""
    path = scene.lock.python.path
    if path is None:
        return None
    engine = python_in_place.engine_of(scene)
    return python_in_place.pin(scene.directory, path, scene.memory, engine=engine)[0]
