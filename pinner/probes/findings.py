"""What the parts of the Python probe have found, and how it is spelled.

Owns the keys and the evidence that these parts share. Must not look at anything but a file's time.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import msgspec

from pinner.model.facts import Fact

_KEYS_OF_THE_PROBE = frozenset({"interpreter", "files", "base", "site-packages", "bytecode"})


class Findings(msgspec.Struct):
    """What was found so far; the fields are those of an Observation."""

    facts: dict[str, Fact] = {}
    sealed: dict[str, Fact] = {}
    evidence: dict[str, tuple[str, ...]] = {}
    notes_by_key: dict[str, str] = {}
    notes: list[str] = []
    how: list[str] = []

    def differs(self, key: str, pinned: Fact, observed: Fact, note: str, *evidence: str) -> None:
        """Add one difference."""
        self.sealed[key] = pinned
        self.facts[key] = observed
        self.notes_by_key[key] = note
        if evidence:
            self.evidence[key] = evidence


def key_of(name: str) -> str:
    """The key for a path or distribution: text that any encoder takes, and no key of the probe itself."""
    text = name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    return f"./{text}" if text in _KEYS_OF_THE_PROBE else text


def when(path: Path) -> tuple[str, ...]:
    """When a file was last changed, as evidence."""
    try:
        changed = os.lstat(path).st_ctime
    except OSError:
        return ()
    return (f"last changed {time.strftime('%Y-%m-%d %H:%M:%S', time.gmtime(changed))} UTC",)
