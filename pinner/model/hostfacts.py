"""The facts of a host that can be expected: which there are, their units, how each is compared by default.

Must not read them: pinner/probes/host.py does.
"""

from __future__ import annotations

from collections.abc import Mapping

from pinner.model.expectations import Expected, FactPin, FactSpec, Given, pin_expected
from pinner.model.facts import Class, Fact

# A limit that is not set: more than every number.
UNLIMITED = "unlimited"
_OR_UNLIMITED = (UNLIMITED,)

HOST_FACTS: dict[str, FactSpec] = {
    "kernel": FactSpec(str, "release of the kernel"),
    "architecture": FactSpec(str, "instruction set"),
    "hypervisor": FactSpec(bool, "whether this is a virtual machine"),
    "cpu-model": FactSpec(str, "model of the processors"),
    "cpu-count": FactSpec(int, "logical processors", Class.AT_LEAST),
    "cpu-affinity-count": FactSpec(int, "logical processors that the engine may run on", Class.AT_LEAST),
    "cpu-governor": FactSpec(str, "frequency governor of all processors"),
    "cgroup-cpus": FactSpec(float, "processors' worth of time", Class.AT_LEAST, words=_OR_UNLIMITED),
    "numa-nodes": FactSpec(int, "NUMA nodes"),
    "numa-balancing": FactSpec(int, "automatic NUMA balancing, 0 is off"),
    "memory-total-bytes": FactSpec(int, "memory", Class.AT_LEAST),
    "memory-available-bytes": FactSpec(int, "memory to be had without swapping; as above", Class.AT_LEAST),
    "cgroup-memory-bytes": FactSpec(int, "limit of memory", Class.AT_LEAST, words=_OR_UNLIMITED),
    "swap-total-bytes": FactSpec(int, "swap space"),
    "transparent-huge-pages": FactSpec(str, "always, madvise or never"),
    "huge-pages-bytes": FactSpec(int, "memory reserved for huge pages", Class.AT_LEAST),
    "shm-size-bytes": FactSpec(int, "size of /dev/shm", Class.AT_LEAST),
    "shm-free-bytes": FactSpec(int, "room in /dev/shm; `up` demands it before the launch", Class.AT_LEAST),
    "open-files": FactSpec(int, "open files that the engine may have", Class.AT_LEAST, words=_OR_UNLIMITED),
    "open-files-hard": FactSpec(int, "up to which it may raise that", Class.AT_LEAST, words=_OR_UNLIMITED),
    "locked-memory-bytes": FactSpec(int, "memory that it may lock", Class.AT_LEAST, words=_OR_UNLIMITED),
    "nvidia-module": FactSpec(str, "version of the loaded kernel module of the driver"),
    "container": FactSpec(str, "kind of container around pinner"),
    "container-image": FactSpec(str, "its image, with digest where that is told"),
    "container-image-id": FactSpec(str, "id of its image"),
}
# A limit belongs to a process: what the engine itself has is what counts once it runs.
OF_THE_PROCESS = frozenset(
    {
        "cpu-affinity-count",
        "cgroup-cpus",
        "cgroup-memory-bytes",
        "open-files",
        "open-files-hard",
        "locked-memory-bytes",
    }
)
# What a server that runs takes itself: `up` demands it before the launch, and no check afterwards.
BEFORE_LAUNCH = frozenset({"shm-free-bytes", "memory-available-bytes"})
# What changes with an update, or with the shell, is kept for a later comparison and not demanded.
_RECORDED = frozenset({"kernel", "swap-total-bytes", "open-files", "open-files-hard"})
# The kernel's own share differs a little from build to build.
_WHOLE_GIB = frozenset({"memory-total-bytes", "shm-size-bytes"})
_GIB = 1 << 30


def expected(given: Mapping[str, Given]) -> dict[str, FactPin]:
    """What a manifest's section demands."""
    pins = {key: pin_expected(HOST_FACTS[key], one) for key, one in sorted(given.items())}
    return {key: pin for key, pin in pins.items() if pin is not None}


def captured(key: str, value: Fact, given: Given | None = None) -> FactPin:
    """The pin of a fact as a machine has it; the manifest may have asked only to record it."""
    is_only_recorded = isinstance(given, Expected) and given.comparison is Class.RECORD_ONLY
    if key in _WHOLE_GIB and value > _GIB:
        value -= value % _GIB
    comparison = Class.RECORD_ONLY if is_only_recorded or key in _RECORDED else HOST_FACTS[key].comparison
    return FactPin(value=value, comparison=comparison, captured=True)


def demanded(pins: Mapping[str, FactPin]) -> dict[str, FactPin]:
    """Those that every check compares."""
    return {
        key: pin
        for key, pin in pins.items()
        if pin.comparison is not Class.RECORD_ONLY and key not in BEFORE_LAUNCH
    }


def needed_bytes(pins: Mapping[str, FactPin], key: str, otherwise: int) -> int:
    """How much of what stands in BEFORE_LAUNCH the lock demands; a fact that is only recorded demands nothing."""
    pin = pins.get(key)
    if pin is None:
        return otherwise
    return int(pin.value) if pin.comparison is not Class.RECORD_ONLY else 0


def is_met_without_limit(pin: FactPin) -> bool:
    """Whether an observed "unlimited" is as much as was wanted, for all that it is no number."""
    return pin.comparison is Class.AT_LEAST and not isinstance(pin.value, str)
