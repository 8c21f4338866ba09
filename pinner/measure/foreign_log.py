"""What an old SGLang log tells: who served, when, how fast, with which arguments.

Pure: takes lines, gives a record without pins. Owns which decode lines count. A line's throughput is that of the
interval since the line before it, its number of requests that of the moment; so only a line that follows one of
the same number, with no prefill between, tells the speed of decoding at that number.
"""

from __future__ import annotations

import ast
import datetime
import re
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from pinner.engines import sglang_log
from pinner.engines.sglang_api import public
from pinner.engines.sglang_log import Batch
from pinner.errors import RecordError
from pinner.host.process import redact
from pinner.measure.samples import packed
from pinner.model.record import FORMAT, READS_FORMAT, Load, Measurement, Record, Start

BENCH = "sglang-log"
_STAMP = re.compile(r"\[(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)[^\]]*\]")
_ARGUMENTS = re.compile(r"server_args=(?:ServerArgs\((.*)\)|(\{.*\}))\s*$")
_SCALAR = re.compile(r"(\w+)=('(?:\\.|[^'\\])*'|None|True|False|-?\d[\d.e+-]*)(?=, |$)")
_READY = "The server is fired up and ready to roll!"
# Decode steps between two lines, unless the arguments say otherwise.
_LOG_INTERVAL = 40

STEADY, MIXED, IDLE = "steady", "mixed", "after idle"


class Decode(msgspec.Struct, frozen=True):
    """A decode line and what its interval holds besides decoding at its number of requests."""

    batch: Batch
    interval: str


class _Rank:
    """What came before a line of the same scheduler."""

    def __init__(self) -> None:
        self.last: Batch | None = None
        self.has_prefilled = False
        self.was_idle = False


class _Server:
    """One server's part of a log."""

    def __init__(self, began: float | None, arguments: dict[str, Any]) -> None:
        self.began = began
        self.arguments = arguments
        self.ready: float | None = None
        self.decodes: list[Decode] = []
        self.ranks: dict[tuple[tuple[str, int], ...], _Rank] = {}

    def take(self, batch: Batch) -> None:
        """One more batch line."""
        if self.began is None:
            self.began = batch.time.timestamp()
        rank = self.ranks.setdefault(tuple(batch.ranks.items()), _Rank())
        if batch.phase == "prefill":
            rank.has_prefilled = True
            rank.was_idle = rank.was_idle or batch.running == 0
        elif batch.gen_throughput and batch.running:
            self.decodes.append(Decode(batch, self._interval(rank, batch)))
            rank.last, rank.has_prefilled, rank.was_idle = batch, False, False

    def _interval(self, rank: _Rank, batch: Batch) -> str:
        last = rank.last
        if last is None or rank.was_idle or self._is_late(last, batch):
            return IDLE
        return MIXED if rank.has_prefilled or batch.running != last.running else STEADY

    def _is_late(self, last: Batch, batch: Batch) -> bool:
        """Whether a line came so late that its interval was not all work; some logs hold no prefill lines."""
        told = self.arguments.get("decode_log_interval")
        steps = told if isinstance(told, int) else _LOG_INTERVAL
        expected_s = steps * (last.running or 1) * (last.accept_len or 1.0) / (last.gen_throughput or 1.0)
        return (batch.time - last.time).total_seconds() > 2 * expected_s + 2


def from_log(lines: Iterable[str], *, deployment: str) -> tuple[Record, dict[str, bytes]]:
    """A foreign record of what a log tells, and its files. RecordError if it is no SGLang log."""
    servers: list[_Server] = []
    noted: list[str] = []
    for line in lines:
        batch = _batch(line)
        if batch is not None:
            if not servers:
                servers.append(_Server(None, {}))
            servers[-1].take(batch)
        elif "server_args=" in line and (found := _ARGUMENTS.search(line.rstrip())):
            servers.append(_Server(_time(line), _arguments(found[1], found[2])))
        elif _READY in line and servers:
            servers[-1].ready = _time(line)
        if batch is None:
            noted += [note for note in sglang_log.notes([line]) if note not in noted]
    servers = [server for server in servers if server.began is not None]
    if not servers:
        raise RecordError("holds no batch and no server_args line, as SGLang's logs do")
    files = {
        f"samples/start-{number}.jsonl.gz": packed(_row(one) for one in server.decodes)
        for number, server in enumerate(servers)
        if server.decodes
    }
    measurements = [one for number, server in enumerate(servers) for one in _measurements(number, server)]
    return (
        Record(
            format=FORMAT,
            requires_pinner=READS_FORMAT,
            origin="foreign",
            deployment=deployment,
            bench=BENCH,
            began=min(server.began or 0.0 for server in servers),
            ended=max(_ended(server) for server in servers),
            measurements=tuple(measurements),
            starts=tuple(_start(server) for server in servers),
            arguments=next((server.arguments for server in servers if server.arguments), {}),
            notes=(
                *_explained(servers, measurements),
                *(note.removesuffix(", since the manifest leaves it open") for note in noted),
            ),
        ),
        files,
    )


def _batch(line: str) -> Batch | None:
    """A batch line; one whose date is none is text that happens to look so."""
    try:
        batch = sglang_log.batch(line)
        return batch if batch is None or batch.time.timestamp() > 0 else None
    except (ValueError, OverflowError):
        return None


