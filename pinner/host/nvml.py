"""What NVML says of every GPU, asked in a process of its own: `python -I -S nvml.py DIRECTORY [SECONDS]`.

Owns pynvml: nothing else imports it. A broken driver can hold a caller in the kernel for ever, or end it, which
must not happen to pinner; pinner/host/gpus.py starts this and reads the answer. DIRECTORY is where pynvml lies.
With SECONDS it goes on to tell what changes under load, a line each time, until nobody reads any more.

Must not load anything but pynvml and the standard library, and must not judge: each field is a value or the code
that NVML gave instead. It only reads; no setting of a GPU is ever changed. Values are in pinner's units (watts,
bytes, MHz).
"""

# Only cheap imports: this stands in the way of a check.
# ruff: noqa: PTH119, PTH123

from __future__ import annotations

import contextlib
import json
import os
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

_NOT_SUPPORTED, _LOST = 3, 15
_NO_NUMBER = 0xFFFFFFFF
_LEVELS = {0: "internal", 10: "PIX", 20: "PXB", 30: "PHB", 40: "NODE", 50: "SYS"}
_COMPUTE_MODES = {0: "default", 1: "exclusive-thread", 2: "prohibited", 3: "exclusive-process"}
_VIRTUALIZATION = {0: "none", 1: "passthrough", 2: "vgpu", 3: "host-vgpu", 4: "host-vsga"}
_MOST_LINKS = 18
_GRAPHICS, _SM, _MEMORY = 0, 1, 2


def _watts(milliwatts: int) -> float | None:
    return _real(milliwatts) and milliwatts / 1000


def _real(number: int) -> int | None:
    """None for what some drivers answer instead of "not supported"."""
    return None if number in (0, _NO_NUMBER) else number


def _reasons(nv: Any, gpu: Any) -> int:
    """Why clocks are lower than they could be, as bits; drivers before 535 know the function by its older name."""
    try:
        return int(nv.nvmlDeviceGetCurrentClocksEventReasons(gpu))
    except nv.NVMLError_FunctionNotFound:
        return int(nv.nvmlDeviceGetCurrentClocksThrottleReasons(gpu))


def _nvlinks(nv: Any, gpu: Any) -> int:
    """How many NVLinks are active."""
    active = 0
    for link in range(_MOST_LINKS):
        try:
            active += nv.nvmlDeviceGetNvLinkState(gpu, link)
        except nv.NVMLError_InvalidArgument:
            break
        except nv.NVMLError_NotSupported:
            if link == 0:
                raise
            break
    return active


def _migs(nv: Any, gpu: Any) -> list[str]:
    """UUIDs of the MIG devices of a GPU."""
    found = []
    for index in range(nv.nvmlDeviceGetMaxMigDeviceCount(gpu)):
        try:
            found.append(_text(nv.nvmlDeviceGetUUID(nv.nvmlDeviceGetMigDeviceHandleByIndex(gpu, index))))
        except nv.NVMLError_NotFound:
            continue
    return found


def _processes(nv: Any, gpu: Any) -> list[dict[str, int | None]]:
    """Those that compute; a desktop that draws is none of them."""
    found = nv.nvmlDeviceGetComputeRunningProcesses(gpu)
    return [{"pid": one.pid, "memory_bytes": one.usedGpuMemory} for one in found]


def _text(value: str | bytes) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value


def _bus_id(nv: Any, gpu: Any) -> str:
    return _text(nv.nvmlDeviceGetPciInfo(gpu).busId)


