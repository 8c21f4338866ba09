"""What a checkout in place holds beyond its commit, as a patch.

Owns making the patch from the files' own bytes: no filter, no attribute and no index of the user has a say. All
that is written goes to a temporary directory; the checkout and its repository stay as they are.
"""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Mapping
from pathlib import Path

from pinner.errors import OperationFailed
from pinner.host.checkout import CheckoutState

_DELETED = "deleted"
_SUBMODULE = "160000"


def patch(state: CheckoutState, tree: str, differs: Mapping[str, str]) -> bytes:
    """The patch from `tree` to the files of the checkout that differ from it, binary ones included.

    `differs` gives "<mode> <blob id>" or "deleted" by path; submodules are left out. OperationFailed if a file
    is not what `differs` says any more.
    """
    with tempfile.TemporaryDirectory(prefix="pinner-edits-") as name:
        objects = Path(name) / "objects"
        objects.mkdir()
        env = {
            "GIT_INDEX_FILE": f"{name}/index",
            "GIT_OBJECT_DIRECTORY": str(objects),
            "GIT_ALTERNATE_OBJECT_DIRECTORIES": _quoted(state.common_dir / "objects"),
        }
        state.git.run("read-tree", tree, env=env)
        lines = []
        for path, entry in differs.items():
            mode, _, blob = entry.partition(" ")
            if mode == _SUBMODULE:
                continue
            if entry == _DELETED:
                lines.append(b"0 " + b"0" * 40 + b"\t" + os.fsencode(path))
                continue
            _store(state, path, blob, env)
            lines.append(f"{mode} {blob}\t".encode() + os.fsencode(path))
        state.git.run("update-index", "-z", "--index-info", env=env, input=b"".join(one + b"\0" for one in lines))
        return state.git.run(
            *("diff-index", "--cached", "--binary", "--full-index", "--no-renames", "--no-ext-diff"),
            *("--no-textconv", tree),
            env=env,
        ).stdout


def _store(state: CheckoutState, path: str, blob: str, env: Mapping[str, str]) -> None:
    place = state.toplevel / path
    try:
        is_link = stat.S_ISLNK(place.lstat().st_mode)
        data = os.fsencode(place.readlink()) if is_link else place.read_bytes()
    except OSError as error:
        raise OperationFailed(f"cannot read {place}: {error.strerror}") from None
    stored = state.git.run("hash-object", "-w", "--stdin", "--no-filters", env=env, input=data)
    if stored.stdout.decode().strip() != blob:
        raise OperationFailed(f"{place} was changed while it was read", hint="run it again")


def _quoted(path: Path) -> str:
    """One entry of a list that git splits at colons."""
    text = str(path)
    if ":" not in text and not text.startswith('"'):
        return text
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
