"""An environment in place: pinned and compared by the content of every installed file.

Owns what of such an environment counts: all of site-packages and what RECORD names beyond it, but no byte
code in __pycache__. The engine is started with PYTHONPYCACHEPREFIX, so that byte code there is never read;
byte code without a source beside it counts. Must not write anything but the memory of digests.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import msgspec

from pinner.errors import ManifestError, UnknownFact
from pinner.host.digest import DigestMemory, FileDigest, Scope, Snapshot, file_digests, take_snapshot, tree_digest
from pinner.host.interpreter import Interpreter, Question
from pinner.model.facts import ABSENT, Unknown
from pinner.model.lock import DistributionPin, PythonPin
from pinner.probes.base import Scene
from pinner.probes.distributions import Distribution, read_distributions
from pinner.probes.findings import Findings, key_of
from pinner.probes.python_sealed import judge_interpreter

MISSING = "missing"

_KIND = "environment"
_READING = 1  # rises whenever the same bytes would give other pins
_SCOPE = Scope(exclude=frozenset({"__pycache__"}))


class Contents(NamedTuple):
    """What an environment holds.

    `digests` by path relative to its root; `outside` are notes; `elsewhere` are the files that RECORDs name
    outside of site-packages.
    """

    distributions: list[Distribution]
    digests: dict[str, str]
    unknown: dict[str, Unknown]
    loose: dict[str, str]
    outside: list[str]
    elsewhere: list[str]

    def is_consistent(self) -> bool:
        """Whether the metadata that was read is that of the snapshots: nothing was changed in between."""
        read = {path: digest for one in self.distributions for path, digest in one.read.items()}
        records = {path for path in self.digests if path.endswith(".dist-info/RECORD")}
        return records <= read.keys() and all(self.digests.get(path) == digest for path, digest in read.items())


Snapshots = dict[str, Snapshot]


def locate(place: Path) -> tuple[Path, Path]:
    """(environment, interpreter) for a path to either."""
    if place.parent.name == "bin" and not place.is_dir():
        return place.parent.parent, place
    return place, place / "bin" / "python"


def pin(directory: Path, path: str, memory: DigestMemory) -> tuple[PythonPin, list[str]]:
    """Pin the environment at `path` as it is; also what is worth telling.

    ManifestError without an environment, UnknownFact if a file is not readable.
    """
    root, python = locate(directory / Path(path).expanduser())
    if not python.exists():
        raise ManifestError(f"python.path: there is no interpreter at {python}")
    answer = Question(python, root).answer()
    if isinstance(answer, Unknown):
        raise UnknownFact(f"python.path: {answer.reason}")
    contents = read_contents(answer, _snapshots(answer, memory), memory)
    for name, unknown in contents.unknown.items():
        raise UnknownFact(f"python.path: {name}: {unknown.reason}")
    pinned = PythonPin(
        version=answer.minor,
        patch_level=answer.version,
        path=path,
        distributions=_distribution_pins(contents),
        loose=_loose_pins(contents),
    )
    return pinned, contents.outside


def _distribution_pins(contents: Contents) -> tuple[DistributionPin, ...]:
    return tuple(
        DistributionPin(
            name=one.name,
            version=one.version,
            content=content(members(one, contents.digests)),
            edited=edited(one, contents.digests),
            origin=one.origin,
        )
        for one in contents.distributions
    )


def _loose_pins(contents: Contents) -> dict[str, str]:
    return {key_of(path): digest for path, digest in sorted(contents.loose.items())}


def _snapshots(answer: Interpreter, memory: DigestMemory, *, deep: bool = False) -> Snapshots:
    """The site-packages that an interpreter names, by path relative to the environment."""
    return {
        os.path.relpath(place, answer.prefix): take_snapshot(Path(place), memory, _SCOPE, deep=deep)
        for place in answer.places
    }


def look(scene: Scene, pinned: PythonPin) -> Findings:
    """Everything in the environment that is not as locked."""
    root, python = locate(scene.directory / Path(pinned.path or "").expanduser())
    found = Findings()
    answer = Question(python, root).answer()
    judge_interpreter(answer, python, pinned.patch_level, found)
    if isinstance(answer, Unknown):
        for one in pinned.distributions:
            found.facts[key_of(one.name)] = Unknown("the interpreter of the environment does not run")
        for path in pinned.loose:
            found.facts[path] = Unknown("the interpreter of the environment does not run")
        return found
    snapshots = _snapshots(answer, scene.memory, deep=scene.deep)
    found.how.append(_how(snapshots, deep=scene.deep))
    seen = Reading(answer, snapshots, scene.memory)
    if not scene.deep and seen.is_known_to_give(pinned):
        found.notes += seen.outside
        found.facts.update(pinned.loose)
        found.facts.update({key_of(one.name): one.content for one in pinned.distributions})
        return found
    contents = read_contents(answer, snapshots, scene.memory, deep=scene.deep)
    if not contents.unknown:
        seen.remember(contents)
    found.notes += contents.outside
    found.facts.update({key_of(path): unknown for path, unknown in contents.unknown.items()})
    _compare_loose(pinned.loose, contents.loose, found)
    before = {one.name: one for one in pinned.distributions}
    now = {one.name: one for one in contents.distributions}
    for name in sorted(before.keys() | now.keys()):
        if name not in now:
            # Absent by not being a fact.
            found.notes_by_key[key_of(name)] = f"{name} {before[name].version}: not installed any more"
        elif name not in before:
            found.facts[key_of(name)] = content(members(now[name], contents.digests))
            found.notes_by_key[key_of(name)] = f"{now[name].title}: installed after locking"
        else:
            _compare_distribution(before[name], now[name], contents.digests, found)
    return found


def read_contents(
    answer: Interpreter, snapshots: Snapshots, memory: DigestMemory, *, deep: bool = False
) -> Contents:
    """Read what RECORDs say of the site-packages, and what they name elsewhere in the environment."""
    root = Path(answer.prefix)
    digests: dict[str, str] = {}
    unknown: dict[str, Unknown] = {}
    for below, snapshot in snapshots.items():
        unknown.update({f"{below}/{path}": reason for path, reason in snapshot.unknown.items()})
        for path, entry in snapshot.entries.items():
            mode, _, digest = entry.partition(" ")
            # Only a regular file's bytes are what RECORD speaks of.
            digests[f"{below}/{path}"] = digest if mode in ("100644", "100755") else entry
    loose = dict(digests)
    distributions = read_distributions(root, [Path(place) for place in answer.places])
    elsewhere = sorted({path for one in distributions for path in one.files if path not in digests})
    for path, result in _elsewhere(root, elsewhere, memory, deep=deep).items():
        if isinstance(result, Unknown):
            unknown[path] = result
        elif result is not None:
            digests[path] = result.sha256
    for one in distributions:
        for path in one.files:
            loose.pop(path, None)
    outside = [
        f"{one.title}: RECORD names {len(one.outside)} files outside of the environment, not looked at"
        for one in distributions
        if one.outside
    ]
    return Contents(distributions, digests, unknown, loose, outside, elsewhere)


def _elsewhere(
    root: Path, paths: list[str], memory: DigestMemory, *, deep: bool
) -> dict[str, FileDigest | Unknown | None]:
    """Files outside of site-packages; None for one that is not there."""
    there = [path for path in paths if (root / path).is_file()]
    found = file_digests([root / path for path in there], memory, deep=deep)
    return {**dict.fromkeys(paths), **dict(zip(there, found, strict=True))}


class Reading:
    """Whether an environment of known content is known to give certain pins, without reading its RECORDs.

    Pins are a function of the bytes in site-packages and of the files elsewhere that RECORDs name. What is
    remembered is that function, by digests: which files elsewhere count, and the digest of the pins.
    """

    def __init__(self, answer: Interpreter, snapshots: Snapshots, memory: DigestMemory) -> None:
        self._root = Path(answer.prefix)
        self._memory = memory
        self.outside: list[str] = []
        places = [(below, str(snapshot.digest)) for below, snapshot in snapshots.items()]
        is_whole = not any(snapshot.unknown for snapshot in snapshots.values())
        self._key = _hash([_READING, places]) if is_whole else None

    def is_known_to_give(self, pinned: PythonPin) -> bool:
        """Whether the environment is remembered to be exactly as pinned."""
        if self._key is None:
            return False
        stored = self._memory.recall(_KIND, self._key)
        if stored is None:
            return False
        try:
            elsewhere, self.outside = msgspec.json.decode(stored, type=tuple[list[str], list[str]])
        except msgspec.MsgspecError:
            return False
        there = _elsewhere(self._root, elsewhere, self._memory, deep=False)
        digests = {path: one.sha256 for path, one in there.items() if isinstance(one, FileDigest)}
        pins = _hash([pinned.distributions, pinned.loose])
        return self._memory.recall(_KIND, self._key_with(elsewhere, digests)) == pins

    def remember(self, contents: Contents) -> None:
        """Note what this environment's content gives."""
        if self._key is not None and contents.is_consistent():
            key = self._key_with(contents.elsewhere, contents.digests)
            pins = _hash([_distribution_pins(contents), _loose_pins(contents)])
            stored = msgspec.json.encode((contents.elsewhere, contents.outside))
            self._memory.remember(_KIND, {self._key: stored, key: pins})

    def _key_with(self, elsewhere: list[str], digests: Mapping[str, str]) -> bytes:
        return _hash([self._key, [(path, digests.get(path)) for path in elsewhere]])


