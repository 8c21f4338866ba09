"""Symlinks of a checkout in place that lead to what is not pinned.

Owns judging where they lead: a symlink's text is pinned, and what it leads to only if that is a pinned file too.
Must not decide what is imported: pinner/probes/source_tree.py does.
"""

from __future__ import annotations

import hashlib
import os
import posixpath
from collections.abc import Mapping
from pathlib import Path

import msgspec

from pinner.host.digest import DigestMemory, Snapshot
from pinner.host.files import escaped
from pinner.host.symlinks import follow
from pinner.model.facts import Unknown
from pinner.probes.base import Findings
from pinner.probes.source_pinned import SCOPE, SYMLINK
from pinner.probes.source_tree import is_by_product, is_importable_place, key_of

_KIND = "links"
_SHOWN = 3


class Links(msgspec.Struct):
    """The symlinks whose end is not pinned, with their targets by path, and what the others lead to.

    `outside` could be imported through, `elsewhere` not. `reached` are files and directories of the checkout that
    can be imported through a symlink.
    """

    outside: dict[str, str] = {}
    elsewhere: dict[str, str] = {}
    reached: list[str] = []

    def counts(self, path: str, subdirectory: str, package: str) -> bool:
        """Whether a file that only the checkout has could change what the engine imports or reads."""
        if is_by_product(path, subdirectory, package):
            return False
        return is_importable_place(path, subdirectory) or any(
            place in ("", path) or path.startswith(f"{place}/") for place in self.reached
        )


def find_links(top: Path, snapshot: Snapshot, subdirectory: str, memory: DigestMemory) -> Links:
    """The symlinks of a checkout; what is remembered for the very same files serves again."""
    digest = snapshot.digest
    key = hashlib.sha256(os.fsencode(f"{digest}\0{subdirectory}\0{top}")).digest()
    if not isinstance(digest, Unknown) and (remembered := memory.recall(_KIND, key)) is not None:
        return _decoded(remembered)
    links, is_whole = _found(top, snapshot.entries, subdirectory)
    if is_whole and not isinstance(digest, Unknown):
        memory.remember(_KIND, {key: _encoded(links)})
    return links


def told(links: Mapping[str, str]) -> str:
    """Symlinks with their targets, the first few, for a person."""
    shown = [f"{escaped(path)} -> {escaped(target)}" for path, target in list(links.items())[:_SHOWN]]
    return ", ".join(shown) + (f" and {len(links) - _SHOWN} more" if len(links) > _SHOWN else "")


def elsewhere_note(links: Links) -> str:
    """The sentence about symlinks that nothing is imported through; "" if there are none."""
    if not links.elsewhere:
        return ""
    what = "a symlink leads" if len(links.elsewhere) == 1 else f"{len(links.elsewhere)} symlinks lead"
    return f"{what} out of what is pinned, outside what is imported: {told(links.elsewhere)}"


def tell_links(findings: Findings, links: Links) -> None:
    """Add what a symlink that could be imported through makes unknown: a checkout with one is never clean."""
    for path, target in links.outside.items():
        key = key_of(path)
        if key in findings.facts:
            findings.notes_by_key[key] = f"{findings.notes_by_key.get(key, '')}, which leaves the checkout"
        else:
            findings.sealed[key] = "a file of the checkout"
            findings.facts[key] = Unknown(
                f"it is a symlink to {escaped(target)}: that leads out of the checkout, to what is not pinned"
            )
    if note := elsewhere_note(links):
        findings.notes.append(note)


def _found(top: Path, entries: Mapping[str, str], subdirectory: str) -> tuple[Links, bool]:
    """The links, and whether that holds for as long as the entries stay the same."""
    targets = {}
    for path, entry in entries.items():
        if entry.startswith(SYMLINK):
            try:
                targets[path] = os.readlink(top / path)  # noqa: PTH115  # the text, not a path made of it
            except OSError:
                continue
    links, is_whole = Links(), True
    root = posixpath.normpath(subdirectory) if subdirectory else "."
    for path, target in targets.items():
        is_imported = is_importable_place(path, subdirectory) or f"{root}/".startswith(f"{path}/")
        end = follow(path, targets, str(top))
        if end is None or not _is_pinned(top, end, entries):
            (links.outside if is_imported else links.elsewhere)[path] = target
        elif is_imported:
            links.reached.append(end)
        is_whole = is_whole and (end is None or os.path.lexists(top / end))
    return links, is_whole


def _is_pinned(top: Path, end: str, entries: Mapping[str, str]) -> bool:
    """Whether what lies at the end of a symlink is looked at by a snapshot; what is not there yet will be."""
    parts = end.split("/") if end else []
    if not SCOPE.exclude.isdisjoint(parts):
        return False
    if end in entries or not os.path.lexists(top / end):
        return True
    if not (top / end).is_dir():
        return False
    # A directory is, unless it belongs to a nested environment.
    above = ["/".join(parts[:count]) for count in range(1, len(parts) + 1)]
    return not any(
        (top / place / "pyvenv.cfg").exists() and f"{place}/pyvenv.cfg" not in entries for place in above
    )


def _encoded(links: Links) -> bytes:
    def pairs(found: Mapping[str, str]) -> list[tuple[bytes, bytes]]:
        return [(os.fsencode(path), os.fsencode(target)) for path, target in found.items()]

    reached = [os.fsencode(path) for path in links.reached]
    return msgspec.msgpack.encode((pairs(links.outside), pairs(links.elsewhere), reached))


def _decoded(data: bytes) -> Links:
    pairs = list[tuple[bytes, bytes]]
    outside, elsewhere, reached = msgspec.msgpack.decode(data, type=tuple[pairs, pairs, list[bytes]])
    return Links(
        {os.fsdecode(path): os.fsdecode(target) for path, target in outside},
        {os.fsdecode(path): os.fsdecode(target) for path, target in elsewhere},
        [os.fsdecode(path) for path in reached],
    )
