"""Storing records and reading them back: one directory each, written once, named by content.

Owns the directories below $PINNER_HOME/records. Must not judge what is in a record. A record appears by one rename
when all of it is on the disk; what a killed writer left is removed by the next one.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import re
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from pinner import __version__
from pinner.errors import RecordError
from pinner.host.files import exclusive, remove_tree, sync_directory
from pinner.host.home import Home
from pinner.host.tarball import Readable
from pinner.model.manifest import NAME_PATTERN
from pinner.model.record import (
    FORMAT,
    RECORD_FILE,
    SIGNATURE_FILE,
    STATEMENT_FILE,
    Record,
    name_problem,
)

MAX_RECORD_BYTES = 64 * 1024 * 1024
MAX_FILES = 20_000
_PIECE_BYTES = 1024 * 1024
_NAMED_BY_ID = re.compile(r"-([0-9a-f]{12})\Z")
_LAST_SECOND = 253402300799  # of the year 9999


class Stored(msgspec.Struct, frozen=True, kw_only=True):
    """A record on the disk: `id` is the digest of its record.json in hex, `path` its directory.

    Where it was read from an exported file, `path` is that file. `is_new` unless it was there before.
    """

    id: str
    path: Path
    record: Record
    is_new: bool = False

    @property
    def short(self) -> str:
        """What a person types."""
        return self.id[:12]

    @property
    def name(self) -> str:
        """The name of its directory, which follows from what is in it."""
        stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime(self.record.began))
        return f"{self.record.deployment}-{stamp}-{self.short}"


def store(record: Record, files: Mapping[str, bytes | Path], home: Home) -> Stored:
    """Write a record with its files, and fill in their digests. Paths are copied; nothing is compressed here.

    A record that is there already is left as it is. Whatever goes wrong, nothing half done is left.
    """
    with staging(home) as stage:
        digests = {}
        for name in sorted(files):
            problem = name_problem(name)
            if problem:
                raise RecordError(f"the file {name!r} {problem}")
            content = files[name]
            if isinstance(content, Path):
                with content.open("rb") as stream:
                    digests[name] = add_file(stage, name, stream)
            else:
                digests[name] = add_file(stage, name, content)
        return settle(stage, encode(msgspec.structs.replace(record, files=digests)), home)


@contextlib.contextmanager
def staging(home: Home) -> Iterator[Path]:
    """An empty directory to fill, beside the records; gone afterwards unless it was settled."""
    home.records.mkdir(parents=True, exist_ok=True)
    with exclusive(home.records / ".lock", what="storing a record"):
        stage = home.records / ".stage"
        remove_tree(stage)
        try:
            stage.mkdir()
            yield stage
        finally:
            remove_tree(stage)


def add_file(stage: Path, name: str, content: bytes | Readable) -> str:
    """Write one file below a staged directory, read-only and on the disk; returns its digest."""
    path = stage / name
    path.parent.mkdir(parents=True, exist_ok=True)
    found = hashlib.sha256()
    with path.open("xb") as out:
        for piece in (content,) if isinstance(content, bytes) else _pieces(content):
            found.update(piece)
            out.write(piece)
        out.flush()
        os.fsync(out.fileno())
        os.fchmod(out.fileno(), 0o444)
    return f"sha256:{found.hexdigest()}"


def digest_of(stream: Readable) -> str:
    """`sha256:<hex>` of what a stream holds."""
    found = hashlib.sha256()
    for piece in _pieces(stream):
        found.update(piece)
    return f"sha256:{found.hexdigest()}"


def _pieces(stream: Readable) -> Iterator[bytes]:
    return iter(lambda: stream.read(_PIECE_BYTES), b"")


def settle(stage: Path, data: bytes, home: Home) -> Stored:
    """Turn a filled stage into a record. One of the same id stays what it is. RecordError if that is damaged."""
    stored = Stored(id=hashlib.sha256(data).hexdigest(), path=stage, record=decode(data, RECORD_FILE), is_new=True)
    target = home.records / stored.name
    if target.exists():
        return untouched(target)
    add_file(stage, RECORD_FILE, data)
    for directory, _, _ in os.walk(stage, topdown=False):
        Path(directory).chmod(0o755)
        sync_directory(Path(directory))
    stage.rename(target)
    sync_directory(home.records)
    return msgspec.structs.replace(stored, path=target)


def untouched(path: Path) -> Stored:
    """The record in a directory, every byte verified. RecordError naming what is damaged."""
    stored = load(path)
    found = damage(stored)
    if found:
        raise RecordError(
            f"{path}: the record is damaged: {'; '.join(found)}",
            hint="move the directory away, and import the record from where it was exported to",
        )
    return stored


def load(path: Path) -> Stored:
    """The record in a directory: record.json is verified by the name, its files are not (see `damage`)."""
    data = _read(path / RECORD_FILE)
    identity = hashlib.sha256(data).hexdigest()
    named = _NAMED_BY_ID.search(path.name)
    if named is not None and not identity.startswith(named[1]):
        raise RecordError(f"{path / RECORD_FILE}: has been changed: its digest is not the one that the name says")
    return Stored(id=identity, path=path, record=decode(data, str(path / RECORD_FILE)))


def damage(stored: Stored) -> list[str]:
    """What of a record's files is not as it was written, each with its name; nothing where all is well."""
    found = []
    for name, digest in stored.record.files.items():
        try:
            with (stored.path / name).open("rb") as stream:
                seen = digest_of(stream)
        except FileNotFoundError:
            found.append(f"{name} is missing")
        except OSError as error:
            found.append(f"{name} cannot be read ({error.strerror})")
        else:
            if seen != digest:
                found.append(f"{name} has been changed")
    return found


