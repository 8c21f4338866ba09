"""Kernel, autotune and compile caches: state that moves the result, aspect `caches`.

Owns what a cache depends on and where it lies: `caches/KEY` of the workspace, KEY being the digest of all that.
So no cache serves another lock, another model or another GPU, and a rebuilt workspace starts cold. Must not write:
pinner/deploy/caches.py does.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from pinner.engines import engine_for
from pinner.host import machine
from pinner.model.caches import Made
from pinner.model.facts import Difference, Observation, compare_facts
from pinner.model.lock import Lock
from pinner.probes.base import Findings, Judgement, LiveScene, RunningServer, Scene, Wish, Workspace

NAME = "caches"
MADE = "made.json"
# Places of a user's caches in general; an engine's own variables are its CACHES.
GENERAL: Mapping[str, str] = {"XDG_CACHE_HOME": "xdg"}
# Variables of communication do not change what is compiled or tuned: to try one must not cost a cold start.
NOT_COMPILED = ("NCCL_", "GLOO_", "NVSHMEM_")
# Accepted differences of these aspects are code or hardware that the lock does not name.
CODE_ASPECTS = ("source", "python", "model", "draft", "hardware")


def inputs(
    lock: Lock, workspace: Workspace, accepted: Iterable[Difference] = (), *, root: Path = Path("/")
) -> dict[str, Any]:
    """All that decides what an engine finds in its caches, or puts there."""
    engine = engine_for(lock.engine.kind)
    found: dict[str, Any] = {
        "workspace": workspace.root.name,
        "argv": _without_address(lock.engine.argv),
        "model": _digest(lock.model.files),
        "draft": _digest(lock.draft.files) if lock.draft else None,
        "env": {name: value for name, value in lock.env.set.items() if not name.startswith(NOT_COMPILED)},
    }
    if engine.uses_gpus(lock.engine.argv):
        found |= {"gpus": _gpus(root), "driver": _driver(root)}
    other = [f"{one.name} {one.observed}" for one in accepted if one.aspect in CODE_ASPECTS]
    return found | ({"accepted": _digest(sorted(other))} if other else {})


def directory(workspace: Workspace, depends_on: Mapping[str, Any]) -> Path:
    """Where the cache with these inputs lies, made or not."""
    return workspace.root / "caches" / _digest(depends_on)[:24]


def variables(lock: Lock, place: Path) -> dict[str, str]:
    """The variables that make an engine keep its caches in a directory."""
    return {name: str(place / part) for name, part in {**GENERAL, **engine_for(lock.engine.kind).CACHES}.items()}


def read_made(place: Path) -> Made | None:
    """What a cache says of itself; None where it does not say, or not so that it can be understood."""
    try:
        return msgspec.json.decode((place / MADE).read_bytes(), type=Made)
    except (OSError, msgspec.DecodeError):
        return None


def pin(_wish: Wish) -> None:
    """Nothing: a cache is made by running, and its key follows from the other pins."""


def observe(scene: Scene) -> Observation | None:
    """Whether there is a cache for this lock on this machine, and whether it is the one it should be."""
    if scene.workspace is None:
        return None
    findings = Findings()
    depends_on = inputs(scene.lock, scene.workspace)
    place = directory(scene.workspace, depends_on)
    own = [name for name in variables(scene.lock, place) if name in _listed(scene.lock)]
    if own:
        findings.notes.append(f"cache of yours, not keyed by pinner and not checked: {', '.join(own)}")
    if not place.is_dir():
        findings.how.append("cold")
        return findings.observation(NAME)
    made = read_made(place)
    if made is None:
        findings.differs(
            "origin", place.name, "unknown", f"{place} does not say what it was made from; remove it to start cold"
        )
    elif msgspec.to_builtins(made.inputs) != depends_on:
        keys = [
            key for key in depends_on.keys() | made.inputs.keys() if made.inputs.get(key) != depends_on.get(key)
        ]
        findings.differs(
            "origin",
            place.name,
            _digest(made.inputs)[:24],
            f"cache made under another lock: {', '.join(sorted(keys))} differ; remove {place} to start cold",
            f"made by {made.run}, {_day(made.started)}",
        )
    else:
        findings.how.append(f"of {_day(made.started)}, begun by {made.run}")
    return findings.observation(NAME)


def observe_live(_live: LiveScene) -> None:
    """Nothing: the variables that place the caches are compared with the others, by `environment`."""


def compare(_lock: Lock, observation: Observation) -> Judgement:
    """Pure. What the cache should say stands in the observation's sealed side."""
    return compare_facts({}, observation)


def capture(_server: RunningServer) -> None:
    """None: what a running server has compiled belongs to it."""


def _listed(lock: Lock) -> set[str]:
    return {*lock.env.set, *lock.env.site, *lock.env.secret}


def _without_address(argv: tuple[str, ...]) -> list[str]:
    """An argument list without the address that the server listens on, which compiles nothing."""
    kept: list[str] = []
    skip = False
    for argument in argv:
        if skip or argument.startswith(("--host=", "--port=")):
            skip = False
            continue
        skip = argument in ("--host", "--port")
        if not skip:
            kept.append(argument)
    return kept


def _gpus(root: Path) -> list[str]:
    try:
        return machine.nvidia_models(root)
    except OSError as error:
        return [f"unknown: {error.strerror}"]


def _driver(root: Path) -> str | None:
    try:
        return str(machine.nvidia_module(root))
    except FileNotFoundError:
        return None
    except OSError as error:
        return f"unknown: {error.strerror}"


def _digest(value: Any) -> str:
    return hashlib.sha256(msgspec.json.encode(value, order="sorted")).hexdigest()


def _day(moment: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(moment))
