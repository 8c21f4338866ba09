"""What people and programs read: text or one JSON envelope on stdout, all else on stderr.

The only module that prints. Must not decide anything: it is given results and exit codes.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, TextIO

from pinner.errors import ExitCode, PinnerError, UnknownFact

if TYPE_CHECKING:
    from pinner.deploy.launch import UpOutcome
    from pinner.deploy.resolve import LockOutcome
    from pinner.deploy.running import Status, Stopped
    from pinner.model.facts import Difference, Drift

ENVELOPE = 1
STATUS = {
    ExitCode.OK: "ok",
    ExitCode.DIFFERENT: "drift",
    ExitCode.INVALID: "invalid",
    ExitCode.FAILED: "failed",
    ExitCode.BUG: "bug",
    ExitCode.INTERRUPTED: "interrupted",
}
# Beyond this many, a list of differences helps a program and no longer a person.
MOST_SHOWN = 40


class Output:
    """Where one command's results go. `as_json` holds everything back for the envelope."""

    def __init__(
        self, command: str, *, as_json: bool, out: TextIO | None = None, err: TextIO | None = None
    ) -> None:
        self.command = command
        self.as_json = as_json
        self._out = out or sys.stdout
        self._err = err or sys.stderr
        self._began = time.monotonic()
        self._is_live = self._err.isatty() and os.environ.get("TERM") != "dumb"
        self._out_colors = _has_colors(self._out)
        self._err_colors = _has_colors(self._err)
        self._has_status_line = False

    def line(self, text: str = "") -> None:
        """A line of the result; nothing where the result is JSON."""
        if not self.as_json:
            self._clear()
            print(_printable(text), file=self._out)

    def piece(self, text: str) -> None:
        """A piece of a log, as it is."""
        self._out.write(_printable(text))
        self._out.flush()

    def say(self, text: str) -> None:
        """What is going on: one line that replaces itself on a terminal, plain lines elsewhere."""
        if self._is_live:
            elapsed = time.monotonic() - self._began
            columns = os.get_terminal_size(self._err.fileno()).columns
            shown = f"{elapsed:5.1f} s  {text.splitlines()[0]}"[: columns - 1]
            self._err.write(f"\r\x1b[K{self._paint(shown, '2', err=True)}")
            self._err.flush()
            self._has_status_line = True
        else:
            print(_printable(text), file=self._err, flush=True)

    def note(self, text: str) -> None:
        """Something worth knowing that is no result, and that must not vanish from a terminal."""
        self._clear()
        print(_printable(f"{self._paint('note:', '33', err=True)} {text}"), file=self._err)

    def error(self, error: PinnerError) -> None:
        """An error and, after a blank line, what to do about it."""
        self._clear()
        print(_printable(f"{self._paint('error:', '31;1', err=True)} {error.message}"), file=self._err)
        if error.hint:
            print(_printable(f"\n{self._paint('hint:', '36', err=True)} {error.hint}"), file=self._err)

    def envelope(
        self, code: ExitCode, data: Mapping[str, Any], errors: Iterable[PinnerError] = (), status: str = ""
    ) -> None:
        """The one JSON object of a command, if JSON was asked for."""
        self._clear()
        if not self.as_json:
            return
        errors = tuple(errors)
        if not status:
            status = "unknown" if any(isinstance(error, UnknownFact) for error in errors) else STATUS[code]
        message = {
            "schema": ENVELOPE,
            "command": self.command,
            "status": status,
            "exit_code": int(code),
            "data": data,
            "errors": [
                {"code": type(error).__name__, "message": error.message, "hint": error.hint} for error in errors
            ],
        }
        text = json.dumps(message, indent=2, ensure_ascii=False, default=str)
        print(_printable(text), file=self._out)

    def bold(self, text: str) -> str:
        return self._paint(text, "1")

    def red(self, text: str) -> str:
        return self._paint(text, "31;1")

    def green(self, text: str) -> str:
        return self._paint(text, "32")

    def yellow(self, text: str) -> str:
        return self._paint(text, "33")

    def dim(self, text: str) -> str:
        return self._paint(text, "2")

    def _paint(self, text: str, code: str, *, err: bool = False) -> str:
        return f"\x1b[{code}m{text}\x1b[0m" if (self._err_colors if err else self._out_colors) else text

    def _clear(self) -> None:
        if self._has_status_line:
            self._err.write("\r\x1b[K")
            self._err.flush()
            self._has_status_line = False


