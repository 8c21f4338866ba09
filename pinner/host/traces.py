"""Weak evidence of who changed files and when: owners, file times, marks in git's directory.

Owns reading such traces for a person. None of it proves anything; must not judge nor write.
"""

from __future__ import annotations

import os
import pwd
from datetime import UTC, datetime
from pathlib import Path

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
