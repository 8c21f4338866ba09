"""The draft model's files, aspect `draft`, and whether the draft fits its algorithm and target.

Owns the pair check's inputs; its rules are in engines/eagle.py. How many steps and tokens are drafted are
arguments of the engine, not files: the probe `args` compares those.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from pinner.engines.eagle import pair_problems
from pinner.errors import ManifestError
from pinner.model.facts import Observation
from pinner.model.lock import DraftPin, Lock
from pinner.probes.base import Judgement, LiveScene, Scene, Wish
from pinner.probes.weights import compare_files, observe_files, pin_files, read_config

NAME = "draft"


def pin(wish: Wish) -> DraftPin | None:
    """Size and sha256 of every file of `draft.path`; None without a draft.

    ArtifactError for a file that is not weights, ManifestError for a draft that does not fit.
    """
    draft = wish.manifest.draft
    if draft is None:
        return None
    directory = _directory(wish, draft.path)
    files = pin_files(directory, wish.memory, key="draft.path")
    wrong = pair_problems(
        draft.algorithm, read_config(directory), read_config(_directory(wish, wish.manifest.model.path))
    )
    if wrong:
        raise ManifestError(f"draft.algorithm: {wrong[0]}")
    return DraftPin(
        path=draft.path,
        files=files,
        algorithm=draft.algorithm,
        num_steps=draft.num_steps,
        eagle_topk=draft.eagle_topk,
        num_draft_tokens=draft.num_draft_tokens,
    )


def problems(scene: Scene) -> list[str]:
    """Why the draft on this machine does not fit the locked algorithm and the target; empty if it does."""
    pinned = scene.lock.draft
    if pinned is None:
        return []
    directory = _directory(scene, pinned.path)
    if not directory.is_dir():
        return []
    target = _directory(scene, scene.lock.model.path)
    return pair_problems(pinned.algorithm, read_config(directory), read_config(target))


def observe(scene: Scene) -> Observation | None:
    """The files of the draft's directory now; None without a draft. `notes` hold what `problems` says."""
    pinned = scene.lock.draft
    if pinned is None:
        return None
    directory = _directory(scene, pinned.path)
    seen = observe_files(NAME, pinned, directory, scene.memory, deep=scene.deep)
    return msgspec.structs.replace(seen, notes=(*seen.notes, *problems(scene)))


def observe_live(_live: LiveScene) -> None:
    """Nothing: an engine maps its weights while loading and lets go of them, so no process shows them."""


def compare(lock: Lock, observation: Observation) -> Judgement:
    """Pure: (differences, unknown)."""
    return ((), ()) if lock.draft is None else compare_files(lock.draft, observation)


def capture(scene: Scene) -> DraftPin | None:
    """The pin that the directory as it is now would have, used as it is locked."""
    pinned = scene.lock.draft
    if pinned is None:
        return None
    files = pin_files(_directory(scene, pinned.path), scene.memory, key="draft.path")
    return msgspec.structs.replace(pinned, files=files)


def _directory(place: Wish | Scene, path: str) -> Path:
    return place.directory / Path(path).expanduser()
