"""Which files a process has mapped, by /proc/PID/maps.

Owns the parsing and the honesty of it, like pinner/host/procfs.py. Must not decide what a mapping means.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import msgspec

from pinner.host import kin
from pinner.host.procfs import PROC, Unreadable, require

_DELETED = " (deleted)"
_GONE = (FileNotFoundError, ProcessLookupError)


class MappedFile(msgspec.Struct, frozen=True):
    """One file that a process has mapped, however many pieces of it.

    `path` is where the file lies now: the kernel follows a rename. `deleted` where no name leads to it any more,
    as after a package was installed over it. `executable` if code of it can run.
    """

    path: str
    device: int
    inode: int
    deleted: bool = False
    executable: bool = False

    @property
    def replaced(self) -> bool:
        """Whether another file is found at its path now, by a process that sees the same file system.

        On overlays the device that the kernel shows here is a lower one: only an inode that differs on the same
        device says anything.
        """
        if self.deleted:
            return True
        try:
            now = os.stat(self.path)  # noqa: PTH116  # any name the file system has
        except OSError:
            return False
        return now.st_dev == self.device and now.st_ino != self.inode


def mapped_files(pid: int, *, proc: Path = PROC) -> tuple[MappedFile, ...] | Unreadable:
    """Every file that the process has mapped, by path; why that cannot be told. Unsupported without a /proc."""
    require(proc)
    before = kin.stat(pid, str(proc))
    if before is None or before.dead:
        return Unreadable("the process has ended", gone=True)
    try:
        raw = (proc / str(pid) / "maps").read_bytes()
    except _GONE:
        return Unreadable("the process has ended", gone=True)
    except OSError as error:
        return Unreadable(f"/proc/{pid}/maps: {error.strerror}")
    after = kin.stat(pid, str(proc))
    if after is None or after.dead or after.start_ticks != before.start_ticks:
        return Unreadable("the process has ended", gone=True)
    if not raw:
        return Unreadable("no memory of its own: a kernel thread, or a process about to start or to end")
    return parse(os.fsdecode(raw))


def parse(text: str) -> tuple[MappedFile, ...]:
    """The files in the text of a maps file, by path, each once; memory without a file is left out."""
    found: dict[tuple[str, int, int], MappedFile] = {}
    for line in text.split("\n"):
        fields = line.split(None, 5)
        if len(fields) < 6 or not fields[5].startswith("/"):
            continue
        _, access, _, device, inode, name = fields
        key = (name, _device(device), int(inode))
        before = found.get(key)
        runs = "x" in access
        if before is None:
            deleted = name.endswith(_DELETED)
            path = _unescaped(name.removesuffix(_DELETED))
            found[key] = MappedFile(path, key[1], key[2], deleted, runs)
        elif runs and not before.executable:
            found[key] = MappedFile(before.path, before.device, before.inode, before.deleted, True)
    return tuple(found[key] for key in sorted(found))


def _unescaped(name: str) -> str:
    if "\\" not in name:
        return name
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), name)


def _device(text: str) -> int:
    major, _, minor = text.partition(":")
    return os.makedev(int(major, 16), int(minor, 16))
