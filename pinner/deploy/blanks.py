"""Blanks in a manifest: values that nobody knows yet, each with what to put there.

Owns how a blank is written. A manifest with blanks can be read and shared, and nothing can be locked from it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

MARK = "FILL IN:"


def blanks(data: Any, key: str = "") -> Iterator[tuple[str, str]]:
    """(key path, what to put there) of every blank in a manifest's data."""
    if isinstance(data, dict):
        for name, value in data.items():
            yield from blanks(value, f"{key}.{name}" if key else name)
    elif isinstance(data, list):
        for index, value in enumerate(data):
            yield from blanks(value, f"{key}[{index}]")
    elif isinstance(data, str) and data.strip().startswith(MARK):
        yield key, data.strip().removeprefix(MARK).strip() or "a value"
