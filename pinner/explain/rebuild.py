"""A deployment written anew from nothing but a record, in a directory of its own.

Owns where its files go and where its local paths lead on this machine: relative ones become symlinks, so that
manifest and lock stay the very bytes of the record. Must not build, measure, or write outside that directory.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path, PurePosixPath

import msgspec

from pinner.deploy.load import Deployment, load_manifest
from pinner.deploy.locks import load_lock
from pinner.errors import OperationFailed, PinnerError, RecordError, UsageError
from pinner.explain.from_objects import from_objects
from pinner.host import git, mirror
from pinner.host.files import remove_tree, write_atomic
from pinner.host.home import Home
from pinner.measure.carry import read_file
from pinner.measure.record_pins import patch_file
from pinner.measure.records import Stored
from pinner.model.lock import Lock
from pinner.model.record import DEPLOYMENT

# The key of the engine's repository; one that is a path of a machine is found in pinner's mirror as well.
_GIT = "engine.source.git"


class Rebuilt(msgspec.Struct, frozen=True):
    """The deployment, its lock, and what is worth knowing of where things were found."""

    deployment: Deployment
    lock: Lock
    notes: tuple[str, ...] = ()


class LocalPath(msgspec.Struct, frozen=True):
    """A path of a machine that a lock names, by the manifest's key."""

    key: str
    text: str

    @property
    def is_absolute(self) -> bool:
        return self.text.startswith("/")


def rebuild(
    stored: Stored, home: Home, *, directory: Path | None = None, places: Mapping[str, Path] | None = None
) -> Rebuilt:
    """Write the record's deployment into a new directory.

    `places` says by key where a local path of the record lies here. Raises RecordError for a record without pins,
    OperationFailed naming every local path that is not on this machine.
    """
    record = stored.record
    if record.lock_file not in record.files or record.manifest_file not in record.files:
        what = (
            f"it is foreign ({record.source}) and has no pins" if record.origin == "foreign" else "it has no lock"
        )
        raise RecordError(f"record {stored.short} cannot be rebuilt: {what}")
    lock = _lock_in_memory(stored)
    paths = tuple(local_paths(lock, record.files))
    found, notes = _where(paths, stored, home, lock, places or {})
    root = _new_directory(stored, home, directory)
    try:
        manifest = _write(stored, lock, root, paths)
        for path in paths:
            if not path.is_absolute:
                _link(manifest.parent / path.text, found[path.key], root)
        notes += from_objects(manifest, lock)
        deployment = load_manifest(manifest)
        return Rebuilt(deployment, load_lock(deployment), tuple(notes))
    except BaseException:
        remove_tree(root)
        raise


def local_paths(lock: Lock, held: Iterable[str] = ()) -> Iterator[LocalPath]:
    """What a lock expects on the machine besides the files that a record holds."""
    held = tuple(held)
    for index, project in enumerate(lock.python.projects):
        if not any(name.startswith(f"{DEPLOYMENT}/{project.path}/") for name in held):
            yield LocalPath(f"python.projects[{index}]", project.path)
    if lock.model.path is not None:
        yield LocalPath("model.path", lock.model.path)
    if lock.draft is not None and lock.draft.path is not None:
        yield LocalPath("draft.path", lock.draft.path)
    source = lock.engine.source
    if source.path is not None:
        yield LocalPath("engine.source.path", source.path)
    if source.url is not None and git.is_local(git.address(source.url, Path("/"))):
        yield LocalPath(_GIT, source.url)
    if lock.python.path is not None:
        yield LocalPath("python.path", lock.python.path)


def _lock_in_memory(stored: Stored) -> Lock:
    from pinner.explain.sides import of_record  # noqa: PLC0415  # the reading of a record's lock is there

    lock = of_record(stored).lock
    assert lock is not None
    return lock


def _new_directory(stored: Stored, home: Home, directory: Path | None) -> Path:
    if directory is not None:
        root = directory.absolute()
        if root.exists() and any(root.iterdir() if root.is_dir() else [root]):
            raise UsageError(f"{directory} is there already, and not empty", hint="name a new directory")
        root.mkdir(parents=True, exist_ok=True)
        return root
    home.reproductions.mkdir(parents=True, exist_ok=True)
    for number in range(1, 10_000):
        root = home.reproductions / f"{stored.name}-{number}"
        try:
            root.mkdir()
        except FileExistsError:
            continue
        return root
    raise OperationFailed(f"{home.reproductions} is full of reproductions of {stored.name}", hint="remove some")


