"""What a benchmark found, as text for people and as data for JSON.

Must not decide anything: it is given what was measured. It prints through terminal.py.
"""

from __future__ import annotations

from typing import Any

import msgspec

from pinner.measure.bench import BenchOutcome
from pinner.measure.record_summary import summaries
from pinner.measure.statistics import mean_and_half_width
from pinner.measure.verdicts import start_means
from pinner.model.record import Load, Record, Verdict
from pinner.render import drift_data, drift_text
from pinner.terminal import Output, plain

# Of the reasons why something does not count, which tend to be the same.
MOST_SHOWN = 8
_HEADINGS = ("LOAD", "OUTPUT tok/s", "TTFT ms", "TPOT ms", "ACCEPT", "VERIFY ms", "SPEEDUP")

_COLUMNS = (
    ("output_throughput", 1),
    ("ttft_median_ms", 1),
    ("tpot_median_ms", 2),
    ("accept_length", 2),
    ("verify_step_ms", 2),
    ("speedup", 2),
)


def bench_text(output: Output, outcome: BenchOutcome) -> None:
    """A table with a line for each load, what does not count and why, verdicts, and where the record is."""
    if outcome.stored is None:
        drift_text(output, outcome.drift, deep=False)
        output.note("nothing was measured: the machine is not what the lock says")
        item = (*outcome.drift.differences, *outcome.drift.unknown)[0]
        output.note(f"a difference that is meant passes with: --accept '{item.name}' --reason TEXT")
        return
    record = outcome.stored.record
    rows = [_HEADINGS, *(_row(record, load) for load in dict.fromkeys(one.load for one in record.measurements))]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEADINGS))]
    for number, row in enumerate(rows):
        cells = (
            cell.rjust(width) if at else cell.ljust(width)
            for at, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        line = "  ".join(cells).rstrip()
        output.line(output.bold(line) if number == 0 else line)
    for note in record.notes:
        output.note(note)
    found = reasons(record)
    for reason in found[:MOST_SHOWN]:
        output.line(f"{output.red('does not count')}  {plain(reason)}")
    if len(found) > MOST_SHOWN:
        output.line(f"  … and {len(found) - MOST_SHOWN} more; `--output json` lists all")
    for verdict in record.verdicts:
        output.line(_verdict_line(output, verdict))
    if outcome.baseline is not None:
        output.line(f"baseline  {outcome.baseline.short}  {outcome.baseline.path}")
    output.line(f"record  {outcome.stored.short}  {outcome.stored.path}")


def reasons(record: Record) -> list[str]:
    """Why something of a record does not count, each once, with where it happened."""
    found = list(record.invalid)
    found += [f"start {at + 1}: {why}" for at, start in enumerate(record.starts) for why in start.invalid]
    found += [
        f"start {one.start + 1}, {one.load.name}, repeat {one.repeat + 1}: {why}"
        for one in record.measurements
        for why in one.invalid
    ]
    return list(dict.fromkeys(found))


def bench_data(outcome: BenchOutcome, *, valid: bool) -> dict[str, Any]:
    """The same for JSON; `metrics` by load are means over starts."""
    drift = drift_data(outcome.drift)
    if outcome.stored is None:
        return {**drift, "record": None, "baseline": None, "valid": False, "metrics": {}, "verdicts": []}
    record = outcome.stored.record
    ids = [
        None if one is None else {"id": one.id, "path": str(one.path)}
        for one in (outcome.stored, outcome.baseline)
    ]
    return {
        **drift,
        "record": ids[0],
        "baseline": ids[1],
        "valid": valid,
        "invalid": reasons(record),
        "metrics": {one.load.name: one.metrics for one in summaries(record)},
        "verdicts": msgspec.to_builtins(record.verdicts),
        "notes": list(record.notes),
    }


def _row(record: Record, load: Load) -> tuple[str, ...]:
    def cell(metric: str, digits: int) -> str:
        means = start_means(record.counting(), load, metric)
        if not means:
            return "-"
        mean, half = mean_and_half_width(means)
        return f"{mean:.{digits}f}" + ("" if half is None or metric != "output_throughput" else f" ± {half:.1f}")

    return (load.name, *(cell(metric, digits) for metric, digits in _COLUMNS))


def _verdict_line(output: Output, verdict: Verdict) -> str:
    what = f"{verdict.metric} at {verdict.load}: expected {verdict.expected}"
    if verdict.is_met is None or verdict.observed is None:
        return f"{output.yellow('UNKNOWN')}  {what}, and it could not be told"
    word = output.green("met") if verdict.is_met else output.red("NOT MET")
    return f"{word}  {what}, measured {verdict.observed:.4g}"
