"""One fetch into a bare repository, what its failure means, and what a killed one leaves behind.

Owns how git is asked for objects and the removal of leftovers. Must not know which mirror is for what.
"""

from __future__ import annotations

import contextlib
import math
import re
import time
from pathlib import Path

from pinner.errors import CommandFailed, ManifestError, OperationFailed
from pinner.host import files, git
from pinner.host.git import Git
from pinner.host.process import Completed, Watch
from pinner.host.progress import GitMeter, current

_STALE_S = 3.0


def into(path: Path, *args: str, input: bytes | None = None) -> Completed:
    return Git.bare(path).run(
        "fetch",
        "--progress",
        "--force",
        "--no-tags",
        "--no-write-fetch-head",
        "--no-recurse-submodules",
        *(arg for arg in args if arg.startswith("--")),
        "origin",
        *(arg for arg in args if not arg.startswith("--")),
        input=input,
        check=False,
        transport=True,
        watch=Watch(GitMeter(current())),
    )


def refuse_shallow(url: str, fetched: Completed | None = None) -> None:
    """Raise ManifestError for a remote whose history is cut off: a mirror of it would end there without a word.

    A repository of this machine shows it before a fetch, another one by the references that git then leaves out.
    """
    path = url.removeprefix("file://")
    if fetched is not None:
        said = git.error_text(fetched)
        is_shallow = "shallow update not allowed" in said or "shallow roots are not allowed" in said
    else:
        env = {"GIT_CEILING_DIRECTORIES": str(Path(path).parent)}
        is_shallow = Path(path).is_dir() and (
            Git(("-C", path)).run("rev-parse", "--is-shallow-repository", env=env, check=False).stdout == b"true\n"
        )
    if is_shallow:
        shown = git.without_password(url)
        where = f"git -C {path} fetch --unshallow" if path.startswith("/") else "git fetch --unshallow"
        raise ManifestError(
            f"engine.source.git: {shown} is a shallow clone: its history is cut off, and pinner needs all of it",
            hint=f"run `{where}`, or name the repository that it was cloned from",
        )


def error(url: str, completed: Completed) -> OperationFailed:
    """A failed fetch in pinner's words, with what git said."""
    said = git.error_text(completed)
    shown = git.without_password(url)
    if "dubious ownership" in said:
        return OperationFailed(
            f"git refuses {shown}: its ownership is dubious, it belongs to another user",
            hint="fetch it as its owner, or from a copy of your own",
        )
    if "hash algorithm" in said or "mismatched algorithms" in said:
        return OperationFailed(f"{shown} uses SHA-256 object ids, which pinner does not read")
    if re.search(r"^error: object [0-9a-f]+: ", said, re.MULTILINE):
        return OperationFailed(f"{shown} holds objects that git refuses as harmful:\n{said[-1500:]}")
    if not said:
        said = str(CommandFailed(("git", "fetch"), completed.code, ""))
    return OperationFailed(f"cannot fetch {shown}:\n{said[-1500:]}")


def remove_leftovers(path: Path) -> None:
    """Remove what a killed call left; the caller holds the mirror's lock, so no other pinner is writing.

    The git of a killed pinner may still be: it holds lock files for moments only, so young ones get that long.
    """
    for pattern in ("*.lock", "refs/**/*.lock", "packed-refs.new"):
        for left in path.glob(pattern):
            while _age_s(left) < _STALE_S:
                time.sleep(0.05)
            remove(left)
    for pattern in ("objects/pack/tmp_*", "objects/tmp_*", "objects/*/tmp_obj_*"):
        for left in path.glob(pattern):
            remove(left)


def _age_s(path: Path) -> float:
    """Seconds since a file was written; endless for one that is gone, or whose time lies in the future."""
    try:
        age = time.time() - path.lstat().st_mtime
    except OSError:
        return math.inf
    return age if age >= 0 else math.inf


def remove(path: Path) -> None:
    with contextlib.suppress(OSError):
        if path.is_dir() and not path.is_symlink():
            files.remove_tree(path)
        else:
            path.unlink(missing_ok=True)
