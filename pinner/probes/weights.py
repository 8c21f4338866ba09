"""The files of a model or draft directory: shared by the probes `model` and `draft`.

Owns which files count, and how a file that is not what its name says is told. Hidden files and directories
(.git, .cache, .gitattributes) are not looked at, since no engine loads them; symlinks are followed, since the
Hub's cache is made of them. Must not write anything but the memory of digests.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec

from pinner.host.digest import DigestMemory, FileDigest, file_digests, recall_digest
from pinner.host.files import escaped
from pinner.model import artifacts
from pinner.model.facts import ABSENT, Fact, Observation, Unknown, compare_facts
from pinner.model.lock import FilePin, WeightsPin
from pinner.probes.base import Judgement

WHOLE = "."  # the key for the directory as a whole
SAFETENSORS = ".safetensors"
_DANGLING = "a symlink that points to nothing"


class Found(NamedTuple):
    """A file of the directory: `path` below it, `size` in bytes, and why it cannot be weights, if so.

    `is_unknown`: what lies there could not be told.
    """

    path: str
    real: Path
    size: int
    reason: str | None = None
    is_unknown: bool = False


class Contents(NamedTuple):
    """What a directory holds; `hidden` are names that are not looked at."""

    files: list[Found]
    hidden: list[str]


def observe_files(
    aspect: str, pin: WeightsPin, directory: Path, memory: DigestMemory, *, deep: bool
) -> Observation:
    """What the directory holds now; each file as "<bytes> bytes <digest>".

    A file whose size or header already shows that it is another one is not hashed; of one that is known to be the
    pinned one not even the header is read.
    """
    if not directory.is_dir():
        note = f"{directory} is {'not a directory' if directory.exists() else 'missing'}"
        return Observation(aspect=aspect, facts={WHOLE: ABSENT}, notes_by_key={WHOLE: note})
    contents = list_files(directory)
    if not contents.files:
        return Observation(
            aspect=aspect, facts={WHOLE: "no files"}, notes_by_key={WHOLE: f"{directory} holds no files"}
        )
    pinned = {file.path: file for file in pin.files}
    facts: dict[str, Fact] = {}
    notes: dict[str, str] = {}
    to_read = []
    known: list[FileDigest | Unknown] = []
    for file in contents.files:
        locked = pinned.get(file.path)
        remembered = None if deep or locked is None else recall_digest(file.real, memory)
        if remembered and locked and remembered.sha256 == locked.sha256:
            facts[file.path] = _text(remembered.size, remembered.sha256)
            known.append(remembered)
            continue
        looked = _first_look(file, locked)
        if looked is None:
            to_read.append(file)
            continue
        facts[file.path], note = looked
        if note:
            notes[file.path] = note
    digests = file_digests([file.real for file in to_read], memory, deep=deep)
    for file, digest in zip(to_read, digests, strict=True):
        if isinstance(digest, Unknown):
            facts[file.path] = digest
        else:
            facts[file.path] = _text(digest.size, digest.sha256)
            if digest.sha256 != pinned[file.path].sha256:
                notes[file.path] = "same size, other bytes"
    if missing := pinned.keys() - facts.keys():
        for index, shard in missing_shards(contents.files):
            notes.setdefault(shard, f"missing, and {index} names it")
        _tell_missing(directory, missing, facts, notes)
    return Observation(
        aspect=aspect,
        facts=facts,
        notes_by_key=notes,
        notes=_hidden_note(contents.hidden),
        how=_how(len(contents.files), known + digests),
    )


def _first_look(file: Found, locked: FilePin | None) -> tuple[Fact, str] | None:
    """The fact and note of a file that need not be hashed; None where only its bytes can tell."""
    if file.is_unknown:
        return Unknown(file.reason or ""), ""
    if file.reason == _DANGLING:
        target = escaped(str(file.real.readlink()))
        if locked is None:
            return f"a symlink to {target}", "not in the lock, and points to nothing"
        return ABSENT, f"its symlink points to nothing: the blob it named is gone ({target})"
    if file.reason is not None:
        return file.reason, "" if locked else "not in the lock"
    reason = fault(file, locked.sha256 if locked else None)
    if reason is not None or locked is None or locked.size != file.size:
        return f"{file.size} bytes", reason or _size_note(file, locked)
    return None


def _tell_missing(directory: Path, missing: Iterable[str], facts: dict[str, Fact], notes: dict[str, str]) -> None:
    """Why pinned files are not there, where the directory shows it."""
    unlisted = [path for path, fact in facts.items() if isinstance(fact, Unknown)]
    for path in missing:
        above = next((name for name in unlisted if name == WHOLE or path.startswith(f"{name}/")), None)
        if above is not None:
            facts[path] = Unknown(f"{above}: {facts[above].reason}")
        elif (directory / path).is_dir():
            notes[path] = "a directory is in its place"


def compare_files(pin: WeightsPin, observation: Observation) -> Judgement:
    """Pure: the pinned files against the observation."""
    if WHOLE in observation.facts:
        return compare_facts({WHOLE: _files(len(pin.files))}, observation)
    return compare_facts({file.path: _text(file.size, file.sha256) for file in pin.files}, observation)


def list_files(directory: Path) -> Contents:
    """Every file below a directory, in path order. Symlinked directories are entered once each."""
    found: list[Found] = []
    hidden: list[str] = []
    _walk(directory, "", found, hidden, frozenset())
    return Contents(sorted(found), sorted(hidden))


def _walk(
    directory: Path, prefix: str, found: list[Found], hidden: list[str], above: frozenset[tuple[int, int]]
) -> None:
    own = directory.stat()
    if (own.st_dev, own.st_ino) in above:
        found.append(Found(prefix.rstrip("/"), directory, 0, "a symlink to a directory that it lies in"))
        return
    above |= {(own.st_dev, own.st_ino)}
    try:
        names = sorted(os.listdir(directory))  # noqa: PTH208  # names, not paths, are wanted
    except OSError as error:
        found.append(Found(prefix.rstrip("/") or WHOLE, directory, 0, _cannot("listed", error), is_unknown=True))
        return
    for name in names:
        path = directory / name
        text = escaped(name)
        if name.startswith("."):
            hidden.append(prefix + text)
            continue
        if text != name:
            found.append(Found(prefix + text, path, 0, "its name is not UTF-8"))
            continue
        try:
            status = path.stat()
        except FileNotFoundError:
            if path.is_symlink():  # or it has just gone
                found.append(Found(prefix + name, path, 0, _DANGLING))
        except OSError as error:
            found.append(Found(prefix + name, path, 0, _cannot("read", error), is_unknown=True))
        else:
            if stat.S_ISDIR(status.st_mode):
                _walk(path, f"{prefix}{name}/", found, hidden, above)
            elif stat.S_ISREG(status.st_mode):
                found.append(Found(prefix + name, path, status.st_size))
            else:
                found.append(Found(prefix + name, path, 0, "not a regular file"))


def _cannot(what: str, error: OSError) -> str:
    return f"cannot be {what}: {error.strerror}"


def fault(file: Found, locked_sha256: str | None = None) -> str | None:
    """Why a regular file is not what its name says, from its first bytes and its size; None if it may be."""
    is_small = file.size <= artifacts.MAX_POINTER_BYTES
    is_safetensors = file.path.endswith(SAFETENSORS)
    if not is_small and not is_safetensors:
        return None
    try:
        with file.real.open("rb") as stream:
            if is_small:
                pointer = artifacts.parse_pointer(stream.read(artifacts.MAX_POINTER_BYTES + 1))
                if pointer is not None:
                    return artifacts.pointer_fault(pointer, locked_sha256)
                stream.seek(0)
            if not is_safetensors:
                return None
            beginning = stream.read(artifacts.BEGINNING_BYTES)
            prefix = beginning[: artifacts.LENGTH_BYTES]
            reason = artifacts.length_fault(prefix, file.size)
            if reason is not None:
                return artifacts.text_fault(beginning) or reason
            stream.seek(artifacts.LENGTH_BYTES)
            return artifacts.header_fault(stream.read(artifacts.header_length(prefix)), file.size)
    except OSError:
        # Reading it whole gives the reason.
        return None


def read_config(directory: Path) -> dict[str, object] | None:
    """The config.json of a model directory; None if it is missing or not a JSON object."""
    try:
        return msgspec.json.decode((directory / "config.json").read_bytes(), type=dict[str, object])
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
        return None


def missing_shards(files: Iterable[Found]) -> Iterator[tuple[str, str]]:
    """(index, shard) for each shard that an index names and that is not there."""
    for place in by_directory(files):
        for index, shards in place.indexes.items():
            for shard in sorted(shards - place.names):
                yield place.prefix + index, place.prefix + shard


class Place(NamedTuple):
    """One directory of a model: `prefix` leads to it, `indexes` hold the shards that each index there names."""

    prefix: str
    names: frozenset[str]
    indexes: dict[str, frozenset[str]]


def by_directory(files: Iterable[Found]) -> list[Place]:
    """The directories of a model, with what their shard indexes name."""
    files = list(files)
    names = frozenset(file.path for file in files)
    places = []
    for above in sorted({file.path.rpartition("/")[0] for file in files}):
        prefix = f"{above}/" if above else ""
        # An index may name shards further down.
        beside = frozenset(name[len(prefix) :] for name in names if name.startswith(prefix))
        indexes = {}
        for file in files:
            name = file.path[len(prefix) :]
            is_here = file.path.startswith(prefix) and "/" not in name
            if not is_here or not name.endswith(SAFETENSORS + artifacts.INDEX_SUFFIX) or file.reason is not None:
                continue
            with contextlib.suppress(OSError, ValueError):
                indexes[name] = artifacts.indexed_shards(file.real.read_bytes())
        places.append(Place(prefix, beside, indexes))
    return places


def _files(count: int) -> str:
    return f"{count:,} file{'' if count == 1 else 's'}"


def _text(size: int, sha256: str) -> str:
    return f"{size} bytes {sha256}"


def _size_note(file: Found, locked: FilePin | None) -> str:
    if locked is None:
        return "not in the lock"
    count = abs(locked.size - file.size)
    longer = "shorter" if file.size < locked.size else "longer"
    return f"{count:,} byte{'' if count == 1 else 's'} {longer} than the locked file"


def _hidden_note(hidden: list[str]) -> tuple[str, ...]:
    if not hidden:
        return ()
    more = f" and {len(hidden) - 3} more" if len(hidden) > 3 else ""
    return (f"hidden, not looked at: {', '.join(hidden[:3])}{more}",)


def _how(count: int, digests: list[FileDigest | Unknown]) -> str:
    total = _files(count)
    read = sum(isinstance(digest, FileDigest) and digest.read_anew for digest in digests)
    if count and read == count:
        return f"{total}, every byte read"
    parts = [
        total,
        "all by remembered digest" if read == 0 and len(digests) == count else f"{read:,} read anew",
    ]
    if len(digests) < count:
        parts.append(f"{count - len(digests):,} not read")
    return ", ".join(parts)
