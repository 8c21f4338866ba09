"""The draft model's files, aspect `draft`, and whether the draft fits its algorithm and target.

Owns the pair check's inputs; its rules are in engines/eagle.py. How many steps and tokens are drafted are
arguments of the engine, not files: the probe `args` compares those.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import msgspec

from pinner.engines.eagle import algorithm_problem, pair_problems
from pinner.errors import ManifestError
from pinner.model.facts import Observation
from pinner.model.lock import DraftPin, Lock, WeightsPin
from pinner.probes.base import Judgement, LiveScene, Scene, Wish
from pinner.probes.target import directory
from pinner.probes.weights import compare_files, observe_files, pin_files, read_config

NAME = "draft"

_CONFIG = "config.json"


def pin(wish: Wish) -> DraftPin | None:
    """Size and sha256 of every file of `draft.path`; None without a draft.

    ArtifactError for a file that is not weights, ManifestError for a draft that does not fit.
    """
    draft = wish.manifest.draft
    if draft is None:
        return None
    unknown = algorithm_problem(draft.algorithm)
    if unknown:
        raise ManifestError(f"draft.algorithm: {unknown}")
    root = directory(wish, draft)
    files = pin_files(root, wish.memory, key="draft.path")
    wrong = _mismatch(draft.algorithm, root, directory(wish, wish.manifest.model))
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
    """Why the pair that is pinned cannot work; empty if it can, or if the files are not the pinned ones now.

    Then they are drift, and `observe` tells what they do to the pair.
    """
    pinned = scene.lock.draft
    if pinned is None or _is_changed(scene, pinned) or _is_changed(scene, scene.lock.model):
        return []
    return _mismatch(pinned.algorithm, directory(scene, pinned), directory(scene, scene.lock.model))


def observe(scene: Scene) -> Observation | None:
    """The files of the draft's directory now; None without a draft.

    Whether draft and target as they are now fit is told beside the config.json that differs, or as a note.
    """
    pinned = scene.lock.draft
    if pinned is None:
        return None
    root = directory(scene, pinned)
    seen = observe_files(NAME, pinned, root, scene.memory, deep=scene.deep)
    if not root.is_dir():
        return seen
    wrong = _mismatch(pinned.algorithm, root, directory(scene, scene.lock.model))
    if not wrong:
        return seen
    told = tuple(f"draft and target do not fit: {sentence}" for sentence in wrong)
    if _is_changed(scene, pinned):
        return msgspec.structs.replace(seen, evidence={**seen.evidence, _CONFIG: told})
    return msgspec.structs.replace(seen, notes=(*seen.notes, *told))


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
    files = pin_files(directory(scene, pinned), scene.memory, key="draft.path")
    return msgspec.structs.replace(pinned, files=files)


def _mismatch(algorithm: str, draft: Path, target: Path) -> list[str]:
    """What `pair_problems` says of two directories as they are now."""
    is_target = draft.is_dir() and target.is_dir() and draft.samefile(target)
    return pair_problems(algorithm, read_config(draft), read_config(target), is_target=is_target)


def _is_changed(scene: Scene, pin: WeightsPin) -> bool:
    """Whether a directory's config.json is not the pinned one, by its bytes."""
    pinned = next((file.sha256 for file in pin.files if file.path == _CONFIG), None)
    try:
        data = (directory(scene, pin) / _CONFIG).read_bytes()
    except FileNotFoundError:
        return pinned is not None
    except OSError:
        return True
    return pinned != f"sha256:{hashlib.sha256(data).hexdigest()}"
