"""Reading a lock, and whether it belongs to its manifest.

Owns every reason why a lock must not be used. Offline; must not look at the machine beyond these files.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import msgspec

from pinner import __version__
from pinner.deploy.load import Deployment
from pinner.deploy.tomlfile import bytes_digest, convert, read_toml, refuse_version
from pinner.errors import LockError, OperationFailed
from pinner.host.project import project_digest
from pinner.model import lock as lock_format
from pinner.model import manifest as manifest_format
from pinner.model import manifest_rules
from pinner.model.address import without_credentials
from pinner.model.lock import Lock, ServePin, WeightsPin
from pinner.model.manifest import WeightsSection
from pinner.probes import arguments, environment, hardware, host


def load_lock(deployment: Deployment) -> Lock:
    """Read the lock of a manifest; it must be of this very manifest and its pylock unedited.

    Raises LockError: missing, damaged, newer, or stale, each with what to do.
    """
    relock = relock_hint(deployment)
    lock = read_lock(deployment)
    if lock is None:
        raise LockError(f"{deployment.lock_path} does not exist", hint=relock)
    reason = stale_reason(deployment, lock)
    if reason:
        raise LockError(
            f"{deployment.lock_path} is out of date: {reason}", hint=f"{relock}, and read what it changes"
        )
    return lock


def relock_hint(deployment: Deployment) -> str:
    """What makes a lock right again."""
    return f"run `pinner lock {deployment.shown}`"


def read_lock(deployment: Deployment) -> Lock | None:
    """The lock beside a manifest, current or not; None where there is none. Raises LockError if damaged."""
    path = deployment.lock_path
    if not path.exists():
        return None
    try:
        return lock_of(path, read_toml(path, LockError))
    except LockError as error:
        is_newer = "newer" in error.message
        raise error if is_newer else LockError(error.message, hint=relock_hint(deployment)) from None


def lock_of(path: Path, data: dict[str, Any]) -> Lock:
    """A lock from its data; `path` is what an error names. Raises LockError if it is damaged or newer."""
    refuse_version(path, data, lock_format.FORMAT, LockError)
    lock = convert(path, data, Lock, LockError)
    _refuse_escapes(path, lock)
    _refuse_newer(path, lock)
    return lock


def stale_reason(deployment: Deployment, lock: Lock) -> str | None:
    """Why a lock does not belong to its manifest and the files beside it; None where it does. Offline."""
    if lock.manifest != deployment.digest:
        return f"{deployment.path.name} has changed since the lock was written"
    edited = _edited(deployment, lock)
    if edited:
        return f"{edited} is not what {deployment.path.name} says; the lock has been edited"
    for pin in lock.engine.patches:
        patch = deployment.directory / pin.file
        try:
            digest = bytes_digest(patch.read_bytes())
        except OSError as error:
            return f"the patch {pin.file} cannot be read ({error.strerror})"
        if digest != pin.sha256:
            return f"the patch {pin.file} has changed since"
    for project in lock.python.projects:
        try:
            content = project_digest(deployment.directory / project.path)
        except OperationFailed as error:
            return f"the project {project.path} cannot be told: {error.message}"
        if content != project.content:
            return f"the project {project.path} has changed since"
    if lock.python.pylock is not None:
        try:
            digest = bytes_digest(deployment.pylock_path.read_bytes())
        except OSError as error:
            return f"{deployment.pylock_path.name} cannot be read ({error.strerror})"
        if digest != lock.python.pylock:
            return f"{deployment.pylock_path.name} is not the one that it was written with"
    return None


def _edited(deployment: Deployment, lock: Lock) -> str | None:
    """The first part of a lock that follows from the manifest alone, and differs: a hand or a merge was there."""
    manifest = deployment.manifest
    engine, python, source = manifest.engine, manifest.python, manifest.engine.source
    kind = "git" if source.git is not None else "path" if source.path is not None else "package"
    draft = manifest.draft
    fields = ("algorithm", "num_steps", "eagle_topk", "num_draft_tokens")
    pairs: dict[str, tuple[Any, Any]] = {
        "engine.kind": (engine.kind, lock.engine.kind),
        "engine.argv": (arguments.from_manifest(manifest), lock.engine.argv),
        "engine.hot-paths": (engine.hot_paths, lock.engine.hot_paths),
        "engine.patches": (engine.patches, tuple(patch.file for patch in lock.engine.patches)),
        "engine.source.type": (kind, lock.engine.source.type),
        "engine.source.url": (source.git, lock.engine.source.url),
        "engine.source.path": (source.path, lock.engine.source.path),
        "engine.source.wish": (source.commit, lock.engine.source.wish),
        "engine.source.subdirectory": (source.subdirectory, lock.engine.source.subdirectory),
        "engine.source.import-path": (source.import_path, lock.engine.source.import_path),
        "engine.source.name": (source.package, lock.engine.source.name),
        "engine.source.version": (source.version, lock.engine.source.version),
        "python.version": (python.version or lock.python.version, lock.python.version),
        "python.path": (python.path, lock.python.path),
        "python.exclude-newer": (python.exclude_newer, lock.python.exclude_newer),
        "python.indexes": (tuple(map(without_credentials, python.indexes)), lock.python.indexes),
        "python.find-links": (tuple(map(without_credentials, python.find_links)), lock.python.find_links),
        "python.projects": (python.projects, tuple(project.path for project in lock.python.projects)),
        "model": (_wished(manifest.model), _locked(lock.model)),
        "draft": (
            (_wished(draft), [getattr(draft, field) for field in fields]) if draft else None,
            (_locked(lock.draft), [getattr(lock.draft, field) for field in fields]) if lock.draft else None,
        ),
        "env": (environment.from_manifest(manifest), msgspec.structs.replace(lock.env, files={})),
        "host": (
            host.from_manifest(manifest),
            {key: pin for key, pin in lock.host.items() if not pin.captured},
        ),
        "serve": (ServePin(**msgspec.structs.asdict(manifest.serve)), lock.serve),
        "hardware": (hardware.from_manifest(manifest), hardware.without_capture(lock.hardware)),
    }
    return next((key for key, (wished, locked) in pairs.items() if wished != locked), None)


def _wished(weights: WeightsSection) -> list[Any]:
    """What a manifest says of where weights come from; `main` is the Hub's default."""
    wish = (weights.revision or "main") if weights.repo is not None else None
    return [weights.path, weights.repo, wish, weights.include, weights.exclude]


