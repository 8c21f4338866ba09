"""What a repository's objects say: the files of a tree, and the commits between two points.

Owns reading trees and commits through a `Git`. Must not fetch, write or look at a working tree.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping
from typing import Any

import msgspec

from pinner.errors import CommandFailed
from pinner.host.git import Git, error_text, printable

SHORT = 10

_FORMAT = "%x01%H%x00%cI%x00%an%x00%s"
_RECORD = re.compile(r"\x01(?=[0-9a-f]{40,64}\0[0-9T:+Z-]{19,26}\0)")


class CommitInfo(msgspec.Struct, frozen=True):
    """A commit; `paths` are the files it changed against its first parent."""

    sha: str
    date: str
    author: str
    subject: str
    paths: tuple[str, ...] = ()

    @property
    def line(self) -> str:
        """The commit in one line for a person."""
        return f"{self.sha[:SHORT]} {self.date[:10]} {self.subject}"


def tree_entries(git: Git, tree: str) -> dict[str, str]:
    """Every file of a commit or tree: path to "<mode> <blob id>". Submodules have mode 160000.

    Raises CommandFailed if the repository does not have it.
    """
    entries = {}
    for record in git.run("ls-tree", "-r", "-z", "--full-tree", tree).stdout.split(b"\0"):
        if record:
            head, _, path = record.partition(b"\t")
            mode, _, blob = head.decode().split(" ")
            entries[os.fsdecode(path)] = f"{mode} {blob}"
    return entries


def tree_id(entries: Mapping[str, str]) -> str:
    """The id that git gives to a tree of these entries (all of them: empty directories do not exist in git)."""
    root: dict[bytes, Any] = {}
    for path, entry in entries.items():
        *parents, name = os.fsencode(path).split(b"/")
        level = root
        for parent in parents:
            level = level.setdefault(parent, {})
        level[name] = entry
    return _hashed(root).hex()


def _hashed(level: dict[bytes, Any]) -> bytes:
    rows = []
    for name, entry in level.items():
        if isinstance(entry, dict):
            # Git sorts a directory as if its name ended with a slash.
            rows.append((name + b"/", b"40000 " + name + b"\0" + _hashed(entry)))
        else:
            mode, _, blob = entry.partition(" ")
            rows.append((name, mode.encode() + b" " + name + b"\0" + bytes.fromhex(blob)))
    data = b"".join(row for _, row in sorted(rows))
    return hashlib.sha1(b"tree %d\0" % len(data) + data, usedforsecurity=False).digest()


def peel(git: Git, name: str) -> tuple[str, str] | None:
    """(commit, tree) that a full id or full reference name leads to; None if the repository lacks it."""
    rows = _asked(git, f"{name}^{{commit}}", f"{name}^{{tree}}")
    ids = [row[0] for row in rows if len(row) == 3 and row[1] in ("commit", "tree")]
    return (ids[0], ids[1]) if len(ids) == 2 else None


def kind(git: Git, name: str) -> str | None:
    """What kind of object an id names; None if the repository lacks it."""
    rows = _asked(git, name)
    return rows[0][1] if rows and len(rows[0]) == 3 else None


def _asked(git: Git, *names: str) -> list[list[str]]:
    """The rows "<id> <kind> <size>" of `git cat-file`, another row for what is missing."""
    question = "".join(f"{name}\n" for name in names).encode()
    answer = git.run("cat-file", "--batch-check", input=question, check=False)
    # A partial repository would fetch what it lacks, which is off, and gives up instead.
    if answer.code != 0 and b"from promisor remote" not in answer.stderr:
        raise CommandFailed(("git", "cat-file"), answer.code, error_text(answer))
    return [line.split() for line in answer.stdout.decode("utf-8", "replace").splitlines()]


def commits_beginning(git: Git, prefix: str) -> list[str]:
    """Full ids of the commits (or of tags that lead to one) that begin with a short id."""
    if re.fullmatch(r"[0-9a-f]{4,39}", prefix) is None:
        return []
    ids = git.text("rev-parse", f"--disambiguate={prefix}").split()
    peeled = (peel(git, found) for found in ids)
    return sorted({found[0] for found in peeled if found is not None})


def log(git: Git, old: str, new: str) -> tuple[CommitInfo, ...]:
    """The commits of `new` that `old` does not have, newest first. Raises CommandFailed if one is missing."""
    return _commits(git, f"{old}..{new}")


def commit_info(git: Git, commit: str) -> CommitInfo:
    """One commit. Raises CommandFailed if it is missing."""
    return _commits(git, "--max-count=1", commit)[0]


def _commits(git: Git, *which: str) -> tuple[CommitInfo, ...]:
    output = git.run(
        "log",
        f"--format={_FORMAT}",
        "-z",
        "--name-only",
        # A merge changed what it brought to the branch that was pulled into.
        "--diff-merges=first-parent",
        "--no-renames",
        "--no-ext-diff",
        "--no-textconv",
        "--no-show-signature",
        "--no-mailmap",
        "--no-color",
        "--no-follow",
        "--encoding=UTF-8",
        *which,
        "--",
    ).stdout.decode("utf-8", "replace")
    return tuple(_parsed(record) for record in _RECORD.split(output) if record)


def _parsed(record: str) -> CommitInfo:
    # Padded: what a hostile subject makes of the record must not become an error.
    sha, date, author, rest = (record.split("\0", 3) + [""] * 3)[:4]
    # With names the subject is followed by NUL and a line end, without by NUL alone.
    subject, _, names = rest.partition("\0")
    paths = tuple(name for name in names.removeprefix("\n").split("\0") if name)
    return CommitInfo(sha, date, printable(author), printable(subject), paths)
