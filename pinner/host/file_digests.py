"""Digests of single files, such as weights, by remembered digest where their identity is unchanged.

Owns the decision to trust a remembered digest of one file. Symlinks are followed: a file is what a program
that opens its path would read.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import msgspec

from pinner.host.hashing import Identity, Progress, hash_files, identity, reason_of
from pinner.host.memory import DigestMemory
from pinner.host.tree import pack
from pinner.model.facts import Unknown

_KIND = "file"


class FileDigest(msgspec.Struct, frozen=True):
    """A file's size in bytes and `sha256:<hex>`; `read_anew` if this call read its bytes."""

    size: int
    sha256: str
    read_anew: bool


def file_digests(
    paths: Sequence[Path], memory: DigestMemory, *, deep: bool = False, progress: Progress | None = None
) -> list[FileDigest | Unknown]:
    """The digest of each file, in order; Unknown with the reason for one that cannot be read.

    `deep` reads every byte, whatever is remembered. `progress` gets numbers of bytes.
    """
    results: list[FileDigest | Unknown | None] = [None] * len(paths)
    todo: list[tuple[int, bytes, int]] = []
    for index, path in enumerate(paths):
        real = os.path.realpath(os.fsencode(path))
        try:
            seen = identity(os.stat(real))  # noqa: PTH116  # bytes: any name the file system has
        except OSError as error:
            results[index] = Unknown(reason_of(error))
            continue
        results[index] = None if deep else _remembered(seen, memory)
        if results[index] is None:
            todo.append((index, real, seen[3]))
    hashed = hash_files([path for _, path, _ in todo], [size for _, _, size in todo], "sha256", progress)
    found: dict[bytes, bytes] = {}
    for (index, _, _), result in zip(todo, hashed, strict=True):
        if isinstance(result, Unknown):
            results[index] = result
        else:
            results[index] = FileDigest(result.identity[3], f"sha256:{result.digest.hex()}", True)
            if result.is_settled:
                found[_key(result.identity)] = pack([result.identity]) + result.digest
    memory.remember(_KIND, found)
    return [result for result in results if result is not None]


def recall_digest(path: Path, memory: DigestMemory) -> FileDigest | None:
    """The digest of a file that is unchanged since its bytes were read, without opening it; else None."""
    try:
        seen = identity(os.stat(os.path.realpath(os.fsencode(path))))  # noqa: PTH116  # as above
    except OSError:
        return None
    return _remembered(seen, memory)


def remember_digest(path: Path, sha256: str, memory: DigestMemory) -> None:
    """Note the digest of a file whose bytes somebody else has just read."""
    seen = identity(os.stat(os.path.realpath(os.fsencode(path))))  # noqa: PTH116  # as above
    memory.remember(_KIND, {_key(seen): pack([seen]) + bytes.fromhex(sha256.removeprefix("sha256:"))})


def _remembered(seen: Identity, memory: DigestMemory) -> FileDigest | None:
    remembered = memory.recall(_KIND, _key(seen))
    if remembered is None or not remembered.startswith(pack([seen])):
        return None
    return FileDigest(seen[3], f"sha256:{remembered[-32:].hex()}", False)


def _key(seen: Identity) -> bytes:
    """Inode and device: one file has one digest, by whatever path it is reached."""
    return pack([seen])[8:24]