def _has_colors(stream: TextIO) -> bool:
    return stream.isatty() and "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"


def _printable(text: str) -> str:
    """File names and variables may hold bytes that are no text, which a terminal must not choke on."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def drift_data(drift: Drift) -> dict[str, Any]:
    """A drift for JSON: absent is null, unknown an object with its reason."""
    return {
        "drift": [_difference_data(item) for item in drift.differences],
        "unknown": [_difference_data(item) for item in drift.unknown],
        "accepted": [_difference_data(item) for item in drift.accepted],
        "notes": list(drift.notes),
        "how": dict(drift.how),
    }


def _difference_data(item: Difference) -> dict[str, Any]:
    return {
        "aspect": item.aspect,
        "key": item.key,
        "pinned": fact_data(item.pinned),
        "observed": fact_data(item.observed),
        "class": str(item.comparison),
        "evidence": list(item.evidence),
        "note": item.note,
    }


def fact_data(fact: Any) -> Any:
    """A fact for JSON."""
    from pinner.model.facts import Absent, Unknown  # noqa: PLC0415  # `--version` must not pay for msgspec

    if isinstance(fact, Absent):
        return None
    return {"unknown": fact.reason} if isinstance(fact, Unknown) else fact


def drift_text(output: Output, drift: Drift, *, deep: bool) -> None:
    """A drift for a person: grouped by aspect in the order of the probes, most telling first."""
    if drift.is_clean:
        how = "; ".join(f"{aspect} {text}" for aspect, text in drift.how.items())
        answer = "no drift, every byte read" if deep else "no drift"
        output.line(f"{output.green(answer)}{output.dim(f'  ({how})') if how else ''}")
    if drift.differences:
        output.line(f"{output.red('DRIFT')}  {_counted(drift.differences)}")
        _groups(output, drift.differences)
    if drift.unknown:
        output.line(
            f"{output.yellow('UNKNOWN')}  {_counted(drift.unknown)}; what cannot be told is not taken as equal"
        )
        _groups(output, drift.unknown)
    if drift.accepted:
        output.line(f"{output.yellow('ACCEPTED')}  {_counted(drift.accepted)}")
        _groups(output, drift.accepted)
    for note in drift.notes:
        output.line(f"{output.dim('note:')} {note}")


def _counted(items: tuple[Difference, ...]) -> str:
    return "1 difference" if len(items) == 1 else f"{len(items)} differences"


def _groups(output: Output, items: tuple[Difference, ...]) -> None:
    for aspect in dict.fromkeys(item.aspect for item in items):
        group = [item for item in items if item.aspect == aspect]
        output.line(f"\n{output.bold(aspect)}")
        for item in group[:MOST_SHOWN]:
            output.line(f"  {item.key}: pinned {_shown(item.pinned)}, observed {_shown(item.observed)}")
            if item.note:
                output.line(f"    {item.note}")
            for evidence in item.evidence:
                output.line(f"    {output.yellow(evidence) if evidence.endswith('suspect') else evidence}")
        if len(group) > MOST_SHOWN:
            output.line(f"  … and {len(group) - MOST_SHOWN} more; `--output json` lists all")
    output.line()


def _shown(fact: Any) -> str:
    text = str(fact)
    if text.startswith("sha256:"):
        return text[:19] + "…"
    return repr(text) if text == "" or text != text.strip() else text


def lock_text(output: Output, outcome: LockOutcome) -> None:
    """What locking did, old before new."""
    for note in outcome.notes:
        output.note(note)
    for change in outcome.changes:
        output.line(f"  {change}")
    output.line(f"{'wrote' if outcome.changed else 'unchanged:'} {outcome.path}")


def lock_data(outcome: LockOutcome) -> dict[str, Any]:
    """The same for JSON."""
    return {
        "lock": str(outcome.path),
        "changed": outcome.changed,
        "changes": list(outcome.changes),
        "notes": list(outcome.notes),
    }


def up_text(output: Output, outcome: UpOutcome) -> None:
    """A server that generates, or the reason why it was refused."""
    if outcome.locked is not None:
        lock_text(output, outcome.locked)
    if outcome.run is None:
        drift_text(output, outcome.drift, deep=False)
        output.note("nothing was started: the machine differs from the lock")
        return
    if outcome.drift.accepted or outcome.drift.notes:
        for item in outcome.drift.accepted:
            output.line(f"{output.yellow('ACCEPTED')}  {item.name}: {item.note.removeprefix('accepted: ')}")
        for note in outcome.drift.notes:
            output.line(f"{output.dim('note:')} {note}")
    state = "already up" if outcome.already else "up"
    output.line(f"{output.green(state)}  {outcome.run.run}: no drift, generated {outcome.tokens} tokens")
    output.line(f"{outcome.url}")


def up_data(outcome: UpOutcome) -> dict[str, Any]:
    """The same for JSON."""
    return {
        "url": outcome.url,
        "run": outcome.run.run if outcome.run else None,
        "already": outcome.already,
        "tokens": outcome.tokens,
        "lock": lock_data(outcome.locked) if outcome.locked else None,
        **drift_data(outcome.drift),
    }


def status_text(output: Output, statuses: list[Status]) -> None:
    """Runs as a table, newest first."""
    if not statuses:
        output.line("no runs")
        return
    rows = [
        (
            status.run.run,
            status.state,
            status.run.url,
            "" if status.uptime_s is None else _duration(status.uptime_s),
            status.detail,
        )
        for status in statuses
    ]
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    for status, row in zip(statuses, rows, strict=True):
        cells = "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=False))
        paint = output.green if status.is_serving else output.dim if status.state == "exited" else output.yellow
        output.line(f"{paint(cells)}  {row[4]}".rstrip())
        for override in status.run.overrides:
            output.line(f"  {output.yellow('accepted')} {override.key}: {override.reason}")


def status_data(statuses: list[Status]) -> dict[str, Any]:
    """The same for JSON."""
    return {
        "runs": [
            {
                "run": status.run.run,
                "name": status.run.name,
                "manifest": status.run.manifest,
                "state": status.state,
                "url": status.run.url,
                "pid": status.pid,
                "uptime_s": status.uptime_s,
                "generates": status.generates,
                "detail": status.detail,
                "overrides": [{"key": item.key, "reason": item.reason} for item in status.run.overrides],
            }
            for status in statuses
        ]
    }


def _duration(seconds: float) -> str:
    whole = int(seconds)
    days, hours, minutes = whole // 86400, whole // 3600 % 24, whole // 60 % 60
    if days:
        return f"{days} d {hours} h"
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {whole % 60} s" if minutes else f"{whole} s"


def stopped_text(output: Output, stopped: Stopped) -> None:
    """How a stop ended."""
    if stopped.survivors:
        output.line(f"{output.red('not stopped')}  {stopped.run}; still alive: {', '.join(stopped.survivors)}")
    elif stopped.already:
        output.line(f"nothing to do{f': {stopped.run} is down' if stopped.run else ': it never ran here'}")
    else:
        how = "; it had to be killed" if stopped.forced else ""
        output.line(f"{output.green('down')}  {stopped.run}{how}")


def stopped_data(stopped: Stopped) -> dict[str, Any]:
    """The same for JSON."""
    return {
        "run": stopped.run,
        "already": stopped.already,
        "forced": stopped.forced,
        "survivors": list(stopped.survivors),
    }
