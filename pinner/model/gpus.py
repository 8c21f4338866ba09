"""GPUs as they are seen on a machine, and which of them an engine will see.

Owns the types and the meaning of CUDA_VISIBLE_DEVICES. Must not read anything: pinner/host/gpus.py does.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec

from pinner.model.facts import Fact, Unknown

# What stands for a field whose function the driver's NVML does not have.
NOT_OFFERED = "not in this driver"

VARIABLE = "CUDA_VISIBLE_DEVICES"
_INDEX = re.compile(r"[+-]?\d+\Z")
_UUID = re.compile(r"(MIG-)?GPU-[0-9a-fA-F][0-9a-fA-F-]*(/\d+/\d+)?\Z|MIG-[0-9a-fA-F][0-9a-fA-F-]*\Z")
_BUS_ID = re.compile(r"(?:([0-9a-fA-F]{1,8}):)?([0-9a-fA-F]{1,2}):([0-9a-fA-F]{1,2})(?:\.([0-7]))?\Z")


class GpuProcess(msgspec.Struct, frozen=True):
    """A process that uses a GPU; `memory_bytes` is None where the driver does not tell."""

    pid: int
    memory_bytes: int | None


class Gpu(msgspec.Struct, frozen=True, kw_only=True):
    """One GPU. A fact is a value, "unsupported", NOT_OFFERED or Unknown; a `broken` one has none, and says why.

    `bus_id` is spelled as in /sys (0000:41:00.0). `links` tells by bus id how the other GPUs are reached.
    """

    index: int
    bus_id: str | None = None
    uuid: str | None = None
    facts: dict[str, Fact] = {}
    mig_uuids: tuple[str, ...] = ()
    links: dict[str, str] = {}
    processes: tuple[GpuProcess, ...] | Unknown = ()
    broken: str | None = None

    @property
    def title(self) -> str:
        """How a person finds it again: bus id, or else UUID or index."""
        return self.bus_id or self.uuid or f"index-{self.index}"


class Gpus(msgspec.Struct, frozen=True, kw_only=True):
    """All GPUs of a machine in NVML's order, and what is true of all: the driver."""

    machine: dict[str, Fact]
    gpus: tuple[Gpu, ...]


class NvmlFailure(msgspec.Struct, frozen=True, kw_only=True):
    """Why NVML tells nothing. `is_absent`: there is no NVML here at all, as on a machine without such GPUs."""

    words: str
    hint: str
    is_absent: bool = False

    @property
    def sentence(self) -> str:
        return f"{self.words} ({self.hint})"


class Visible(msgspec.Struct, frozen=True):
    """The GPUs that CUDA will use, in its order; `stopped_at` is the entry at which it stopped, and why."""

    gpus: tuple[Gpu, ...]
    stopped_at: str | None = None


def bus_id(text: str) -> str | None:
    """One spelling of a PCI bus id (nvidia-smi: 00000000:41:00.0, /sys: 0000:41:00.0); None if it is none."""
    found = _BUS_ID.match(text.strip())
    if found is None:
        return None
    domain, bus, device, function = found.groups()
    return f"{int(domain or '0', 16):04x}:{int(bus, 16):02x}:{int(device, 16):02x}.{function or 0}"


def malformed(value: str) -> str | None:
    """What in a value of CUDA_VISIBLE_DEVICES names no GPU whatever the machine; None if it is well-formed.

    CUDA says nothing about such a value: it uses the GPUs before the entry that it does not understand.
    """
    entries = _entries(value)
    for entry in entries:
        if not _INDEX.match(entry) and not _UUID.match(entry):
            return f"{entry!r} is neither an index nor a UUID (GPU-… or MIG-…)"
    if len({bool(_INDEX.match(entry)) for entry in entries}) > 1:
        return "mixes indexes and UUIDs, which CUDA does not take"
    twice = next((entry for entry in entries if entries.count(entry) > 1), None)
    return None if twice is None else f"names {twice} twice, which CUDA does not take"


def visible_gpus(value: str | None, gpus: Sequence[Gpu]) -> Visible:
    """The GPUs that CUDA uses under that value, with CUDA_DEVICE_ORDER=PCI_BUS_ID; all without a value.

    At the first entry that names no GPU it stops, and uses those before it. An index below zero is how people
    write "none".
    """
    if value is None:
        return Visible(tuple(gpus))
    ordered = sorted(gpus, key=lambda gpu: gpu.bus_id or "~")
    found: list[Gpu] = []
    for entry in _entries(value):
        if _INDEX.match(entry):
            if int(entry) < 0:
                return Visible(tuple(found))
            named = ordered[int(entry) : int(entry) + 1]
        else:
            named = [gpu for gpu in gpus if _is_named(gpu, entry)]
        if len(named) != 1:
            what = "more than one GPU" if named else "no GPU here"
            return Visible(tuple(found), f"{entry} names {what}")
        # Two MIG devices of one GPU are one GPU to look at.
        found += [gpu for gpu in named if gpu not in found]
    return Visible(tuple(found))


def _is_named(gpu: Gpu, entry: str) -> bool:
    """Whether a UUID, or the beginning of one, means this GPU or a MIG device of it."""
    if entry.startswith("MIG-GPU-"):
        # The older spelling: the GPU's own UUID, and the two numbers of the instance.
        return gpu.uuid == entry.removeprefix("MIG-").partition("/")[0]
    return any(uuid.lower().startswith(entry.lower()) for uuid in (gpu.uuid or "", *gpu.mig_uuids) if uuid)


def _entries(value: str) -> list[str]:
    return [entry.strip() for entry in value.split(",")] if value.strip() else []
