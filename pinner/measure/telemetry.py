"""What the machine did while it was measured: a sample each second, in a thread of its own.

Owns gathering. GPUs are read by a child process (pinner/host/nvml.py), so that a driver that hangs holds nobody
up; the child ends with the sampling. Must not judge: evidence.py does.
"""

from __future__ import annotations

import gzip
import os
import threading
import time
from collections.abc import Set
from types import TracebackType
from typing import Any, NamedTuple

import msgspec

from pinner.host import cgroup, gpus, process
from pinner.host.progress import current
from pinner.model.facts import Unknown
from pinner.model.gpus import Gpu, NvmlFailure

EVERY_S = 1.0
# A driver without persistence mode is loaded anew by the first who asks.
FIRST_S = 30.0


class Sample(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One moment. `client_cpu_s` is what the load generator has used so far; `load` the machine's load average.

    `throttled` are (how often, seconds) that quotas have held up "engine" and "client" so far.
    """

    at: float
    client_cpu_s: float = 0.0
    load: float | None = None
    throttled: dict[str, tuple[int, float]] = {}


class GpuSample(NamedTuple):
    """All visible GPUs at one moment."""

    at: float
    gpus: tuple[Gpu, ...]


class Telemetry:
    """Samples from entering to leaving. `pid` is the engine's main process; `places` the bus ids of its GPUs."""

    def __init__(self, pid: int | None, places: Set[str], *, every_s: float = EVERY_S) -> None:
        self.samples: list[Sample] = []
        self.gpus: list[GpuSample] = []
        # When the measurement that is going on began, on the monotonic clock.
        self.since: float | None = None
        self._pid = pid
        self._places = places
        self._every_s = every_s
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._work, name="telemetry", daemon=True)
        self._child: process.Started | None = None
        self._rest = b""
        self._one = threading.Lock()

    def __enter__(self) -> Telemetry:
        if self._places:
            asked = gpus.ask(str(self._every_s))
            self._child = None if isinstance(asked, NvmlFailure) else asked
            self._wait_for_gpus()
        self.take()
        self._thread.start()
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join()
        self.take()
        if self._child is not None:
            process.leave(self._child)

    @property
    def is_blind(self) -> bool:
        """Whether there are GPUs and not one sample of them."""
        return bool(self._places) and not self.gpus

    def compressed(self) -> bytes:
        """Everything as JSON lines, in gzip."""
        lines = [(one.at, msgspec.to_builtins(one)) for one in self.samples]
        lines += [(at, {"at": at, "gpus": [_plain(gpu) for gpu in seen]}) for at, seen in self.gpus]
        text = b"".join(msgspec.json.encode(line) + b"\n" for _, line in sorted(lines, key=lambda one: one[0]))
        return gzip.compress(text, mtime=0)

    def _work(self) -> None:
        while not self._ended.wait(self._every_s):
            self.take()
            # A measurement may take many minutes, in which nothing else is told.
            if self.since is not None:
                current().status(f"under way for {time.monotonic() - self.since:.0f} s")

    def take(self) -> None:
        """One more sample, now."""
        with self._one:
            self._take()

    def _take(self) -> None:
        seen = {"engine": cgroup.throttling(self._pid) if self._pid else None, "client": cgroup.throttling()}
        sample = Sample(
            at=time.time(),
            client_cpu_s=time.process_time(),
            load=_load_average(),
            throttled={name: one for name, one in seen.items() if one is not None},
        )
        self.samples.append(sample)
        self._drain()

    def _wait_for_gpus(self) -> None:
        """Until the child tells for the first time: a short measurement would be over before that."""
        deadline = time.monotonic() + FIRST_S
        while not self.gpus and self._child is not None and self._child.poll() is None:
            if time.monotonic() > deadline:
                return
            self._drain()
            time.sleep(0.02)

    def _drain(self) -> None:
        if self._child is not None:
            *lines, self._rest = (self._rest + process.drained(self._child)).split(b"\n")
            for found in filter(None, map(gpus.watched, lines)):
                own = tuple(gpu for gpu in found[1] if gpu.bus_id in self._places or gpu.bus_id is None)
                self.gpus.append(GpuSample(found[0], own))


def _load_average() -> float | None:
    try:
        return os.getloadavg()[0]
    except OSError:
        return None


def _plain(gpu: Gpu) -> dict[str, Any]:
    """What a GPU told; what it did not tell is left out."""
    facts = {key: value for key, value in gpu.facts.items() if not isinstance(value, (str, Unknown))}
    return {"bus-id": gpu.bus_id, **({"broken": gpu.broken} if gpu.broken else facts)}
