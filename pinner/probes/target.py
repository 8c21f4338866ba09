"""The target model's files, aspect `model`, and what model and draft have in common.

Owns where weights lie on this machine; probes/weights.py looks at them, probes/repository.py asks the Hub.
"""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from pinner.host.home import Home
from pinner.model.facts import ABSENT, Observation, Unknown
from pinner.model.lock import Lock, WeightsPin
from pinner.model.manifest import WeightsSection
from pinner.probes.base import NOT_MATERIALIZED, Captured, Judgement, LiveScene, RunningServer, Scene, Wish
from pinner.probes.view import view
from pinner.probes.weights import WHOLE, compare_files, list_files, observe_files
from pinner.probes.weights_pin import judge_remote_code, pin_files, trusts_code

NAME = "model"


def pin(wish: Wish) -> WeightsPin:
    """Size and sha256 of every file of the model. ArtifactError for a file that is not weights."""
    return pin_weights(wish, NAME, wish.manifest.model)


def observe(scene: Scene) -> Observation:
    """The files of the model now."""
    return observe_weights(NAME, scene, scene.lock.model)


def observe_live(_live: LiveScene) -> None:
    """Nothing: an engine maps its weights while loading and lets go of them, so no process shows them."""


def compare(lock: Lock, observation: Observation) -> Judgement:
    """Pure: (differences, unknown)."""
    return compare_files(lock.model, observation)


def capture(server: RunningServer) -> Captured:
    """The directory, or the repository and commit, that the server was started on."""
    from pinner.probes import weights_capture  # noqa: PLC0415  # only `adopt` wants it

    return weights_capture.capture_model(server)


def directory(place: Wish | Scene, weights: WeightsSection | WeightsPin) -> Path:
    """Where the weights of a manifest's section or of a lock lie on this machine.

    Of a repository that is being locked, where they are laid out to be looked at: large files then have their
    size, their header and what maps vocabularies, and zeros in all other places.
    """
    if isinstance(weights, WeightsPin):
        return weights_directory(place.directory, place.home, weights)
    if weights.path is not None:
        return place.directory / weights.path
    from pinner.probes import repository  # noqa: PLC0415  # a check has nothing to ask of the Hub

    assert isinstance(place, Wish)
    return repository.laid_out(place, weights)


def weights_directory(start: Path, home: Home, pin: WeightsPin) -> Path:
    """The same of pins alone, for relative paths that start from `start`."""
    return view(home, pin) if pin.path is None else start / pin.path


def pin_weights(wish: Wish, name: str, section: WeightsSection) -> WeightsPin:
    """Where a model or draft comes from, with size and sha256 of every file."""
    if section.path is None:
        from pinner.probes import repository  # noqa: PLC0415  # as above

        return repository.pin_repository(wish, name, section)
    place = directory(wish, section)
    files = pin_files(place, wish.memory, key=f"{name}.path")
    where = f"{name}.path: {place}/"
    judge_remote_code(place, list_files(place).files, where=where, is_trusted=trusts_code(wish), warn=wish.warn)
    return WeightsPin(path=section.path, files=files)


def observe_weights(aspect: str, scene: Scene, pin: WeightsPin) -> Observation:
    """The files of a model or draft now. A view that is not there says nothing of the files."""
    root = directory(scene, pin)
    if pin.repo is not None and not root.is_dir():
        return Observation(aspect=aspect, facts={WHOLE: Unknown(NOT_MATERIALIZED)})
    seen = observe_files(aspect, pin, root, scene.memory, deep=scene.deep)
    return seen if pin.repo is None else _with_places(seen, pin, root)


def _with_places(seen: Observation, pin: WeightsPin, root: Path) -> Observation:
    """Say where in the Hub's cache a file lies that differs: it is the user's, and theirs to remove."""
    pinned = {file.path: f"{file.size} bytes {file.sha256}" for file in pin.files}
    evidence = dict(seen.evidence)
    for path, fact in seen.facts.items():
        if path in pinned and fact not in (pinned[path], ABSENT) and not isinstance(fact, Unknown):
            evidence[path] = (
                f"it is {os.path.realpath(root / path)}: remove it, and `pinner materialize` fetches it again",
            )
    return msgspec.structs.replace(seen, evidence=evidence)
