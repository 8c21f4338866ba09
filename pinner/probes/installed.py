"""What an environment in place holds, and what is remembered of that.

Owns what of such an environment counts: all of site-packages, what RECORD names beyond it, the programs and the
pyvenv.cfg of a virtual environment, but no byte code in __pycache__. The engine is started with
PYTHONPYCACHEPREFIX, so that byte code there is never read; byte code without a source beside it counts. A symlink
to a file counts by the bytes that are read through it. Must not judge.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from pinner.host.digest import DigestMemory, FileDigest, Scope, Snapshot, file_digests, take_snapshot, tree_digest
from pinner.host.interpreter import Interpreter
from pinner.model.facts import Unknown
from pinner.model.lock import DistributionPin
from pinner.probes.distributions import Distribution, read_distributions
from pinner.probes.linked import Candidate, candidates
from pinner.probes.python_words import key_of

MISSING = "missing"

_KIND = "environment"
_READING = 2  # rises whenever the same bytes would give other pins
_SCOPE = Scope(exclude=frozenset({"__pycache__"}))
_REGULAR = ("100644", "100755")

Snapshots = dict[str, Snapshot]


class Contents(NamedTuple):
    """What an environment holds.

    `digests` by path relative to its root; `outside` are notes; `elsewhere` are the files that are read besides
    the snapshots; `leads` are the places outside that something in site-packages leads to.
    """

    distributions: list[Distribution]
    digests: dict[str, str]
    unknown: dict[str, Unknown]
    loose: dict[str, str]
    outside: list[str]
    elsewhere: list[str]
    leads: list[Candidate]

    def is_consistent(self) -> bool:
        """Whether the metadata that was read is that of the snapshots: nothing was changed in between."""
        read = {path: digest for one in self.distributions for path, digest in one.read.items()}
        records = {path for path in self.digests if path.endswith(".dist-info/RECORD")}
        return records <= read.keys() and all(self.digests.get(path) == digest for path, digest in read.items())

    def distribution_pins(self) -> tuple[DistributionPin, ...]:
        """A lock's `distributions`."""
        return tuple(
            DistributionPin(
                name=one.name,
                version=one.version,
                content=content(members(one, self.digests)),
                edited=edited(one, self.digests),
                origin=one.origin,
            )
            for one in self.distributions
        )

    def loose_pins(self) -> dict[str, str]:
        """A lock's `loose`."""
        return {key_of(path): digest for path, digest in sorted(self.loose.items())}

    def entries(self) -> list[tuple[str, dict[str, str]]]:
        """The content of each distribution with the entries that it stands for."""
        found = [as_entries(members(one, self.digests)) for one in self.distributions]
        return [(tree_digest(entries), entries) for entries in found]


def snapshots_of(
    answer: Interpreter, memory: DigestMemory, only: Sequence[str] = (), *, deep: bool = False
) -> Snapshots:
    """The site-packages that an interpreter names, by path relative to the environment; or `only` those there."""
    root = Path(answer.prefix)
    names = list(only) or site_names(answer)
    return {
        name: take_snapshot(root / name, memory, _SCOPE, deep=deep) for name in names if (root / name).is_dir()
    }


def site_names(answer: Interpreter) -> list[str]:
    """The site-packages that an interpreter names, relative to the environment."""
    return [os.path.relpath(place, answer.prefix) for place in answer.places]


def own_files(answer: Interpreter) -> list[str]:
    """The programs and the configuration of a virtual environment; none of any other installation.

    The interpreter itself is left out, by whatever name: it is pinned as such.
    """
    root = Path(answer.prefix)
    if not (root / "pyvenv.cfg").is_file():
        return []
    programs = [f"bin/{path.name}" for path in (root / "bin").glob("*") if path.is_symlink() or path.is_file()]
    return ["pyvenv.cfg", *sorted(one for one in programs if os.path.realpath(root / one) != answer.executable)]


def read_contents(
    answer: Interpreter, snapshots: Snapshots, memory: DigestMemory, *, deep: bool = False
) -> Contents:
    """Read what RECORDs say of the site-packages, and the files elsewhere that count."""
    root = Path(answer.prefix)
    digests: dict[str, str] = {}
    unknown: dict[str, Unknown] = {}
    for below, snapshot in snapshots.items():
        unknown.update({f"{below}/{path}": reason for path, reason in snapshot.unknown.items()})
        for path, entry in snapshot.entries.items():
            mode, _, digest = entry.partition(" ")
            # Only a regular file's bytes are what RECORD speaks of.
            digests[f"{below}/{path}"] = digest if mode in _REGULAR else entry
    links = [path for path, entry in digests.items() if entry.startswith("120000 ")]
    places = [root / below for below in snapshots]
    distributions = read_distributions(root, places)
    own = own_files(answer)
    named = {path for one in distributions for path in one.files if path not in digests}
    named -= {path for path in named if os.path.realpath(root / path) == answer.executable}
    elsewhere = sorted({*named, *own, *links})
    for path, result in _elsewhere(root, elsewhere, memory, deep=deep).items():
        if isinstance(result, Unknown):
            unknown[path] = result
        elif result is not None:
            digests[path] = result.sha256
    owned = {path for one in distributions for path in one.files}
    loose = {
        path: digest
        for path, digest in digests.items()
        if path not in owned and (path in own or any(path.startswith(f"{below}/") for below in snapshots))
    }
    outside = [
        f"{one.title}: RECORD names {_files(len(one.outside))} outside of the environment, not looked at"
        for one in distributions
        if one.outside
    ]
    leads = candidates(places, [root / link for link in links])
    return Contents(distributions, digests, unknown, loose, outside, elsewhere, leads)


