"""The directories of a tree: what was remembered of them, and what they hold now.

Owns listing and the comparison of stat values. Must not open a file (host/hashing.py does) nor know where
directories are remembered (host/snapshot.py does).
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import stat
import time
from array import array
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import NamedTuple

import msgspec

from pinner.host.hashing import Identity, identity, is_settled, new_hash, reason_of
from pinner.host.parallel import Send, can_fork, run_forked, worker_count
from pinner.model.facts import Unknown

# The letter before each remembered digest, and git's spelling of the mode; the last three are never opened.
MODES = {b"r": "100644", b"x": "100755", b"l": "120000", b"p": "fifo", b"s": "socket", b"d": "device"}
HASHED = (b"r", b"x", b"l")
NOT_KNOWN = b"?"

_MODULES = (".py", ".pyc", ".so", ".pyd")
_SITE_PACKAGES = re.compile(r"lib/(python|pypy)[^/]*/site-packages/|Lib/site-packages/")

_FORK_FROM = 4_000  # files; below it a fork costs more than it saves
_PIECES = 32  # of a tree; a worker takes the next one when it is free
_RECORD = 6 * 8  # bytes of one packed identity
UNSETTLED = bytes(_RECORD)


class Scope(NamedTuple):
    """What of a tree is looked at and how it is named.

    `algorithm`: "sha256", or "git" for blob ids as `git ls-tree -r` gives them. `exclude`: names of
    directories left out wherever they stand; ".git" also stands for the file of that name in a linked
    worktree.
    `skip_environments`: leave out nested virtual environments (see `is_environment`).
    """

    algorithm: str = "sha256"
    exclude: frozenset[str] = frozenset()
    skip_environments: bool = False


class Outline(msgspec.Struct, array_like=True):
    """What tells whether a directory is still as it was: its names, and the digest of its `stats`.

    The `count` names are one string, with NUL between them: whoever looks at the directory takes them apart.
    """

    path: bytes
    count: int
    names: bytes
    seen: bytes


class Directory(msgspec.Struct, array_like=True):
    """One directory, its `path` relative to the root.

    `stats` are the packed identities of itself and then of each name: zeros, which match nothing, for what
    was too young to be trusted. `entries` are for each name the letter of its mode and its digest.
    """

    path: bytes
    names: list[bytes]
    stats: bytes
    entries: bytes

    def outline(self) -> Outline:
        """Much smaller than the directory, and all that is needed while nothing has changed."""
        return Outline(self.path, len(self.names), b"\0".join(self.names), _short(self.stats))

    def split_entries(self) -> list[bytes]:
        """The entry of each name."""
        width = len(self.entries) // max(1, len(self.names))
        return [self.entries[at : at + width] for at in range(0, len(self.entries), width or 1)]

    def split_stats(self) -> list[bytes]:
        """The packed identity of the directory, then of each name."""
        return [self.stats[at : at + _RECORD] for at in range(0, len(self.stats), _RECORD)]

    def remembered(self) -> dict[bytes, tuple[bytes, bytes]]:
        """(packed identity, entry) by name."""
        return dict(zip(self.names, zip(self.split_stats()[1:], self.split_entries(), strict=True), strict=True))

    def put(self, read: dict[int, tuple[bytes, bytes]]) -> None:
        """Note (packed identity, entry) of files, by index, once their bytes have been read."""
        stats, entries = self.split_stats(), self.split_entries()
        for index, (record, entry) in read.items():
            stats[index + 1] = record
            entries[index] = entry
        self.stats, self.entries = b"".join(stats), b"".join(entries)


class Listing(NamedTuple):
    """The directories of a tree as they are now.

    `to_hash` are the files whose bytes must be read, as (index of the directory, index of the name, size in
    bytes). `unknown` has reasons by path.
    """

    directories: list[Directory]
    to_hash: list[tuple[int, int, int]]
    unknown: dict[bytes, Unknown]


def join(directory: bytes, name: bytes) -> bytes:
    """A path below the root."""
    return directory + b"/" + name if directory else name


def pack(values: Iterable[Identity]) -> bytes:
    """Identities as 64-bit integers, for comparison only."""
    flat = list(chain.from_iterable(values))
    try:
        return array("q", flat).tobytes()
    except OverflowError:
        # Some file systems use the top bit of the inode number.
        return array("Q", [value % (1 << 64) for value in flat]).tobytes()


def settled(seen: Identity, moment_ns: int) -> bytes:
    """The packed identity of what was read at a moment, or zeros where it does not vouch for the bytes."""
    return pack([seen]) if is_settled(seen, moment_ns) else UNSETTLED


def _short(stats: bytes) -> bytes:
    return hashlib.sha256(stats).digest()[:16]


def is_environment(names: Iterable[str]) -> bool:
    """Whether a directory that holds these paths is a virtual environment, and no code that can be imported.

    A pyvenv.cfg alone hides nothing: an interpreter and site-packages must be there, and no module beside it.
    """
    found = set()
    for name in names:
        head, separator, rest = name.partition("/")
        if not separator and name.endswith(_MODULES):
            return False
        if name == "pyvenv.cfg":
            found.add("configuration")
        elif head in ("bin", "Scripts") and rest.startswith("python") and "/" not in rest:
            found.add("interpreter")
        elif _SITE_PACKAGES.match(name):
            found.add("packages")
    return len(found) == 3


def stale(root: bytes, directories: Sequence[Outline]) -> set[bytes]:
    """Paths of the directories that are not, or hold a file that is not, as remembered. One lstat each."""
    count = sum(directory.count for directory in directories)
    if count < _FORK_FROM or worker_count() < 2 or not can_fork():
        return {directory.path for directory in directories if _is_stale(root, directory, enter=False)}
    pieces = _pieces(directories, count)
    missing = set(range(len(pieces)))
    found: set[bytes] = set()

    def work(piece: int, send: Send) -> None:
        paths = [one.path for one in pieces[piece] if _is_stale(root, one, enter=True)]
        send(msgspec.msgpack.encode((piece, paths)))

    def on_message(message: bytes) -> None:
        piece, paths = msgspec.msgpack.decode(message, type=tuple[int, list[bytes]])
        missing.discard(piece)
        found.update(paths)

    run_forked(work, len(pieces), on_message)
    found.update(directory.path for piece in missing for directory in pieces[piece])
    return found


def _pieces(directories: Sequence[Outline], count: int) -> list[Sequence[Outline]]:
    """Runs of neighbours, found faster than scattered ones, with about as many files each."""
    pieces: list[Sequence[Outline]] = []
    start = total = 0
    for index, directory in enumerate(directories):
        total += directory.count
        if total * _PIECES >= count * (len(pieces) + 1):
            pieces.append(directories[start : index + 1])
            start = index + 1
    if start < len(directories):
        pieces.append(directories[start:])
    return pieces


def _is_stale(root: bytes, directory: Outline, *, enter: bool) -> bool:
    """`enter`: this process may change its working directory, which makes each lookup shorter."""
    path = join(root, directory.path) if directory.path else root
    lstat = os.lstat
    try:
        own = identity(lstat(path))
        names = directory.names.split(b"\0") if directory.count else []
        if enter:
            os.chdir(path)
        else:
            prefix = path + b"/"
            names = [prefix + name for name in names]
        return _short(pack([own, *map(identity, map(lstat, names))])) != directory.seen
    except OSError:
        return True


class Lister:
    """Lists a tree anew where it is not as remembered, and keeps the digests of files that are."""

    def __init__(self, root: bytes, scope: Scope, known: dict[bytes, Directory], fresh: set[bytes]) -> None:
        """`known`: what was remembered, by path; `fresh`: the paths of those that are still so."""
        self._root = root
        self._scope = scope
        self._excluded = frozenset(os.fsencode(name) for name in scope.exclude)
        self._width = 1 + new_hash(scope.algorithm, 0).digest_size
        self._known = known
        self._fresh = fresh
        self._found = Listing([], [], {})

    def run(self) -> Listing:
        children: dict[bytes, list[bytes]] = {}
        for path in self._known:
            if path:
                children.setdefault(path.rpartition(b"/")[0], []).append(path)
        pending = [b""]
        while pending:
            path = pending.pop()
            if path in self._fresh:
                self._found.directories.append(self._known[path])
                pending += children.get(path, [])
            else:
                pending += self._list(path)
        return self._found

    def _list(self, path: bytes) -> list[bytes]:
        """Add one directory; returns the paths of those directly below it."""
        full = join(self._root, path) if path else self._root
        moment = time.time_ns()
        directory = Directory(path, [], UNSETTLED, b"")
        self._found.directories.append(directory)
        try:
            own = settled(identity(os.lstat(full)), moment)
            with os.scandir(full) as items:
                is_directory = {item.name: item.is_dir(follow_symlinks=False) for item in items}
        except OSError as error:
            self._found.unknown[path or b"."] = Unknown(f"cannot be listed: {reason_of(error)}")
            return []
        if self._scope.skip_environments and path and self._is_environment(full, is_directory):
            # Remembered without its content, so that the loss of its pyvenv.cfg, or code beside it, shows.
            directory.stats = own
            return []
        remembered = self._known[path].remembered() if path in self._known else {}
        stats, entries = [own], []
        for name in sorted(name for name, is_dir in is_directory.items() if not is_dir):
            if name == b".git" and name in self._excluded:
                continue
            looked = self._look(join(path, name), len(directory.names), remembered.get(name))
            if looked is not None:
                directory.names.append(name)
                stats.append(looked[0])
                entries.append(looked[1].ljust(self._width, b"\0"))
        directory.stats, directory.entries = b"".join(stats), b"".join(entries)
        below = (name for name, is_dir in is_directory.items() if is_dir and name not in self._excluded)
        return [join(path, name) for name in sorted(below, reverse=True)]

    @staticmethod
    def _is_environment(full: bytes, is_directory: dict[bytes, bool]) -> bool:
        if is_directory.get(b"pyvenv.cfg") is not False:
            return False
        below = [join(name, child) for name in (b"bin", b"Scripts") for child in _listed(join(full, name))]
        places = [join(join(b"lib", child), b"site-packages") for child in _listed(join(full, b"lib"))]
        for place in (*places, b"Lib/site-packages"):
            if os.path.isdir(join(full, place)):  # noqa: PTH112  # bytes: any name the file system has
                below.append(place + b"/")
        return is_environment(os.fsdecode(name) for name in (*is_directory, *below))

    def _look(self, path: bytes, index: int, remembered: tuple[bytes, bytes] | None) -> tuple[bytes, bytes] | None:
        """The packed identity and the entry of a file of the last directory; None if it is gone by now."""
        full = join(self._root, path)
        moment = time.time_ns()
        try:
            seen = identity(os.lstat(full))
            if remembered is not None and pack([seen]) == remembered[0]:
                return remembered
            if stat.S_ISREG(seen[0]):
                self._found.to_hash.append((len(self._found.directories) - 1, index, seen[3]))
                return UNSETTLED, NOT_KNOWN
            entry = self._entry_of_link(full) if stat.S_ISLNK(seen[0]) else _letter(seen[0])
        except FileNotFoundError:
            return None
        except OSError as error:
            self._found.unknown[path] = Unknown(reason_of(error))
            return UNSETTLED, NOT_KNOWN
        return settled(seen, moment), entry

    def _entry_of_link(self, path: bytes) -> bytes:
        target = os.readlink(path)  # noqa: PTH115  # bytes: any name the file system has
        hasher = new_hash(self._scope.algorithm, len(target))
        hasher.update(target)
        return b"l" + bytes(hasher.digest())


def _listed(path: bytes) -> list[bytes]:
    with contextlib.suppress(OSError):
        return os.listdir(path)  # noqa: PTH208  # bytes: any name the file system has
    return []


def _letter(mode: int) -> bytes:
    if stat.S_ISFIFO(mode):
        return b"p"
    return b"s" if stat.S_ISSOCK(mode) else b"d"
