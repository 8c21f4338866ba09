"""A user's own project directory, from which a wheel is built: which of its files count, their digest, a copy.

Owns what is source and what a build or an editor has left behind. Must not build anything.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path

from pinner.errors import OperationFailed
from pinner.host.snapshot import tree_digest

# Left by builds; deeper down these may be names of packages.
_BUILDS = frozenset({"build", "dist"})


def project_digest(root: Path) -> str:
    """`sha256:<hex>` over path, executable bit and bytes of every source file. OperationFailed if one is none."""
    return tree_digest({path: _entry(root / path) for path in _files(root)})


def project_sources(root: Path) -> dict[str, Path] | None:
    """Every source file by its path below `root`; None where their bytes alone are not all, as for programs."""
    found = {path: root / path for path in _files(root)}
    return None if any(path.stat().st_mode & stat.S_IXUSR for path in found.values()) else found


def copy_project(root: Path, destination: Path) -> str:
    """Copy the source files, and nothing else, to a new directory; returns the digest of the copy."""
    destination.mkdir(parents=True)
    for path in _files(root):
        target = destination / path
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(root / path, target)
        target.chmod(target.stat().st_mode | stat.S_IWUSR)
    return project_digest(destination)


def _files(root: Path) -> Iterator[str]:
    """Every source file, by its path below `root`."""
    for directory, subdirectories, names in os.walk(root, onerror=_refuse):
        is_top = Path(directory) == root
        subdirectories[:] = [name for name in subdirectories if _counts(name, is_top=is_top)]
        for name in (*names, *subdirectories):
            path = Path(directory, name)
            below = path.relative_to(root).as_posix()
            if path.is_symlink():
                raise OperationFailed(f"{path} is a symlink, and what it leads to cannot be pinned")
            if name in names and not name.startswith("."):
                yield below


def _counts(directory: str, *, is_top: bool) -> bool:
    if directory.startswith(".") or directory == "__pycache__" or directory.endswith(".egg-info"):
        return False
    return not (is_top and directory in _BUILDS)


def _entry(path: Path) -> str:
    try:
        mode = path.stat().st_mode
        if not stat.S_ISREG(mode):
            raise OperationFailed(f"{path} is no regular file")
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        raise _unreadable(error) from None
    return f"{'100755' if mode & stat.S_IXUSR else '100644'} sha256:{digest}"


def _unreadable(error: OSError) -> OperationFailed:
    return OperationFailed(f"cannot read {error.filename}: {error.strerror}")


def _refuse(error: OSError) -> None:
    raise _unreadable(error)
