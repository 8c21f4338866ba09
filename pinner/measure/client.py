"""The load generator: streams that are kept as bytes with times and decoded afterwards.

Owns sending on time and stamping what arrives; work per chunk is one clock reading and one append, so that the
client is neither the bottleneck nor the clock that lies. It measures its own lag. Must not judge what came:
stream.py decodes, metrics.py counts.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gc
import resource
import time
from collections.abc import Callable, Iterator, Sequence
from typing import cast

import msgspec

from pinner.errors import OperationFailed
from pinner.measure.stream import Failure, Piece, Reply, decode

_LAG_EVERY_S = 0.01
# Beyond one a request: the event loop's own, the log, the memory of digests.
SPARE_FILES = 64
_CLOCK = time.perf_counter
_END = b"0\r\n\r\n"


class Call(msgspec.Struct, frozen=True, kw_only=True):
    """One request: its JSON body, and how many tokens must come (None: any number)."""

    body: bytes
    wanted: int | None


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    """One request as it went. Seconds from the beginning of the measurement.

    `intended` is when it was to be sent: in an open loop the schedule's time, in a closed one that of sending.
    `ended` is when the last byte came.
    """

    intended: float
    sent: float
    ended: float
    reply: Reply


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """All requests of one measurement, in the order of their calls.

    `lag_ms` are how late the client's own loop was (median, 99th percentile, most); `cpu_share` is the share of
    one processor that the client used.
    """

    samples: tuple[Sample, ...]
    began: float
    duration_s: float
    lag_ms: tuple[float, float, float]
    cpu_share: float


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """Where to send: a server and the path that streams."""

    host: str
    port: int
    path: str = "/generate"


def closed_loop(target: Target, calls: Sequence[Call], *, streams: int, timeout_s: float) -> Result:
    """Keep `streams` requests under way until all calls are done. Raises OperationFailed without enough files."""
    return _measure(target, calls, min(streams, len(calls)), timeout_s, _closed(streams))


def open_loop(target: Target, calls: Sequence[Call], *, at: Sequence[float], timeout_s: float) -> Result:
    """Send each call at its time in seconds from the beginning, whatever is still under way."""
    if len(at) != len(calls):
        raise ValueError("each call needs its time")
    return _measure(target, calls, len(calls), timeout_s, _open(at))


_Drive = Callable[["_Run"], "asyncio.Future[None] | asyncio.Task[None]"]


def _measure(target: Target, calls: Sequence[Call], most: int, timeout_s: float, drive: _Drive) -> Result:
    raise_file_limit(most + SPARE_FILES)
    run = _Run(target, calls, timeout_s)
    with _without_collector():
        began, cpu = time.time(), time.process_time()
        asyncio.run(run.through(drive))
        cpu = time.process_time() - cpu
    samples = tuple(run.sample(number) for number in range(len(calls)))
    duration_s = max(sample.ended for sample in samples) if samples else 0.0
    lags = sorted(run.lags) or [0.0]
    return Result(
        samples=samples,
        began=began,
        duration_s=duration_s,
        lag_ms=(lags[len(lags) // 2] * 1e3, lags[int(len(lags) * 0.99)] * 1e3, lags[-1] * 1e3),
        cpu_share=cpu / duration_s if duration_s else 0.0,
    )


def raise_file_limit(needed: int) -> None:
    """Raise this process's own soft limit of open files. OperationFailed where the hard one forbids it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return
    if hard != resource.RLIM_INFINITY and hard < needed:
        raise OperationFailed(
            f"this load needs {needed:,} open files and the limit here is {hard:,}",
            hint="raise it (`ulimit -Hn`, or the container's), or lower the concurrency",
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))


@contextlib.contextmanager
def _without_collector() -> Iterator[None]:
    """A collection in the midst of a measurement would look like a slow server."""
    was_enabled = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


class _Stream(asyncio.Protocol):
    """One connection with one request. Every moment is kept; nothing is looked at but the end."""

    def __init__(self, request: bytes, ended: asyncio.Future[None]) -> None:
        self.pieces: list[Piece] = []
        self.sent = 0.0
        self._request = request
        self._ended = ended
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self.sent = _CLOCK()
        self._transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        self.pieces.append((_CLOCK(), data))
        # The server is asked to close; one that does not is at its end with the last chunk.
        if data.endswith(_END) and self._transport is not None:
            self._transport.close()

    def connection_lost(self, _error: Exception | None) -> None:
        if not self._ended.done():
            self._ended.set_result(None)

    def abort(self) -> None:
        """Close without waiting for anything."""
        if self._transport is not None:
            self._transport.abort()


