"""Work shared out over processes forked from this one.

Owns the fork, the pipes and the reaping. Must not know what the work is. A forked worker may crash (a mapped
file that shrinks ends it with SIGBUS) without harm: its caller sees that it did not finish.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import resource
import selectors
import signal
import struct
import sys
import threading
from collections.abc import Callable, Sequence

Send = Callable[[bytes], None]
Job = Callable[[Send], None]

_HEADER = struct.Struct("<I")
_MAX_WORKERS = 16


def worker_count() -> int:
    """How many processors this process may use, at most 16."""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(_MAX_WORKERS, usable)


def can_fork() -> bool:
    """Whether forking is safe: on Linux, with one thread (a lock that another holds would stay held)."""
    if sys.platform != "linux" or threading.active_count() != 1:
        return False
    try:
        # Threads of native libraries (numpy's, for one) are unknown to `threading`.
        return len(os.listdir("/proc/self/task")) == 1  # noqa: PTH208  # half the cost of iterdir
    except OSError:
        return False


def run_forked(jobs: Sequence[Job], on_message: Callable[[bytes], None]) -> list[bool]:
    """Run each job in a forked process; `on_message` gets what the jobs send, in this process.

    Returns for each job whether it finished; a job that raised or crashed did not. No worker outlives the
    call, however it ends. Only where `can_fork()`.
    """
    pids: list[int] = []
    readers: list[int] = []
    finished = [False] * len(jobs)
    try:
        for job in jobs:
            reader, writer = os.pipe()
            pid = os.fork()
            if pid == 0:
                for descriptor in (reader, *readers):
                    os.close(descriptor)
                _work(job, writer)
            os.close(writer)
            pids.append(pid)
            readers.append(reader)
        _receive(readers, on_message)
        while pids:
            _, status = os.waitpid(pids[-1], 0)
            pids.pop()
            finished[len(pids)] = status == 0
    finally:
        for reader in readers:
            os.close(reader)
        for pid in pids:
            with contextlib.suppress(ProcessLookupError, ChildProcessError):
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
    return finished


def _work(job: Job, writer: int) -> None:
    """The life of a worker; never returns."""
    code = 1
    try:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGBUS):
            signal.signal(number, signal.SIG_DFL)
        faulthandler.disable()
        resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
        job(lambda message: _write(writer, message))
        code = 0
    finally:
        # No cleanup of the parent's objects, no flushing of its streams, no traceback.
        os._exit(code)


def _write(writer: int, message: bytes) -> None:
    data = memoryview(_HEADER.pack(len(message)) + message)
    while data:
        data = data[os.write(writer, data) :]


def _receive(readers: Sequence[int], on_message: Callable[[bytes], None]) -> None:
    """Hand on whole messages until every worker has closed its pipe; a torn last one is dropped."""
    with selectors.DefaultSelector() as selector:
        for reader in readers:
            selector.register(reader, selectors.EVENT_READ, bytearray())
        while selector.get_map():
            for key, _ in selector.select():
                chunk = os.read(key.fd, 1 << 20)
                if not chunk:
                    selector.unregister(key.fd)
                    continue
                pending: bytearray = key.data
                pending += chunk
                while len(pending) >= _HEADER.size:
                    end = _HEADER.size + _HEADER.unpack_from(pending)[0]
                    if len(pending) < end:
                        break
                    message = bytes(pending[_HEADER.size : end])
                    del pending[:end]
                    on_message(message)
