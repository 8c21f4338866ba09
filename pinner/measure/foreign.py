"""Evidence that others wrote, taken in as records without pins.

Owns telling what a file is, and what the record says of where it came from.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import msgspec

from pinner.errors import RecordError, UsageError
from pinner.host import tarball
from pinner.host.home import Home
from pinner.measure.carry import import_record
from pinner.measure.foreign_bench import from_bench
from pinner.measure.foreign_log import from_log
from pinner.measure.records import Stored, store
from pinner.model.manifest import NAME_PATTERN

RECORD, LOG, BENCH = "record", "sglang-log", "bench-serving"
KINDS = (RECORD, LOG, BENCH)
_DAMAGED = (EOFError, zlib.error, gzip.BadGzipFile)
# A line longer than this is read in pieces: a small packed file may hold one that no memory does.
_MAX_LINE_BYTES = 256 * 1024 * 1024


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """What a person says of a file: its kind, whose deployment it was, when it ended (Unix seconds)."""

    kind: str | None = None
    deployment: str | None = None
    ended: float | None = None


def take_in(path: Path, home: Home, asked: Asked) -> Stored:
    """Import a file of any kind. RecordError naming what is wrong with it."""
    if path.is_dir():
        raise UsageError(f"{path} is a directory", hint="`pinner records export` makes one file of a record")
    try:
        kind = asked.kind or kind_of(path)
        if kind == RECORD:
            return import_record(path, home)
        return _foreign(path, kind, home, asked)
    except OSError as error:
        if error.filename is not None and Path(error.filename) == path:
            raise UsageError(f"cannot read {path}: {error.strerror}") from None
        raise


def kind_of(path: Path) -> str:
    """What a file is, by how it begins."""
    if tarball.is_tarball(path):
        return RECORD
    with _opened(path) as stream:
        try:
            start = stream.read(4096).lstrip()
        except _DAMAGED:
            raise RecordError(f"{path}: is damaged, and cannot be unpacked") from None
    return BENCH if start.startswith(b"{") else LOG


def _foreign(path: Path, kind: str, home: Home, asked: Asked) -> Stored:
    deployment = asked.deployment or _name_of(path)
    if re.fullmatch(NAME_PATTERN, deployment) is None:
        raise UsageError(f"{deployment!r} is no name for a deployment", hint="letters, digits, - and _")
    ended = path.stat().st_mtime if asked.ended is None else asked.ended
    digest = hashlib.sha256()
    with _opened(path) as stream:
        lines = _lines(stream, digest)
        try:
            if kind == BENCH:
                record, files = from_bench(lines, deployment=deployment, ended=ended)
            else:
                record, files = from_log(lines, deployment=deployment)
        except RecordError as error:
            raise RecordError(f"{path}: {error.message}", hint=error.hint) from None
        except _DAMAGED:
            raise RecordError(f"{path}: is cut short or damaged, and cannot be unpacked") from None
    source = f"{kind} {path.name}, sha256:{digest.hexdigest()}"
    return store(msgspec.structs.replace(record, source=source), files, home)


def _opened(path: Path) -> IO[bytes]:
    with path.open("rb") as stream:
        is_packed = stream.read(2) == b"\x1f\x8b"
    return io.BufferedReader(gzip.GzipFile(path)) if is_packed else path.open("rb")


def _lines(stream: IO[bytes], digest: hashlib._Hash) -> Iterator[str]:
    for line in iter(lambda: stream.readline(_MAX_LINE_BYTES), b""):
        digest.update(line)
        yield line.decode(errors="replace")


def _name_of(path: Path) -> str:
    """A deployment's name from a file's."""
    stem = path.name.split(".")[0]
    return re.sub(r"[^A-Za-z0-9_-]+", "-", stem).strip("-_") or "foreign"
