"""The interpreter beneath an environment: its binary, its libpython and its standard library.

Owns what of it counts and how a difference is told. Site-packages of the base are left out, for a virtual
environment does not see them, and so are the standard library's own tests, which nothing imports.

Byte code of the standard library is read by an engine whose byte code is not kept elsewhere. Whoever imports a
module first may write it, so that added or changed byte code counts only if it is not what its source gives.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from pathlib import Path

from pinner.host import bytecode
from pinner.host.digest import DigestMemory, Scope
from pinner.host.interpreter import Interpreter
from pinner.model.facts import Unknown
from pinner.probes.base import Findings
from pinner.probes.distributions import is_byte_code
from pinner.probes.gathered import Entries, Gathered
from pinner.probes.python_words import key_of, shown, when

KEY = "base"

_LEFT_OUT = frozenset({"site-packages", "dist-packages", "test"})
_MANY = 20  # more differing files than these are told as one difference
_KIND = "same-base"


class Base:
    """What an interpreter consists of now. Paths are relative to its installation, or absolute outside of it."""

    def __init__(self, answer: Interpreter, memory: DigestMemory, *, byte_code: bool, deep: bool = False) -> None:
        """`byte_code`: whether the engine reads byte code beside the standard library."""
        self.answer = answer
        self._memory = memory
        self._scope = Scope(exclude=_LEFT_OUT if byte_code else _LEFT_OUT | {"__pycache__"})
        self._byte_code = byte_code
        self._deep = deep

    @cached_property
    def gathered(self) -> Gathered:
        """Everything that counts, by name."""
        answer = self.answer
        path = [entry for entry in answer.path if not any(_is_below(entry, other) for other in answer.path)]
        places = {self._named(place): Path(place) for place in (answer.executable, *answer.libraries, *path)}
        rule = answer.tag if self._byte_code else ""
        return Gathered(places, self._memory, self._scope, rule=rule, choose=self._choose, deep=self._deep)

    def _named(self, place: str) -> str:
        return os.path.relpath(place, self.answer.base) if _is_below(place, self.answer.base) else place

    def _choose(self, entries: Entries) -> Entries:
        """Byte code of other versions is not read by this one."""
        mark = f".{self.answer.tag}."
        return {path: entry for path, entry in entries.items() if not is_byte_code(path) or mark in path}

    def judge(
        self, pinned: str, before: Callable[[], Mapping[str, str] | None], found: Findings, *, since: str
    ) -> None:
        """Add what is not as pinned. `before` gives the pinned entries, where they are known; `since` is when."""
        seen = self.gathered
        found.how.append(self.how)
        found.sealed[KEY] = found.facts[KEY] = pinned
        if seen.unknown:
            found.facts |= {f"{KEY}/{key_of(path)}": reason for path, reason in seen.unknown.items()}
            found.facts[KEY] = seen.digest
            return
        if seen.digest == pinned or self._memory.recall(_KIND, _pair(pinned, str(seen.digest))) is not None:
            return
        sealed = before()
        if sealed is None:
            note = f"the interpreter in {self.answer.base} or its standard library is not as {since}"
            found.differs(KEY, pinned, seen.digest, f"{note}; which file differs cannot be told")
            return
        changes = list(self._changes(sealed))
        if not changes:
            self._memory.remember(_KIND, {_pair(pinned, str(seen.digest)): b"1"})
        elif len(changes) > _MANY:
            note = f"{len(changes):,} files of the interpreter in {self.answer.base} are not as {since}"
            lines = [key_of(path) for path in changes[:_MANY]]
            found.differs(
                KEY,
                pinned,
                seen.digest,
                f"{note}: it was upgraded or replaced",
                *lines,
                f"and {len(changes) - _MANY:,} more",
            )
        else:
            for path in changes:
                self._tell(path, sealed.get(path), found)

    @property
    def how(self) -> str:
        """How sure a clean answer is."""
        seen = self.gathered
        read = "all by remembered digest" if seen.read_anew == 0 else f"{seen.read_anew:,} read anew"
        return f"{seen.file_count:,} files of the interpreter, {'every byte read' if self._deep else read}"

    def _changes(self, sealed: Mapping[str, str]) -> Iterable[str]:
        now = self.gathered.entries
        paths = [path for path in sorted(sealed.keys() | now.keys()) if sealed.get(path) != now.get(path)]
        # Without it the interpreter reads the source.
        compiled = [path for path in paths if is_byte_code(path)]
        present = [path for path in compiled if path in now]
        sources = {path: _source_of(path) for path in present}
        pairs = [
            (self.gathered.place(source), self.gathered.place(path))
            for path, source in sources.items()
            if source in now
        ]
        fine = bytecode.faithful(Path(self.answer.executable), pairs)
        # Byte code without a source is not imported from __pycache__.
        wrong = {path for path in present if sources[path] in now and self.gathered.place(path) not in fine}
        return [path for path in paths if not is_byte_code(path) or path in wrong]

    def _tell(self, path: str, before: str | None, found: Findings) -> None:
        after = self.gathered.entries.get(path)
        done = "added" if before is None else "removed" if after is None else "changed"
        found.differs(
            f"{KEY}/{key_of(path)}",
            *shown(before, after),
            f"{key_of(path)}: {done}: {self._what(path)}",
            *when(self.gathered.place(path)),
        )

    def _what(self, path: str) -> str:
        place = str(self.gathered.place(path))
        if place == self.answer.executable:
            return f"the interpreter itself, {place}"
        if place in self.answer.libraries:
            return f"the interpreter's own library, {place}"
        if path.rpartition("/")[2] in ("sitecustomize.py", "usercustomize.py"):
            return f"runs at every start of the interpreter in {self.answer.base}"
        if place in self.answer.path:
            return f"the first place that the interpreter in {self.answer.base} imports from"
        if is_byte_code(path):
            return "compiled byte code, which the interpreter runs, is not what its source gives"
        return f"standard library of the interpreter in {self.answer.base}"


def digest_of(base: Base) -> str | Unknown:
    """The digest that pins it."""
    return base.gathered.digest


def _is_below(path: str, other: str) -> bool:
    return path.startswith(f"{other}/")


def _source_of(path: str) -> str:
    directory, _, name = path.rpartition("__pycache__/")
    return f"{directory}{name.partition('.')[0]}.py"


def _pair(pinned: str, observed: str) -> bytes:
    return hashlib.sha256(f"{pinned} {observed}".encode()).digest()
