"""Where the Hub's cache of this user lies and how it is laid out.

Owns reading names and links of that layout. Downloads nothing and changes nothing; must not import
huggingface_hub, which an engine's environment brings and pinner asks for downloads only.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

import msgspec

_FOLDER = "models--"
_COMMIT = re.compile(r"[0-9a-f]{40}\Z")
# The variables that place the cache, the strongest first, with what is added to their value.
PLACES = (
    ("HF_HUB_CACHE", ""),
    ("HUGGINGFACE_HUB_CACHE", ""),
    ("HF_HOME", "hub"),
    ("XDG_CACHE_HOME", "huggingface/hub"),
    ("HOME", ".cache/huggingface/hub"),
)


class Cached(msgspec.Struct, frozen=True):
    """A repository at a commit, as the cache holds it; `directory` is the snapshot."""

    repo: str
    revision: str
    directory: Path


def place(env: Mapping[str, str]) -> Path | None:
    """The cache that a process with this environment uses."""
    for name, below in PLACES:
        if env.get(name):
            return Path(os.path.normpath(Path(env[name].replace("~", env.get("HOME", "~"), 1)) / below))
    return None


def by_path(path: Path) -> Cached | None:
    """The repository and commit of a directory that is a snapshot of a cache, by whatever links it is reached."""
    for given in (path, Path(os.path.realpath(path))):
        parts = given.parts
        if len(parts) >= 3 and parts[-2] == "snapshots" and _COMMIT.match(parts[-1]):
            folder = parts[-3]
            if folder.startswith(_FOLDER):
                return Cached(folder.removeprefix(_FOLDER).replace("--", "/"), parts[-1], given)
    return None


def by_name(cache: Path, repo: str, revision: str) -> Cached | None:
    """The commit that a branch, tag or commit of a repository means in the cache; None if it is not there."""
    folder = cache / (_FOLDER + repo.replace("/", "--"))
    commit = revision
    if not _COMMIT.match(revision):
        try:
            commit = (folder / "refs" / revision).read_text().strip()
        except OSError:
            return None
    snapshot = folder / "snapshots" / commit
    return Cached(repo, commit, snapshot) if _COMMIT.match(commit) and snapshot.is_dir() else None


def reference(cached: Cached, revision: str) -> Path:
    """The file that says which commit a branch or tag is."""
    return cached.directory.parent.parent / "refs" / revision
