"""The distributions of an environment, as their metadata describes them.

Owns reading RECORD, METADATA and direct_url.json. All of it is evidence only: it says what should be there
and where it is said to come from, never what is there.
"""

from __future__ import annotations

import base64
import binascii
import csv
import os
import posixpath
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

_INFO = re.compile(r"(?P<name>[^/]+?)-(?P<version>[^/-]+)\.dist-info")


class Distribution(msgspec.Struct, frozen=True):
    """An installed distribution. Paths are relative to the environment's root.

    `files` maps each file to the sha256 that RECORD gives (None: it gives none). `origin` is what
    direct_url.json says, "" without one. `outside` are RECORD's entries that leave the environment.
    """

    name: str
    version: str
    info: str
    files: dict[str, str | None]
    origin: str = ""
    outside: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        return f"{self.name} {self.version}"


def read_distributions(root: Path, places: Iterable[Path]) -> list[Distribution]:
    """Every distribution in the given site-packages, by name; two of one name carry their version too."""
    found = [_read(root, info) for place in places for info in sorted(place.glob("*.dist-info")) if info.is_dir()]
    count: dict[str, int] = {}
    for one in found:
        count[one.name] = count.get(one.name, 0) + 1
    named = [
        msgspec.structs.replace(one, name=f"{one.name}=={one.version}") if count[one.name] > 1 else one
        for one in found
    ]
    return sorted(named, key=lambda one: (one.name, one.info))


def owners(distributions: Iterable[Distribution]) -> dict[str, Distribution]:
    """The distribution that a file belongs to, by path."""
    return {path: one for one in distributions for path in one.files}


def is_byte_code(path: str) -> bool:
    """Whether a file is byte code that stands for a source file beside it."""
    return "/__pycache__/" in path or path.startswith("__pycache__/")


def describe_origin(data: bytes) -> str:
    """What a direct_url.json says, without addresses, which may hold credentials."""
    try:
        content = msgspec.json.decode(data, type=dict[str, object])
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return "direct_url.json is not readable"
    version_control = content.get("vcs_info")
    commit = version_control.get("commit_id") if isinstance(version_control, dict) else None
    if isinstance(commit, str):
        text = f"commit {commit}"
    elif isinstance(content.get("dir_info"), dict):
        text = "a local directory"
    else:
        text = "an archive"
    subdirectory = content.get("subdirectory")
    return f"{text} (subdirectory {subdirectory})" if isinstance(subdirectory, str) and subdirectory else text


def _read(root: Path, info: Path) -> Distribution:
    found = _INFO.fullmatch(info.name)
    name, version = (found["name"], found["version"]) if found else (info.name.removesuffix(".dist-info"), "?")
    place = posixpath.normpath(os.path.relpath(info.parent, root))
    below = f"{place}/{info.name}"
    files: dict[str, str | None] = {}
    outside = []
    for entry, digest in _entries(info / "RECORD"):
        path = posixpath.normpath(posixpath.join(place, entry))
        if path.startswith(("/", "../")) or path == "..":
            outside.append(entry)
        elif not is_byte_code(path):
            files[path] = digest
    for present in info.rglob("*"):
        # Present, but not in RECORD: still part of the distribution's own directory.
        if present.is_symlink() or not present.is_dir():
            files.setdefault(f"{below}/{present.relative_to(info).as_posix()}", None)
    try:
        origin = describe_origin((info / "direct_url.json").read_bytes())
    except OSError:
        origin = ""
    return Distribution(
        name=re.sub(r"[-_.]+", "-", name).lower(),
        version=version,
        info=below,
        files=files,
        origin=origin,
        outside=tuple(outside),
    )


def _entries(record: Path) -> Iterator[tuple[str, str | None]]:
    """(path, `sha256:<hex>` or None) for each line of a RECORD; nothing where it is not readable."""
    try:
        text = record.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return
    try:
        for row in csv.reader(text.splitlines()):
            if row and row[0]:
                yield row[0], _digest(row[1]) if len(row) > 1 else None
    except csv.Error:
        return


def _digest(text: str) -> str | None:
    algorithm, _, value = text.partition("=")
    if algorithm != "sha256":
        return None
    try:
        return f"sha256:{base64.urlsafe_b64decode(value + '=' * (-len(value) % 4)).hex()}"
    except (binascii.Error, ValueError):
        return None