def _hash(value: object) -> bytes:
    return hashlib.sha256(msgspec.json.encode(value, order="deterministic")).digest()


def _how(snapshots: Snapshots, *, deep: bool) -> str:
    count = sum(snapshot.file_count for snapshot in snapshots.values())
    anew = sum(snapshot.read_anew for snapshot in snapshots.values())
    read = "every byte read" if deep else f"{anew:,} read anew" if anew else "all by remembered digest"
    return f"{count:,} files of site-packages, {read}"


def members(one: Distribution, digests: Mapping[str, str]) -> dict[str, str]:
    """The digests of a distribution's files that are there."""
    return {path: digests[path] for path in one.files if path in digests}


def content(files: Mapping[str, str]) -> str:
    """The digest of a distribution's content: paths and bytes, not modes."""
    return tree_digest({path: f"100644 {digest}" for path, digest in files.items()})


def edited(one: Distribution, digests: Mapping[str, str]) -> dict[str, str]:
    """The files that are not what RECORD says, with their digest or "missing"."""
    return {
        path: digests.get(path, MISSING)
        for path, said in one.files.items()
        if digests.get(path, MISSING) != said and (said is not None or path not in digests)
    }


def _compare_loose(pinned: Mapping[str, str], loose: Mapping[str, str], found: Findings) -> None:
    now = {key_of(path): digest for path, digest in loose.items()}
    found.facts.update(now)
    for path in sorted(pinned.keys() | now.keys()):
        if pinned.get(path) == now.get(path):
            continue
        done = "changed" if path in pinned and path in now else "added" if path in now else "removed"
        name = path.rpartition("/")[2]
        what = "belongs to no distribution"
        if name in ("sitecustomize.py", "usercustomize.py"):
            what = "runs at every start of the interpreter"
        elif name.endswith(".pth"):
            what = "a .pth file: adds to the import path or runs code at start"
        found.notes_by_key[path] = f"{what}: {done}"


