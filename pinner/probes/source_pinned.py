"""The files that a lock demands of a source tree.

Owns reading them from a commit's tree: what of it counts, what differed when it was locked, and for a checkout in
place what its submodules hold. Must not look at the files themselves: pinner/probes/source_tree.py compares.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec

from pinner.errors import CommandFailed, UnknownFact
from pinner.host import checkout, history
from pinner.host.checkout import CheckoutState
from pinner.host.digest import DigestMemory, Scope, tree_digest
from pinner.host.files import escaped
from pinner.host.git import Git
from pinner.host.history import SHORT
from pinner.host.tree import is_environment

DELETED = "deleted"
SUBMODULE = "160000"
SYMLINK = "120000"

# Byte code next to sources is never read, for the engine runs with a byte code directory of its own; virtual
# environments and repositories inside the tree have their own life.
SCOPE = Scope(algorithm="git", exclude=frozenset({".git", "__pycache__"}), skip_environments=True)

_DIGEST = "pinned-tree"
_SUBMODULES = "submodules"


class Expected(msgspec.Struct):
    """The pinned `files`, "<mode> <blob id>" by path, and `submodules`, the pinned commit by path.

    `checkouts` are the submodules that are there; those whose files could not be read are in `unreadable`, with
    the reason, and not in `files`. `left_out` are those that were not checked out when the lock was made.
    """

    files: dict[str, str] = {}
    submodules: dict[str, str] = {}
    checkouts: dict[str, CheckoutState] = {}
    unreadable: dict[str, str] = {}
    left_out: list[str] = []

    def submodule_of(self, path: str) -> str | None:
        """The innermost submodule that a path lies in."""
        return max((name for name in self.submodules if path.startswith(f"{name}/")), key=len, default=None)


class Pinned(msgspec.Struct, frozen=True):
    """What a lock demands: `tree`, but `differs` where the checkout differed when it was locked.

    `git` reads the tree; None where there is no repository that could. `top` is where a checkout in place lies:
    its submodules count, while pinner's own trees have none.
    """

    tree: str
    git: Git | None
    differs: Mapping[str, str] = {}
    top: Path | None = None

    def digest(self, memory: DigestMemory) -> str | None:
        """The digest that a snapshot of these files has; None if they cannot all be read.

        All ids name contents, so what is remembered for them stays true.
        """
        data = msgspec.json.encode([self.tree, self.differs, self.top is not None], order="deterministic")
        key = hashlib.sha256(data).digest()
        remembered = memory.recall(_DIGEST, key)
        if remembered is not None:
            return remembered.decode()
        expected = self.expected()
        if expected is None or expected.unreadable:
            return None
        digest = tree_digest(expected.files)
        memory.remember(_DIGEST, {key: digest.encode()})
        return digest

    def submodules(self, memory: DigestMemory) -> tuple[str, ...]:
        """The paths of the tree's submodules, as text; none if the tree cannot be read and never was."""
        key = bytes.fromhex(self.tree)
        remembered = memory.recall(_SUBMODULES, key)
        if remembered is not None:
            return msgspec.json.decode(remembered, type=tuple[str, ...])
        expected = self.expected()
        if expected is None:
            return ()
        names = tuple(escaped(path) for path in expected.submodules)
        memory.remember(_SUBMODULES, {key: msgspec.json.encode(names)})
        return names

    def expected(self) -> Expected | None:
        """What must be there; None if the tree cannot be read.

        Raises UnknownFact if the repository's objects are not what their ids say.
        """
        if self.git is None:
            return None
        found = Expected()
        try:
            self._add(found, "", self.git, self.tree)
        except CommandFailed:
            return None
        found.files = comparable(found.files)
        for path, entry in self.differs.items():
            if entry == DELETED:
                found.files.pop(path, None)
            elif not entry.startswith(SUBMODULE):
                found.files[path] = entry
        return found

    def _add(self, found: Expected, prefix: str, git: Git, tree: str) -> None:
        entries = history.tree_entries(git, tree)
        if history.tree_id(entries) != tree:
            raise UnknownFact(f"the repository's objects are damaged: they do not make up tree {tree}")
        for path, entry in entries.items():
            whole = prefix + path
            if not entry.startswith(SUBMODULE):
                found.files[whole] = entry
                continue
            said = self.differs.get(whole, entry)
            if said == DELETED:
                found.left_out.append(whole)
            else:
                found.submodules[whole] = said.split(" ")[1]
                if self.top is not None:
                    self._add_submodule(found, whole, self.top / whole)

    def _add_submodule(self, found: Expected, path: str, place: Path) -> None:
        commit = found.submodules[path]
        if not os.path.lexists(place / ".git"):
            found.unreadable[path] = "it is not checked out"
            return
        try:
            found.checkouts[path] = state = checkout.inspect(place)
            peeled = history.peel(state.git, commit)
            if peeled is None:
                found.unreadable[path] = f"its checkout does not hold the pinned commit {commit[:SHORT]}"
            else:
                self._add(found, f"{path}/", state.git, peeled[1])
        except (UnknownFact, CommandFailed) as error:
            found.unreadable[path] = str(error)


def submodules_now(top: Path, git: Git, tree: str, prefix: str = "") -> Iterator[tuple[str, str, str | None]]:
    """(path, commit that the tree names, commit that is checked out or None) of each submodule of a checkout.

    Raises UnknownFact if one cannot be looked at.
    """
    for path, entry in history.tree_entries(git, tree).items():
        if not entry.startswith(SUBMODULE):
            continue
        place = top / path
        state = checkout.inspect(place) if os.path.lexists(place / ".git") else None
        yield prefix + path, entry.split(" ")[1], None if state is None else state.head
        if state is not None:
            yield from submodules_now(place, state.git, state.tree, f"{prefix}{path}/")


def comparable(entries: Mapping[str, str]) -> dict[str, str]:
    """The entries of a tree as a snapshot of its files shows them."""
    environments = tuple(_environments(entries))
    return {
        path: _entry(entry)
        for path, entry in entries.items()
        if not entry.startswith(SUBMODULE) and not _is_excluded(path) and not path.startswith(environments)
    }


def _environments(entries: Mapping[str, str]) -> Iterator[str]:
    """The directories of a tree, each with a slash, that a snapshot of its files leaves out."""
    for path in entries:
        if path.endswith("/pyvenv.cfg"):
            above = path.removesuffix("pyvenv.cfg")
            if is_environment(other[len(above) :] for other in entries if other.startswith(above)):
                yield above


def _is_excluded(path: str) -> bool:
    # Two substring tests cost a tenth of splitting each path.
    if ".git/" not in path and "__pycache__/" not in path:
        return False
    return not SCOPE.exclude.isdisjoint(path.split("/")[:-1])


def _entry(entry: str) -> str:
    """Old repositories hold modes such as 100664; a file system has the executable bit only."""
    mode, _, blob = entry.partition(" ")
    if mode in ("100644", "100755", SYMLINK):
        return entry
    return f"{'100755' if int(mode, 8) & 0o100 else '100644'} {blob}"
