"""From manifest to lock: every wish turned into a pin, by the probes that later observe it.

Owns the order of resolving and what is kept from the previous lock. Must not build a workspace.
"""

from __future__ import annotations

import shutil
import tempfile
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
from packaging.utils import canonicalize_name

from pinner.deploy.load import Deployment
from pinner.deploy.lockfile import changes, render_lock, render_pylock
from pinner.deploy.locks import load_lock, read_lock, stale_reason
from pinner.deploy.tomlfile import bytes_digest
from pinner.errors import CommandFailed, LockError, ManifestError, OperationFailed, PinnerError, UsageError
from pinner.host.digest import DigestMemory
from pinner.host.files import exclusive, write_atomic
from pinner.host.home import Home
from pinner.host.uv import SiteIndex, Uv, site_index
from pinner.measure import dataset
from pinner.model import pylock as pylock_format
from pinner.model.address import without_credentials
from pinner.model.lock import FORMAT, READS_FORMAT, EnginePin, Lock, PatchPin, PythonPin, ServePin, SourcePin
from pinner.probes import arguments, draft, environment, hardware, host, python_env, source, target
from pinner.probes.base import Wish

Say = Callable[[str], None]

WEIGHTS = ("model", "draft")
# What `--upgrade NAME` takes beside the names of packages.
PARTS = ("engine", *WEIGHTS)


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
) -> LockOutcome:
    """Resolve a manifest and write its lock and pylock.

    `upgrade` True takes the newest of everything, a name only that package (or `engine`, its source, `model` or
    `draft`); otherwise what the previous lock pins stays while it satisfies the manifest. `capture` also pins the
    machine as it is.
    """
    with exclusive(home.root / "locks" / deployment.key, what=f"locking {deployment.path}"):
        try:
            with tempfile.TemporaryDirectory(prefix="pinner-lock-") as scratch:
                return _lock(deployment, home, upgrade, capture, say, Path(scratch))
        except ManifestError as error:
            if str(deployment.path) in error.message:
                raise
            raise ManifestError(f"{deployment.path}: {error.message}", hint=error.hint) from None


def _lock(
    deployment: Deployment, home: Home, upgrade: bool | str, capture: bool, say: Say, scratch: Path
) -> LockOutcome:
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
        capture=capture,
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
    python_pin, pylock_text, pylock_data = _python(deployment, wish, (source_pin, patches), upgrade, old_pylock)
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


def _python(
    deployment: Deployment,
    wish: Wish,
    code: tuple[SourcePin, tuple[PatchPin, ...]],
    upgrade: bool | str,
    old_pylock: dict[str, Any] | None,
) -> tuple[PythonPin, str | None, dict[str, Any] | None]:
    """The Python pin, and the pylock's text and data where one is made."""
    python = wish.manifest.python
    if python.path is not None:
        return python_env.pin(wish), None, None
    if python.version is None:
        raise ManifestError(f"{deployment.path}: python.version: is missing")
    site = site_index(wish.home)
    uv = Uv(wish.home, site=site, indexes=python.indexes)
    try:
        _, patch_level = uv.find_python(python.version)
    except CommandFailed as error:
        said = error.stderr.strip()
        raise OperationFailed(
            f"{deployment.path}: python.version: no Python {python.version} here, and uv can fetch none:\n{said}"
        ) from None
    previous = wish.previous.python if wish.previous else None
    if previous and previous.version == python.version and upgrade is not True:
        patch_level = previous.patch_level
    data = _resolve_requirements(deployment, wish, code, (uv, site), upgrade, old_pylock)
    text = render_pylock(data)
    pin = PythonPin(
        version=python.version,
        patch_level=patch_level,
        pylock=bytes_digest(text.encode()),
        exclude_newer=python.exclude_newer,
        indexes=tuple(without_credentials(address) for address in python.indexes),
    )
    return pin, text, data


