"""Where libraries may come from, and which ones a deployment's environment ships.

Owns sorting a path into one of these places. Must not judge.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator, Mapping
from enum import StrEnum
from functools import cached_property
from pathlib import Path

import msgspec

from pinner.engines import engine_for
from pinner.host import linker
from pinner.host.elf import Elf, read_elf
from pinner.probes.base import Scene, Workspace

LIBRARY = re.compile(r"[^/]*\.so(\.[^/]*)?")
# What TorchInductor compiles goes there unless told otherwise, and carries no other mark.
_COMPILED = re.compile(r"/torchinductor_[^/]+/")
# Directories that hold nothing but content under the name of its digest.
_STORES = ("/nix/store", "/gnu/store")
_NO_LIBRARIES = ("__pycache__", ".git")


class Place(StrEnum):
    """Where a library lies.

    `environment`: packages and engine, pinned by content; `listed`: pinned by the lock's `env.files`; `made`: by
    the engine, in its caches; `base`: beside the interpreter; `system`: where the linker looks without being told.
    """

    ENVIRONMENT = "environment"
    LISTED = "listed"
    MADE = "made"
    SYSTEM = "system"
    BASE = "base"
    OUTSIDE = "outside"


class Shipped(msgspec.Struct, frozen=True):
    """One shared object of the environment."""

    path: str
    elf: Elf


class Places:
    """The places of one deployment on this machine."""

    def __init__(self, scene: Scene, workspace: Workspace, variables: Mapping[str, str]) -> None:
        """`variables` are those of the engine: caches may lie where they say."""
        self._environment = tuple(dict.fromkeys(_real(path) for path in _roots(scene, workspace)))
        self._listed = frozenset(_real(Path(path)) for path in scene.lock.env.files)
        known = engine_for(scene.lock.engine.kind).CACHES
        names = [name for name in variables if name in known or "CACHE" in name]
        caches = [variables[name] for name in names if variables[name].startswith("/")]
        self._made = (_real(workspace.root), *(_real(Path(path)) for path in caches))
        prefix = Path(_real(workspace.python)).parent.parent
        self._base = (_real(prefix / "lib"), _real(prefix / "lib64"))
        found = linker.system_directories(scene.etc)
        self._system = tuple(dict.fromkeys((*found, *(_real(Path(path)) for path in found), *_STORES)))

    def place(self, path: str) -> Place:
        """Where a file that is mapped lies; its path is without symlinks, as the kernel tells it."""
        if _is_below(path, self._environment):
            return Place.ENVIRONMENT
        if path in self._listed:
            return Place.LISTED
        if _is_below(path, self._made) or _COMPILED.search(path):
            return Place.MADE
        packages = "/site-packages/" in path or "/dist-packages/" in path
        if _is_below(path, self._system) and not packages:
            return Place.SYSTEM
        if _is_below(path, self._base) and not packages:
            return Place.BASE
        # An installer may have made symlinks to files elsewhere.
        return Place.ENVIRONMENT if path in self._links else Place.OUTSIDE

    @cached_property
    def shipped(self) -> dict[str, list[Shipped]]:
        """The environment's shared objects by SONAME, or by file name where they have none."""
        found: dict[str, list[Shipped]] = {}
        for root in self._environment:
            for path in _libraries(root):
                elf = read_elf(path)
                if isinstance(elf, Elf):
                    found.setdefault(elf.soname or path.rpartition("/")[2], []).append(Shipped(path, elf))
        return found

    @cached_property
    def _links(self) -> frozenset[str]:
        return frozenset(_real(Path(one.path)) for group in self.shipped.values() for one in group)


def _roots(scene: Scene, workspace: Workspace) -> Iterator[Path]:
    python = scene.lock.python
    if workspace.tree is not None:
        yield workspace.tree
    if workspace.checkout is not None:
        yield workspace.checkout
    for path in (*python.site_packages, *python.linked):
        yield scene.directory / path
    # The prefix of a system's Python is the system.
    if any((workspace.env / mark).exists() for mark in ("pyvenv.cfg", "conda-meta")):
        yield workspace.env


def _libraries(root: str) -> list[str]:
    """Every file below a directory that is named as a library; in half the time that os.walk takes."""
    found: list[str] = []
    todo = [root]
    while todo:
        with contextlib.suppress(OSError), os.scandir(todo.pop()) as entries:
            for entry in entries:
                if ".so" in entry.name and LIBRARY.fullmatch(entry.name) and entry.is_file():
                    found.append(entry.path)
                elif entry.name not in _NO_LIBRARIES and entry.is_dir(follow_symlinks=False):
                    todo.append(entry.path)
    return sorted(found)


def _real(path: Path) -> str:
    return os.path.realpath(path)


def _is_below(path: str, roots: tuple[str, ...]) -> bool:
    return any(path == root or path.startswith(f"{root}/") for root in roots)
