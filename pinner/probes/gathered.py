"""Code that lies outside of an environment, as one list of files under one digest.

Owns following its symlinks: a link to a file counts by the bytes that are read through it. Must not know which
code that is: probes/base_interpreter.py and probes/linked.py do.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path

import msgspec

from pinner.host.digest import DigestMemory, FileDigest, Scope, file_digests, take_snapshot, tree_digest
from pinner.model.facts import Unknown

_KIND = "gathered"
_READING = 1  # rises whenever the same bytes would give another digest
_LINK = "120000 "

Entries = dict[str, str]
Choice = Callable[[Entries], Entries]


class Gathered:
    """Trees and single files, named, as they are now.

    `choose` says which entries of a tree count, and `rule` names that choice: what is remembered serves only for
    the same one.
    """

    def __init__(
        self,
        places: Mapping[str, Path],
        memory: DigestMemory,
        scope: Scope,
        *,
        rule: str = "",
        choose: Choice = dict,
        deep: bool = False,
    ) -> None:
        """`places` are the trees and files by name; one that is missing is left out."""
        self._memory = memory
        self._choose = choose
        self._deep = deep
        self._places = dict(places)
        files = [name for name, place in places.items() if place.is_file()]
        self._trees = {
            name: take_snapshot(place, memory, scope, deep=deep)
            for name, place in places.items()
            if place.is_dir()
        }
        self._files = self._read({name: places[name] for name in files})
        self.file_count = len(files) + sum(tree.file_count for tree in self._trees.values())
        self.read_anew = sum(tree.read_anew for tree in self._trees.values())
        self.unknown = {
            f"{name}/{path}": reason for name, tree in self._trees.items() for path, reason in tree.unknown.items()
        }
        self.unknown |= {name: one for name, one in self._files.items() if isinstance(one, Unknown)}
        trees = [(name, str(tree.digest)) for name, tree in self._trees.items()]
        self._key = _hash([_READING, rule, trees, self._files])

    @cached_property
    def digest(self) -> str | Unknown:
        """One digest over all entries; Unknown where one could not be read."""
        if self.unknown:
            path, unknown = next(iter(self.unknown.items()))
            return Unknown(f"{path}: {unknown.reason}")
        links = self._remembered_links()
        if links is not None:
            known = self._memory.recall(_KIND, self._key_with(links))
            if known is not None:
                return known.decode()
        digest = tree_digest(self.entries)
        links = self._links(self._chosen)
        stored = msgspec.msgpack.encode([os.fsencode(link) for link in links])
        self._memory.remember(_KIND, {self._key: stored, self._key_with(links): digest.encode()})
        return digest

    @cached_property
    def entries(self) -> Entries:
        """ "<mode> <digest>" by name and path, in no order."""
        found = dict(self._chosen)
        for name, entry in self._followed(self._links(found)).items():
            if entry:
                found[name] = entry
        return found

    def place(self, name: str) -> Path:
        """Where the file of that name lies."""
        if name in self._places:
            return self._places[name]
        root = max((root for root in self._places if name.startswith(f"{root}/")), key=len, default="")
        return self._places[root] / name[len(root) + 1 :] if root else Path(name)

    def links_to_directories(self) -> list[Path]:
        """Where symlinks to directories lie: what they lead to is not among the entries."""
        return [place for link in self._links(self._chosen) if (place := self.place(link)).is_dir()]

    @cached_property
    def _chosen(self) -> Entries:
        found = {name: f"100644 {one.sha256}" for name, one in self._files.items() if isinstance(one, FileDigest)}
        for name, tree in self._trees.items():
            found |= {f"{name}/{path}": entry for path, entry in self._choose(tree.entries).items()}
        return found

    def _links(self, entries: Entries) -> list[str]:
        return sorted(name for name, entry in entries.items() if entry.startswith(_LINK))

    def _remembered_links(self) -> list[str] | None:
        data = self._memory.recall(_KIND, self._key)
        return (
            None if data is None else [os.fsdecode(one) for one in msgspec.msgpack.decode(data, type=list[bytes])]
        )

    def _key_with(self, links: Sequence[str]) -> bytes:
        return _hash([self._key, self._followed(links)])

    def _followed(self, links: Sequence[str]) -> Mapping[str, str]:
        """What is read through each link; "" for a link that leads to no file."""
        there = {link: place for link in links if (place := self.place(link)).is_file()}
        read = self._read(there)
        found = dict.fromkeys(links, "")
        for link, one in read.items():
            found[link] = f"100644 {one.sha256}" if isinstance(one, FileDigest) else f"unknown {one.reason}"
        return found

    def _read(self, places: Mapping[str, Path]) -> dict[str, FileDigest | Unknown]:
        found = file_digests(list(places.values()), self._memory, deep=self._deep)
        # Whether it was read anew says nothing about the content.
        return {
            name: msgspec.structs.replace(one, read_anew=False) if isinstance(one, FileDigest) else one
            for name, one in zip(places, found, strict=True)
        }


def _hash(value: object) -> bytes:
    return hashlib.sha256(repr(value).encode("utf-8", "surrogateescape")).digest()
