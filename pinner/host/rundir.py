"""The lock and the state file of a run directory, as bytes on disk.

Owns who may write `state.json` and how "alive" is told. Shared by the supervisor, which runs without the
package, and by pinner/host/runs.py. Must not import pinner or anything outside the standard library, and
must not signal anybody.

The lock is a POSIX record lock. The kernel frees it with the process that holds it, so neither a crash nor
a reboot nor a reused PID leaves a wrong answer. A forked child never shares it, whereas a flock is held
until the last copy of its descriptor is closed. And a probe can ask for its holder without taking anything
(F_GETLK), so that a probe neither disturbs a start nor is mistaken for a supervisor by another probe.
"""

# Loaded by the supervisor: the reason for cheap imports and for strings as paths is given there.
# ruff: noqa: PTH105, PTH108

from __future__ import annotations

import fcntl
import json
import os
import struct

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

SCHEMA = 1
LOCK, STATE, SERVER_LOG, SUPERVISOR_LOG = "lock", "state.json", "server.log", "supervisor.log"

# Two bytes of the lock file. The first is held for life and means "alive". The second is held only while
# somebody who is not the supervisor replaces state.json, after a supervisor was killed.
_LIFE, _WRITE = 0, 1
_FLOCK = "hhqqi4x"  # struct flock of 64-bit Linux: type, whence, start, length, pid


def _request(kind: int, byte: int) -> bytes:
    return struct.pack(_FLOCK, kind, os.SEEK_SET, byte, 1, 0)


def take_for_life(run_dir: str) -> bool:
    """Hold the lock until this process ends; False when another process holds it. OSError without locks.

    The descriptor stays open on purpose: closing any descriptor of the file would free the lock.
    """
    fd = os.open(f"{run_dir}/{LOCK}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.fcntl(fd, fcntl.F_SETLK, _request(fcntl.F_WRLCK, _LIFE))
    except (BlockingIOError, PermissionError):
        return False
    fcntl.fcntl(fd, fcntl.F_SETLKW, _request(fcntl.F_WRLCK, _WRITE))
    fcntl.fcntl(fd, fcntl.F_SETLK, _request(fcntl.F_UNLCK, _WRITE))
    return True


def holder(run_dir: str) -> int | None:
    """PID of the live supervisor; 0 if this PID namespace does not show it; None if there is none.

    OSError when the lock file is there and cannot be asked.
    """
    try:
        fd = os.open(f"{run_dir}/{LOCK}", os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        answer = fcntl.fcntl(fd, fcntl.F_GETLK, _request(fcntl.F_WRLCK, _LIFE))
    finally:
        os.close(fd)
    kind, _, _, _, pid = struct.unpack(_FLOCK, answer)
    return None if kind == fcntl.F_UNLCK else max(pid, 0)


def replace_state(run_dir: str, value: dict[str, Any]) -> None:
    """For the supervisor: replace state.json so that a reader sees the old or the new, whole.

    OSError when the disk does not take it; the old one stays then.
    """
    # One name is enough, since only one may write; what a kill leaves is overwritten by the next.
    beside = f"{run_dir}/{STATE}.new"
    fd = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(fd, "w", encoding="ascii") as file:
            json.dump(value, file, indent=1)
            file.flush()
            os.fsync(fd)
        os.replace(beside, f"{run_dir}/{STATE}")
    except BaseException:
        os.unlink(beside)
        raise


def replace_dead_state(run_dir: str, value: dict[str, Any]) -> bool:
    """For others: replace state.json unless a supervisor lives; False when one does. OSError as above."""
    fd = os.open(f"{run_dir}/{LOCK}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        # Held by the open file, not the process, so that holder() below does not free it on closing.
        fcntl.fcntl(fd, fcntl.F_OFD_SETLKW, _request(fcntl.F_WRLCK, _WRITE))
        # A supervisor takes life first and then waits for this byte: either it is seen here, or it writes
        # its own state after this one.
        if holder(run_dir) is not None:
            return False
        replace_state(run_dir, value)
        return True
    finally:
        os.close(fd)
