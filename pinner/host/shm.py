"""The files of shared memory, usually /dev/shm: which there are, and which processes have them open or mapped.

Owns the identity of a segment (device and inode, not only its name) and removing one. Must not decide whose it is.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
from collections.abc import Iterable
from pathlib import Path

import msgspec

from pinner.host import kin, procfs

# The C library's shm_open knows no other place.
SHM = Path("/dev/shm")  # noqa: S108  # looked at, not written to
# A number that stands alone: not the digits within a random name such as psm_3f8a1c2d.
_NUMBER = re.compile(r"(?<![0-9A-Za-z])\d{2,8}(?![0-9A-Za-z])")


class Segment(msgspec.Struct, frozen=True, kw_only=True):
    """One file of shared memory; `name` below its root, `size_bytes` what it takes, `changed_ns` its ctime."""

    name: str
    device: int
    inode: int
    size_bytes: int
    uid: int
    changed_ns: int

    @property
    def identity(self) -> tuple[int, int]:
        return self.device, self.inode


class Holders(msgspec.Struct, frozen=True):
    """Processes by the identity of what they hold; `unreadable` of them would not show it."""

    pids: dict[tuple[int, int], list[int]]
    unreadable: int


def segments(root: Path = SHM) -> list[Segment]:
    """Every file of shared memory, largest first; what vanishes meanwhile is left out."""
    found = []
    for directory, _, names in os.walk(root):
        for name in names:
            path = Path(directory, name)
            with contextlib.suppress(OSError):
                told = path.lstat()
                if stat.S_ISREG(told.st_mode):
                    found.append(_segment(str(path.relative_to(root)), told))
    return sorted(found, key=lambda one: (-one.size_bytes, one.name))


def _segment(name: str, told: os.stat_result) -> Segment:
    return Segment(
        name=name,
        device=told.st_dev,
        inode=told.st_ino,
        size_bytes=told.st_blocks * 512,
        uid=told.st_uid,
        changed_ns=told.st_ctime_ns,
    )


def holders(pids: Iterable[int] | None = None, *, root: Path = SHM, proc: Path = procfs.PROC) -> Holders:
    """Which processes (all that can be seen, without `pids`) have files below `root` mapped or open."""
    found: dict[tuple[int, int], list[int]] = {}
    unreadable = 0
    for pid in kin.living(str(proc)) if pids is None else pids:
        try:
            held = _mapped(proc / str(pid) / "maps", root) | _opened(proc / str(pid) / "fd", root)
        except (FileNotFoundError, ProcessLookupError):
            continue
        except OSError:
            unreadable += 1
            continue
        for identity in held:
            found.setdefault(identity, []).append(pid)
    return Holders(found, unreadable)


def _mapped(maps: Path, root: Path) -> set[tuple[int, int]]:
    found = set()
    start = f"{root}/"
    for line in maps.read_text(errors="surrogateescape").splitlines():
        field = line.split(maxsplit=5)
        if len(field) == 6 and field[5].startswith(start):
            major, minor = (int(part, 16) for part in field[3].split(":"))
            found.add((os.makedev(major, minor), int(field[4])))
    return found


def _opened(folder: Path, root: Path) -> set[tuple[int, int]]:
    found = set()
    start = f"{root}/"
    for link in folder.iterdir():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # closed meanwhile
            # The link is read first: to ask a file on a dead network mount for more can hang.
            if os.fsdecode(link.readlink()).startswith(start):
                told = link.stat()
                found.add((told.st_dev, told.st_ino))
    return found


def named_after(segment: Segment, *, proc: Path = procfs.PROC) -> int | None:
    """A living process whose number stands first in the segment's name, as torch and OpenMP write it there."""
    number = _NUMBER.search(segment.name)
    if number is None or procfs.start_ticks(int(number[0]), proc=proc) is None:
        return None
    return int(number[0])


def remove(segment: Segment, *, root: Path = SHM) -> bool:
    """Remove one segment, if its name still means it; False if it does not, or may not be removed."""
    path = root / segment.name
    try:
        told = path.lstat()
        if (told.st_dev, told.st_ino) != segment.identity or told.st_ctime_ns != segment.changed_ns:
            return False
        path.unlink()
    except OSError:
        return False
    return True
