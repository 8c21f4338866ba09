"""A checkout in place that has moved since: what was measured is still in its repository, and comes from there.

Owns rewriting a rebuilt manifest and lock, in the directory made for them, from `source.path` to `source.git`.
Must not touch the checkout.
"""

from __future__ import annotations

from pathlib import Path

import msgspec
import tomlkit

from pinner.deploy.load import load_manifest
from pinner.deploy.lockfile import render_lock
from pinner.errors import PinnerError
from pinner.host import checkout, history
from pinner.host.files import write_atomic
from pinner.host.history import SHORT
from pinner.model.lock import Lock, SourcePin


def from_objects(manifest: Path, lock: Lock) -> list[str]:
    """Take the pinned commit out of the repository of a checkout that is not at it any more.

    Returns what is worth knowing of it; nothing where the checkout is as it was, or where that cannot be: then the
    check says what differs.
    """
    source = lock.engine.source
    is_whole = not source.differs and not lock.engine.patches
    # An environment in place imports the checkout itself.
    if source.path is None or source.commit is None or not is_whole or lock.python.path is not None:
        return []
    try:
        state = checkout.inspect(manifest.parent / source.path)
        if state.head == source.commit or history.peel(state.git, source.commit) is None:
            return []
    except PinnerError:
        return []
    document = tomlkit.parse(manifest.read_text())
    table = tomlkit.inline_table()
    table.update({"git": source.path, "commit": source.commit})
    if source.subdirectory:
        table["subdirectory"] = source.subdirectory
    document["engine"]["source"] = table
    write_atomic(manifest, tomlkit.dumps(document).encode())
    pin = SourcePin(
        type="git",
        url=source.path,
        wish=source.commit,
        commit=source.commit,
        tree=source.tree,
        subdirectory=source.subdirectory,
    )
    deployment = load_manifest(manifest)
    moved = msgspec.structs.replace(
        lock, manifest=deployment.digest, engine=msgspec.structs.replace(lock.engine, source=pin)
    )
    write_atomic(deployment.lock_path, render_lock(moved).encode())
    return [
        f"the checkout {source.path} has moved to {state.head[:SHORT]}: {source.commit[:SHORT]} is taken out of "
        "its repository, and runs from a tree of pinner's own"
    ]
