"""The caches of an engine before a launch: made where there are none, counted, freed of dead builds' locks.

Owns writing below `caches/` of a workspace, and nothing else: a cache that the manifest places elsewhere is the
user's, as is ~/.cache. pinner/probes/caches.py says where they lie.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from pinner.deploy.running import Run, all_runs, run_directory
from pinner.errors import OperationFailed, UnknownFact
from pinner.host import procfs, runs
from pinner.host.files import remove_tree, sync_directory
from pinner.host.home import Home
from pinner.model.caches import Caches, Made
from pinner.model.facts import Difference
from pinner.model.lock import Lock
from pinner.probes import caches
from pinner.probes.base import Workspace

# A lock that is a file holds nothing, or the number of its process. `Cargo.lock` and its like hold more.
LOCK_BYTES = 32
MOST_NAMED = 3


def prepare(
    lock: Lock, workspace: Workspace, run: Run, home: Home, accepted: tuple[Difference, ...] = ()
) -> Caches:
    """Make the directory of this lock's caches on this machine, or find it; `run` is the one about to start."""
    depends_on = caches.inputs(lock, workspace, accepted)
    place = caches.directory(workspace, depends_on)
    try:
        if not place.is_dir():
            _make(place, depends_on, run)
        files, size = 0, 0
        locks = []
        for path, told in _files(place):
            if path == place / caches.MADE:
                continue
            if _is_lock(path, told):
                locks.append(path)
            else:
                files, size = files + 1, size + told.st_blocks * 512
        shared = _used_by(home, place)
        cleared = [] if shared else [path for path in locks if _clear(path)]
    except OSError as error:
        raise OperationFailed(f"cannot use the caches at {error.filename}: {error.strerror}") from None
    made = caches.read_made(place)
    return Caches(
        path=str(place),
        state="warm" if files else "cold",
        files=files,
        size_bytes=size,
        made_by=made.run if made else "",
        made=made.started if made else 0.0,
        cleared=tuple(str(path.relative_to(place)) for path in cleared),
        shared_with=shared,
    )


def notes(found: Caches) -> list[str]:
    """What else is worth knowing of them."""
    told = []
    if found.cleared:
        more = f" and {len(found.cleared) - MOST_NAMED} more" if len(found.cleared) > MOST_NAMED else ""
        names = ", ".join(found.cleared[:MOST_NAMED])
        told.append(f"caches: cleared locks that dead builds left, and that a build waits for: {names}{more}")
    if found.shared_with:
        told.append(f"caches: shared with {found.shared_with}, which runs from the same lock")
    return told


def _make(place: Path, depends_on: dict[str, Any], run: Run) -> None:
    """A directory that says what it depends on from the moment it is there."""
    place.parent.mkdir(exist_ok=True)
    stage = place.with_name(f".{place.name}.{run.run}")
    remove_tree(stage)
    stage.mkdir(mode=0o700)
    made = Made(inputs=depends_on, run=run.run, started=run.started)
    (stage / caches.MADE).write_bytes(msgspec.json.format(msgspec.json.encode(made)))
    try:
        stage.rename(place)
    except OSError:
        if not place.is_dir():
            raise
        remove_tree(stage)  # another `up` of the same lock was first
    sync_directory(place.parent)


def _files(place: Path) -> Iterator[tuple[Path, os.stat_result]]:
    for folder, _, names in os.walk(place):
        for name in names:
            path = Path(folder, name)
            with contextlib.suppress(FileNotFoundError):  # a run that shares it works on
                yield path, path.lstat()


def _is_lock(path: Path, told: os.stat_result) -> bool:
    """Whether a file is there to say that somebody builds: torch's `lock`, and others' `NAME.lock`."""
    is_named_so = path.name == "lock" or path.suffix == ".lock"
    if not is_named_so or not stat.S_ISREG(told.st_mode) or told.st_size > LOCK_BYTES:
        return False
    try:
        text = path.read_bytes().strip()
    except OSError:
        return False
    return not text or text.isdigit()


def _clear(path: Path) -> bool:
    """Remove a lock that nobody holds; True if it was one."""
    try:
        number = path.read_bytes().strip()
        if number and procfs.start_ticks(int(number)) is not None:
            return False
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        path.unlink()
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return True


def _used_by(home: Home, place: Path) -> str:
    """A run that is up, or has left processes, with the same caches; "" without one."""
    for run in all_runs(home):
        if run.caches is None or run.caches.path != str(place):
            continue
        directory = run_directory(home, run.run)
        with contextlib.suppress(OperationFailed, UnknownFact):
            if runs.is_alive(directory) or runs.survivors(directory):
                return run.run
    return ""