# What identifies a GPU comes first: a lost one may still answer that.
_FIELDS: dict[str, Callable[[Any, Any], Any]] = {
    "bus-id": _bus_id,
    "uuid": lambda nv, gpu: _text(nv.nvmlDeviceGetUUID(gpu)),
    "name": lambda nv, gpu: _text(nv.nvmlDeviceGetName(gpu)),
    "serial": lambda nv, gpu: _text(nv.nvmlDeviceGetSerial(gpu)),
    "vbios": lambda nv, gpu: _text(nv.nvmlDeviceGetVbiosVersion(gpu)),
    "memory-total-bytes": lambda nv, gpu: _real(nv.nvmlDeviceGetMemoryInfo(gpu).total),
    "pcie-generation-now": lambda nv, gpu: _real(nv.nvmlDeviceGetCurrPcieLinkGeneration(gpu)),
    "pcie-generation-max": lambda nv, gpu: _real(nv.nvmlDeviceGetMaxPcieLinkGeneration(gpu)),
    "pcie-width-now": lambda nv, gpu: _real(nv.nvmlDeviceGetCurrPcieLinkWidth(gpu)),
    "pcie-width-max": lambda nv, gpu: _real(nv.nvmlDeviceGetMaxPcieLinkWidth(gpu)),
    "power-limit-set-watts": lambda nv, gpu: _watts(nv.nvmlDeviceGetPowerManagementLimit(gpu)),
    "power-limit-enforced-watts": lambda nv, gpu: _watts(nv.nvmlDeviceGetEnforcedPowerLimit(gpu)),
    "power-limit-default-watts": lambda nv, gpu: _watts(nv.nvmlDeviceGetPowerManagementDefaultLimit(gpu)),
    "power-watts": lambda nv, gpu: _watts(nv.nvmlDeviceGetPowerUsage(gpu)),
    "clock-sm-mhz": lambda nv, gpu: nv.nvmlDeviceGetClockInfo(gpu, _SM),
    "clock-memory-mhz": lambda nv, gpu: nv.nvmlDeviceGetClockInfo(gpu, _MEMORY),
    "clock-sm-max-mhz": lambda nv, gpu: nv.nvmlDeviceGetMaxClockInfo(gpu, _SM),
    "clock-memory-max-mhz": lambda nv, gpu: nv.nvmlDeviceGetMaxClockInfo(gpu, _MEMORY),
    "clock-application-graphics-mhz": lambda nv, gpu: nv.nvmlDeviceGetApplicationsClock(gpu, _GRAPHICS),
    "clock-application-memory-mhz": lambda nv, gpu: nv.nvmlDeviceGetApplicationsClock(gpu, _MEMORY),
    "pstate": lambda nv, gpu: nv.nvmlDeviceGetPerformanceState(gpu),
    "utilisation-percent": lambda nv, gpu: nv.nvmlDeviceGetUtilizationRates(gpu).gpu,
    "reasons": _reasons,
    "temperature-celsius": lambda nv, gpu: nv.nvmlDeviceGetTemperature(gpu, 0),
    "ecc": lambda nv, gpu: bool(nv.nvmlDeviceGetEccMode(gpu)[0]),
    "ecc-uncorrected-errors": lambda nv, gpu: nv.nvmlDeviceGetTotalEccErrors(gpu, 1, 0),
    "mig": lambda nv, gpu: bool(nv.nvmlDeviceGetMigMode(gpu)[0]),
    "persistence": lambda nv, gpu: bool(nv.nvmlDeviceGetPersistenceMode(gpu)),
    "compute-mode": lambda nv, gpu: _word(_COMPUTE_MODES, nv.nvmlDeviceGetComputeMode(gpu)),
    "virtualization": lambda nv, gpu: _word(_VIRTUALIZATION, nv.nvmlDeviceGetVirtualizationMode(gpu)),
    "nvlinks": _nvlinks,
    "processes": _processes,
}


# What a benchmark follows while it measures.
_WATCHED: dict[str, Callable[[Any, Any], Any]] = {
    name: _FIELDS[name]
    for name in (
        "bus-id",
        "clock-sm-mhz",
        "clock-memory-mhz",
        "power-watts",
        "temperature-celsius",
        "reasons",
        "pstate",
        "utilisation-percent",
        "pcie-generation-now",
        "pcie-generation-max",
        "pcie-width-now",
        "pcie-width-max",
    )
} | {
    "memory-used-bytes": lambda nv, gpu: nv.nvmlDeviceGetMemoryInfo(gpu).used,
    "pcie-replays": lambda nv, gpu: nv.nvmlDeviceGetPcieReplayCounter(gpu),
}


def _word(words: dict[int, str], number: int) -> str:
    return words.get(number, f"mode {number}")


def _field(nv: Any, read: Callable[..., Any], *handles: Any) -> dict[str, Any]:
    try:
        value = read(nv, *handles)
    except nv.NVMLError as error:
        return {"code": error.value, "says": str(error)}
    except UnicodeDecodeError:
        return {"code": -1, "says": "an answer that is no text"}
    return {"code": _NOT_SUPPORTED, "says": "no value"} if value is None else {"value": value}


