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
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path

import msgspec

from pinner.errors import OperationFailed
from pinner.host.files import escaped
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
    Outline,
    Scope,
    join,
    pack,
    stale,
)
from pinner.model.facts import Unknown

_KIND = "tree"
_OUTLINE = "outline"
_EVERYTHING = Scope()


class _Tree(msgspec.Struct, array_like=True):
    """What is remembered of a tree."""

    digest: bytes
    directories: list[Directory]


class _Outlines(msgspec.Struct, array_like=True):
    """The part of it that a warm check needs. `tree` is the digest of the encoded _Tree that it belongs to."""

    tree: bytes
    digest: bytes
    directories: list[Outline]


class Snapshot:
    """The files of a tree at one time.

    `file_count` and `read_anew` are numbers of files, `unknown` has the reason by path for what could not
    be read.
    """

    def __init__(
        self,
        scope: Scope,
        digest: bytes,
        directories: Callable[[], list[Directory]],
        unknown: Mapping[bytes, Unknown] | None = None,
        counts: tuple[int, int] = (0, 0),
    ) -> None:
        self.scope = scope
        self._digest = digest
        self._directories = directories
        self.file_count, self.read_anew = counts
        self.unknown = {os.fsdecode(path): reason for path, reason in (unknown or {}).items()}

    @property
    def digest(self) -> str | Unknown:
        """One digest over all entries, as `tree_digest` gives it; Unknown if a file is."""
        if self.unknown:
            path, unknown = next(iter(self.unknown.items()))
            more = f", and {len(self.unknown) - 1} more" if len(self.unknown) > 1 else ""
            return Unknown(f"{escaped(path)}: {unknown.reason}{more}")
        return f"sha256:{self._digest.hex()}"

    @cached_property
    def entries(self) -> dict[str, str]:
        """ "<mode> <digest>" by path relative to the root, in path order; unknown files are left out.

        The mode is git's, or "fifo", "socket" or "device"; those are never opened and have the digest "-".
        What is remembered of an unchanged tree is read when this is first asked for: OperationFailed if the tree
        has changed by then.
        """
        lines = _lines(self.scope, self._directories())
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
    outlines = _Outlines(b"", b"", []) if deep else _recall_outlines(memory, key)
    not_fresh = stale(base, outlines.directories)
    count = sum(directory.count for directory in outlines.directories)
    if outlines.directories and not not_fresh:

        def directories() -> list[Directory]:
            return _recall(memory, key, outlines) or _read_again(base, scope, outlines.digest)

        return Snapshot(scope, outlines.digest, directories, counts=(count, 0))
    known = {directory.path: directory for directory in _recall(memory, key, outlines)}
    listing = Lister(base, scope, known, known.keys() - not_fresh).run()
    read_anew = _hash(base, scope, listing, progress)
    found = listing.directories
    digest = _digest(_lines(scope, found))
    encoded = msgspec.msgpack.encode(_Tree(digest, found))
    name = hashlib.sha256(encoded).digest()
    if name != outlines.tree:
        memory.remember(_KIND, {key: encoded})
        kept = _Outlines(name, digest, [directory.outline() for directory in found])
        memory.remember(_OUTLINE, {key: msgspec.msgpack.encode(kept)})
        _forget_removed(memory)
    count = sum(len(directory.names) for directory in found)
    return Snapshot(scope, digest, lambda: found, listing.unknown, (count, read_anew))


def _recall_outlines(memory: DigestMemory, key: bytes) -> _Outlines:
    data = memory.recall(_OUTLINE, key)
    if data is not None:
        with contextlib.suppress(msgspec.MsgspecError):
            return msgspec.msgpack.decode(data, type=_Outlines)
    return _Outlines(b"", b"", [])


def _recall(memory: DigestMemory, key: bytes, outlines: _Outlines) -> list[Directory]:
    """The directories that these outlines were made of; none where another process has replaced them."""
    data = memory.recall(_KIND, key) if outlines.directories else None
    if data is not None and hashlib.sha256(data).digest() == outlines.tree:
        with contextlib.suppress(msgspec.MsgspecError):
            return msgspec.msgpack.decode(data, type=_Tree).directories
    return []


def _read_again(base: bytes, scope: Scope, digest: bytes) -> list[Directory]:
    """The directories of a tree of which only the outlines are remembered."""
    listing = Lister(base, scope, {}, set()).run()
    _hash(base, scope, listing, None)
    if listing.unknown or _digest(_lines(scope, listing.directories)) != digest:
        raise OperationFailed(f"{os.fsdecode(base)} changes while it is looked at")
    return listing.directories


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
    for kind in (_KIND, _OUTLINE):
        gone = []
        for key in memory.keys(kind):
            with contextlib.suppress(msgspec.MsgspecError):
                base = msgspec.msgpack.decode(key, type=tuple[bytes, str, list[str], bool])[0]
                if not os.path.isdir(base):  # noqa: PTH112
                    gone.append(key)
        memory.forget(kind, gone)