class _Run:
    """The requests of one measurement under way."""

    def __init__(self, target: Target, calls: Sequence[Call], timeout_s: float) -> None:
        self.calls = calls
        self.lags: list[float] = []
        self._target = target
        self._timeout_s = timeout_s
        host = f"[{target.host}]" if ":" in target.host else target.host
        head = (
            f"POST {target.path} HTTP/1.1\r\nHost: {host}:{target.port}\r\nContent-Type: application/json\r\n"
            "Connection: close\r\nContent-Length: "
        )
        # Made before the clock starts.
        self._requests = [f"{head}{len(call.body)}\r\n\r\n".encode() + call.body for call in calls]
        self._intended = [0.0] * len(calls)
        self._ended = [0.0] * len(calls)
        self._streams: list[_Stream | None] = [None] * len(calls)
        self._failures: list[Failure | None] = [None] * len(calls)
        self._zero = 0.0

    async def through(self, drive: _Drive) -> None:
        """Do all requests."""
        self._zero = _CLOCK()
        lag = asyncio.ensure_future(self._watch_lag())
        try:
            await drive(self)
        finally:
            lag.cancel()

    def now(self) -> float:
        """Seconds since the beginning."""
        return _CLOCK() - self._zero

    async def send(self, number: int, intended: float | None = None) -> None:
        """One request from connecting to its last byte."""
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[None] = loop.create_future()
        stream = _Stream(self._requests[number], ended)
        self._streams[number] = stream
        self._intended[number] = self.now() if intended is None else intended
        deadline = loop.call_later(self._timeout_s, self._expire, number)
        try:
            await loop.create_connection(lambda: stream, self._target.host, self._target.port)
            await ended
        except OSError as error:
            kind = "client limit" if error.errno in (errno.EMFILE, errno.ENFILE) else "not connected"
            self._failures[number] = Failure(kind, error.strerror or str(error))
        finally:
            deadline.cancel()
        self._ended[number] = self.now()

    def _expire(self, number: int) -> None:
        self._failures[number] = Failure("timeout", f"no whole answer within {self._timeout_s:g} s")
        stream = self._streams[number]
        if stream is not None:
            stream.abort()

    async def _watch_lag(self) -> None:
        while True:
            before = _CLOCK()
            await asyncio.sleep(_LAG_EVERY_S)
            self.lags.append(max(0.0, _CLOCK() - before - _LAG_EVERY_S))

    def sample(self, number: int) -> Sample:
        """What came of one request, decoded."""
        stream = self._streams[number]
        pieces = [(at - self._zero, data) for at, data in stream.pieces] if stream is not None else []
        failure = self._failures[number]
        reply = Reply(failure=failure) if failure else decode(pieces, wanted=self.calls[number].wanted)
        intended = self._intended[number]
        return Sample(
            intended=intended,
            sent=stream.sent - self._zero if stream is not None and stream.sent else intended,
            ended=pieces[-1][0] if pieces else self._ended[number],
            reply=reply,
        )


def _closed(streams: int) -> _Drive:
    def drive(run: _Run) -> asyncio.Future[None]:
        waiting = iter(range(len(run.calls)))

        async def worker() -> None:
            for number in waiting:
                await run.send(number)

        async def workers() -> None:
            await asyncio.gather(*(worker() for _ in range(min(streams, len(run.calls)))))

        return asyncio.ensure_future(workers())

    return drive


def _open(at: Sequence[float]) -> _Drive:
    def drive(run: _Run) -> asyncio.Future[None]:
        async def send_all() -> None:
            under_way = []
            for number, when in enumerate(at):
                delay = when - run.now()
                if delay > 0:
                    await asyncio.sleep(delay)
                under_way.append(asyncio.ensure_future(run.send(number, when)))
            await asyncio.gather(*under_way)

        return asyncio.ensure_future(send_all())

    return drive
