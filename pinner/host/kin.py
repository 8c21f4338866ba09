"""Who is alive, who descends from whom, and who is in a cgroup.

Owns the raw reading of `/proc/PID/stat` and one leaf cgroup of a run. Shared by the supervisor, which runs
without the package, and by the modules of pinner that look at processes from outside.

Must not import pinner or anything outside the standard library, and must not decide whom to end.
"""

# Loaded by the supervisor: the reasons for cheap imports and for strings as paths are given there.
# ruff: noqa: PTH102, PTH106, PTH123, PTH208

from __future__ import annotations

import contextlib
import errno
import os
import signal
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


class Stat:
    """`/proc/PID/stat`, parsed; `start_ticks` in clock ticks since boot."""

    __slots__ = ("dead", "name", "ppid", "session", "start_ticks", "state")

    def __init__(self, raw: str) -> None:
        """Parse one line; ValueError or IndexError when it is not one."""
        # The name may hold spaces and parentheses itself.
        self.name = raw[raw.index("(") + 1 : raw.rindex(")")]
        field = raw[raw.rindex(")") + 2 :].split()
        self.state, self.ppid, self.session = field[0], int(field[1]), int(field[3])
        self.start_ticks = int(field[19])
        # A leader that ended while its threads go on also shows Z, and is not dead.
        self.dead = self.state in "ZXx" and int(field[17]) <= 1


def text(path: str) -> str:
    """A small file of a kernel file system. OSError when it is not readable."""
    with open(path, encoding="utf-8", errors="surrogateescape") as file:
        return file.read()


def stat(pid: int, proc: str = "/proc") -> Stat | None:
    """The process, zombies included, or None when there is no such process."""
    try:
        return Stat(text(f"{proc}/{pid}/stat"))
    except (OSError, ValueError, IndexError):
        return None


def living(proc: str = "/proc") -> dict[int, Stat]:
    """Every process that this one can see and that is not dead. OSError without a /proc."""
    return still_living((int(name) for name in os.listdir(proc) if name.isdigit()), proc)


def still_living(pids: Iterable[int], proc: str = "/proc") -> dict[int, Stat]:
    """Those of the processes that are there and not dead."""
    seen = ((pid, stat(pid, proc)) for pid in pids)
    return {pid: one for pid, one in seen if one is not None and not one.dead}


def below(roots: set[int], among: dict[int, Stat]) -> dict[int, Stat]:
    """Those of `among` that descend from one of the roots, parents before children."""
    children: dict[int, list[int]] = {}
    for pid, one in among.items():
        children.setdefault(one.ppid, []).append(pid)
    found: dict[int, Stat] = {}
    todo = list(roots)
    while todo:
        for pid in children.get(todo.pop(), ()):
            if pid not in found and pid not in roots:
                found[pid] = among[pid]
                todo.append(pid)
    return found


def children() -> list[int]:
    """The calling thread's own children, zombies included; empty also on a kernel without the file."""
    try:
        return [int(word) for word in text("/proc/thread-self/children").split()]
    except OSError:
        return []


def kill(pid: int) -> None:
    """SIGKILL by number: safe only for one's own descendants and the members of one's own cgroup."""
    with contextlib.suppress(OSError):  # gone, or not ours to end: who is left is named as a survivor
        os.kill(pid, signal.SIGKILL)


class Cgroup:
    """One leaf cgroup, or none (`path` is None) where the kernel or the permissions give none."""

    def __init__(self, path: str | None) -> None:
        self.path = path

    @classmethod
    def create(cls, name: str) -> tuple[Cgroup, str | None]:
        """A new cgroup below the own one: v2 first, then v1. Without one: why not, as text."""
        why = []
        for parent in _cgroup_parents():
            path = f"{parent}/{name}"
            try:
                os.mkdir(path)
            except OSError as error:
                why.append(f"{path}: {error.strerror}")
            else:
                return cls(path), None
        return cls(None), "; ".join(why) or "no cgroup file system"

    def enter(self) -> None:
        """Move the calling process in. OSError when it may not."""
        if self.path is not None:
            self._write("cgroup.procs", "0")

    def members(self) -> set[int]:
        """PIDs of all members, sub-groups included; zombies may be among them."""
        found: set[int] = set()
        for folder in self._folders():
            try:
                found.update(int(word) for word in text(f"{folder}/cgroup.procs").split())
            except OSError:
                continue  # the group went away meanwhile, or is a threaded one
        return found - {0}  # 0 is a process that this PID namespace cannot name

    def kill(self) -> None:
        """SIGKILL to every member; atomic where the kernel has cgroup.kill, else frozen first."""
        if self.path is None:
            return
        for file, freeze, thaw in (
            ("cgroup.kill", "1", None),
            ("cgroup.freeze", "1", "0"),
            ("freezer.state", "FROZEN", "THAWED"),
        ):
            try:
                self._write(file, freeze)
            except OSError:
                continue
            if thaw is not None:
                for pid in self.members():
                    kill(pid)
                with contextlib.suppress(OSError):
                    self._write(file, thaw)
            return
        for pid in self.members():
            kill(pid)

    def remove(self) -> None:
        """Remove the group and its sub-groups; it takes the kernel a moment to see it empty."""
        for _ in range(50):
            try:
                for folder in sorted(self._folders(), key=len, reverse=True):
                    os.rmdir(folder)
                return
            except OSError as error:
                if error.errno != errno.EBUSY:
                    return
                time.sleep(0.01)

    def _folders(self) -> Iterator[str]:
        if self.path is not None:
            for folder, _, _ in os.walk(self.path):
                yield folder

    def _write(self, file: str, text: str) -> None:
        # Without O_CREAT: a control file is there or it is not.
        fd = os.open(f"{self.path}/{file}", os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.write(fd, text.encode())
        finally:
            os.close(fd)


def cgroups(pid: int | str = "self", proc: str = "/proc") -> list[tuple[str, str, str]]:
    """(controller, mount point, path below it) of the groups that a process is in; "" is version 2.

    Only what is mounted and visible from here. OSError without cgroups or without the process.
    """
    mine = [line.split(":", 2)[1:] for line in text(f"{proc}/{pid}/cgroup").splitlines()]
    own = {controller: path for names, path in mine for controller in names.split(",")}
    found = []
    for line in text(f"{proc}/self/mountinfo").splitlines():
        left, _, right = line.partition(" - ")
        root, mount = map(_unescaped, left.split()[3:5])
        kind, options = right.split()[0], right.split()[-1].split(",")
        for name in [""] if kind == "cgroup2" else options if kind == "cgroup" else []:
            path = own.get(name)
            if path is None or "/.." in path or not (root == "/" or f"{path}/".startswith(f"{root}/")):
                continue
            found.append((name, mount, path if root == "/" else path[len(root) :]))
    return found


def _unescaped(field: str) -> str:
    # The kernel writes blanks and backslashes of a mount point as octal numbers.
    if "\\" not in field:
        return field
    for code, letter in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        field = field.replace(code, letter)
    return field


def _cgroup_parents() -> list[str]:
    """Directories of the own cgroup, the best hierarchy for killing first."""
    rank = {"": 0, "freezer": 1, "pids": 2, "name=systemd": 3}
    try:
        found = [(rank[name], f"{mount}{inside}".rstrip("/")) for name, mount, inside in cgroups() if name in rank]
    except OSError:
        return []
    return [path for _, path in sorted(found)]
