"""What a shared object says of itself, read from its bytes and never by loading it.

Owns the few parts of ELF that decide which library is loaded: build id, SONAME, NEEDED, RPATH, RUNPATH and the
program interpreter. Reads program headers only: section headers may be stripped. Must not follow what it finds.
"""

from __future__ import annotations

import os
import struct
from pathlib import Path
from typing import NamedTuple

import msgspec

from pinner.model.facts import Unknown

_LOAD, _DYNAMIC, _INTERP, _NOTE = 1, 2, 3, 4
_NEEDED, _STRTAB, _SONAME, _RPATH, _RUNPATH = 1, 5, 14, 15, 29
_BUILD_ID = 3
# More than any real file has; a damaged one must not make pinner read or allocate without end.
_MOST_HEADERS = 4096
_MOST_BYTES = 1 << 24
_LONGEST_NAME = 1 << 14


class Elf(msgspec.Struct, frozen=True):
    """One program or shared object.

    `rpath` beats LD_LIBRARY_PATH, which beats `runpath`; with a `runpath` there is no `rpath` to the linker.
    """

    build_id: str | None = None
    soname: str | None = None
    needed: tuple[str, ...] = ()
    rpath: tuple[str, ...] = ()
    runpath: tuple[str, ...] = ()
    interpreter: str | None = None


class _Header(NamedTuple):
    kind: int
    offset: int
    address: int
    size: int
    align: int


class _Damaged(Exception):
    """The bytes are not what the format says."""


def read_elf(path: Path | str) -> Elf | Unknown:
    """What the file says; Unknown with the reason where it is no such file, is damaged or cannot be read."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        return Unknown(f"{path}: {(error.strerror or str(error)).lower()}")
    try:
        return _read(descriptor)
    except _Damaged as error:
        return Unknown(f"{path}: {error}")
    except (struct.error, IndexError, OverflowError, UnicodeError):
        return Unknown(f"{path}: damaged: it ends or points where its headers do not say")
    except OSError as error:
        return Unknown(f"{path}: {(error.strerror or str(error)).lower()}")
    finally:
        os.close(descriptor)


def _read(descriptor: int) -> Elf:
    head = os.pread(descriptor, 64, 0)
    if head[:4] != b"\x7fELF":
        raise _Damaged("no ELF file")
    if head[4:6] != b"\x02\x01":
        raise _Damaged("not for a 64-bit little-endian machine")
    table, _, _, _, entry_size, count = struct.unpack_from("<QQIHHH", head, 32)
    if entry_size < 56 or count > _MOST_HEADERS:
        raise _Damaged("damaged: its program headers make no sense")
    raw = _at(descriptor, table, entry_size * count)
    headers = [_header(raw, index * entry_size) for index in range(count)]
    dynamic = next((header for header in headers if header.kind == _DYNAMIC), None)
    interpreter = next((header for header in headers if header.kind == _INTERP), None)
    linked = Elf() if dynamic is None else _dynamic(descriptor, dynamic, headers)
    return msgspec.structs.replace(
        linked,
        build_id=next(filter(None, (_build_id(descriptor, one) for one in headers if one.kind == _NOTE)), None),
        interpreter=None if interpreter is None else _text(_at(descriptor, interpreter.offset, interpreter.size)),
    )


def _header(raw: bytes, start: int) -> _Header:
    kind, _, offset, address, _, size, _, align = struct.unpack_from("<IIQQQQQQ", raw, start)
    return _Header(kind, offset, address, size, align)


def _dynamic(descriptor: int, dynamic: _Header, headers: list[_Header]) -> Elf:
    raw = _at(descriptor, dynamic.offset, dynamic.size)
    entries: list[tuple[int, int]] = []
    for tag, value in struct.iter_unpack("<QQ", raw[: len(raw) // 16 * 16]):
        if tag == 0:
            break
        entries.append((tag, value))
    places = dict(entries)
    if _STRTAB not in places:
        return Elf()
    names = _offset(places[_STRTAB], headers)
    listed: dict[int, list[str]] = {_NEEDED: [], _SONAME: [], _RPATH: [], _RUNPATH: []}
    for tag, value in entries:
        if tag in listed:
            listed[tag].append(_text(os.pread(descriptor, _LONGEST_NAME, names + value)))
    return Elf(
        needed=tuple(listed[_NEEDED]),
        soname=next(iter(listed[_SONAME]), None),
        rpath=_directories(listed[_RPATH]),
        runpath=_directories(listed[_RUNPATH]),
    )


def _directories(values: list[str]) -> tuple[str, ...]:
    return tuple(part for value in values for part in value.split(":") if part)


def _offset(address: int, headers: list[_Header]) -> int:
    """Where in the file the byte of a memory address lies."""
    for header in headers:
        if header.kind == _LOAD and header.address <= address < header.address + header.size:
            return address - header.address + header.offset
    raise _Damaged("damaged: its names lie nowhere in it")


def _build_id(descriptor: int, header: _Header) -> str | None:
    raw = _at(descriptor, header.offset, header.size)
    step = 8 if header.align == 8 else 4
    at = 0
    while at + 12 <= len(raw):
        name_size, size, kind = struct.unpack_from("<III", raw, at)
        start = at + 12 + -(-name_size // step) * step
        if kind == _BUILD_ID and raw[at + 12 : at + 16] == b"GNU\0":
            return raw[start : start + size].hex()
        at = start + -(-size // step) * step
    return None


def _text(raw: bytes) -> str:
    text, end, _ = raw.partition(b"\0")
    if not end:
        raise _Damaged("damaged: a name has no end")
    return os.fsdecode(text)


def _at(descriptor: int, offset: int, size: int) -> bytes:
    if size > _MOST_BYTES:
        raise _Damaged("damaged: a part of it is too large to be true")
    data = os.pread(descriptor, size, offset)
    if len(data) != size:
        raise _Damaged("damaged: it is shorter than its headers say")
    return data
