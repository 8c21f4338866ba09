"""The cache of the Hub that everything on a machine shares: where it lies and what it holds.

Owns its layout. Only reads: huggingface_hub writes there (host/hub.py), and its files are the user's. A name or a
place in the cache is no proof of what a file holds.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

import msgspec

_FOLDER = "models--"
_COMMIT = re.compile(r"[0-9a-f]{40}\Z")


class Cached(msgspec.Struct, frozen=True):
    """A repository at a commit, as a cache holds it; `directory` is the snapshot."""

    repo: str
    revision: str
    directory: Path

    @property
    def cache(self) -> Path:
        return self.directory.parent.parent.parent

    def reference(self, revision: str) -> Path:
        """The file that says which commit a branch or tag is."""
        return self.directory.parent.parent / "refs" / revision


def cache_directory(environ: Mapping[str, str]) -> Path:
    """Where the caller's environment puts the cache; by the rules of huggingface_hub."""
    for name in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"):
        if environ.get(name):
            return _expanded(environ[name])
    if environ.get("HF_HOME"):
        return _expanded(environ["HF_HOME"]) / "hub"
    return _expanded(environ.get("XDG_CACHE_HOME") or "~/.cache") / "huggingface" / "hub"


def cache_of_another(environ: Mapping[str, str]) -> Path:
    """The same for the environment of another process, whose home may be another one."""
    home = environ.get("HOME", "~")
    given = {name: home + value[1:] if value.startswith("~/") else value for name, value in environ.items()}
    return cache_directory(
        {"XDG_CACHE_HOME": f"{home}/.cache", **{name: one for name, one in given.items() if one}}
    )


def by_path(path: Path) -> Cached | None:
    """The repository and commit of a directory that is a snapshot, by whatever links it is reached."""
    for given in (path, Path(os.path.realpath(path))):
        folder, below, commit = given.parts[-3:] if len(given.parts) > 3 else ("", "", "")
        if below == "snapshots" and folder.startswith(_FOLDER) and _COMMIT.match(commit):
            return Cached(folder.removeprefix(_FOLDER).replace("--", "/"), commit, given)
    return None


def by_name(cache: Path, repo: str, revision: str) -> Cached | None:
    """The commit that a branch, tag or commit of a repository means in a cache; None if it is not there."""
    commit = revision
    if not _COMMIT.match(revision):
        try:
            commit = (_repository(cache, repo) / "refs" / revision).read_text().strip()
        except OSError:
            return None
    snapshot = snapshot_directory(cache, repo, commit)
    return Cached(repo, commit, snapshot) if _COMMIT.match(commit) and snapshot.is_dir() else None


def _expanded(text: str) -> Path:
    # Path's own expansion raises where a user has no home.
    return Path(os.path.expandvars(os.path.expanduser(text))).absolute()  # noqa: PTH111


def snapshot_directory(cache: Path, repo: str, revision: str) -> Path:
    """The directory with the files of one commit, by their names."""
    return _repository(cache, repo) / "snapshots" / revision


def find_file(cache: Path, repo: str, revision: str, path: str, sha256: str | None) -> Path | None:
    """The file itself that the cache holds for a path of a commit, links followed; None if there is none.

    Large files lie under their digest, so that those of another commit serve as well.
    """
    candidates = [snapshot_directory(cache, repo, revision) / path]
    if sha256 is not None:
        candidates.append(_repository(cache, repo) / "blobs" / sha256.removeprefix("sha256:"))
    return next((Path(os.path.realpath(found)) for found in candidates if found.is_file()), None)


def _repository(cache: Path, repo: str) -> Path:
    return cache / f"{_FOLDER}{repo.replace('/', '--')}"
