"""How long work tells of itself: bytes read, and what git and uv say while they work.

Owns the one view that is current; render installs one that draws, and without it everything is silent. Like
logging it is reached from anywhere, so that no function has to pass it on. Must not print.
"""

from __future__ import annotations

import re
from collections.abc import Callable

Advance = Callable[[int], None]

# Work below this many bytes is over before a person has read that it began.
WORTH_TELLING_BYTES = 256 * 1024 * 1024


class View:
    """A view that shows nothing; `columns` is the terminal's width, None where there is no terminal."""

    columns: int | None = None

    def transfer(self, what: str, total_bytes: int) -> Advance:  # noqa: ARG002  # for those that draw
        """Begin to tell of bytes; what is returned takes the number of each further piece."""
        return lambda _count: None

    def status(self, text: str) -> None:
        """A line about what is going on that the next one replaces."""

    def raw(self, data: bytes) -> None:
        """What a program of pinner's own drew for a terminal, with its control characters."""


_views = [View()]


def current() -> View:
    """The view that is installed."""
    return _views[-1]


def install(view: View) -> None:
    """Make a view the current one for the rest of the process."""
    _views[:] = [view]


def hashing(total_bytes: int) -> Advance | None:
    """What to tell of bytes that are hashed; None where it is not worth it."""
    return current().transfer("reading", total_bytes) if total_bytes >= WORTH_TELLING_BYTES else None


class GitMeter:
    """Picks git's own progress out of its stderr: "Receiving objects:  45% (…), 12 MiB | 3 MiB/s"."""

    _LINE = re.compile(
        r"(?:remote: )?((?:Enumerating|Counting|Compressing|Receiving|Resolving|Updating) [^\r\n]*)"
    )

    def __init__(self, view: View) -> None:
        self._view = view
        self._rest = ""

    def __call__(self, data: bytes) -> None:
        lines = re.split(r"[\r\n]", self._rest + data.decode("utf-8", "replace"))
        self._rest = lines.pop()
        for line in lines:
            found = self._LINE.fullmatch(line.strip())
            if found:
                # What a repository's server says must not steer a terminal.
                self._view.status("".join(one for one in found[1] if one.isprintable()))

    @classmethod
    def without_progress(cls, text: str) -> str:
        """What git said beside its progress."""
        lines = [line.rpartition("\r")[2].strip() for line in text.split("\n")]
        return "\n".join(line for line in lines if line and not cls._LINE.fullmatch(line))
