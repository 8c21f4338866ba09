"""Weak evidence of who changed files and when: owners, file times, marks in git's directory.

Owns reading such traces for a person. None of it proves anything; must not judge nor write.
"""

from __future__ import annotations

import os
import pwd
from collections.abc import Collection
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from pinner.host.files import escaped
from pinner.host.git import Git

# What an unfinished operation leaves in git's directory.
_UNFINISHED = {
    "MERGE_HEAD": "merge",
    "rebase-merge": "rebase",
    "rebase-apply": "rebase or `git am`",
    "CHERRY_PICK_HEAD": "cherry-pick",
    "REVERT_HEAD": "revert",
    "BISECT_LOG": "bisect",
}
_SLACK_S = 2.0


def user(uid: int) -> str:
    """A user by name and number."""
    try:
        return f"{pwd.getpwuid(uid).pw_name} (uid {uid})"
    except KeyError:
        return f"uid {uid}"


def written(path: Path) -> str:
    """When a file was changed and whose it is; of one that is gone its nearest directory. "" if not to be told."""
    what = ""
    while True:
        try:
            status = path.lstat()
        except (FileNotFoundError, NotADirectoryError):
            path = path.parent
            what = f"its directory {escaped(path.name)} "
            continue
        except OSError:
            return ""
        break
    times = "file time"
    changed = status.st_mtime
    if status.st_ctime > changed + _SLACK_S:
        times += f"; its content claims {_local(changed)}"
        changed = status.st_ctime
    try:
        owner = pwd.getpwuid(status.st_uid).pw_name
    except KeyError:
        owner = f"uid {status.st_uid}"
    return f"{what}changed {_local(changed)} ({times}), owner {owner}"


class Changed(NamedTuple):
    """How many files changed after a moment, the last of them, and when that was, for a person."""

    files: int
    last: Path
    at: str


def changed_since(root: Path, moment_s: float, *, skip: Collection[str] = ()) -> Changed | None:
    """The files below `root` (or the file itself) whose inode changed after a moment; None if none did.

    By the change time, which no tool sets back; it also moves when a file only gets another mode or link.
    Directories named in `skip` are left out, and symlinks are followed to files only.
    """
    count, last, newest = 0, root, moment_s + _SLACK_S
    pending = [str(root)] if root.is_dir() else []
    files = [] if root.is_dir() else [str(root)]
    while pending:
        try:
            with os.scandir(pending.pop()) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        pending += [entry.path] if entry.name not in skip else []
                    else:
                        files.append(entry.path)
        except OSError:
            continue
    for path in files:
        try:
            changed = os.stat(path).st_ctime  # noqa: PTH116  # many files
        except OSError:
            continue
        if changed > moment_s + _SLACK_S:
            count += 1
            if changed >= newest:
                last, newest = Path(path), changed
    return Changed(count, last, _local(newest)) if count else None


def unfinished(git_dir: Path) -> str:
    """What somebody has begun in a checkout and not finished; "" if nothing."""
    found = [what for name, what in _UNFINISHED.items() if os.path.lexists(git_dir / name)]
    return f"an unfinished {' and '.join(found)} is in the checkout" if found else ""


def hidden(git: Git) -> dict[str, str]:
    """Files whose edits git status does not show, by path, with the mark that hides them."""
    marks = {}
    for record in git.run("ls-files", "-v", "-z", "--full-name", check=False).stdout.split(b"\0"):
        letter, _, path = record.partition(b" ")
        if letter in (b"S", b"s"):
            marks[os.fsdecode(path)] = "skip-worktree, as a sparse checkout does"
        elif letter.islower():
            marks[os.fsdecode(path)] = "assume-unchanged"
    return marks


def _local(seconds: float) -> str:
    """A moment in ISO 8601 to the second, in this machine's time."""
    return datetime.fromtimestamp(int(seconds), UTC).astimezone().isoformat()
