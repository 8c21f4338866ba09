"""Facts of this machine from /proc and /sys, and the limits of one process on it.

Owns the reading of each fact that pinner/model/hostfacts.py names, and the honesty of it: a fact is a value,
absent where the machine has no such thing, or unknown with the reason. Read-only. `root` is the directory that
stands for /, for tests.
"""

from __future__ import annotations

import collections
import os
import re
from collections.abc import Callable, Iterable
from pathlib import Path

import msgspec

from pinner.host import cgroup, container
from pinner.model.facts import ABSENT, Fact, Unknown
from pinner.model.hostfacts import UNLIMITED

# What pinner raises an engine's limit of open files to, where it is lower and may be raised, so that the shell of
# the caller does not decide. SGLang asks for as much itself, and gets nothing where it may not have all of it.
OPEN_FILES = 65535
NO_SUCH = "this pinner knows no fact of that name"


class Place(msgspec.Struct, frozen=True):
    """Where to look: the root of the file system, and the process whose limits are meant.

    Of pinner's own process the limits are told that an engine started by it will have.
    """

    root: Path = Path("/")
    pid: int | None = None

    @property
    def process(self) -> Path:
        return self.root / "proc" / ("self" if self.pid is None else str(self.pid))

    @property
    def shm(self) -> Path:
        return self.root / "dev/shm"

    @property
    def cpu(self) -> Path:
        return self.root / "sys/devices/system/cpu"


def read(keys: Iterable[str], place: Place | None = None) -> dict[str, Fact]:
    """The facts of these names; nothing else is read."""
    place = place or Place()
    if not (place.root / "proc").is_dir():
        return {key: Unknown(f"no {place.root / 'proc'}: this needs Linux") for key in keys}
    found = {key: _told(READERS[key], place) if key in READERS else Unknown(NO_SUCH) for key in keys}
    if place.pid is not None and not place.process.exists():
        return dict.fromkeys(found, Unknown(f"pid {place.pid} has ended"))
    return found


def _told(reader: Callable[[Place], Fact], place: Place) -> Fact:
    try:
        return reader(place)
    except (FileNotFoundError, NotADirectoryError):
        return ABSENT
    except OSError as error:
        return Unknown(f"{error.filename}: {error.strerror}")
    except (ValueError, IndexError, KeyError):
        return Unknown("what the kernel says of it is not understood")


def open_files_limits(place: Place | None = None) -> tuple[Fact, Fact]:
    """Soft and hard limit of open files as the process has them."""
    place = place or Place()
    soft = _told(lambda one: _limit(one, "open files")[0], place)
    return soft, _told(lambda one: _limit(one, "open files")[1], place)


def _kernel(place: Place) -> Fact:
    return _line(place.root / "proc/sys/kernel/osrelease")


def _architecture(place: Place) -> Fact:
    try:
        return _line(place.root / "proc/sys/kernel/arch")
    except FileNotFoundError:
        return os.uname().machine  # a kernel before 6.1


def _hypervisor(place: Place) -> Fact:
    flags = _cpuinfo(place, "flags")
    if not flags:
        return Unknown("this kind of processor does not tell")
    return "hypervisor" in next(iter(flags)).split()


def _cpu_model(place: Place) -> Fact:
    names = _cpuinfo(place, "model name")
    if not names:
        # ARM tells numbers: who made the design, and which one it is.
        makers, parts = _cpuinfo(place, "CPU implementer"), _cpuinfo(place, "CPU part")
        pairs = zip(makers, parts, strict=False)
        names = {f"implementer {maker} part {part}": 1 for maker, part in pairs}
    return _one_or_mixed(names) if names else Unknown("/proc/cpuinfo names no model")


def _cpuinfo(place: Place, key: str) -> dict[str, int]:
    """The values that processors have for a key, each with how many have it."""
    found: collections.Counter[str] = collections.Counter()
    for line in (place.root / "proc/cpuinfo").read_text().splitlines():
        name, _, value = line.partition(":")
        if name.strip() == key:
            found[value.strip()] += 1
    return dict(found)


def _cpu_count(place: Place) -> Fact:
    return _count(_line(place.cpu / "online"))


def _affinity(place: Place) -> Fact:
    for line in (place.process / "status").read_text().splitlines():
        if line.startswith("Cpus_allowed_list:"):
            return _count(line.split()[1])
    return Unknown("the kernel does not tell")


def _governor(place: Place) -> Fact:
    found: collections.Counter[str] = collections.Counter()
    for policy in (place.cpu / "cpufreq").glob("policy*"):
        found[_line(policy / "scaling_governor")] += 1
    return _one_or_mixed(dict(found)) if found else ABSENT


def _one_or_mixed(counted: dict[str, int]) -> str:
    if len(counted) == 1:
        return next(iter(counted))
    return "mixed: " + ", ".join(f"{name} ({count})" for name, count in sorted(counted.items()))


def _numa_nodes(place: Place) -> Fact:
    return _count(_line(place.root / "sys/devices/system/node/online"))


def _numa_balancing(place: Place) -> Fact:
    return int(_line(place.root / "proc/sys/kernel/numa_balancing"))


