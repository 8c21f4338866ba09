"""What a result file of sglang.bench_serving tells: one measurement a line.

Pure: takes lines, gives a record without pins. Owns how its names map to the field's. Texts that were generated
are left out: they belong to whoever asked.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from pinner.engines.sglang_api import public
from pinner.errors import RecordError
from pinner.measure.foreign_log import without_secrets
from pinner.measure.samples import packed
from pinner.model.bench import QUANTITIES, THROUGHPUTS
from pinner.model.record import FORMAT, READS_FORMAT, Load, Measurement, Record, Start

BENCH = "bench_serving"
_LATENCIES = {"ttft": "ttft", "tpot": "tpot", "itl": "itl", "e2e_latency": "e2el"}
_METRICS = {
    **{name: name for name in (*THROUGHPUTS, "accept_length")},
    **{
        f"{quantity}_{theirs}_ms": f"{ours}_{quantity}_ms"
        for theirs, ours in _LATENCIES.items()
        for quantity in QUANTITIES
    },
}
# What it was asked to do, as far as a line tells.
_ASKED = ("tag", "backend", "dataset_name", "request_rate", "max_concurrency", "sharegpt_output_len")
_ASKED_OF_RANDOM = ("random_input_len", "random_output_len", "random_range_ratio")
_NOT_KEPT = frozenset({"generated_texts", "server_info"})


def from_bench(lines: Iterable[str], *, deployment: str, ended: float) -> tuple[Record, dict[str, bytes]]:
    """A foreign record of a result file, and its files. RecordError if it is none. Lines do not tell times."""
    rows = [_row(number, line) for number, line in enumerate(lines, start=1) if line.strip()]
    if not rows:
        raise RecordError("holds no result of sglang.bench_serving")
    began = ended - math.fsum(_number(row.get("duration")) or 0.0 for row in rows)
    servers: dict[str, Mapping[str, Any]] = {}
    measurements: list[Measurement] = []
    repeats: Counter[tuple[int, Load]] = Counter()
    at = began
    for row in rows:
        start = _server(row, servers)
        load = _load(row)
        one = _measurement(row, start, repeats[start, load], load, at)
        repeats[start, load] += 1
        measurements.append(one)
        at += one.duration_s
    infos = list(servers.values())
    accounts = [without_secrets(public(info)) for info in infos]
    starts = (
        Start(run="", began=began, engine_version=_text(info.get("version")), account=account)
        for info, account in zip(infos, accounts, strict=True)
    )
    record = Record(
        format=FORMAT,
        requires_pinner=READS_FORMAT,
        origin="foreign",
        deployment=deployment,
        bench=BENCH,
        began=began,
        ended=ended,
        measurements=tuple(measurements),
        starts=tuple(starts),
        arguments=next((account for account in accounts if account), {}),
        load_arguments=_asked(rows),
        notes=tuple(_explained(rows, measurements)),
    )
    kept = ({key: value for key, value in row.items() if key not in _NOT_KEPT} for row in rows)
    return record, {"samples/results.jsonl.gz": packed(map(without_secrets, kept))}


def measurement_of(row: Mapping[str, Any], load: Load, began: float) -> tuple[Measurement, Any]:
    """The measurement of one line, and the line as a record keeps it."""
    kept = without_secrets({key: value for key, value in row.items() if key not in _NOT_KEPT})
    return _measurement(row, 0, 0, load, began), kept


def _row(number: int, line: str) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        raise RecordError(f"line {number} is no JSON") from None
    if not isinstance(row, dict) or "output_throughput" not in row or "duration" not in row:
        raise RecordError(f"line {number} is no result of sglang.bench_serving: it has no output_throughput")
    return row


def _server(row: Mapping[str, Any], servers: dict[str, Mapping[str, Any]]) -> int:
    """The number of the start that a line measured: how long it took, and its seed, tell it from others."""
    given = row.get("server_info")
    info: Mapping[str, Any] = given if isinstance(given, dict) else {}
    if isinstance(info.get("decode"), list) and info["decode"] and isinstance(info["decode"][0], dict):
        info = info["decode"][0]
    key = json.dumps([info.get("startup_time"), public(info)], sort_keys=True, default=str)
    servers.setdefault(key, info)
    return list(servers).index(key)


def _load(row: Mapping[str, Any]) -> Load:
    """A rate where there is one, else how many streams; without either all requests were sent at once."""
    rate, streams = _number(row.get("request_rate")), _number(row.get("max_concurrency"))
    if rate is not None:
        return Load(kind="rate", value=rate)
    return Load(kind="concurrency", value=streams or _number(row.get("completed")) or 0.0)


def _measurement(row: Mapping[str, Any], start: int, repeat: int, load: Load, began: float) -> Measurement:
    completed = _whole(row.get("completed"))
    errors = row.get("errors")
    failed = sum(bool(error) for error in errors) if isinstance(errors, list) else 0
    invalid = [f"{failed} requests failed"] if failed else []
    if completed == 0:
        invalid.append("no request was completed")
    cache = row.get("cache_report")
    cached = prompts = None
    if isinstance(cache, dict):
        cached, prompts = (_number(cache.get(f"total_{what}_tokens"), least=0.0) for what in ("cached", "prompt"))
    return Measurement(
        start=start,
        repeat=repeat,
        load=load,
        began=began,
        duration_s=_number(row.get("duration")) or 0.0,
        metrics={
            ours: value for theirs, ours in _METRICS.items() if (value := _number(row.get(theirs))) is not None
        },
        requests=None if completed is None else completed + failed,
        failures={"error": failed} if failed else {},
        input_tokens=_whole(row.get("total_input_tokens")),
        output_tokens=_whole(row.get("total_output_tokens")),
        cached_share=cached / prompts if cached is not None and prompts else None,
        invalid=tuple(invalid),
        samples="samples/results.jsonl.gz",
    )


def _asked(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """What all lines were asked alike."""
    is_random = any(str(row.get("dataset_name", "")).startswith("random") for row in rows)
    keys = (*_ASKED, *(_ASKED_OF_RANDOM if is_random else ()))
    first = rows[0]
    same = (key for key in keys if key in first and all(row.get(key) == first[key] for row in rows))
    return {key: without_secrets(first[key]) for key in same if not _says_nothing(first[key])}


def _explained(rows: list[dict[str, Any]], measurements: list[Measurement]) -> list[str]:
    notes = ["the file tells no times: it is taken to have ended when it was last written"]
    if any("accept_length" in one.metrics for one in measurements):
        notes.append(
            "accept_length is the engine's average since its start or last flush, not over the measurement"
        )
    if any("errors" not in row for row in rows):
        notes.append("whether requests failed is not told: that needs --output-details")
    if any(_number(row.get("request_rate")) and _number(row.get("max_concurrency")) for row in rows):
        notes.append("the rate was capped by max_concurrency")
    return notes


def _number(value: Any, *, least: float | None = None) -> float | None:
    """A finite number above 0, or from `least` on; whatever else stands there tells nothing."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        return None
    return float(value) if (value > 0 if least is None else value >= least) else None


def _whole(value: Any) -> int | None:
    number = _number(value, least=0.0)
    return None if number is None else int(number)


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _says_nothing(value: Any) -> bool:
    return value is None or (isinstance(value, float) and math.isinf(value))
