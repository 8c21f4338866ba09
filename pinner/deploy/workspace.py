"""Where a lock's workspace lies and whether it is finished.

Owns a workspace's name, the digest of what went into it, and its marker. Must not build anything.
"""

from __future__ import annotations

import sysconfig
from pathlib import Path
from typing import Any

import msgspec

from pinner.deploy.tomlfile import data_digest
from pinner.host.home import Home
from pinner.host.interpreter import locate
from pinner.model.lock import Lock
from pinner.probes.base import Workspace
from pinner.probes.importing import source_root

# Changes whenever a workspace built by an older pinner could not serve a newer one.
LAYOUT = 2


class Seal(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="kebab", kw_only=True):
    """The marker of a finished workspace: what went in, and the digests of what came out.

    `python` is the full version of the interpreter that it was built with; `env` and `bytecode` are digests of
    the trees that carry these names, where there are such, and `base` that of the interpreter beneath `env`.
    """

    layout: int
    inputs: dict[str, Any]
    python: str
    env: str | None = None
    base: str | None = None
    bytecode: str | None = None


def inputs(lock: Lock, directory: Path) -> dict[str, Any]:
    """All that decides a workspace's bytes. Equal inputs share one workspace."""
    source, python = lock.engine.source, lock.python
    code: dict[str, Any] = {"type": source.type}
    if source.type == "git":
        code |= {"tree": source.patched_tree or source.tree, "subdirectory": source.subdirectory}
        # The version that a built distribution carries names the commit.
        code["commit"] = source.commit
    elif source.type == "path":
        code |= {"path": str(directory / (source.path or "")), "subdirectory": source.subdirectory}
        code |= {"commit": source.commit, "differs": data_digest(source.differs)}
    env: dict[str, Any] = {"version": python.version}
    if python.path is None:
        env["pylock"] = python.pylock
        if python.projects:
            env["projects"] = [project.content for project in python.projects]
    else:
        pins = msgspec.to_builtins([python.distributions, python.loose])
        env |= {"path": str(directory / python.path), "content": data_digest(pins)}
    return {"layout": LAYOUT, "platform": sysconfig.get_platform(), "source": code, "python": env}


def workspace_paths(lock: Lock, directory: Path, home: Home, *, root: Path | None = None) -> Workspace:
    """The places of a lock's workspace, built or not. `root` overrides where it lies, for one being built."""
    digest = data_digest(inputs(lock, directory)).removeprefix("sha256:")
    root = root or home.workspaces / digest[:24]
    source, python = lock.engine.source, lock.python
    env, interpreter = locate(root / "env" if python.path is None else directory / python.path)
    return Workspace(
        root=root,
        tree=root / "tree" if source.type == "git" else None,
        checkout=directory / source.path if source.type == "path" and source.path else None,
        env=env,
        python=interpreter,
        seal=root / "seal.json",
        import_path=source_root(source, directory) if source.import_path else None,
    )


def find_workspace(lock: Lock, directory: Path, home: Home) -> Workspace | None:
    """The finished workspace of a lock, or None."""
    workspace = workspace_paths(lock, directory, home)
    return workspace if read_seal(workspace) is not None else None


def read_seal(workspace: Workspace) -> Seal | None:
    """The marker of a workspace; None where it is missing or of another layout: then nothing counts as built."""
    try:
        seal = msgspec.json.decode(workspace.seal.read_bytes(), type=Seal)
    except (OSError, msgspec.DecodeError):
        return None
    return seal if seal.layout == LAYOUT else None


def is_in_place(lock: Lock) -> bool:
    """Whether some of the code that runs lies in directories of the user."""
    return lock.engine.source.type == "path" or lock.python.path is not None
