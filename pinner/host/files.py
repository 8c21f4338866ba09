"""Files written whole or not at all, staged directories and file locks.

Owns atomicity on the local file system. Must not know what the files mean.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from pinner.errors import Busy, OperationFailed


def write_atomic(path: Path, data: bytes, *, mode: int = 0o644) -> None:
    """Replace `path` by `data`: a reader sees the old bytes or the new ones, also after a power cut."""
    path.parent.mkdir(parents=True, exist_ok=True)
    import tempfile  # noqa: PLC0415  # loads random; `check` writes no file

    descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    temporary = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        temporary.chmod(mode)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_directory(path.parent)


def sync_directory(path: Path) -> None:
    """Make renames in a directory durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def exclusive(
    path: Path, *, what: str, timeout_s: float | None = None, on_wait: Callable[[], None] | None = None
) -> Iterator[None]:
    """Hold an exclusive lock on the file `path`, waiting for another holder up to `timeout_s` (None: for ever).

    The kernel frees the lock when its holder dies. `on_wait` is called once if there is somebody to wait for.
    Raises Busy after the timeout.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        waited = False
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if deadline is not None and time.monotonic() >= deadline:
                    raise Busy(f"another pinner is {what}", hint="wait for it, or stop it") from None
                if not waited and on_wait is not None:
                    on_wait()
                waited = True
                time.sleep(0.05)
        yield
    finally:
        os.close(descriptor)


def remove_tree(path: Path) -> None:
    """Remove a directory of pinner's own, read-only parts included; a missing one is fine."""
    if path.is_symlink():
        path.unlink()
        return
    # A directory without write permission keeps what is in it; its own mode is no obstacle to anybody else.
    for directory, _, _ in os.walk(path):
        mode = Path(directory).stat().st_mode
        if mode & stat.S_IRWXU != stat.S_IRWXU:
            Path(directory).chmod(mode | stat.S_IRWXU)
    with contextlib.suppress(FileNotFoundError):
        shutil.rmtree(path)


def make_read_only(root: Path) -> None:
    """Take the write permission from every file and directory below `root`; symlinks are left alone."""
    for directory, _, names in os.walk(root, topdown=False):
        for name in names:
            target = Path(directory) / name
            if not target.is_symlink():
                target.chmod(stat.S_IMODE(target.stat().st_mode) & ~0o222)
        Path(directory).chmod(stat.S_IMODE(Path(directory).stat().st_mode) & ~0o222)


def read_bytes(path: Path, *, what: str) -> bytes:
    """The bytes of a file; a missing or unreadable one is an OperationFailed that names `what` it was."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise OperationFailed(f"cannot read {what} {path}: {error.strerror}") from None
