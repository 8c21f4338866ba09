"""Standard output and error: text or one JSON envelope on the one, all else on the other.

The only module that prints. Must not know what results are: render.py turns them into lines.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterable, Mapping
from typing import Any, TextIO

from pinner.errors import ExitCode, PinnerError, UnknownFact
from pinner.host.progress import Advance, View

ENVELOPE = 1
STATUS = {
    ExitCode.OK: "ok",
    ExitCode.DIFFERENT: "drift",
    ExitCode.INVALID: "invalid",
    ExitCode.FAILED: "failed",
    ExitCode.BUG: "bug",
    ExitCode.INTERRUPTED: "interrupted",
}
# Between two lines about the same work where there is no terminal.
NOW_AND_THEN_S = 10.0


class Output(View):
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
        self.columns = os.get_terminal_size(self._err.fileno()).columns or 80 if self._is_live else None
        self._what = ""
        self._told = self._began
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
        self._what = text
        if self._is_live:
            self._draw(text)
        else:
            print(_printable(text), file=self._err, flush=True)

    def status(self, text: str) -> None:
        """A passing state of what `say` has told; off a terminal, a line now and then."""
        if self._is_live:
            self._draw(f"{self._what}: {text}" if self._what else text)
        elif time.monotonic() - self._told > NOW_AND_THEN_S:
            self._told = time.monotonic()
            print(_printable(f"  {text}"), file=self._err, flush=True)

    def _draw(self, text: str) -> None:
        elapsed = time.monotonic() - self._began
        shown = f"{elapsed:5.1f} s  {text.splitlines()[0]}"[: (self.columns or 80) - 1]
        self._err.write(f"\r\x1b[K{self._paint(shown, '2', err=True)}")
        self._err.flush()
        self._has_status_line = True

    def transfer(self, what: str, total_bytes: int) -> Advance:
        """Begin a bar of bytes and their rate."""
        began = time.monotonic()
        last = 0.0
        done = 0

        def advance(count: int) -> None:
            nonlocal done, last
            done += count
            now = time.monotonic()
            if now - last > 0.1 or done >= total_bytes:
                last = now
                self.status(_bar(what, done, total_bytes, now - began))

        return advance

    def raw(self, data: bytes) -> None:
        """What uv has drawn for a terminal, as it is."""
        self._clear()
        self._err.flush()
        os.write(self._err.fileno(), data)

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


def _bar(what: str, done: int, total: int, seconds: float) -> str:
    """`reading  ████░░  12.1/48.0 GB  1.9 GB/s`."""
    full = min(20, 20 * done // max(1, total))
    rate = done / max(seconds, 1e-3)
    return f"{what}  {'█' * full}{'░' * (20 - full)}  {done / 1e9:.1f}/{total / 1e9:.1f} GB  {rate / 1e9:.2f} GB/s"


def _has_colors(stream: TextIO) -> bool:
    return stream.isatty() and "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"


def _printable(text: str) -> str:
    """File names and variables may hold bytes that are no text, which a terminal must not choke on."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