def _where(
    paths: tuple[LocalPath, ...], stored: Stored, home: Home, lock: Lock, places: Mapping[str, Path]
) -> tuple[dict[str, Path], list[str]]:
    """Where each local path lies here. OperationFailed names all that do not."""
    unused = sorted(places.keys() - {path.key for path in paths})
    if unused:
        known = ", ".join(path.key for path in paths) or "none"
        raise UsageError(f"--place {unused[0]}: the record has no such path of a machine", hint=f"it has: {known}")
    before = Path(stored.record.manifest).parent if stored.record.manifest else None
    found: dict[str, Path] = {}
    missing: list[str] = []
    notes: list[str] = []
    for path in paths:
        there = places.get(path.key)
        if there is not None and path.is_absolute and there.absolute() != Path(path.text):
            raise OperationFailed(
                f"{path.key}: the record names {path.text} outright, and pinner writes nothing there",
                hint=f"put it there, or a link to {there}",
            )
        lies = there or _as_before(path, before)
        if path.key == _GIT and there is None:
            lies = _mirrored(path, before, home, lock, notes) or lies
        if lies is not None and lies.exists():
            found[path.key] = lies.absolute()
        else:
            missing.append(f"{path.key}: {lies or path.text} is not on this machine")
    if missing:
        lines = "".join(f"\n  {line}" for line in missing)
        raise OperationFailed(
            f"record {stored.short} cannot be rebuilt here:{lines}",
            hint=f"say where they lie, for example: --place {missing[0].partition(':')[0]}=PATH",
        )
    return found, notes


def _as_before(path: LocalPath, before: Path | None) -> Path | None:
    if path.is_absolute:
        return Path(path.text)
    return Path(os.path.normpath(before / path.text)) if before is not None else None


def _mirrored(path: LocalPath, before: Path | None, home: Home, lock: Lock, notes: list[str]) -> Path | None:
    """Pinner's own mirror of a repository that was a path, where it has the commit: the path may be gone."""
    if before is None or path.is_absolute:
        return None
    existing = mirror.existing(home.mirrors, git.address(path.text, before))
    try:
        if existing is None or not existing.holds(lock.engine.source.commit or ""):
            return None
    except PinnerError:
        return None
    if not (before / path.text).exists():
        notes.append(f"{path.key}: {path.text} is gone; pinner's mirror of it has the commit: keep that")
    return existing.path


def _write(stored: Stored, lock: Lock, root: Path, paths: tuple[LocalPath, ...]) -> Path:
    """Write the record's files; returns the manifest. Deep enough that no relative path leaves the directory."""
    record = stored.record
    relative = [path.text for path in paths if not path.is_absolute]
    relative += [patch.file for patch in lock.engine.patches]
    depth = max((climbs(text) for text in relative), default=0)
    directory = root.joinpath(*["deployment"] * depth)
    directory.mkdir(parents=True, exist_ok=True)
    for name in record.files:
        if name.startswith(f"{DEPLOYMENT}/"):
            _put(directory / name.removeprefix(f"{DEPLOYMENT}/"), read_file(stored, name))
    for patch in lock.engine.patches:
        name = patch_file(patch.file, patch.sha256)
        if not name.startswith(f"{DEPLOYMENT}/"):
            if patch.file.startswith("/"):
                raise OperationFailed(
                    f"the patch {patch.file} is named outright, and pinner writes nothing there",
                    hint=f"put it there; the record holds it as {name}",
                )
            _put(Path(os.path.normpath(directory / patch.file)), read_file(stored, name))
    return directory / f"{record.deployment}.toml"


def climbs(text: str) -> int:
    """How many directories a relative path goes up before it goes down."""
    level = lowest = 0
    for part in PurePosixPath(text).parts:
        level += -1 if part == ".." else 0 if part == "." else 1
        lowest = min(lowest, level)
    return -lowest


def _put(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, data)


def _link(path: Path, target: Path, root: Path) -> None:
    place = Path(os.path.normpath(path))
    if root not in place.parents:
        raise OperationFailed(f"{place} would lie outside of {root}")
    place.parent.mkdir(parents=True, exist_ok=True)
    if not os.path.lexists(place):
        place.symlink_to(target)