def _measurements(number: int, server: _Server) -> list[Measurement]:
    """One for each number of running requests."""
    found = []
    for running in sorted({one.batch.running or 0 for one in server.decodes}):
        at = [one for one in server.decodes if one.batch.running == running]
        steady = [one.batch for one in at if one.interval == STEADY]
        used = steady or [one.batch for one in at if one.interval == MIXED]
        if used:
            times = [batch.time.timestamp() for batch in used]
            found.append(
                Measurement(
                    start=number,
                    repeat=0,
                    load=Load(kind="concurrency", value=float(running)),
                    began=times[0],
                    duration_s=times[-1] - times[0],
                    metrics=_metrics(used, has_steps=bool(steady)),
                    samples=f"samples/start-{number}.jsonl.gz",
                )
            )
    return found


def _metrics(used: Sequence[Batch], *, has_steps: bool) -> dict[str, float]:
    # Every line stands for the same number of steps, so that slow ones last longer: tokens by time, as a whole.
    tokens = [batch.accept_len or 1.0 for batch in used]
    times = [count / (batch.gen_throughput or 1.0) for count, batch in zip(tokens, used, strict=True)]
    found = {"output_throughput": sum(tokens) / sum(times)}
    accepted = [batch for batch in used if batch.accept_len is not None]
    if len(accepted) == len(used):
        found["accept_length"] = _mean([batch.accept_len or 0.0 for batch in used])
        if has_steps:
            found["verify_step_ms"] = _mean([step_ms(batch) for batch in used])
    return found


def step_ms(batch: Batch) -> float:
    """How long one step took, drafting and verifying: each running request gains the accept length by it."""
    return 1e3 * (batch.accept_len or 1.0) * (batch.running or 0) / (batch.gen_throughput or 1.0)


def _explained(servers: Sequence[_Server], measurements: Sequence[Measurement]) -> list[str]:
    """What these metrics are and are not."""
    decodes = [one for server in servers for one in server.decodes]
    counts = {kind: sum(one.interval == kind for one in decodes) for kind in (STEADY, MIXED, IDLE)}
    notes = [
        f"{len(decodes)} decode lines: {counts[STEADY]} steady, {counts[MIXED]} with a prefill or another number "
        f"of requests in their interval, {counts[IDLE]} with idle time",
        "output_throughput is that of the steady decode lines as a whole, so that prefill and the client are "
        "not in it; the load is the number of requests that ran",
        "times have no zone in the log, and were read as those of the machine that imported it",
    ]
    if any("verify_step_ms" in one.metrics for one in measurements):
        notes.append("verify_step_ms is derived, drafting included: accept length × running requests / throughput")
    if not measurements:
        notes.append("every decode line holds idle time, so that no speed can be told")
    ranks = max(len(server.ranks) for server in servers)
    if ranks > 1:
        notes.append(f"{ranks} schedulers wrote this log; load and throughput are those of one of them")
    return notes


def _start(server: _Server) -> Start:
    began = server.began or 0.0
    ready_s = server.ready - began if server.ready is not None and server.arguments else None
    return Start(run="", began=began, ready_s=ready_s, account=server.arguments)


def _ended(server: _Server) -> float:
    return max([server.began or 0.0, *(one.batch.time.timestamp() for one in server.decodes)])


def _row(decode: Decode) -> dict[str, Any]:
    batch = decode.batch
    return {
        "time": batch.time.isoformat(),
        "ranks": batch.ranks,
        "running": batch.running,
        "queued": batch.queued,
        "accept_len": batch.accept_len,
        "gen_throughput": batch.gen_throughput,
        "interval": decode.interval,
    }


def _arguments(call: str | None, table: str | None) -> dict[str, Any]:
    """The arguments of a server_args line without secrets: a dict since 0.5.20, before it a dataclass."""
    found: dict[str, Any] = {}
    try:
        if table is not None:
            found = ast.literal_eval(table)
        else:
            node = ast.parse(f"f({call})", mode="eval").body
            assert isinstance(node, ast.Call)
            found = {keyword.arg or "": ast.literal_eval(keyword.value) for keyword in node.keywords}
    except (ValueError, SyntaxError, MemoryError, RecursionError, AssertionError):
        # A value that is no literal, or a line that was cut: what is simple is still told.
        found = {name: ast.literal_eval(value) for name, value in _SCALAR.findall(call or "")}
    return {name: without_secrets(value) for name, value in public(found).items()}


def without_secrets(value: Any) -> Any:
    """A value in which no URL carries a password."""
    if isinstance(value, str):
        return redact(value, {})
    if isinstance(value, dict):
        return {
            str(key): without_secrets(item) for key, item in public({str(k): v for k, v in value.items()}).items()
        }
    if isinstance(value, (list, tuple, set)):
        return [without_secrets(item) for item in value]
    return value if value is None or isinstance(value, (bool, int, float)) else str(value)


def _time(line: str) -> float | None:
    found = _STAMP.search(line)
    try:
        return datetime.datetime.fromisoformat(found[1]).timestamp() if found else None
    except (ValueError, OverflowError):
        return None


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
