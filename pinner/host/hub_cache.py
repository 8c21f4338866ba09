"""The cache of the Hub that everything on a machine shares: where it lies and what it holds.

Owns its layout. Only reads: huggingface_hub writes there (host/hub.py), and its files are the user's. A name or a
place in the cache is no proof of what a file holds.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path


def cache_directory(environ: Mapping[str, str]) -> Path:
    """Where the caller's environment puts the cache; by the rules of huggingface_hub."""
    for name in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"):
        if environ.get(name):
            return _expanded(environ[name])
    if environ.get("HF_HOME"):
        return _expanded(environ["HF_HOME"]) / "hub"
    return _expanded(environ.get("XDG_CACHE_HOME") or "~/.cache") / "huggingface" / "hub"


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
    return cache / f"models--{repo.replace('/', '--')}"
