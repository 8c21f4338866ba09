"""The target model's files, aspect `model`.

Owns nothing but the choice of directory; probes/weights.py does the work.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from pinner.errors import ManifestError
from pinner.model.facts import Observation
from pinner.model.lock import Lock, WeightsPin
from pinner.model.manifest import WeightsSection
from pinner.probes.base import Judgement, LiveScene, Scene, Wish
from pinner.probes.weights import compare_files, observe_files, pin_files

NAME = "model"


def pin(wish: Wish) -> WeightsPin:
    """Size and sha256 of every file of `model.path`. ArtifactError for a file that is not weights."""
    model = wish.manifest.model
    return WeightsPin(path=model.path, files=pin_files(directory(wish, model), wish.memory, key="model.path"))


def observe(scene: Scene) -> Observation:
    """The files of the model's directory now."""
    pinned = scene.lock.model
    return observe_files(NAME, pinned, directory(scene, pinned), scene.memory, deep=scene.deep)


def observe_live(_live: LiveScene) -> None:
    """Nothing: an engine maps its weights while loading and lets go of them, so no process shows them."""


def compare(lock: Lock, observation: Observation) -> Judgement:
    """Pure: (differences, unknown)."""
    return compare_files(lock.model, observation)


def capture(scene: Scene) -> WeightsPin:
    """The pin that the directory as it is now would have."""
    pinned = scene.lock.model
    files = pin_files(directory(scene, pinned), scene.memory, key="model.path")
    return msgspec.structs.replace(pinned, files=files)


def directory(place: Wish | Scene, weights: WeightsSection | WeightsPin) -> Path:
    """Where the weights of a manifest's section or of a lock lie on this machine."""
    return weights_directory(place.directory, weights)


def weights_directory(start: Path, weights: WeightsSection | WeightsPin) -> Path:
    """The same for relative paths that start from `start`."""
    if weights.path is None:
        raise ManifestError(f"{weights.repo}: repositories on the Hub cannot be pinned yet")
    return start / weights.path
