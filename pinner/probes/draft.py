"""The draft model's files, aspect `draft`, and whether the draft fits its algorithm and target.

Owns whose files the pair's verdict is about: the pinned ones, or what lies in their place now. The verdict is
probes/pair.py's. How many steps and tokens are drafted are arguments of the engine, not files: the probe
`arguments` compares those.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import msgspec

from pinner.engines.eagle import algorithm_problem
from pinner.errors import ManifestError
from pinner.host.digest import FileDigest, file_digests, recall_digest
from pinner.model.facts import Observation, Unknown
from pinner.model.lock import DraftPin, FilePin, Lock, WeightsPin
from pinner.model.manifest import Manifest
from pinner.model.pair import Verdict
from pinner.probes import arguments, environment, pair
from pinner.probes.base import Captured, Judgement, LiveScene, RunningServer, Scene, Wish
from pinner.probes.safetensors_files import weight_files
from pinner.probes.target import directory, observe_weights, pin_weights
from pinner.probes.weights import compare_files

NAME = "draft"

_CONFIG = "config.json"


def pin(wish: Wish) -> DraftPin | None:
    """Size and sha256 of every file of the draft; None without one.

    ArtifactError for a file that is not weights, ManifestError for a draft that does not fit.
    """
    draft = wish.manifest.draft
    if draft is None:
        return None
    unknown = algorithm_problem(draft.algorithm)
    if unknown:
        raise ManifestError(f"draft.algorithm: {unknown}")
    pinned = pin_weights(wish, NAME, draft)
    digests = {file.path: file.sha256 for file in pinned.files}
    sides = pair.Sides(draft=directory(wish, draft), target=directory(wish, wish.manifest.model), digests=digests)
    verdict = pair.judge(_wished(wish.manifest), draft.algorithm, sides, wish.memory)
    if verdict.problems:
        raise ManifestError(misfit(verdict.problems))
    for line in (*_untold(verdict), *verdict.advice):
        wish.warn(f"draft: {line}")
    return DraftPin(
        **msgspec.structs.asdict(pinned),
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
    if pinned is None or _changed(scene, pinned) or _changed(scene, scene.lock.model, only=(_CONFIG,)):
        return []
    return list(_locked_verdict(scene, pinned).problems)


def misfit(wrong: Iterable[str]) -> str:
    """The message for a pair that does not fit: every reason."""
    wrong = list(wrong)
    between = "\n  " if len(wrong) > 1 else " "
    return f"draft and target do not fit:{between}{between.join(wrong)}"


def observe(scene: Scene) -> Observation | None:
    """The files of the draft's directory now; None without a draft.

    Whether draft and target as they are now fit is told beside the file that differs, or as a note.
    """
    pinned = scene.lock.draft
    if pinned is None:
        return None
    root = directory(scene, pinned)
    seen = observe_weights(NAME, scene, pinned)
    if not root.is_dir() or not directory(scene, scene.lock.model).is_dir():
        return seen
    verdict = _locked_verdict(scene, pinned)
    notes = (*seen.notes, *_untold(verdict))
    told = tuple(f"draft and target do not fit: {sentence}" for sentence in verdict.problems)
    changed = _changed(scene, pinned) if told else None
    if changed:
        return msgspec.structs.replace(seen, notes=notes, evidence={**seen.evidence, changed: told})
    return msgspec.structs.replace(seen, notes=(*notes, *told))


def observe_live(_live: LiveScene) -> None:
    """Nothing: an engine maps its weights while loading and lets go of them, so no process shows them."""


def compare(lock: Lock, observation: Observation) -> Judgement:
    """Pure: (differences, unknown)."""
    return ((), ()) if lock.draft is None else compare_files(lock.draft, observation)


def capture(server: RunningServer) -> Captured:
    """The draft that the server was started with, and how it uses it."""
    from pinner.probes import weights_capture  # noqa: PLC0415  # only `adopt` wants it

    return weights_capture.capture_draft(server)


def _wished(manifest: Manifest) -> pair.Launch:
    return pair.Launch(
        kind=manifest.engine.kind,
        version=manifest.engine.source.version,
        argv=arguments.from_manifest(manifest),
        env=environment.from_manifest(manifest),
    )


def _untold(verdict: Verdict) -> tuple[str, ...]:
    return tuple(f"could not be told: {sentence}" for sentence in verdict.unread)


def _locked_verdict(scene: Scene, pinned: DraftPin) -> Verdict:
    """The verdict on what lies in the two directories now, started as the lock says."""
    engine, root = scene.lock.engine, directory(scene, pinned)
    launch = pair.Launch(kind=engine.kind, version=engine.source.version, argv=engine.argv, env=scene.lock.env)
    # What is not remembered is not hashed for this: headers are read faster.
    known = {name: recall_digest(root / name, scene.memory) for name in _weight_files(root)}
    digests = {name: digest.sha256 for name, digest in known.items() if digest is not None}
    sides = pair.Sides(draft=root, target=directory(scene, scene.lock.model), digests=digests)
    return pair.judge(launch, pinned.algorithm, sides, scene.memory)


def _changed(scene: Scene, pin: WeightsPin, *, only: tuple[str, ...] = ()) -> str | None:
    """The first file that a verdict depends on and that is not the pinned one, by its bytes; None if all are.

    `only` these files, by default config.json and the weights.
    """
    root = directory(scene, pin)
    pinned = {file.path: file for file in pin.files}
    names = only or (_CONFIG, *sorted({*_weight_files(root), *filter(_is_weights, pinned)}))
    for name in names:
        if not _has_size(root / name, pinned.get(name)):
            return name
    present = [name for name in names if name in pinned]
    for name, seen in zip(present, file_digests([root / name for name in present], scene.memory), strict=True):
        if not isinstance(seen, FileDigest) or seen.sha256 != pinned[name].sha256:
            return name
    return None


def _has_size(path: Path, pinned: FilePin | None) -> bool:
    """Whether a file has the size of the pinned one; where there should be none, whether there is none."""
    try:
        size = path.stat().st_size
    except OSError:
        return pinned is None
    return pinned is not None and size == pinned.size


def _weight_files(root: Path) -> list[str]:
    names = weight_files(root)
    return [] if isinstance(names, Unknown) else names


def _is_weights(path: str) -> bool:
    return "/" not in path and path.endswith((".safetensors", ".safetensors.index.json"))
