"""One measurement: empty the cache, put the load, turn samples into metrics.

Owns the order of these, and what is asked of the engine around it. Must not start or stop a server.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from pinner.engines.base import Engine, EngineState
from pinner.host.http import Http, HttpFailed
from pinner.measure.client import Call, Result, Target, closed_loop, open_loop
from pinner.measure.evidence import Measured
from pinner.measure.metrics import cached_share, failures, metrics
from pinner.measure.workload import Workload
from pinner.model.record import Load


class Server(msgspec.Struct, frozen=True, kw_only=True):
    """The server under test: how to speak to it, where it is, its log, and whether it speculates."""

    engine: Engine
    http: Http
    url: str
    log: Path
    speculates: bool

    @property
    def target(self) -> Target:
        """Where the load goes."""
        parts = urlsplit(self.url)
        return Target(host=parts.hostname or "", port=parts.port or 80, path=self.engine.STREAM_PATH)


def put(server: Server, workload: Workload, load: Load, *, start: int, repeat: int) -> Measured:
    """Put one load and measure it."""
    calls = workload.calls(load, start=start, repeat=repeat)
    before, log_size = _state(server), _size(server.log)
    if load.kind == "rate":
        at = workload.schedule(load, start=start, repeat=repeat)
        result = open_loop(server.target, calls, at=at, timeout_s=workload.bench.timeout_s)
    else:
        result = _closed(server, calls, load, workload.bench.timeout_s)
    steps = step_times(server, before, _state(server), log_size) if server.speculates else {}
    return measured(result, steps)


def warm_up(server: Server, workload: Workload, load: Load, *, start: int) -> dict[str, int]:
    """Put requests that are not measured; failures by kind."""
    calls = workload.warmup(load, start=start)
    return failures(_closed(server, calls, load, workload.bench.timeout_s)) if calls else {}


def measured(result: Result, steps: Mapping[str, float]) -> Measured:
    """What a load client's result says."""
    good = [sample.reply for sample in result.samples if sample.reply.failure is None]
    failed = [sample.reply.failure for sample in result.samples if sample.reply.failure is not None]
    found = metrics(result)
    return Measured(
        began=result.began,
        duration_s=result.duration_s,
        metrics={**found, **steps} if found else {},
        requests=len(result.samples),
        failures=failures(result),
        said=next((failure.detail for failure in failed if failure.detail), ""),
        input_tokens=sum(reply.input_tokens for reply in good),
        output_tokens=sum(reply.output_tokens for reply in good),
        cached_share=cached_share(result),
        lag_ms=result.lag_ms[1],
        cpu_share=result.cpu_share,
        samples=result.samples,
    )


def step_times(server: Server, before: EngineState, after: EngineState, log_size: int) -> dict[str, float]:
    """Steps within the measurement: as the engine tells them, or else from what it has logged meanwhile."""
    found = {}
    for name, now in after.steps.items():
        then = before.steps.get(name)
        count = now.count - (then.count if then else 0)
        total_ms = now.total_ms - (then.total_ms if then else 0.0)
        if count > 0 and total_ms > 0:
            found[name] = total_ms / count
    if found:
        return found
    told = server.engine.log_step_ms(_lines(server.log, log_size))
    return {} if told is None else {"verify_step_ms": told}


def _closed(server: Server, calls: Sequence[Call], load: Load, timeout_s: float) -> Result:
    streams = int(load.value) if load.kind == "concurrency" else 1
    return closed_loop(server.target, calls, streams=streams, timeout_s=timeout_s)


def _state(server: Server) -> EngineState:
    if not server.speculates:
        return EngineState()
    try:
        return server.engine.state(server.http, server.url)
    except HttpFailed:
        return EngineState()


def _size(log: Path) -> int:
    try:
        return log.stat().st_size
    except OSError:
        return 0


def _lines(log: Path, start: int) -> list[str]:
    try:
        with log.open("rb") as stream:
            stream.seek(start)
            return stream.read().decode(errors="replace").splitlines()
    except OSError:
        return []
