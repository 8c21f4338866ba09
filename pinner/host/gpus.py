"""The GPUs of this machine, read through NVML in a process of its own that may hang or crash.

Owns the deadline, and the words for each way in which NVML fails: none of them is "no GPU". Must not judge, and
must not load pynvml: pinner/host/nvml.py does, in that process.
"""

from __future__ import annotations

import importlib.util
import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from pinner.errors import CommandFailed, OperationFailed
from pinner.host import process
from pinner.model.expectations import UNSUPPORTED
from pinner.model.facts import Fact, Unknown
from pinner.model.gpus import NOT_OFFERED, Gpu, GpuProcess, Gpus, NvmlFailure, bus_id

# Where the kernel module tells of itself.
PROC = Path("/proc/driver/nvidia")
# A driver without persistence mode is loaded anew by the first who asks: some seconds for 8 GPUs.
DEADLINE_S = 60.0

_NOT_SUPPORTED, _NO_PERMISSION, _NO_DRIVER, _NO_LIBRARY = 3, 4, 9, 12
_NO_FUNCTION, _LOST, _RESET, _MISMATCH = 13, 15, 16, 18
_VERSION = re.compile(r"\b(\d{3,}\.\d+(?:\.\d+)?)\b")
_LOOK_IN_LOG = "`dmesg` names the reason in its lines with NVRM and Xid"


def ask(*more: str) -> process.Started | NvmlFailure:
    """Start asking NVML, which takes time; `answer` must follow. `more` are further arguments of nvml.py."""
    spec = importlib.util.find_spec("pynvml")
    if spec is None or spec.origin is None:
        words, hint = "pynvml is not installed beside pinner", "it comes with the package nvidia-ml-py"
        return NvmlFailure(words=words, hint=hint)
    script = Path(__file__).with_name("nvml.py")
    argv = (sys.executable, "-I", "-S", str(script), str(Path(spec.origin).parent), *more)
    try:
        # The library is found as pinner itself would find it: containers name its place in LD_LIBRARY_PATH.
        return process.start(argv, env=os.environ, cwd=Path("/"))
    except OperationFailed as error:
        return NvmlFailure(words=f"NVML could not be asked: {error.message}", hint="see the message")


def answer(
    asked: process.Started | NvmlFailure, *, deadline_s: float | None = None, proc: Path | None = None
) -> Gpus | NvmlFailure:
    """What NVML said, or why it said nothing."""
    deadline_s, proc = deadline_s or DEADLINE_S, proc or PROC
    if isinstance(asked, NvmlFailure):
        return asked
    try:
        done = process.collect_or_leave(asked, timeout_s=deadline_s)
    except CommandFailed:
        return NvmlFailure(
            words=f"NVML did not answer within {deadline_s:g} s",
            hint=f"a broken GPU or driver holds whoever asks; {_LOOK_IN_LOG}",
        )
    try:
        said = msgspec.json.decode(done.stdout, type=dict[str, Any])
    except msgspec.MsgspecError:
        how = f"signal {-done.code}" if done.code < 0 else f"exit code {done.code}"
        last = done.stderr.decode(errors="replace").strip().splitlines()[-1:]
        words = f"NVML ended the process that asked it ({how})" + "".join(f": {line}" for line in last)
        return NvmlFailure(words=words, hint=_LOOK_IN_LOG)
    if "failed" in said:
        return _failure(said["failed"], _library_version(said), module_version(proc))
    return _gpus(said, proc)


def read(*, deadline_s: float | None = None, proc: Path | None = None) -> Gpus | NvmlFailure:
    """Everything that NVML tells, in one session."""
    return answer(ask(), deadline_s=deadline_s, proc=proc)


def module_version(proc: Path) -> str | None:
    """Version of the loaded kernel module; None where none is loaded."""
    try:
        found = _VERSION.search((proc / "version").read_text(errors="replace"))
    except OSError:
        return None
    return found.group(1) if found else None


def _failure(failed: Mapping[str, Any], library: str | None, module: str | None) -> NvmlFailure:
    code, says = failed["code"], failed["says"]
    if code == _NO_LIBRARY:
        return NvmlFailure(
            words="there is no NVML here: libnvidia-ml.so.1 is not found",
            hint="it comes with the driver; a container gets it from the NVIDIA container toolkit",
            is_absent=True,
        )
    if code == _NO_DRIVER:
        return NvmlFailure(
            words="the NVIDIA driver is not loaded", hint=f"`modprobe nvidia` loads it; {_LOOK_IN_LOG}"
        )
    if code == _MISMATCH:
        return NvmlFailure(
            words="driver library / kernel module mismatch: "
            f"the library is {library or 'of unknown version'}, "
            f"the loaded kernel module {module or 'of unknown version'}",
            hint="the driver was updated under the loaded module: reboot, or reload the module",
        )
    if code == _NO_PERMISSION:
        return NvmlFailure(
            words="no permission to ask NVML", hint="look at who may open /dev/nvidiactl and /dev/nvidia*"
        )
    if code in (_LOST, _RESET):
        return NvmlFailure(words=f"NVML does not start: {_broken(code, says)}", hint=_LOOK_IN_LOG)
    return NvmlFailure(words=f"NVML failed: {says} (code {code})", hint=_LOOK_IN_LOG)