def extras(stored: Stored) -> list[str]:
    """Files in a record's directory that the record does not know, so that nothing vouches for them."""
    known = {RECORD_FILE, STATEMENT_FILE, SIGNATURE_FILE, *stored.record.files}
    found = (path for path in stored.path.rglob("*") if path.is_symlink() or not path.is_dir())
    return sorted(
        name for name in (path.relative_to(stored.path).as_posix() for path in found) if name not in known
    )


def encode(record: Record) -> bytes:
    """record.json: the same bytes for the same record. A number that is none is left out, as it tells nothing."""
    text = json.dumps(_plain(msgspec.to_builtins(record)), indent=1, sort_keys=True, ensure_ascii=False)
    data = f"{text}\n".encode()
    decode(data, RECORD_FILE)
    return data


def _plain(value: Any) -> Any:
    """What JSON and every encoder can hold."""
    if isinstance(value, dict):
        kept = {str(_plain(key)): _plain(item) for key, item in value.items()}
        return {key: item for key, item in kept.items() if item is not None or value.get(key) is None}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, str):
        return value.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    return value


class _Head(msgspec.Struct):
    format: int
    requires_pinner: str = ""


def decode(data: bytes, where: str) -> Record:
    """A record from the bytes of record.json. RecordError: damaged, newer, or with names that lead elsewhere."""
    try:
        head = msgspec.json.decode(data, type=_Head)
        if head.format > FORMAT or _numbers(head.requires_pinner) > _numbers(__version__):
            raise RecordError(
                f"{where}: is of a newer format than pinner {__version__} reads",
                hint=f"pinner {head.requires_pinner or '(a newer one)'} reads it",
            )
        record = msgspec.json.decode(data, type=Record)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RecordError(f"{where}: is not a record: {error}") from None
    if re.fullmatch(NAME_PATTERN, record.deployment) is None:
        raise RecordError(f"{where}: deployment: {record.deployment!r} is no name")
    if not all(0 <= moment <= _LAST_SECOND for moment in (record.began, record.ended)):
        raise RecordError(f"{where}: began, ended: are no times")
    if len(record.files) > MAX_FILES:
        raise RecordError(f"{where}: files: names {len(record.files)} files, which no record has")
    for name, digest in record.files.items():
        problem = name_problem(name)
        if problem:
            raise RecordError(f"{where}: files: {name!r} {problem}")
        if re.fullmatch(r"sha256:[0-9a-f]{64}", digest) is None:
            raise RecordError(f"{where}: files: {name!r} has no digest")
    return record


def _numbers(version: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", version)[:3]]


def _read(path: Path) -> bytes:
    try:
        if path.stat().st_size > MAX_RECORD_BYTES:
            raise RecordError(f"{path}: larger than {MAX_RECORD_BYTES // 2**20} MiB, which no record is")
        return path.read_bytes()
    except OSError as error:
        raise RecordError(f"cannot read {path}: {error.strerror}") from None
