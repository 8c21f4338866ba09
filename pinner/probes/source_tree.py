"""The files of a source tree against those of a commit.

Owns what the pinned files are (a commit's tree, and for a checkout what differed when it was locked) and how
files that differ are told. Bytes and the executable bit count, nothing else: no index, no line-end rules, no
times. Must not start an interpreter.
"""

from __future__ import annotations

import hashlib
import posixpath
from collections.abc import Callable, Iterator, Mapping

import msgspec

from pinner.errors import CommandFailed, UnknownFact
from pinner.host import history
from pinner.host.digest import DigestMemory, Scope, Snapshot, tree_digest
from pinner.host.git import Git
from pinner.host.tree import is_environment
from pinner.model.facts import ABSENT, Fact, Unknown

DELETED = "deleted"

# Byte code next to sources is never read, for the engine runs with a byte code directory of its own; virtual
# environments and repositories inside the tree have their own life.
SCOPE = Scope(algorithm="git", exclude=frozenset({".git", "__pycache__"}), skip_environments=True)

_KIND = "pinned-tree"
_SHORT = 12
_SUBMODULE = "160000"
_KEYS_OF_THE_PROBE = frozenset({"commit", "tree", "imported-from"})


class Findings(msgspec.Struct):
    """What the probe has found so far; the fields are those of an Observation."""

    facts: dict[str, Fact] = {}
    sealed: dict[str, Fact] = {}
    evidence: dict[str, tuple[str, ...]] = {}
    notes_by_key: dict[str, str] = {}
    notes: list[str] = []
    how: str = ""

    def file(self, path: str, pinned: str | None, seen: str | Unknown | None) -> None:
        """Add a file that differs, or that could not be read."""
        # A file may be named like a key of the probe itself.
        key = f"./{path}" if path in _KEYS_OF_THE_PROBE else path
        before, after = pinned, seen
        if isinstance(before, str) and isinstance(after, str) and _short(before) != _short(after):
            before, after = _short(before), _short(after)
        self.sealed[key] = ABSENT if before is None else before
        self.facts[key] = ABSENT if after is None else after
        if not isinstance(seen, Unknown):
            self.notes_by_key[key] = _what_happened(pinned, seen)


class Pinned(msgspec.Struct, frozen=True):
    """The files that a lock demands: `tree`, but `differs` where the checkout differed when it was locked.

    `git` reads the tree; None where there is no repository that could.
    """

    tree: str
    git: Git | None
    differs: Mapping[str, str] = {}

    def digest(self, memory: DigestMemory) -> str | None:
        """The digest that a snapshot of these files has; None if the tree cannot be read.

        Both ids name contents, so what is remembered for them stays true.
        """
        key = hashlib.sha256(msgspec.json.encode([self.tree, self.differs], order="deterministic")).digest()
        remembered = memory.recall(_KIND, key)
        if remembered is not None:
            return remembered.decode()
        entries = self.entries()
        if entries is None:
            return None
        digest = tree_digest(entries)
        memory.remember(_KIND, {key: digest.encode()})
        return digest

    def entries(self) -> dict[str, str] | None:
        """ "<mode> <blob id>" by path; None if the tree cannot be read.

        Raises UnknownFact if the repository's objects are not what their ids say.
        """
        if self.git is None:
            return None
        try:
            entries = history.tree_entries(self.git, self.tree)
        except CommandFailed:
            return None
        if history.tree_id(entries) != self.tree:
            raise UnknownFact(f"the repository's objects are damaged: they do not make up tree {self.tree}")
        entries = comparable(entries)
        for path, entry in self.differs.items():
            if entry == DELETED:
                entries.pop(path, None)
            else:
                entries[path] = entry
        return entries


def comparable(entries: Mapping[str, str]) -> dict[str, str]:
    """The entries of a tree as a snapshot of its files shows them."""
    environments = tuple(_environments(entries))
    return {
        path: _entry(entry)
        for path, entry in entries.items()
        if not entry.startswith(_SUBMODULE) and not _is_excluded(path) and not path.startswith(environments)
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


def is_importable_place(path: str, subdirectory: str) -> bool:
    """Whether a file that only the checkout has could change what is imported.

    It could below the directory that is on the import path, unless it lies in a hidden directory (caches of
    tools do), whose name no import can spell.
    """
    root = posixpath.normpath(subdirectory) if subdirectory else "."
    if root != "." and not path.startswith(f"{root}/"):
        return False
    below = path if root == "." else path[len(root) + 1 :]
    return not any(part.startswith(".") for part in below.split("/")[:-1])


def differing(pinned: Mapping[str, str], snapshot: Snapshot, subdirectory: str) -> dict[str, str]:
    """A lock's `differs`: the files of a checkout that are not those of its commit.

    Raises UnknownFact if a file cannot be read.
    """
    for path, unknown in snapshot.unknown.items():
        raise UnknownFact(f"{path} cannot be pinned: {unknown.reason}")
    seen = snapshot.entries
    differs = {path: DELETED for path in pinned if path not in seen}
    for path, entry in seen.items():
        if entry != pinned.get(path) and (path in pinned or is_importable_place(path, subdirectory)):
            differs[path] = entry
    return dict(sorted(differs.items()))


def compare_files(
    findings: Findings,
    pinned: Mapping[str, str],
    snapshot: Snapshot,
    *,
    is_expected: Callable[[str, str | None], bool] = lambda _path, _seen: False,
    counts: Callable[[str], bool] = lambda _path: True,
) -> None:
    """Add every file that differs. `is_expected` says that what is seen at a path is told elsewhere already;
    `counts` whether a file that is not pinned is a difference, or only counted."""
    seen = snapshot.entries
    uncounted = 0
    for path in sorted(pinned.keys() | seen.keys()):
        want, is_there = pinned.get(path), seen.get(path)
        if want == is_there or path in snapshot.unknown:
            continue
        if is_expected(path, is_there):
            continue
        if want is None and not counts(path):
            uncounted += 1
            continue
        findings.file(path, want, is_there)
    for path, unknown in snapshot.unknown.items():
        findings.file(path, pinned.get(path), unknown)
    if uncounted:
        files = (
            "1 file that the commit does not have lies"
            if uncounted == 1
            else (f"{uncounted} files that the commit does not have lie")
        )
        findings.notes.append(f"{files} outside what is imported")


def _entry(entry: str) -> str:
    """Old repositories hold modes such as 100664; a file system has the executable bit only."""
    mode, _, blob = entry.partition(" ")
    if mode in ("100644", "100755", "120000"):
        return entry
    return f"{'100755' if int(mode, 8) & 0o100 else '100644'} {blob}"


def _short(entry: str) -> str:
    mode, _, blob = entry.partition(" ")
    return f"{mode} {blob[:_SHORT]}"


def _what_happened(pinned: str | None, seen: str | None) -> str:
    if pinned is None:
        return "added"
    if seen is None:
        return "deleted"
    (old_mode, _, old_blob), (new_mode, _, new_blob) = pinned.partition(" "), seen.partition(" ")
    if old_blob == new_blob and old_mode != new_mode:
        return f"mode changed from {old_mode} to {new_mode}"
    if new_mode == "120000" and old_mode != new_mode:
        return "replaced by a symlink"
    return "edited"
