"""From manifest to lock: every wish turned into a pin, by the probes that later observe it.

Owns the order of resolving and what is kept from the previous lock. Must not build a workspace.
"""

from __future__ import annotations

import tempfile
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from packaging.utils import canonicalize_name

from pinner.deploy.load import Deployment
from pinner.deploy.lockfile import changes, render_lock
from pinner.deploy.locks import load_lock, read_lock, stale_reason
from pinner.deploy.resolve_python import PARTS, resolve_python
from pinner.errors import LockError, ManifestError, OperationFailed, UsageError
from pinner.host.digest import DigestMemory
from pinner.host.files import exclusive, write_atomic
from pinner.host.home import Home
from pinner.measure import dataset
from pinner.model import pylock as pylock_format
from pinner.model.lock import FORMAT, READS_FORMAT, EnginePin, Lock, ServePin
from pinner.probes import arguments, draft, environment, hardware, host, source, target
from pinner.probes.base import Wish

Say = Callable[[str], None]

WEIGHTS = ("model", "draft")


class LockOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """A lock that has been written, what it moved (old before new), and what is worth knowing about it."""

    lock: Lock
    path: Path
    changed: bool
    changes: tuple[str, ...]
    notes: tuple[str, ...]


def lock(
    deployment: Deployment,
    home: Home,
    *,
    upgrade: bool | str = False,
    capture: bool = False,
    say: Say = lambda _line: None,
    before_writing: Callable[[Lock], None] = lambda _lock: None,
) -> LockOutcome:
    """Resolve a manifest and write its lock and pylock.

    `upgrade` True takes the newest of everything, a name only that package (or `engine`, its source, `model` or
    `draft`); otherwise what the previous lock pins stays while it satisfies the manifest. `capture` also pins the
    machine as it is. `before_writing` is given the lock when nothing is left but to write it.
    """
    asked = _Asked(upgrade, capture, say, before_writing)
    with exclusive(home.root / "locks" / deployment.key, what=f"locking {deployment.path}"):
        try:
            with tempfile.TemporaryDirectory(prefix="pinner-lock-") as scratch:
                return _lock(deployment, home, asked, Path(scratch))
        except ManifestError as error:
            if str(deployment.path) in error.message:
                raise
            raise ManifestError(f"{deployment.path}: {error.message}", hint=error.hint) from None


class _Asked(NamedTuple):
    """How `lock` was asked."""

    upgrade: bool | str
    capture: bool
    say: Say
    before_writing: Callable[[Lock], None]


def _lock(deployment: Deployment, home: Home, asked: _Asked, scratch: Path) -> LockOutcome:
    upgrade, say = asked.upgrade, asked.say
    previous, notes = _previous(deployment)
    wish = Wish(
        manifest=deployment.manifest,
        directory=deployment.directory,
        home=home,
        memory=DigestMemory(home.digests),
        previous=previous,
        upgrade=upgrade is True or upgrade == "engine",
        upgrade_weights=frozenset(name for name in WEIGHTS if upgrade is True or upgrade == name),
        scratch=scratch,
        capture=asked.capture,
        say=say,
        warn=notes.append,
    )
    manifest = deployment.manifest
    argv = arguments.pin(wish)
    hardware_pin = hardware.pin(wish)
    say("resolving the engine's source")
    source_pin, patches = source.pin(wish)
    arguments.advise(wish, source_pin)
    say("reading model and draft")
    model_pin, draft_pin = target.pin(wish), draft.pin(wish)
    say("resolving the Python environment")
    old_pylock = _read_pylock(deployment.pylock_path)
    _refuse_unknown_name(upgrade, old_pylock)
    python_pin, pylock_text, pylock_data = resolve_python(
        deployment, wish, (source_pin, patches), upgrade, old_pylock
    )
    result = Lock(
        version=FORMAT,
        requires_pinner=READS_FORMAT,
        manifest=deployment.digest,
        engine=EnginePin(
            kind=manifest.engine.kind,
            source=source_pin,
            patches=patches,
            hot_paths=manifest.engine.hot_paths,
            argv=argv,
        ),
        python=python_pin,
        model=model_pin,
        draft=draft_pin,
        env=environment.pin(wish),
        host=host.pin(wish),
        serve=ServePin(**msgspec.structs.asdict(manifest.serve)),
        hardware=hardware_pin,
        bench=dataset.pins(manifest.bench, deployment.directory),
    )
    asked.before_writing(result)
    changed = _write(deployment, result, pylock_text)
    packages = (pylock_format.versions(old_pylock or {}), pylock_format.versions(pylock_data or {}))
    return LockOutcome(
        lock=result,
        path=deployment.lock_path,
        changed=changed,
        changes=tuple(changes(previous, result, packages)),
        notes=tuple(notes),
    )


def _refuse_unknown_name(upgrade: bool | str, old_pylock: dict[str, Any] | None) -> None:
    if isinstance(upgrade, bool) or upgrade in PARTS:
        return
    if canonicalize_name(upgrade) not in pylock_format.versions(old_pylock or {}):
        hint = "`--upgrade engine`, `model` or `draft` re-reads the branch or tag of that one"
        raise UsageError(f"--upgrade {upgrade}: the lock has no package of that name", hint=hint)


def is_current(deployment: Deployment) -> str | None:
    """Why the lock is not current, or None. Offline. Raises LockError where there is no readable lock."""
    found = read_lock(deployment)
    lock = found or load_lock(deployment)
    of_datasets = dataset.stale_reason(deployment.manifest.bench, lock.bench, deployment.directory)
    return stale_reason(deployment, lock) or of_datasets


def _previous(deployment: Deployment) -> tuple[Lock | None, list[str]]:
    """The lock that is there; a damaged one is replaced and told of, a newer one is refused."""
    try:
        return read_lock(deployment), []
    except LockError as error:
        if "newer" in error.message:
            raise
        return None, [f"the previous lock could not be read and is replaced: {error.message}"]


def _read_pylock(path: Path) -> dict[str, Any] | None:
    try:
        data = tomllib.loads(path.read_text())
        pylock_format.versions(data)
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None
    return data


def _write(deployment: Deployment, result: Lock, pylock_text: str | None) -> bool:
    """Write pylock, then lock; a kill in between leaves a lock that says it is out of date."""
    try:
        old = deployment.lock_path.read_text() if deployment.lock_path.exists() else None
    except (OSError, UnicodeDecodeError):
        old = None
    text = render_lock(result, old)
    try:
        if pylock_text is not None and _text_of(deployment.pylock_path) != pylock_text:
            write_atomic(deployment.pylock_path, pylock_text.encode())
        if text != old:
            write_atomic(deployment.lock_path, text.encode())
    except OSError as error:
        raise OperationFailed(f"cannot write {deployment.lock_path}: {error.strerror}") from None
    return text != old


def _text_of(path: Path) -> str | None:
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError):
        return None
