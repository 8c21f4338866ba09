"""What a process's control groups allow it: processors and memory, version 1, version 2 or both.

Owns the reading and that the tightest limit on the way to the root counts. Must not make or change a group, and
must not decide what a limit means. `root` is the directory that stands for /.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

from pinner.host import kin
from pinner.model.facts import ABSENT, Fact, Unknown
from pinner.model.hostfacts import UNLIMITED

# Version 1 has no word for "no limit": it is the largest number of whole pages, a little below 2^63.
_V1_NO_LIMIT = 1 << 62


def cpus(pid: int | str = "self", *, root: Path = Path("/")) -> Fact:
    """How many processors' worth of time the process may use; UNLIMITED without a quota."""

    def quota(group: Path) -> float | None:
        try:
            granted, period = (group / "cpu.max").read_text().split()
        except FileNotFoundError:
            granted = (group / "cpu.cfs_quota_us").read_text().strip()
            period = (group / "cpu.cfs_period_us").read_text().strip()
        return None if granted in ("max", "-1") else round(int(granted) / int(period), 3)

    return _tightest("cpu", quota, pid, root)


def memory_bytes(pid: int | str = "self", *, root: Path = Path("/")) -> Fact:
    """How much memory the process and all others of its groups may use together; UNLIMITED without a limit."""
    return _tightest("memory", _memory_limit, pid, root)


def memory_left_bytes(pid: int | str = "self", *, root: Path = Path("/")) -> Fact:
    """How much of its limit the tightest group still has; what the kernel can drop from caches counts as free."""

    def left(group: Path) -> float | None:
        limit = _memory_limit(group)
        return None if limit is None else max(0, limit - _memory_used(group))

    return _tightest("memory", left, pid, root)


def throttling(pid: int | str = "self", *, root: Path = Path("/")) -> tuple[int, float] | None:
    """(how often, seconds) that quotas have held up the groups of a process so far; None where nothing tells.

    Each group counts for itself: the most that one of them was held up.
    """
    found: list[tuple[int, float]] = []
    with contextlib.suppress(OSError, ValueError, IndexError):
        for group in _groups("cpu", pid, root):
            stat = group / "cpu.stat"
            # Version 1 counts nanoseconds.
            seconds = max(_field(stat, "throttled_usec", 0) / 1e6, _field(stat, "throttled_time", 0) / 1e9)
            found.append((_field(stat, "nr_throttled", 0), seconds))
    return max(found, key=lambda one: one[1]) if found else None


def _memory_limit(group: Path) -> int | None:
    try:
        text = (group / "memory.max").read_text().strip()
    except FileNotFoundError:
        limits = [int((group / "memory.limit_in_bytes").read_text())]
        # What lies above the mount counts too, and only this line tells of it.
        limits.append(_field(group / "memory.stat", "hierarchical_memory_limit", _V1_NO_LIMIT))
        return None if min(limits) >= _V1_NO_LIMIT else min(limits)
    return None if text == "max" else int(text)


def _memory_used(group: Path) -> int:
    stat = group / "memory.stat"
    try:
        used = int((group / "memory.current").read_text())
        return used - _field(stat, "inactive_file", 0)
    except FileNotFoundError:
        used = int((group / "memory.usage_in_bytes").read_text())
        return used - _field(stat, "total_inactive_file", 0)


def _field(path: Path, name: str, otherwise: int) -> int:
    with contextlib.suppress(FileNotFoundError):
        for line in path.read_text().splitlines():
            key, _, value = line.partition(" ")
            if key == name:
                return int(value)
    return otherwise


def _tightest(controller: str, limit: Callable[[Path], float | None], pid: int | str, root: Path) -> Fact:
    try:
        groups = list(_groups(controller, pid, root))
        found = []
        for group in groups:
            with contextlib.suppress(FileNotFoundError):  # a root group has no limits, nor a place for them
                found.append(limit(group))
    except FileNotFoundError:
        # A kernel built without control groups limits nothing by them.
        return ABSENT if (root / "proc").is_dir() else Unknown(f"no {root / 'proc'}: this needs Linux")
    except OSError as error:
        return Unknown(f"{error.filename}: {error.strerror}")
    except (ValueError, IndexError):
        return Unknown(f"the {controller} control group is not understood")
    if not groups:
        return Unknown(f"the {controller} control group of this process is not mounted here")
    limits = [one for one in found if one is not None]
    return min(limits) if limits else UNLIMITED


def _groups(controller: str, pid: int | str, root: Path) -> Iterator[Path]:
    """The group's directory and those above it, up to where its hierarchy is mounted.

    A controller belongs to one hierarchy: version 1 where that lists it, else version 2.
    """
    lines = (root / "proc" / str(pid) / "cgroup").read_text().splitlines()
    first = {name for line in lines for name in line.split(":", 2)[1].split(",")}
    wanted = controller if controller in first else ""
    for name, mount, inside in kin.cgroups(pid, str(root / "proc")):
        if name != wanted:
            continue
        top = root / mount.lstrip("/")
        group = top / inside.lstrip("/")
        if not group.is_dir():
            continue
        while True:
            yield group
            if group == top:
                return
            group = group.parent
