"""Records as text for people and as data for JSON.

Must not decide anything: it is given what was found. It prints through terminal.py.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from pinner.measure.record_summary import LoadSummary, summaries
from pinner.model.bench import METRICS
from pinner.model.facts import Unknown
from pinner.model.record import Record
from pinner.terminal import plain

if TYPE_CHECKING:
    from pathlib import Path

    from pinner.host.ssh import Signer
    from pinner.measure.find_records import Damaged
    from pinner.measure.records import Stored
    from pinner.terminal import Output

HEADINGS = ("ID", "WHEN (UTC)", "DEPLOYMENT", "BENCH", "LOAD", "OUTPUT tok/s", "ACCEPT", "STATE")
_RIGHT = (5, 6)

# The parts of a lock whose pins have moved since; Unknown where that cannot be told.
Moved = tuple[str, ...] | Unknown


class Page(msgspec.Struct, frozen=True, kw_only=True):
    """What `records show` has found of one record. `lock` is the data of its lock."""

    stored: Stored
    moved: Moved
    damage: Sequence[str]
    extras: Sequence[str]
    lock: dict[str, Any] | None
    is_signed: bool


def list_text(output: Output, rows: Sequence[tuple[Stored, Moved]], damaged: Sequence[Damaged]) -> None:
    """Records as a table, newest first: one line for each load."""
    for broken in damaged:
        output.note(f"damaged: {broken.reason}")
    if not rows:
        output.line("no records")
        return
    lines: list[tuple[Sequence[str], str]] = []
    for stored, moved in rows:
        record = stored.record
        own = (stored.short, _when(record.began), record.deployment, record.bench)
        for number, summary in enumerate(summaries(record) or [None]):
            cells = own if number == 0 else ("",) * len(own)
            lines.append(((*map(plain, cells), *_figures(summary)), _state(output, record, moved)))
    widths = [max(len(row[column]) for row in (HEADINGS, *(row for row, _ in lines))) for column in range(7)]
    output.line(output.dim(f"{_cells(HEADINGS, widths)}  {HEADINGS[-1]}"))
    for row, state in lines:
        output.line(f"{_cells(row, widths)}  {state}")


def _cells(row: Sequence[str], widths: Sequence[int]) -> str:
    return "  ".join(
        cell.rjust(width) if column in _RIGHT else cell.ljust(width)
        for column, (cell, width) in enumerate(zip(row, widths, strict=False))
    )


def _figures(summary: LoadSummary | None) -> tuple[str, str, str]:
    if summary is None:
        return ("", "", "")
    throughput, accepted = (summary.metrics.get(name) for name in ("output_throughput", "accept_length"))
    return (
        summary.load.name,
        "-" if throughput is None else _number(throughput),
        "-" if accepted is None else f"{accepted:.2f}",
    )


def _state(output: Output, record: Record, moved: Moved) -> str:
    words = [output.green("valid") if record.is_valid else output.red("invalid")]
    if record.origin == "foreign":
        words.append(output.yellow("foreign"))
    if isinstance(moved, tuple) and moved:
        words.append(output.yellow(f"stale ({plain(', '.join(moved))})"))
    return ", ".join(words)


def list_data(rows: Sequence[tuple[Stored, Moved]], damaged: Sequence[Damaged]) -> dict[str, Any]:
    """The same for JSON; `stale` is null where it cannot be told."""
    return {
        "records": [_entry(stored, moved) for stored, moved in rows],
        "damaged": [{"path": str(broken.path), "reason": broken.reason} for broken in damaged],
    }


def _entry(stored: Stored, moved: Moved) -> dict[str, Any]:
    record = stored.record
    return {
        **stored_data(stored),
        "deployment": record.deployment,
        "bench": record.bench,
        "origin": record.origin,
        "began": record.began,
        "ended": record.ended,
        "valid": record.is_valid,
        "invalid": list(record.invalid),
        "stale": bool(moved) if isinstance(moved, tuple) else None,
        "moved": list(moved) if isinstance(moved, tuple) else [],
        "stale_unknown": moved.reason if isinstance(moved, Unknown) else None,
        "loads": [msgspec.to_builtins(summary) for summary in summaries(record)],
    }


def stored_data(stored: Stored) -> dict[str, Any]:
    """Which record it is."""
    return {"id": stored.id, "name": stored.name, "path": str(stored.path)}


def page_text(output: Output, page: Page) -> None:
    """One record for a person: what was measured, under which pins, what came out, what to know of it."""
    stored, record = page.stored, page.stored.record
    output.line(f"{output.bold(stored.name)}  {_state(output, record, page.moved)}")
    for what, text in _facts(page):
        output.line(f"  {what:<11} {plain(text)}")
    for name, sentences in (
        ("damaged", page.damage),
        ("invalid", record.invalid),
        ("not of it", page.extras),
    ):
        for sentence in sentences:
            output.line(f"  {output.red(f'{name:<11}')} {plain(sentence)}")
    _pins(output, page)
    for summary in summaries(record):
        _metrics(output, record, summary)
    _verdicts(output, record)
    for override in record.overrides:
        output.line(f"  {output.yellow('accepted')} {plain(override.key)}: {plain(override.reason)}")
    for note in record.notes:
        output.line(f"{output.dim('note:')} {plain(note)}")


def _facts(page: Page) -> list[tuple[str, str]]:
    stored, record = page.stored, page.stored.record
    found = [("id", stored.id), ("path", str(stored.path))]
    found.append(("measured", f"{record.bench} of {record.deployment}"))
    ended = _when(record.ended)
    found.append(
        ("when", f"{_when(record.began)} to {ended[11:] if ended[:10] == _when(record.began)[:10] else ended} UTC")
    )
    if record.source:
        found.append(("source", record.source))
    if record.workload is not None:
        work = record.workload
        what = work.dataset or f"synthetic prompts of {work.input_tokens} tokens"
        found.append(
            ("load", f"{work.requests} requests, {what}, {work.output_tokens} tokens out, cache {work.cache}")
        )
    elif record.load_arguments:
        found.append(("load", ", ".join(f"{key} {value}" for key, value in record.load_arguments.items())))
    if record.reproduces:
        found.append(("reproduces", record.reproduces))
    checks = [("before", record.before), ("after", record.after)]
    told = [f"{_check(check)} {name}" for name, check in checks if check is not None]
    if told:
        found.append(("checks", ", ".join(told)))
    if record.origin == "pinner":
        found.append(("pins", _pins_now(page.moved)))
    if record.tools:
        found.append(("tools", ", ".join(f"{name} {version}" for name, version in sorted(record.tools.items()))))
    found.append(("files", f"{len(record.files)}{', signed' if page.is_signed else ''}"))
    return found


def _pins_now(moved: Moved) -> str:
    if isinstance(moved, Unknown):
        return f"whether they have moved since cannot be told: {moved.reason}"
    return f"have moved since: {', '.join(moved)}" if moved else "are those of its manifest's lock now"


def _check(check: dict[str, Any]) -> str:
    counts = [(len(check.get(key) or ()), key) for key in ("drift", "unknown", "accepted")]
    return " and ".join(f"{count} {key}" for count, key in counts if count) or "no drift"


def _pins(output: Output, page: Page) -> None:
    """What was pinned, in the few lines by which a person knows a deployment."""
    lines = _lock_lines(page.lock) if page.lock is not None else []
    arguments = page.stored.record.arguments
    for key in ("model_path", "revision", "tp_size", "speculative_algorithm", "speculative_draft_model_path"):
        if arguments.get(key) is not None:
            lines.append((key, str(arguments[key])))
    if len(arguments) > len(lines) > 0:
        lines.append(("…", f"{len(arguments)} arguments; `--output json` has all"))
    if lines:
        output.line(f"\n{output.bold('pins' if page.lock is not None else 'server arguments')}")
    for key, text in lines:
        output.line(f"  {key}: {plain(text)}")


def _lock_lines(lock: dict[str, Any]) -> list[tuple[str, str]]:
    engine, python = lock.get("engine", {}), lock.get("python", {})
    source = engine.get("source", {})
    where = source.get("url") or source.get("path") or source.get("name")
    lines = [("source", f"{where} {source.get('commit') or source.get('version') or ''}".rstrip())]
    lines += [("patch", patch.get("file", "")) for patch in engine.get("patches", ())]
    lines.append(("python", f"{python.get('version')} {python.get('path') or ''}".rstrip()))
    for aspect in ("model", "draft"):
        weights = lock.get(aspect)
        if weights:
            where = weights.get("repo") or weights.get("path")
            lines.append((aspect, f"{where} {weights.get('revision') or ''}".rstrip()))
    lines.append(("arguments", " ".join(engine.get("argv", ()))))
    return lines


def _metrics(output: Output, record: Record, summary: LoadSummary) -> None:
    starts = "1 start" if summary.starts == 1 else f"{summary.starts} starts"
    counted = f"{summary.measurements} measurement{'' if summary.measurements == 1 else 's'} in {starts}"
    more = f", {summary.not_counted} that do not count" if summary.not_counted else ""
    output.line(f"\n{output.bold(summary.load.name)}  {output.dim(counted + more)}")
    known = [name for name in METRICS if name in summary.metrics]
    for name in (*known, *(name for name in summary.metrics if name not in METRICS)):
        output.line(f"  {name:<20} {_number(summary.metrics[name]):>12}")
    here = [one for one in record.measurements if one.load == summary.load]
    reasons = dict.fromkeys(reason for one in here for reason in one.invalid)
    for reason in (*reasons, *dict.fromkeys(r for start in record.starts for r in start.invalid)):
        output.line(f"  {output.red('does not count:')} {plain(reason)}")


def _verdicts(output: Output, record: Record) -> None:
    if record.verdicts:
        output.line(f"\n{output.bold('expected')}")
    for one in record.verdicts:
        word = {True: output.green("met"), False: output.red("not met"), None: output.yellow("cannot be told")}
        seen = "unknown" if one.observed is None else _number(one.observed)
        output.line(
            f"  {plain(one.metric)} at {plain(one.load)}: expected {plain(one.expected)}, observed {seen}: "
            f"{word[one.is_met]}"
        )


def page_data(page: Page) -> dict[str, Any]:
    """All of a record for JSON."""
    return {
        **_entry(page.stored, page.moved),
        "record": msgspec.to_builtins(page.stored.record),
        "damage": list(page.damage),
        "extras": list(page.extras),
        "signed": page.is_signed,
    }


def verified_text(output: Output, stored: Stored, signer: Signer | None, extras: Sequence[str]) -> None:
    """A record that is whole, and who signed it."""
    files = len(stored.record.files) + 1
    output.line(f"{output.green('whole')}  {stored.name}: {files} file{'' if files == 1 else 's'} as written")
    for name in extras:
        output.note(f"{name} is not part of the record, and nothing vouches for it")
    if signer is None:
        output.line("not signed")
    elif signer.principal is None:
        output.line(f"signed with {plain(signer.key)}; whose that is, --allowed-signers tells")
    else:
        output.line(f"{output.green('signed')} by {plain(signer.principal)} with {plain(signer.key)}")


def written_text(output: Output, what: str, path: Path | str) -> None:
    """One line that says what was done."""
    output.line(f"{what} {plain(str(path))}")


def _when(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.gmtime(seconds))


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 10_000 else f"{value:,.1f}" if value >= 100 else f"{value:.2f}"
