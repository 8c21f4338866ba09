"""Rows of raw samples as a file of a record: JSON lines, compressed to the same bytes for the same rows."""

from __future__ import annotations

import gzip
from collections.abc import Iterable
from typing import Any

import msgspec


def packed(rows: Iterable[Any]) -> bytes:
    """The file. Without a time and a name in its header it depends on the rows alone."""
    return gzip.compress(b"".join(msgspec.json.encode(row) + b"\n" for row in rows), mtime=0)


def unpacked(data: bytes) -> list[Any]:
    """The rows again."""
    return [msgspec.json.decode(line) for line in gzip.decompress(data).splitlines()]
