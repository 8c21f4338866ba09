"""The distributions of an environment, as their metadata describes them.

Owns reading RECORD, METADATA and direct_url.json. All of it is evidence only: it says what should be there
and where it is said to come from, never what is there.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import csv
import hashlib
import os
import posixpath
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

from pinner.host.files import escaped

_INFO = re.compile(r"(?P<name>[^/]+?)-(?P<version>[^/-]+)\.dist-info")


class Distribution(msgspec.Struct, frozen=True):
    """An installed distribution. Paths are relative to the environment's root.

    `files` maps each file to the sha256 that RECORD gives (None: it gives none). `origin` is what
    direct_url.json says, "" without one. `outside` are RECORD's entries that leave the environment. `read`
    has the digests of the metadata files that all this comes from.
    """

    name: str
    version: str
    info: str
    files: dict[str, str | None]
    origin: str = ""
    outside: tuple[str, ...] = ()
    read: dict[str, str] = {}

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
    directory = escaped(info.name)
    found = _INFO.fullmatch(directory)
    name, version = (found["name"], found["version"]) if found else (directory.removesuffix(".dist-info"), "?")
    place = posixpath.normpath(os.path.relpath(info.parent, root))
    below = f"{place}/{info.name}"
    files: dict[str, str | None] = {}
    outside = []
    metadata = {name: data for name in ("RECORD", "direct_url.json") if (data := _bytes(info / name)) is not None}
    for entry, digest in _entries(metadata.get("RECORD", b"")):
        path = posixpath.normpath(posixpath.join(place, entry))
        # The site-packages of a base that an environment shares lie outside of it, and belong to it.
        if (path.startswith(("/", "../")) or path == "..") and not path.startswith(f"{place}/"):
            outside.append(entry)
        elif not is_byte_code(path):
            files[path] = digest
    for present in info.rglob("*"):
        # Present, but not in RECORD: still part of the distribution's own directory.
        if present.is_symlink() or not present.is_dir():
            files.setdefault(f"{below}/{present.relative_to(info).as_posix()}", None)
    return Distribution(
        name=re.sub(r"[-_.]+", "-", name).lower(),
        version=version,
        info=below,
        files=files,
        origin=describe_origin(metadata["direct_url.json"]) if "direct_url.json" in metadata else "",
        outside=tuple(outside),
        read={f"{below}/{name}": f"sha256:{hashlib.sha256(data).hexdigest()}" for name, data in metadata.items()},
    )


def _bytes(path: Path) -> bytes | None:
    """A metadata file, unless it is missing, not readable or no regular file."""
    try:
        return path.read_bytes() if path.is_file() else None
    except OSError:
        return None


def _entries(record: bytes) -> Iterator[tuple[str, str | None]]:
    """(path, `sha256:<hex>` or None) for each line of a RECORD, as far as it can be read."""
    with contextlib.suppress(UnicodeDecodeError, csv.Error):
        for row in csv.reader(record.decode("utf-8").splitlines()):
            if row and row[0] and "\0" not in row[0]:
                yield row[0], _digest(row[1]) if len(row) > 1 else None


def _digest(text: str) -> str | None:
    algorithm, _, value = text.partition("=")
    if algorithm != "sha256":
        return None
    try:
        digest = base64.urlsafe_b64decode(value + "=" * (-len(value) % 4))
    except (binascii.Error, ValueError):
        return None
    return f"sha256:{digest.hex()}" if len(digest) == hashlib.sha256().digest_size else None