def _meminfo(key: str) -> Callable[[Place], Fact]:
    def reader(place: Place) -> Fact:
        for line in (place.root / "proc/meminfo").read_text().splitlines():
            name, _, value = line.partition(":")
            if name == key:
                return int(value.split()[0]) * 1024
        return Unknown(f"the kernel does not tell {key}")

    return reader


def memory_available_bytes(place: Place) -> Fact:
    """What can be had without swapping: of the machine, or of the control group where that has less."""
    machine = _meminfo("MemAvailable")(place)
    group = cgroup.memory_left_bytes(_pid(place), root=place.root)
    if isinstance(machine, int) and isinstance(group, int):
        return min(machine, group)
    return group if isinstance(group, Unknown) else machine


def _transparent_huge_pages(place: Place) -> Fact:
    text = _line(place.root / "sys/kernel/mm/transparent_hugepage/enabled")
    chosen = re.search(r"\[(\w+)\]", text)
    return chosen[1] if chosen else Unknown(f"{text!r} is not understood")


def _huge_pages(place: Place) -> Fact:
    sizes = list((place.root / "sys/kernel/mm/hugepages").glob("hugepages-*kB"))
    if not sizes:
        return ABSENT
    return sum(int(_line(one / "nr_hugepages")) * int(one.name[10:-2]) * 1024 for one in sizes)


def _shm_size(place: Place) -> Fact:
    told = os.statvfs(place.shm)
    return told.f_blocks * told.f_frsize


def shm_free_bytes(place: Place) -> Fact:
    """Room in /dev/shm."""
    told = os.statvfs(place.shm)
    return told.f_bavail * told.f_frsize


def _open_files(place: Place) -> Fact:
    soft, hard = _limit(place, "open files")
    if place.pid is not None or soft == UNLIMITED:
        return soft
    return OPEN_FILES if hard == UNLIMITED else max(soft, min(hard, OPEN_FILES))


def _limit(place: Place, name: str) -> tuple[Fact, Fact]:
    """Soft and hard limit of the process."""
    for line in (place.process / "limits").read_text().splitlines():
        if line.startswith(f"Max {name} "):
            soft, hard = line.removeprefix(f"Max {name} ").split()[:2]
            return tuple(UNLIMITED if one == UNLIMITED else int(one) for one in (soft, hard))  # type: ignore[return-value]
    raise ValueError(name)


def _nvidia_module(place: Place) -> Fact:
    return nvidia_module(place.root)


def nvidia_module(root: Path = Path("/")) -> Fact:
    """The version of NVIDIA's kernel module that is loaded. OSError where it cannot be read."""
    text = (root / "proc/driver/nvidia/version").read_text()
    found = re.search(r"Kernel Module.*?\s(\d+\.\d+(\.\d+)*)\s", text)
    return found[1] if found else Unknown(f"{text.splitlines()[0]!r} is not understood")


def nvidia_models(root: Path = Path("/")) -> list[str]:
    """The models of the GPUs that the kernel module has, in order; none where it does not tell."""
    found = []
    for path in (root / "proc/driver/nvidia/gpus").glob("*/information"):
        for line in path.read_text().splitlines():
            name, _, value = line.partition(":")
            if name == "Model":
                found.append(value.strip())
    return sorted(found)


def _pid(place: Place) -> int | str:
    return "self" if place.pid is None else place.pid


def _line(path: Path) -> str:
    return path.read_text().strip()


def _count(ranges: str) -> int:
    """How many numbers a list of ranges such as 0-3,8 names."""
    total = 0
    for part in ranges.split(","):
        first, _, last = part.partition("-")
        total += int(last or first) - int(first) + 1
    return total


READERS: dict[str, Callable[[Place], Fact]] = {
    "kernel": _kernel,
    "architecture": _architecture,
    "hypervisor": _hypervisor,
    "cpu-model": _cpu_model,
    "cpu-count": _cpu_count,
    "cpu-affinity-count": _affinity,
    "cpu-governor": _governor,
    "cgroup-cpus": lambda place: cgroup.cpus(_pid(place), root=place.root),
    "numa-nodes": _numa_nodes,
    "numa-balancing": _numa_balancing,
    "memory-total-bytes": _meminfo("MemTotal"),
    "memory-available-bytes": memory_available_bytes,
    "cgroup-memory-bytes": lambda place: cgroup.memory_bytes(_pid(place), root=place.root),
    "swap-total-bytes": _meminfo("SwapTotal"),
    "transparent-huge-pages": _transparent_huge_pages,
    "huge-pages-bytes": _huge_pages,
    "shm-size-bytes": _shm_size,
    "shm-free-bytes": shm_free_bytes,
    "open-files": _open_files,
    "open-files-hard": lambda place: _limit(place, "open files")[1],
    "locked-memory-bytes": lambda place: _limit(place, "locked memory")[0],
    "nvidia-module": _nvidia_module,
    "container": lambda place: container.kind(place.root),
    "container-image": lambda place: container.image(place.root),
    "container-image-id": lambda place: container.image_id(place.root),
}
