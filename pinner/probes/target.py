"""The target model's files, aspect `model`.

Owns nothing but the choice of directory; probes/weights.py does the work.
"""

from __future__ import annotations

from pathlib import Path

from pinner.model.facts import Observation
from pinner.model.lock import Lock, WeightsPin
from pinner.probes.base import Judgement, LiveScene, Scene, Wish
from pinner.probes.weights import compare_files, observe_files, pin_files

NAME = "model"


def pin(wish: Wish) -> WeightsPin:
    """Size and sha256 of every file of `model.path`. ArtifactError for a file that is not weights."""
    path = wish.manifest.model.path
    return WeightsPin(path=path, files=pin_files(directory(wish, path), wish.memory, key="model.path"))


def observe(scene: Scene) -> Observation:
    """The files of the model's directory now."""
    pinned = scene.lock.model
    return observe_files(NAME, pinned, directory(scene, pinned.path), scene.memory, deep=scene.deep)


def observe_live(_live: LiveScene) -> None:
    """Nothing: an engine maps its weights while loading and lets go of them, so no process shows them."""


def compare(lock: Lock, observation: Observation) -> Judgement:
    """Pure: (differences, unknown)."""
    return compare_files(lock.model, observation)


def capture(scene: Scene) -> WeightsPin:
    """The pin that the directory as it is now would have."""
    path = scene.lock.model.path
    return WeightsPin(path=path, files=pin_files(directory(scene, path), scene.memory, key="model.path"))


def directory(place: Wish | Scene, path: str) -> Path:
    """Where a path of the manifest or lock leads."""
    return place.directory / path
