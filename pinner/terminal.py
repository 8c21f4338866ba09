"""Standard output and error: text or one JSON envelope on the one, all else on the other.

The only module that prints. Must not know what results are: render.py turns them into lines.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import sys
import time
from collections.abc import Iterable, Mapping
from typing import Any, TextIO

from pinner.errors import ExitCode, OperationFailed, PinnerError, UnknownFact
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


_COLOR = re.compile(r"(\x1b\[[0-9;]*m)")


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
        self._is_unread = False

    def line(self, text: str = "") -> None:
        """A line of the result; nothing where the result is JSON."""
        if not self.as_json:
            self._clear()
            self._write(self._out, f"{text}\n")

    def piece(self, text: str) -> bool:
        """A piece of a log, as it is but for what would steer a terminal; False once nobody reads any more."""
        if self._out.isatty():
            text = "".join(
                part if _COLOR.fullmatch(part) else plain(part, lines=True) for part in _COLOR.split(text)
            )
        self._write(self._out, text)
        return not self._is_unread

    def say(self, text: str) -> None:
        """What is going on: one line that replaces itself on a terminal, plain lines elsewhere."""
        self._what = text
        if self._is_live:
            self._draw(text)
        else:
            self._write(self._err, f"{plain(text)}\n")

    def status(self, text: str) -> None:
        """A passing state of what `say` has told; off a terminal, a line now and then."""
        if self._is_live:
            self._draw(f"{self._what}: {text}" if self._what else text)
        elif time.monotonic() - self._told > NOW_AND_THEN_S:
            self._told = time.monotonic()
            self._write(self._err, f"  {plain(text)}\n")

    def _draw(self, text: str) -> None:
        elapsed = time.monotonic() - self._began
        shown = f"{elapsed:5.1f} s  {plain(text)}"[: (self.columns or 80) - 1]
        self._write(self._err, f"\r\x1b[K{self._paint(shown, '2', err=True)}")
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
        with contextlib.suppress(OSError):
            os.write(self._err.fileno(), data)

    def note(self, text: str) -> None:
        """Something worth knowing that is no result, and that must not vanish from a terminal."""
        self._clear()
        self._write(self._err, f"{self._paint('note:', '33', err=True)} {plain(text)}\n")

    def error(self, error: PinnerError) -> None:
        """An error and, after a blank line, what to do about it."""
        self._clear()
        self._write(self._err, f"{self._paint('error:', '31;1', err=True)} {plain(error.message, lines=True)}\n")
        if error.hint:
            self._write(self._err, f"\n{self._paint('hint:', '36', err=True)} {plain(error.hint, lines=True)}\n")

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
        # ASCII, so that no encoding of the terminal and no byte of a file name makes it anything but JSON.
        self._write(self._out, json.dumps(_text_only(message), indent=2, ensure_ascii=True) + "\n")

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
            self._write(self._err, "\r\x1b[K")
            self._has_status_line = False

    def _write(self, stream: TextIO, text: str) -> None:
        """Write and flush. A reader that has gone is no error; a disk that is full is."""
        if stream is self._out and self._is_unread:
            return
        try:
            stream.write(_encodable(text, stream))
            stream.flush()
        except BrokenPipeError:
            self._is_unread = self._is_unread or stream is self._out
            _silence(stream)
        except OSError as error:
            _silence(stream)
            raise OperationFailed(f"cannot write the answer: {error.strerror}") from None


def _bar(what: str, done: int, total: int, seconds: float) -> str:
    """`reading  ████░░  12.1/48.0 GB  1.9 GB/s`."""
    full = min(20, 20 * done // max(1, total))
    rate = done / max(seconds, 1e-3)
    return f"{what}  {'█' * full}{'░' * (20 - full)}  {done / 1e9:.1f}/{total / 1e9:.1f} GB  {rate / 1e9:.2f} GB/s"


def _has_colors(stream: TextIO) -> bool:
    return stream.isatty() and "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"


def plain(text: str, *, lines: bool = False) -> str:
    """Text from elsewhere that cannot steer a terminal: control characters and stray bytes are escaped.

    Names of files, variables and log lines may hold anything. `lines` lets line breaks stand.
    """
    kept = "\n\t" if lines else ""
    return "".join(one if one in kept or one.isprintable() else _escaped(one) for one in _text(text))


def _text(text: str) -> str:
    """Text that every encoder takes: bytes that were no text become escapes."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode()


def _text_only(value: Any) -> Any:
    """A value for JSON in which every string is text."""
    if isinstance(value, dict):
        return {str(_text_only(key)): _text_only(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_text_only(item) for item in value]
    if value is None or isinstance(value, (bool, int, float)):
        return value
    return _text(str(value))


def _encodable(text: str, stream: TextIO) -> str:
    encoding = getattr(stream, "encoding", None) or "utf-8"
    return _text(text).encode(encoding, "backslashreplace").decode(encoding)


def _silence(stream: TextIO) -> None:
    """Let nothing more be written to a stream, also not by the interpreter when it ends."""
    with contextlib.suppress(OSError, ValueError):
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, stream.fileno())
        os.close(null)
