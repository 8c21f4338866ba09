"""What a directory tree holds: the mode and digest of every file below a root.

Owns the snapshot, what is remembered of a tree, and the digest of a whole tree. A remembered digest serves
only while the file's mode, inode, device, size, mtime and ctime are the same and the ctime was safely past
when the bytes were read; the same holds for directories, whose own stat tells that nothing came or went. So
an unchanged tree costs one lstat for each file and directory, and no more.

Empty directories are no part of a snapshot, as in git; nor is a mode beyond git's executable bit. A file
whose directory is excluded is not looked at. Writes through a shared mapping may show late, when the kernel
updates the file's times.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path

import msgspec

from pinner.errors import OperationFailed
from pinner.host.hashing import Hashed, Progress, hash_files
from pinner.host.memory import DigestMemory
from pinner.host.tree import (
    HASHED,
    MODES,
    NOT_KNOWN,
    UNSETTLED,
    Directory,
    Lister,
    Listing,
    Scope,
    join,
    pack,
    stale,
)
from pinner.model.facts import Unknown

_KIND = "tree"
_EVERYTHING = Scope()


class _Tree(msgspec.Struct, array_like=True):
    """What is remembered of a tree."""

    digest: bytes
    directories: list[Directory]


class Snapshot:
    """The files of a tree at one time.

    `file_count` and `read_anew` are numbers of files, `unknown` has the reason by path for what could not
    be read.
    """

    def __init__(
        self, scope: Scope, tree: _Tree, unknown: Mapping[bytes, Unknown] | None = None, read_anew: int = 0
    ) -> None:
        self._tree = tree
        self.scope = scope
        self.read_anew = read_anew
        self.unknown = {os.fsdecode(path): reason for path, reason in (unknown or {}).items()}
        self.file_count = sum(len(directory.names) for directory in tree.directories)

    @property
    def digest(self) -> str | Unknown:
        """One digest over all entries, as `tree_digest` gives it; Unknown if a file is."""
        if self.unknown:
            path, unknown = next(iter(self.unknown.items()))
            more = f", and {len(self.unknown) - 1} more" if len(self.unknown) > 1 else ""
            return Unknown(f"{path}: {unknown.reason}{more}")
        return f"sha256:{self._tree.digest.hex()}"

    @cached_property
    def entries(self) -> dict[str, str]:
        """ "<mode> <digest>" by path relative to the root, in path order; unknown files are left out.

        The mode is git's, or "fifo", "socket" or "device"; those are never opened and have the digest "-".
        """
        lines = _lines(self.scope, self._tree.directories)
        return {os.fsdecode(path): f"{mode.decode()} {digest.decode()}" for path, mode, digest in sorted(lines)}

    @property
    def how(self) -> str:
        """How sure a clean answer is, for a person."""
        count = f"{self.file_count:,} file{'' if self.file_count == 1 else 's'}"
        if self.read_anew == 0:
            return f"{count}, all by remembered digest"
        return f"{count}, {self.read_anew:,} read anew"


def tree_digest(entries: Mapping[str, str]) -> str:
    """The digest of a snapshot that has these "<mode> <digest>" entries."""
    lines = []
    for path, entry in entries.items():
        mode, _, digest = entry.partition(" ")
        lines.append((os.fsencode(path), mode.encode(), digest.encode()))
    return f"sha256:{_digest(lines).hex()}"


def take_snapshot(
    root: Path,
    memory: DigestMemory,
    scope: Scope = _EVERYTHING,
    *,
    deep: bool = False,
    progress: Progress | None = None,
) -> Snapshot:
    """The files below `root` as they are now.

    `deep` reads every byte again, whatever is remembered. `progress` gets numbers of bytes. OperationFailed
    if `root` is no directory.
    """
    base = os.path.realpath(os.fsencode(root))
    if not os.path.isdir(base):  # noqa: PTH112  # bytes: any name the file system has
        raise OperationFailed(f"{root} is not a directory")
    key = msgspec.msgpack.encode((base, scope.algorithm, sorted(scope.exclude), scope.skip_environments))
    data = None if deep else memory.recall(_KIND, key)
    tree = _decode(data)
    not_fresh = stale(base, tree.directories)
    if tree.directories and not not_fresh:
        return Snapshot(scope, tree)
    known = {directory.path: directory for directory in tree.directories}
    listing = Lister(base, scope, known, known.keys() - not_fresh).run()
    read_anew = _hash(base, scope, listing, progress)
    tree = _Tree(_digest(_lines(scope, listing.directories)), listing.directories)
    encoded = msgspec.msgpack.encode(tree)
    if encoded != data:
        memory.remember(_KIND, {key: encoded})
        _forget_removed(memory)
    return Snapshot(scope, tree, listing.unknown, read_anew)


def _decode(data: bytes | None) -> _Tree:
    if data is not None:
        with contextlib.suppress(msgspec.MsgspecError):
            return msgspec.msgpack.decode(data, type=_Tree)
    return _Tree(b"", [])


def _hash(base: bytes, scope: Scope, listing: Listing, progress: Progress | None) -> int:
    """Read the files that have no digest yet; returns how many."""
    places = listing.to_hash
    paths = []
    for at, index, _ in places:
        directory = listing.directories[at]
        paths.append(join(base, join(directory.path, directory.names[index])))
    results = hash_files(paths, [size for _, _, size in places], scope.algorithm, progress)
    read: dict[int, dict[int, tuple[bytes, bytes]]] = {}
    for (at, index, _), result in zip(places, results, strict=True):
        directory = listing.directories[at]
        if isinstance(result, Hashed):
            record = pack([result.identity]) if result.is_settled else UNSETTLED
            entry = (b"x" if result.identity[0] & 0o100 else b"r") + result.digest
            read.setdefault(at, {})[index] = (record, entry)
        else:
            listing.unknown[join(directory.path, directory.names[index])] = result
    for at, found in read.items():
        listing.directories[at].put(found)
    return len(places)


def _lines(scope: Scope, directories: Sequence[Directory]) -> Iterable[tuple[bytes, bytes, bytes]]:
    prefix = "sha256:" if scope.algorithm == "sha256" else ""
    modes = {letter: mode.encode() for letter, mode in MODES.items()}
    for directory in directories:
        for name, entry in zip(directory.names, directory.split_entries(), strict=True):
            letter = entry[:1]
            if letter != NOT_KNOWN:
                digest = f"{prefix}{entry[1:].hex()}" if letter in HASHED else "-"
                yield join(directory.path, name), modes[letter], digest.encode()


def _digest(lines: Iterable[tuple[bytes, bytes, bytes]]) -> bytes:
    hasher = hashlib.sha256()
    hasher.update(b"".join(b"%s\0%s\0%s\n" % line for line in sorted(lines)))
    return hasher.digest()


def _forget_removed(memory: DigestMemory) -> None:
    """Drop what is remembered of trees that are gone: the memory must not grow with every workspace."""
    gone = []
    for key in memory.keys(_KIND):
        with contextlib.suppress(msgspec.MsgspecError):
            base = msgspec.msgpack.decode(key, type=tuple[bytes, str, list[str], bool])[0]
            if not os.path.isdir(base):  # noqa: PTH112
                gone.append(key)
    memory.forget(_KIND, gone)
