"""The Python environment, aspect `python`: built by pinner and sealed, or in place.

Owns the protocol; the two kinds are in probes/python_sealed.py and probes/python_in_place.py.
"""

from __future__ import annotations

import re
from pathlib import Path

from pinner.errors import ManifestError, UnknownFact
from pinner.model.facts import Observation, compare_facts
from pinner.model.lock import Lock, PythonPin
from pinner.probes import python_in_place, python_sealed
from pinner.probes.base import Captured, Judgement, LiveScene, RunningServer, Scene, Wish
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
    if source.package is not None:
        _refuse_other_engine(wish, pinned, source.package, source.version or "")
    return pinned


def _refuse_other_engine(wish: Wish, pinned: PythonPin, package: str, version: str) -> None:
    """A package in an environment in place is what is installed there, and nothing else."""
    name = re.sub(r"[-_.]+", "-", package).lower()
    found = [one.version for one in pinned.distributions if re.sub(r"[-_.]+", "-", one.name).lower() == name]
    if not found:
        raise ManifestError(
            f"engine.source.package: {package} is not installed in the environment {wish.manifest.python.path}"
        )
    if found != [version]:
        raise ManifestError(
            f"engine.source.version: the environment {wish.manifest.python.path} has {package} "
            f"{' and '.join(found)}, and the manifest asks for {version}",
            hint="write the version that is installed; its content is pinned, not its number",
        )


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


def capture(server: RunningServer) -> Captured:
    """The environment of the server's interpreter, in place."""
    from pinner.probes import python_capture  # noqa: PLC0415  # only `adopt` wants it

    return python_capture.capture(server)