def _gpu(nv: Any, index: int) -> tuple[Any, dict[str, Any]]:
    """(handle, fields) of one GPU; once it says that it is lost it is not asked again."""
    opened = _field(nv, lambda nv: nv.nvmlDeviceGetHandleByIndex(index))
    if "value" not in opened:
        return None, {"handle": opened}
    handle = opened["value"]
    fields: dict[str, Any] = {}
    for name, read in _FIELDS.items():
        fields[name] = _field(nv, read, handle)
        if fields[name].get("code") == _LOST and name not in ("bus-id", "uuid"):
            return None, {name: fields[name] for name in ("bus-id", "uuid")} | {"handle": fields[name]}
    if fields["mig"].get("value"):
        fields["mig-uuids"] = _field(nv, _migs, handle)
    return handle, fields


def _links(nv: Any, handles: list[Any]) -> list[list[Any]]:
    """How each two GPUs reach each other: [index, index, level]."""
    found = []
    for one, first in enumerate(handles):
        for other in range(one + 1, len(handles)):
            if first is None or handles[other] is None:
                continue
            level = _field(
                nv, lambda nv, a, b: nv.nvmlDeviceGetTopologyCommonAncestor(a, b), first, handles[other]
            )
            if "value" in level:
                found.append([one, other, _word(_LEVELS, level["value"])])
    return found


def _library() -> str | None:
    """The file that NVML was loaded from; its name ends in the version of the driver that it belongs to."""
    try:
        with open("/proc/self/maps", errors="surrogateescape") as maps:
            for line in maps:
                path = "/" + line.rstrip("\n").partition("/")[2]
                if os.path.basename(path).startswith("libnvidia-ml.so"):
                    return path
    except OSError:
        pass
    return None


def read(nv: Any) -> dict[str, Any]:
    """Everything, in one session; {"failed": …} where there is none to be had."""
    try:
        nv.nvmlInit()
    except nv.NVMLError as error:
        return {"failed": {"code": error.value, "says": str(error)}, "library": _library()}
    try:
        answer: dict[str, Any] = {
            "library": _library(),
            "driver": _field(nv, lambda nv: _text(nv.nvmlSystemGetDriverVersion())),
            "cuda-driver": _field(nv, lambda nv: nv.nvmlSystemGetCudaDriverVersion_v2()),
            "nvml": _field(nv, lambda nv: _text(nv.nvmlSystemGetNVMLVersion())),
        }
        count = _field(nv, lambda nv: nv.nvmlDeviceGetCount())
        if "value" not in count:
            return {"failed": count, "library": _library()}
        gpus = [_gpu(nv, index) for index in range(count["value"])]
        answer["gpus"] = [fields for _, fields in gpus]
        answer["links"] = _links(nv, [handle for handle, _ in gpus])
        return answer
    finally:
        with contextlib.suppress(nv.NVMLError):
            nv.nvmlShutdown()


def watch(nv: Any, every_s: float) -> None:
    """A line of JSON each time: {"at": Unix seconds, "gpus": [fields, …]}; ends when nobody reads."""
    try:
        nv.nvmlInit()
    except nv.NVMLError:
        return
    count = nv.nvmlDeviceGetCount()
    with contextlib.suppress(BrokenPipeError):
        while True:
            gpus = []
            for index in range(count):
                opened = _field(nv, lambda nv, at: nv.nvmlDeviceGetHandleByIndex(at), index)
                if "value" in opened:
                    gpus.append({name: _field(nv, read, opened["value"]) for name, read in _WATCHED.items()})
                else:
                    gpus.append({"handle": opened})
            os.write(1, json.dumps({"at": time.time(), "gpus": gpus}).encode() + b"\n")
            time.sleep(every_s)


def main() -> None:
    """Read, and print the answer as JSON."""
    # Last, so that nothing there can stand before the standard library.
    sys.path.append(sys.argv[1])
    import pynvml  # noqa: PLC0415  # found only now

    if len(sys.argv) > 2:
        watch(pynvml, float(sys.argv[2]))
    else:
        sys.stdout.write(json.dumps(read(pynvml)))


if __name__ == "__main__":
    main()