def _library_version(said: Mapping[str, Any]) -> str | None:
    found = _VERSION.search(Path(said.get("library") or "").name)
    return found.group(1) if found else None


def _gpus(said: Mapping[str, Any], proc: Path) -> Gpus:
    machine = {name: _fact(said[name]) for name in ("driver", "cuda-driver", "nvml")}
    cuda = machine["cuda-driver"]
    if isinstance(cuda, int):
        machine["cuda-driver"] = f"{cuda // 1000}.{cuda % 1000 // 10}"
    module = module_version(proc)
    machine["kernel-module"] = module or Unknown(f"{proc / 'version'} does not tell")
    gpus = [_gpu(index, fields) for index, fields in enumerate(said["gpus"])]
    _name_the_lost(gpus, proc)
    for one, other, level in said["links"]:
        for here, there in ((gpus[one], gpus[other]), (gpus[other], gpus[one])):
            here.links[there.title] = level
    return Gpus(machine=machine, gpus=tuple(gpus))


def watched(line: bytes) -> tuple[float, tuple[Gpu, ...]] | None:
    """(Unix seconds, GPUs) of a line that nvml.py writes while it watches; None for what is none."""
    try:
        said = msgspec.json.decode(line, type=dict[str, Any])
        gpus = tuple(_watched_gpu(index, fields) for index, fields in enumerate(said["gpus"]))
        return float(said["at"]), gpus
    except (msgspec.MsgspecError, KeyError, TypeError, ValueError):
        return None


def _watched_gpu(index: int, fields: Mapping[str, Any]) -> Gpu:
    if "handle" in fields:
        return Gpu(index=index, broken=_broken(fields["handle"]["code"], fields["handle"]["says"]))
    place = fields["bus-id"].get("value")
    facts = {name: _fact(field) for name, field in fields.items() if name != "bus-id"}
    return Gpu(index=index, bus_id=bus_id(place) if isinstance(place, str) else None, facts=facts)


def _gpu(index: int, fields: Mapping[str, Any]) -> Gpu:
    def text(name: str) -> str | None:
        value = fields.get(name, {}).get("value")
        return value if isinstance(value, str) else None

    place = bus_id(text("bus-id") or "")
    handle = fields.get("handle")
    if handle is not None:
        broken = _broken(handle["code"], handle["says"])
        return Gpu(index=index, bus_id=place, uuid=text("uuid"), links={}, broken=broken)
    found = _fact(fields["processes"])
    apart = ("bus-id", "processes", "mig-uuids")
    return Gpu(
        index=index,
        bus_id=place,
        uuid=text("uuid"),
        facts={name: _fact(field) for name, field in fields.items() if name not in apart},
        mig_uuids=tuple(fields.get("mig-uuids", {}).get("value", ())),
        links={},
        processes=tuple(GpuProcess(**one) for one in found) if isinstance(found, list) else _unknown(found),
    )


def _name_the_lost(gpus: list[Gpu], proc: Path) -> None:
    """Give lost GPUs that could not say their bus ids those that the kernel module knows and nobody has."""
    try:
        known = sorted(filter(None, (bus_id(entry.name) for entry in (proc / "gpus").iterdir())))
    except OSError:
        return
    seen = {gpu.bus_id for gpu in gpus}
    left = [place for place in known if place not in seen]
    nameless = [at for at, gpu in enumerate(gpus) if gpu.bus_id is None]
    if len(left) == len(nameless):
        for at, place in zip(nameless, left, strict=True):
            gpus[at] = msgspec.structs.replace(gpus[at], bus_id=place)


def _broken(code: int, says: str) -> str:
    if code == _LOST:
        return "the GPU is lost: it has fallen off the bus or does not answer"
    if code == _RESET:
        return "the GPU must be reset before it answers"
    if code == _NO_PERMISSION:
        return "no permission to use this GPU"
    return f"NVML cannot open it: {says} (code {code})"


def _fact(field: Mapping[str, Any]) -> Fact:
    if "value" in field:
        return field["value"]
    code, says = field["code"], field["says"]
    if code == _NOT_SUPPORTED:
        return UNSUPPORTED
    if code == _NO_FUNCTION:
        return NOT_OFFERED
    if code == _NO_PERMISSION:
        return Unknown("no permission to read it")
    return Unknown(f"NVML says: {says}")


def _unknown(fact: Fact) -> Unknown:
    return fact if isinstance(fact, Unknown) else Unknown(f"its processes: {fact}")
