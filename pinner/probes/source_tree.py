"""The files of a source tree against those that are pinned.

Owns which files count and how those that differ are told. Bytes and the executable bit count, nothing else: no
index, no line-end rules, no times. Must not start an interpreter.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path

import msgspec

from pinner.errors import UnknownFact
from pinner.host import traces
from pinner.host.digest import Snapshot
from pinner.host.files import escaped
from pinner.model.facts import ABSENT
from pinner.probes.base import Findings
from pinner.probes.source_pinned import DELETED, SYMLINK

_SHORT = 12
_BUILD_DIRECTORIES = frozenset({"build", "dist", "node_modules"})
_LEFT_BEHIND = (
    *(".log", ".out", ".err", ".jsonl", ".ipynb", ".md"),
    *(".swp", ".swo", "~", ".orig", ".rej", ".bak", ".tmp"),
)
_CODE = (".py", ".pyc", ".so", ".pyd")
_KEYS_OF_THE_PROBE = frozenset({"commit", "tree", "imported-from"})


class Rules(msgspec.Struct, frozen=True):
    """What a comparison need not tell.

    `is_expected`: what is seen at a path (None: nothing) is told elsewhere already. `counts`: a file that is not
    pinned is a difference, and not only counted. `marks`: what hides edits of files from git status, by path.
    """

    is_expected: Callable[[str, str | None], bool] = lambda _path, _seen: False
    counts: Callable[[str], bool] = lambda _path: True
    marks: Callable[[], Mapping[str, str]] = dict


def key_of(path: str) -> str:
    """The key of a file: text that any encoder takes, and no key of the probe itself."""
    text = escaped(path)
    return f"./{text}" if text in _KEYS_OF_THE_PROBE else text


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


def is_by_product(path: str, subdirectory: str, package: str) -> bool:
    """Whether a file that only the checkout has is what work leaves behind: no import and no data of the engine.

    Logs, results, editor files and what a build left lie about in every checkout that people use. Beside the
    engine's package only code counts, in it whatever is not named like such a file.
    """
    root = posixpath.normpath(subdirectory) if subdirectory else "."
    parts = (path if root == "." else path.removeprefix(f"{root}/")).split("/")
    name = parts[-1]
    if parts[0] in _BUILD_DIRECTORIES or any(part.endswith((".egg-info", ".dist-info")) for part in parts):
        return True
    if name.startswith(".") or name.endswith(_LEFT_BEHIND) or re.fullmatch(r"core(\.\d+)?", name):
        return True
    in_package = package in parts[:2]
    return bool(name) and not in_package and not name.endswith(_CODE)


def differing(pinned: Mapping[str, str], snapshot: Snapshot, counts: Callable[[str], bool]) -> dict[str, str]:
    """A lock's `differs`: the files of a checkout that are not those of its commit.

    Raises UnknownFact if a file cannot be read.
    """
    for path, unknown in snapshot.unknown.items():
        raise UnknownFact(f"{escaped(path)} cannot be pinned: {unknown.reason}")
    seen = snapshot.entries
    differs = {path: DELETED for path in pinned if path not in seen}
    for path, entry in seen.items():
        if entry != pinned.get(path) and (path in pinned or counts(path)):
            differs[path] = entry
    return dict(sorted(differs.items()))


def compare_files(
    findings: Findings, pinned: Mapping[str, str], snapshot: Snapshot, root: Path, rules: Rules | None = None
) -> None:
    """Add every file below `root` that is not as pinned, with when it was changed and whose it is."""
    rules = rules or Rules()
    marks = cache(rules.marks)
    seen = snapshot.entries
    uncounted = 0
    for path in sorted(pinned.keys() | seen.keys()):
        want, is_there = pinned.get(path), seen.get(path)
        if want == is_there or path in snapshot.unknown:
            continue
        if rules.is_expected(path, is_there):
            continue
        if want is None and not rules.counts(path):
            uncounted += 1
            continue
        lines = [traces.written(root / path)]
        if want is not None and path in marks():
            lines.append(f"git status does not show it: the file is marked {marks()[path]}")
        _add_file(findings, root, path, (want, is_there), [line for line in lines if line])
    for path, unknown in snapshot.unknown.items():
        key = key_of(path)
        findings.sealed[key] = pinned.get(path, ABSENT)
        findings.facts[key] = unknown
    if uncounted:
        files = (
            "1 file that the commit does not have lies"
            if uncounted == 1
            else (f"{uncounted} files that the commit does not have lie")
        )
        findings.notes.append(f"{files} outside what is imported")


def _add_file(
    findings: Findings, root: Path, path: str, entries: tuple[str | None, str | None], lines: list[str]
) -> None:
    pinned, seen = entries
    before, after = pinned, seen
    if pinned is not None and seen is not None and _short(pinned) != _short(seen):
        before, after = _short(pinned), _short(seen)
    note = _what_happened(root / path, pinned, seen)
    findings.differs(
        key_of(path), ABSENT if before is None else before, ABSENT if after is None else after, note, *lines
    )


def _short(entry: str) -> str:
    mode, _, blob = entry.partition(" ")
    return f"{mode} {blob[:_SHORT]}"


def _what_happened(path: Path, pinned: str | None, seen: str | None) -> str:
    if seen is None:
        return "a directory is in its place" if path.is_dir() and not path.is_symlink() else "deleted"
    if pinned is None:
        return "added" + _link(path, seen)
    (old_mode, _, old_blob), (new_mode, _, new_blob) = pinned.partition(" "), seen.partition(" ")
    if old_blob == new_blob and old_mode != new_mode:
        return f"mode changed from {old_mode} to {new_mode}"
    if new_mode == SYMLINK and old_mode != new_mode:
        return "replaced by a symlink" + _link(path, seen)
    return "edited" + _link(path, seen)


def _link(path: Path, seen: str) -> str:
    """Where a symlink points."""
    if not seen.startswith(SYMLINK):
        return ""
    try:
        return f", -> {escaped(str(path.readlink()))}"
    except OSError:
        return ""
