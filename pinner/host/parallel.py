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
Work = Callable[[int, Send], None]

MAX_PIECES = 1024

_HEADER = struct.Struct("<I")
_NUMBER = struct.Struct("<I")
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


def run_forked(work: Work, count: int, on_message: Callable[[bytes], None]) -> None:
    """Do `work(0)` to `work(count - 1)` in forked processes, each taking the next piece when it is free.

    `on_message` gets what `work` sends, in this process. A worker that raises or crashes sends no more; the
    caller sees what is missing. `count` is at most MAX_PIECES. No worker outlives the call, however it ends.
    Only where `can_fork()`.
    """
    pieces, numbers = os.pipe()
    # Fits into the smallest pipe whole; a read of one number is atomic, so that each goes to one worker.
    os.write(numbers, b"".join(_NUMBER.pack(number) for number in range(count)))
    os.close(numbers)
    pids: list[int] = []
    readers: list[int] = []
    try:
        for _ in range(min(worker_count(), count)):
            reader, writer = os.pipe()
            try:
                pid = os.fork()
            except OSError:
                # No more processes are allowed: those that run do all of it, or the caller does.
                os.close(reader)
                os.close(writer)
                break
            if pid == 0:
                for descriptor in (reader, *readers):
                    os.close(descriptor)
                _live(work, pieces, writer)
            os.close(writer)
            pids.append(pid)
            readers.append(reader)
        _receive(readers, on_message)
        while pids:
            os.waitpid(pids[-1], 0)
            pids.pop()
    finally:
        for descriptor in (pieces, *readers):
            os.close(descriptor)
        for pid in pids:
            with contextlib.suppress(ProcessLookupError, ChildProcessError):
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)


def _live(work: Work, pieces: int, writer: int) -> None:
    """The life of a worker; never returns."""
    try:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGBUS):
            signal.signal(number, signal.SIG_DFL)
        faulthandler.disable()
        resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
        while piece := os.read(pieces, _NUMBER.size):
            work(_NUMBER.unpack(piece)[0], lambda message: _write(writer, message))
    finally:
        # No cleanup of the parent's objects, no flushing of its streams, no traceback.
        os._exit(0)


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
