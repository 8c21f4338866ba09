"""How the parts of the Python probe spell what they have found.

Owns the keys and the evidence that these parts share. Must not look at anything but a file's time.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

from pinner.host.files import escaped
from pinner.model.facts import ABSENT, Fact

_KEYS_OF_THE_PROBE = frozenset({"interpreter", "files", "base", "site-packages", "bytecode"})


def key_of(name: str) -> str:
    """The key for a path or distribution: text that any encoder takes, and no key of the probe itself."""
    text = escaped(name)
    return f"./{text}" if text in _KEYS_OF_THE_PROBE else text


def shown(pinned: str | None, observed: str | None) -> tuple[Fact, Fact]:
    """Two "<mode> <digest>" entries of a file as values: the digests alone where these differ."""
    before, after = (pinned or "").partition(" ")[2], (observed or "").partition(" ")[2]
    if before == after:
        return pinned or ABSENT, observed or ABSENT
    return before or ABSENT, after or ABSENT


def record_gone(title: str, what: str, others: int) -> str:
    """What is said of a distribution whose RECORD, or whole dist-info, was deleted; `others` are edited files."""
    rest = "its other files are unchanged"
    if others:
        rest = "1 of its other files differs" if others == 1 else f"{others:,} of its other files differ"
    return f"{title}: its {what} is gone; {rest}"


def when(path: Path) -> tuple[str, ...]:
    """When a file was last changed, as evidence."""
    try:
        changed = os.lstat(path).st_ctime
    except OSError:
        return ()
    return (f"last changed {time.strftime('%Y-%m-%d %H:%M:%S', time.gmtime(changed))} UTC",)