def _resolve_requirements(
    deployment: Deployment,
    wish: Wish,
    code: tuple[SourcePin, tuple[PatchPin, ...]],
    tools: tuple[Uv, SiteIndex],
    upgrade: bool | str,
    old_pylock: dict[str, Any] | None,
) -> dict[str, Any]:
    """Ask uv for a pylock of the engine's project and the manifest's requirements, and normalize it."""
    uv, site = tools
    python = wish.manifest.python
    version = python.version or ""
    with tempfile.TemporaryDirectory(prefix="pinner-lock-") as name:
        work = Path(name)
        inputs = _requirement_files(wish, code, work)
        output = work / "pylock.toml"
        if old_pylock is not None:
            output.write_text(render_pylock(_with_addresses(old_pylock)))
        has_project = any(path.name == "pyproject.toml" for path in inputs)
        if python.extras and not has_project and wish.manifest.engine.source.package is None:
            raise ManifestError(f"{deployment.path}: python.extras: the engine's source has no pyproject.toml")
        try:
            uv.resolve(
                inputs,
                python=version,
                output=output,
                extras=python.extras if has_project else (),
                exclude_newer=python.exclude_newer,
                upgrade=upgrade if isinstance(upgrade, bool) else (() if upgrade in PARTS else (upgrade,)),
            )
        except CommandFailed as error:
            raise _resolution_error(deployment, error) from None
        data = tomllib.loads(output.read_text())
    # Where a mirror answers, its files may lie at any address: none of them may be kept.
    prefixes = ("",) if site.index_url else tuple(_link_prefixes(site.find_links))
    return pylock_format.normalized(data, python=version, site=prefixes, previous=old_pylock)


def _resolution_error(deployment: Deployment, error: CommandFailed) -> PinnerError:
    text = error.stderr.strip()
    hint = None
    if "--no-build" in text or "Building source distributions is disabled" in text:
        hint = "pinner runs no code of a package while locking: it must have a wheel, or static metadata"
    if "extra" in text and "not found" in text:
        return ManifestError(f"{deployment.path}: python.extras: the engine's project has no such extra:\n{text}")
    if "No solution found" in text or "Failed to parse" in text or "Couldn't parse requirement" in text:
        return ManifestError(f"{deployment.path}: python: the requirements cannot be met:\n{text}", hint=hint)
    return OperationFailed(f"resolving the Python environment failed:\n{text}", hint=hint)


def _requirement_files(wish: Wish, code: tuple[SourcePin, tuple[PatchPin, ...]], work: Path) -> list[Path]:
    """The engine's pyproject.toml, if it has one, and the manifest's requirements as a file."""
    pin, patches = code
    lines = list(wish.manifest.python.requirements)
    if pin.type == "package":
        extras = f"[{','.join(wish.manifest.python.extras)}]" if wish.manifest.python.extras else ""
        lines.append(f"{pin.name}{extras}=={pin.version}")
    files = []
    project = _project_file(wish, pin, patches, work)
    if project is not None:
        files.append(project)
    requirements = work / "requirements.in"
    requirements.write_text("".join(f"{line}\n" for line in lines))
    return [*files, requirements]


def _project_file(wish: Wish, pin: SourcePin, patches: tuple[PatchPin, ...], work: Path) -> Path | None:
    """A copy of the engine's pyproject.toml as the lock pins it; None where there is none."""
    copy = work / "project" / "pyproject.toml"
    copy.parent.mkdir()
    if pin.type == "git":
        tree = work / "tree"
        source.export(
            pin, [wish.directory / patch.file for patch in patches], wish.home, tree, directory=wish.directory
        )
        found = tree / pin.subdirectory / "pyproject.toml"
    elif pin.type == "path":
        found = wish.directory / (pin.path or "") / pin.subdirectory / "pyproject.toml"
    else:
        return None
    if not found.is_file():
        return None
    shutil.copyfile(found, copy)
    return copy


def _with_addresses(data: dict[str, Any]) -> dict[str, Any]:
    """A pylock for uv to read versions from; a bare file name would make it look for the file."""
    packages = [
        {key: value for key, value in package.items() if key not in ("wheels", "sdist")}
        | {"wheels": [wheel for wheel in package.get("wheels", []) if "url" in wheel]}
        for package in data.get("packages", [])
    ]
    return {**data, "packages": packages}


def _link_prefixes(links: tuple[str, ...]) -> list[str]:
    """How uv writes the files of a folder of wheels, or of a page of links."""
    prefixes = []
    for link in links:
        prefixes.append(link if "://" in link else Path(link).absolute().as_uri())
        if link.startswith("file://"):
            prefixes.append(link)
    return prefixes