def _compare_distribution(
    before: DistributionPin, now: Distribution, digests: Mapping[str, str], found: Findings
) -> None:
    """Name the edited files where they explain the whole difference; else the distribution."""
    key = key_of(before.name)
    files = members(now, digests)
    differs = content(files)
    if differs == before.content:
        found.facts[key] = differs
        return
    current = edited(now, digests)
    touched = [path for path in sorted(before.edited.keys() | current.keys()) if path in now.files]
    expected = dict(files)
    for path in touched:
        locked = before.edited.get(path) or now.files[path]
        if locked is None or locked == MISSING:
            expected.pop(path, None)
        else:
            expected[path] = locked
    if content(expected) != before.content:
        found.facts[key] = differs
        found.notes_by_key[key] = _reinstalled(before, now)
        lines = [f"not as its RECORD says: {key_of(path)}" for path in sorted(current)]
        if lines:
            found.evidence[key] = tuple(lines)
        return
    # Apart from these files the content is the locked one: that was just computed.
    found.facts[key] = before.content
    for path in touched:
        want, seen = expected.get(path), files.get(path)
        if want != seen:
            said = now.files[path]
            found.differs(
                key_of(path),
                want or ABSENT,
                seen or ABSENT,
                f"{now.title}: its RECORD says {said}, the file is {seen or MISSING}",
            )


def _reinstalled(before: DistributionPin, now: Distribution) -> str:
    text = f"reinstalled: version {before.version} → {now.version}"
    if before.origin or now.origin:
        text += f", direct_url {before.origin or 'none'} → {now.origin or 'none'}"
    return text