def _locked(weights: WeightsPin) -> list[Any]:
    return [weights.path, weights.repo, weights.wish, weights.include, weights.exclude]


def _refuse_newer(path: Path, lock: Lock) -> None:
    """A lock says which pinner it needs, also where its format is an old one."""
    needs, own = (tuple(map(int, re.findall(r"\d+", text)[:3])) for text in (lock.requires_pinner, __version__))
    if needs > own:
        raise LockError(
            f"{path}: requires-pinner: is newer than this pinner {__version__}",
            hint=f"pinner {lock.requires_pinner} or newer reads it",
        )


def _refuse_escapes(path: Path, lock: Lock) -> None:
    """A lock is data from elsewhere: no file of a pin may lie outside its directory."""
    for aspect, weights in (("model", lock.model), ("draft", lock.draft)):
        for pin in weights.files if weights else ():
            if not pin.path or not manifest_format.is_inside(pin.path):
                raise LockError(f"{path}: {aspect}.files: {pin.path!r} leaves its directory")
        if weights and weights.repo is not None:
            # They name directories of the Hub's cache.
            if re.fullmatch(r"[0-9a-f]{40}", weights.revision or "") is None:
                raise LockError(f"{path}: {aspect}.revision: {weights.revision!r} is not a full commit id")
            if manifest_rules.REPO.match(weights.repo) is None:
                raise LockError(f"{path}: {aspect}.repo: {weights.repo!r} is not OWNER/NAME")
        elif weights and weights.path is None:
            raise LockError(f"{path}: {aspect}: has neither path nor repo")
    source = lock.engine.source
    if source.type not in ("git", "path", "package"):
        raise LockError(f"{path}: engine.source.type: {source.type!r} is not git, path or package")
    if not manifest_format.is_inside(source.subdirectory):
        raise LockError(f"{path}: engine.source.subdirectory: {source.subdirectory!r} leaves the repository")
    for field in ("commit", "tree", "patched_tree"):
        value = getattr(source, field)
        if value is not None and re.fullmatch(r"[0-9a-f]{40}([0-9a-f]{24})?", value) is None:
            raise LockError(f"{path}: engine.source.{field.replace('_', '-')}: {value!r} is not a full commit id")
    if source.type != "package" and (source.commit is None or source.tree is None):
        raise LockError(f"{path}: engine.source: has no commit or no tree")
