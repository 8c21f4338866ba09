"""Drift at rest: what the machine holds now, against the lock.

Owns running the probes and gathering their answers. No side effects but the memory of digests, no network.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from pinner.deploy.load import Deployment
from pinner.deploy.workspace import find_workspace
from pinner.engines import engine_for
from pinner.errors import ExitCode, ManifestError, PinnerError
from pinner.host.digest import DigestMemory
from pinner.host.home import Home
from pinner.model.facts import ABSENT, Difference, Drift, Observation, Override, Unknown, accept
from pinner.model.lock import Lock
from pinner.probes import PROBES, draft, hardware, python_env, source
from pinner.probes.base import NOT_MATERIALIZED, Probe, Scene, Workspace

# The aspects whose bytes `materialize` makes.
BUILT_ASPECTS = ("source", "python")


def scene_for(deployment: Deployment, lock: Lock, home: Home, *, deep: bool = False) -> Scene:
    """What the probes look at for this deployment; the workspace is None before `materialize`."""
    return Scene(
        lock=lock,
        directory=deployment.directory,
        home=home,
        memory=DigestMemory(home.digests),
        workspace=find_workspace(lock, deployment.directory, home),
        deep=deep,
        manifest=deployment.shown,
    )


def check(scene: Scene, overrides: tuple[Override, ...] = ()) -> Drift:
    """Run every probe at rest. Raises ManifestError where draft and target cannot work together."""
    engine_for(scene.lock.engine.kind)
    mismatch = draft.problems(scene)
    if mismatch:
        raise ManifestError(draft.misfit(mismatch))
    return accept(look(scene, PROBES), overrides)


def look(scene: Scene, probes: Mapping[str, Probe]) -> Drift:
    """Run some probes at rest."""
    if scene.workspace is not None or not needs_workspace(source.NAME, scene.lock):
        # Put first and answered last: an interpreter starts, and a driver answers, while the others look at files.
        scene = msgspec.structs.replace(scene, asked=source.ask(scene))
    if hardware.NAME in probes:
        scene = msgspec.structs.replace(scene, nvml=hardware.ask(scene.lock))
    last = [name for name in (hardware.NAME, source.NAME) if name in probes]
    order = [*(name for name in reversed(list(probes)) if name not in last), *last]
    answers = {name: _ask(name, probes[name], scene) for name in order}
    drift = joined([answers[name] for name in probes])
    return msgspec.structs.replace(drift, hints=_hints(scene, drift))


def built_part(lock: Lock, drift: Drift) -> Drift:
    """What of a drift is in what `materialize` builds: no checkout, environment or interpreter of the user's."""
    built = {aspect for aspect in BUILT_ASPECTS if needs_workspace(aspect, lock)}

    def is_built(item: Difference) -> bool:
        if item.aspect == python_env.NAME:
            if item.key.startswith(python_env.BYTE_CODE):
                return True
            if item.key == python_env.BASE or item.key.startswith(f"{python_env.BASE}/"):
                return False
        return item.aspect in built

    return Drift(
        differences=tuple(filter(is_built, drift.differences)),
        unknown=tuple(filter(is_built, drift.unknown)),
        hints=drift.hints,
    )


def _hints(scene: Scene, drift: Drift) -> tuple[str, ...]:
    """What puts right what pinner itself has built, or not built yet."""
    is_missing = any(item.observed == Unknown(NOT_MATERIALIZED) for item in drift.unknown)
    if scene.workspace is None or is_missing:
        return (f"`pinner materialize {scene.manifest}` builds what is not there yet",) if drift.unknown else ()
    from_hub = {name for name in ("model", "draft") if (pin := getattr(scene.lock, name)) and pin.repo}
    if any(item.aspect in from_hub and item.observed == ABSENT for item in drift.differences):
        return (f"`pinner materialize {scene.manifest}` puts back what is missing of the model",)
    if built_part(scene.lock, drift).differences:
        return (f"`pinner materialize --rebuild {scene.manifest}` makes {scene.workspace.root} anew",)
    return ()


def exit_code(drift: Drift) -> ExitCode:
    """Drift wins over what could not be told."""
    if drift.differences:
        return ExitCode.DIFFERENT
    return ExitCode.FAILED if drift.unknown else ExitCode.OK


def joined(parts: list[Drift]) -> Drift:
    """Several answers as one, in order."""
    return Drift(
        differences=tuple(item for part in parts for item in part.differences),
        unknown=tuple(item for part in parts for item in part.unknown),
        accepted=tuple(item for part in parts for item in part.accepted),
        notes=tuple(note for part in parts for note in part.notes),
        hints=tuple(hint for part in parts for hint in part.hints),
        how=_joined_how(parts),
    )


def _joined_how(parts: list[Drift]) -> dict[str, str]:
    """How sure each aspect is, at rest and then live."""
    how: dict[str, str] = {}
    for part in parts:
        for aspect, text in part.how.items():
            how[aspect] = f"{how[aspect]}; {text}" if aspect in how else text
    return how


def judged(probe: Probe, lock: Lock, observation: Observation | None) -> Drift:
    """One probe's observation as drift."""
    if observation is None:
        return Drift()
    differences, unknown = probe.compare(lock, observation)
    how = {observation.aspect: observation.how} if observation.how else {}
    notes = tuple(f"{observation.aspect}: {note}" for note in observation.notes)
    return Drift(differences=differences, unknown=unknown, notes=notes, how=how)


def unknown_aspect(aspect: str, reason: str) -> Drift:
    """An aspect that could not be looked at as a whole."""
    difference = Difference(aspect=aspect, key=aspect, pinned="as locked", observed=Unknown(reason))
    return Drift(unknown=(difference,))


def _ask(name: str, probe: Probe, scene: Scene) -> Drift:
    if scene.workspace is None and needs_workspace(name, scene.lock):
        return unknown_aspect(name, NOT_MATERIALIZED)
    try:
        return judged(probe, scene.lock, probe.observe(scene))
    except PinnerError as error:
        # One aspect that cannot be read must not hide what the others have found.
        return unknown_aspect(name, error.message)
    except OSError as error:
        return unknown_aspect(name, f"{error.filename}: {error.strerror}")


def needs_workspace(name: str, lock: Lock) -> bool:
    """Whether an aspect lies in what `materialize` builds."""
    is_built = lock.python.path is None
    if name == "source":
        return lock.engine.source.type == "git" or (lock.engine.source.type == "package" and is_built)
    return name == "python" and is_built


def with_workspace(scene: Scene, workspace: Workspace) -> Scene:
    """The same scene, looking at a workspace that is not finished yet."""
    return msgspec.structs.replace(scene, workspace=workspace)