def _files(count: int) -> str:
    return "1 file" if count == 1 else f"{count:,} files"


def _elsewhere(
    root: Path, paths: list[str], memory: DigestMemory, *, deep: bool
) -> dict[str, FileDigest | Unknown | None]:
    """Files outside of site-packages, or behind links; None for one that is not there."""
    there = [path for path in paths if (root / path).is_file()]
    found = file_digests([root / path for path in there], memory, deep=deep)
    return {**dict.fromkeys(paths), **dict(zip(there, found, strict=True))}


class Reading:
    """Whether an environment of known content is known to give certain pins, without reading its RECORDs.

    Pins are a function of the bytes in site-packages and of the files elsewhere that count. What is remembered is
    that function, by digests: which files elsewhere count, and the digest of the pins.
    """

    def __init__(self, answer: Interpreter, snapshots: Snapshots, memory: DigestMemory) -> None:
        self._root = Path(answer.prefix)
        self._memory = memory
        self.outside: list[str] = []
        self.leads: list[Candidate] = []
        places = [(below, str(snapshot.digest)) for below, snapshot in snapshots.items()]
        is_whole = not any(snapshot.unknown for snapshot in snapshots.values())
        self._key = _hash([_READING, str(self._root), places, own_files(answer)]) if is_whole else None

    def is_known_to_give(self, distributions: Sequence[DistributionPin], loose: Mapping[str, str]) -> bool:
        """Whether the environment is remembered to be exactly as pinned."""
        if self._key is None:
            return False
        stored = self._memory.recall(_KIND, self._key)
        if stored is None:
            return False
        try:
            kept = msgspec.json.decode(stored, type=tuple[list[str], list[str], list[Candidate]])
        except msgspec.MsgspecError:
            return False
        elsewhere, self.outside, self.leads = kept
        there = _elsewhere(self._root, elsewhere, self._memory, deep=False)
        digests = {path: one.sha256 for path, one in there.items() if isinstance(one, FileDigest)}
        pins = _hash(pins_of(distributions, loose))
        return self._memory.recall(_KIND, self._key_with(elsewhere, digests)) == pins

    def remember(self, contents: Contents) -> None:
        """Note what this environment's content gives."""
        if self._key is not None and contents.is_consistent():
            key = self._key_with(contents.elsewhere, contents.digests)
            pins = _hash(pins_of(contents.distribution_pins(), contents.loose_pins()))
            try:
                stored = msgspec.json.encode((contents.elsewhere, contents.outside, contents.leads))
            except UnicodeEncodeError:
                return  # a name that is no text: such an environment is read every time
            self._memory.remember(_KIND, {self._key: stored, key: pins})

    def _key_with(self, elsewhere: list[str], digests: Mapping[str, str]) -> bytes:
        # A link that leads nowhere has a digest of its own among the contents.
        seen = [(path, digests.get(path)) for path in elsewhere]
        return _hash(
            [self._key, [(path, one if one and one.startswith("sha256:") else None) for path, one in seen]]
        )


def pins_of(distributions: Sequence[DistributionPin], loose: Mapping[str, str]) -> str:
    """Both as one text."""
    return msgspec.json.encode([distributions, loose], order="deterministic").decode()


def _hash(value: object) -> bytes:
    return hashlib.sha256(repr(value).encode("utf-8", "surrogateescape")).digest()


def members(one: Distribution, digests: Mapping[str, str]) -> dict[str, str]:
    """The digests of a distribution's files that are there."""
    return {path: digests[path] for path in one.files if path in digests}


def as_entries(files: Mapping[str, str]) -> dict[str, str]:
    """Paths and bytes, not modes, as entries of a tree."""
    return {path: f"100644 {digest}" for path, digest in files.items()}


def content(files: Mapping[str, str]) -> str:
    """The digest of a distribution's content."""
    return tree_digest(as_entries(files))


def edited(one: Distribution, digests: Mapping[str, str]) -> dict[str, str]:
    """The files that are not what RECORD says, with their digest or "missing"."""
    return {
        path: digests.get(path, MISSING)
        for path, said in one.files.items()
        if digests.get(path, MISSING) != said and (said is not None or path not in digests)
    }
