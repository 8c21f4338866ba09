"""An environment in place: pinned and compared by the content of every installed file.

Owns what of such an environment counts: all of site-packages and what RECORD names beyond it, but no byte
code in __pycache__. The engine is started with PYTHONPYCACHEPREFIX, so that byte code there is never read;
byte code without a source beside it counts. Must not write anything but the memory of digests.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from pinner.errors import ManifestError, UnknownFact
from pinner.host.digest import DigestMemory, FileDigest, Scope, file_digests, take_snapshot, tree_digest
from pinner.host.interpreter import Interpreter, Question
from pinner.model.facts import ABSENT, Unknown
from pinner.model.lock import DistributionPin, PythonPin
from pinner.probes.base import Scene
from pinner.probes.distributions import Distribution, read_distributions
from pinner.probes.python_sealed import Findings, judge_interpreter, key_of

MISSING = "missing"

_SCOPE = Scope(exclude=frozenset({"__pycache__"}))


class Contents(NamedTuple):
    """What an environment holds. `digests` by path relative to its root; `outside` are notes."""

    distributions: list[Distribution]
    digests: dict[str, str]
    unknown: dict[str, Unknown]
    loose: dict[str, str]
    outside: list[str]
    how: str


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
    contents = read_contents(answer, memory)
    for name, unknown in contents.unknown.items():
        raise UnknownFact(f"python.path: {name}: {unknown.reason}")
    pins = [
        DistributionPin(
            name=one.name,
            version=one.version,
            content=content(members(one, contents.digests)),
            edited=edited(one, contents.digests),
            origin=one.origin,
        )
        for one in contents.distributions
    ]
    pinned = PythonPin(
        version=answer.minor,
        patch_level=answer.version,
        path=path,
        distributions=tuple(pins),
        loose={key_of(path): digest for path, digest in sorted(contents.loose.items())},
    )
    return pinned, contents.outside


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
    contents = read_contents(answer, scene.memory, deep=scene.deep)
    found.how.append(contents.how)
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


def read_contents(answer: Interpreter, memory: DigestMemory, *, deep: bool = False) -> Contents:
    """Read the site-packages that an interpreter names, and what RECORDs name elsewhere in the environment."""
    root = Path(answer.prefix)
    places = [Path(place) for place in answer.places]
    digests: dict[str, str] = {}
    unknown: dict[str, Unknown] = {}
    count = anew = 0
    for place in places:
        below = os.path.relpath(place, root)
        snapshot = take_snapshot(place, memory, _SCOPE, deep=deep)
        count, anew = count + snapshot.file_count, anew + snapshot.read_anew
        unknown.update({f"{below}/{path}": reason for path, reason in snapshot.unknown.items()})
        for path, entry in snapshot.entries.items():
            mode, _, digest = entry.partition(" ")
            # Only a regular file's bytes are what RECORD speaks of.
            digests[f"{below}/{path}"] = digest if mode in ("100644", "100755") else entry
    loose = dict(digests)
    distributions = read_distributions(root, places)
    elsewhere = {path for one in distributions for path in one.files if path not in digests}
    wanted = [path for path in sorted(elsewhere) if (root / path).is_file()]
    for path, result in zip(
        wanted, file_digests([root / path for path in wanted], memory, deep=deep), strict=True
    ):
        count += 1
        if isinstance(result, FileDigest):
            digests[path] = result.sha256
            anew += result.read_anew
        else:
            unknown[path] = result
    for one in distributions:
        for path in one.files:
            loose.pop(path, None)
    outside = [
        f"{one.title}: RECORD names {len(one.outside)} files outside of the environment, not looked at"
        for one in distributions
        if one.outside
    ]
    how = f"{count:,} files, " + (f"{anew:,} read anew" if anew else "all by remembered digest")
    return Contents(distributions, digests, unknown, loose, outside, how)


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
