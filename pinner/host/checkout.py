"""A checkout in place: where it is, and how it came to be there.

Owns reading somebody's working checkout: HEAD, its tree, the reflog. Must not write into it, not even an
index refresh, and must not fetch.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from pathlib import Path

import msgspec

from pinner.errors import CommandFailed, UnknownFact
from pinner.host import git, history, traces
from pinner.host.git import Git, Move
from pinner.host.history import SHORT, CommitInfo
from pinner.host.process import Completed

# How much of a long story is told; its ends matter most.
_MOST_MOVES = 8
_MOST_COMMITS = 20
_PLACES = ("--show-toplevel", "--git-dir", "--git-common-dir")


class CheckoutMissing(UnknownFact):
    """There is no directory where the checkout should be."""


class CheckoutState(msgspec.Struct, frozen=True, kw_only=True):
    """A checkout now. `branch` is None for a detached HEAD; `git` reads it as its owner allowed."""

    toplevel: Path
    git_dir: Path
    common_dir: Path
    head: str
    tree: str
    branch: str | None
    git: Git


class Story(msgspec.Struct, frozen=True, kw_only=True):
    """How HEAD came from the pinned commit to where it is.

    `moves` are the reflog's entries since HEAD was last there, oldest first; `came` the commits that HEAD has
    and the pinned one lacks, `went` the reverse, newest first; `notes` what could not be told.
    """

    pinned: str
    head: str
    moves: tuple[Move, ...] = ()
    came: tuple[CommitInfo, ...] = ()
    went: tuple[CommitInfo, ...] = ()
    notes: tuple[str, ...] = ()

    def lines(self, hot_paths: Sequence[str] = ()) -> tuple[str, ...]:
        """The story for a person; commits that touch `hot_paths` (files or directories) are marked."""
        lines = [
            f"HEAD {_from(move.old)} {move.new[:SHORT]} by `{move.action}` at {move.when} "
            f"by {move.who} (as far as the reflog knows)"
            for move in self.moves
        ]
        if len(lines) > _MOST_MOVES:
            half = _MOST_MOVES // 2
            lines[half:-half] = [f"… and {len(lines) - 2 * half} moves between"]
        lines += _commit_lines("came in", self.came, hot_paths)
        lines += _commit_lines("went away", self.went, hot_paths)
        return (*lines, *self.notes)


def is_suspect(commit: CommitInfo, hot_paths: Sequence[str]) -> bool:
    """Whether a commit changed one of the hot paths or something below one."""
    hot = [path.strip("/") for path in hot_paths]
    return any(path == prefix or path.startswith(f"{prefix}/") for path in commit.paths for prefix in hot)


def inspect(path: Path) -> CheckoutState:
    """What the checkout whose top is `path` is at. Nothing is written in it.

    Raises CheckoutMissing if there is no such directory, and UnknownFact, each with its own words, if it is
    no repository, belongs to somebody else so that git refuses, or has no commit yet.
    """
    if not path.is_dir():
        raise CheckoutMissing(f"there is no directory {path}")
    runner = Git.checkout(path)
    answer = _look(runner, path)
    if answer.code != 0 and "dubious ownership" in git.error_text(answer):
        # What the user told git to trust, this program may read too; nothing is added to it.
        runner = Git.checkout(path, _safe_directories())
        answer = _look(runner, path)
    if answer.code != 0:
        raise _refusal(runner, path, git.error_text(answer))
    *places, head, tree, reference = os.fsdecode(answer.stdout).removesuffix("\n").split("\n")
    if len(places) != len(_PLACES):
        # A directory's name holds a line break.
        places = [os.fsdecode(_ask(runner, path, place).stdout).removesuffix("\n") for place in _PLACES]
    toplevel, git_dir, common_dir = places
    if not Path(toplevel).samefile(path):
        raise UnknownFact(f"{path} is not the top of its checkout, which is {toplevel}")
    return CheckoutState(
        toplevel=Path(toplevel),
        git_dir=Path(git_dir),
        common_dir=Path(common_dir),
        head=head,
        tree=tree,
        branch=reference.removeprefix("refs/heads/") if reference.startswith("refs/heads/") else None,
        git=runner,
    )


def find(path: Path) -> CheckoutState | None:
    """The checkout that a file or directory lies in, if it can be told."""
    for parent in (path, *path.parents):
        if (parent / "pyvenv.cfg").exists():
            return None  # an environment inside a checkout is no part of it
        if (parent / ".git").exists():
            try:
                return inspect(parent)
            except UnknownFact:
                return None
    return None


def named(state: CheckoutState, wish: str) -> tuple[str, str] | None:
    """(commit, tree) that a branch, tag, remote branch, full name or commit id means in the checkout.

    None if it is nothing there. Raises UnknownFact if it is more than one thing.
    """
    if git.FULL_ID.match(wish):
        return history.peel(state.git, wish)
    names = [wish] if wish.startswith("refs/") else [f"refs/{kind}/{wish}" for kind in ("heads", "tags")]
    names += history.commits_beginning(state.git, wish)
    found = {name: peeled for name in names if (peeled := history.peel(state.git, name)) is not None}
    if not found and (remote := history.peel(state.git, f"refs/remotes/{wish}")) is not None:
        return remote
    if len(set(found.values())) > 1:
        raise UnknownFact(f"{wish!r} is more than one thing in {state.toplevel}: {', '.join(found)}")
    return next(iter(found.values()), None)


def story(state: CheckoutState, pinned: str) -> Story:
    """How HEAD came from the pinned commit to where it is now; see `Story`."""
    moves, notes = _moves_since(state, pinned)
    came: tuple[CommitInfo, ...] = ()
    went: tuple[CommitInfo, ...] = ()
    if history.peel(state.git, pinned) is None:
        notes.append(f"the checkout does not hold the pinned commit {pinned}; the commits between cannot be told")
    else:
        try:
            came, went = (
                history.log(state.git, pinned, state.head),
                history.log(state.git, state.head, pinned),
            )
        except CommandFailed as error:
            notes.append(f"the commits between cannot be told: {error.stderr}")
        if came and went:
            notes.append("the pinned commit is not an ancestor of HEAD: the histories have diverged")
        if (state.common_dir / "shallow").exists():
            notes.append("the checkout is shallow: commits beyond its boundary are not listed")
    return Story(pinned=pinned, head=state.head, moves=moves, came=came, went=went, notes=tuple(notes))


def story_between(state: CheckoutState, old: str, new: str) -> Story:
    """The same between two commits that the checkout holds, wherever HEAD is now.

    The moves are those that led to `new` when HEAD was last there; none where the reflog knows of none.
    """
    try:
        entries = git.reflog(state.git_dir / "logs" / "HEAD")
    except OSError:
        entries = ()
    return Story(
        pinned=old,
        head=new,
        moves=_moves_between(entries, old, new),
        came=history.log(state.git, old, new),
        went=history.log(state.git, new, old),
    )


def _moves_between(entries: Sequence[Move], old: str, new: str) -> tuple[Move, ...]:
    end = max((at for at, entry in enumerate(entries) if entry.new == new and entry.old != new), default=None)
    if end is None:
        return ()
    start = max((at for at, entry in enumerate(entries[: end + 1]) if entry.old == old), default=end)
    return tuple(entries[start : end + 1])


def _moves_since(state: CheckoutState, pinned: str) -> tuple[tuple[Move, ...], list[str]]:
    """The reflog's entries since HEAD was last at `pinned`, oldest first, and what it does not know."""
    try:
        entries = git.reflog(state.git_dir / "logs" / "HEAD")
    except FileNotFoundError:
        entries = ()
    except OSError as error:
        return (), [f"the reflog cannot be read: {error.strerror}", _last_writer(state)]
    if not entries:
        return (), ["the checkout has no reflog for HEAD, so who moved it is not known", _last_writer(state)]
    notes = []
    start = max((at for at, entry in enumerate(entries) if pinned in (entry.old, entry.new)), default=None)
    if start is None:
        moves = entries[-1:]
        notes.append("the reflog does not go back to the pinned commit; its last entry is shown")
    else:
        moves = entries[start + 1 :] if entries[start].new == pinned else entries[start:]
    if entries[-1].new != state.head:
        notes.append(f"HEAD went to {state.head[:SHORT]} without a reflog entry")
        notes.append(_last_writer(state))
    return moves, notes


def _last_writer(state: CheckoutState) -> str:
    """Weak evidence: who wrote HEAD or the branch last, by the file's owner and time."""
    candidates = [state.git_dir / "HEAD", state.common_dir / "packed-refs"]
    if state.branch is not None:
        candidates.append(state.common_dir / "refs" / "heads" / state.branch)
    newest, at = None, -1.0
    for candidate in candidates:
        with contextlib.suppress(OSError):
            if (written := candidate.stat().st_mtime) > at:
                newest, at = candidate, written
    if newest is None:
        return "no file tells when HEAD was last written"
    who = traces.user(newest.stat().st_uid)
    return f"{newest} was last written at {git.iso_time(at)} by {who} (file owner and time)"


def _from(old: str) -> str:
    return "began at" if old.strip("0") == "" else f"moved from {old[:SHORT]} to"


def _commit_lines(what: str, commits: Sequence[CommitInfo], hot_paths: Sequence[str]) -> list[str]:
    if not commits:
        return []
    suspects = {commit.sha for commit in commits if is_suspect(commit, hot_paths)}
    count = f"{len(commits)} commit{'s' if len(commits) > 1 else ''} {what}"
    if suspects:
        count += f", {len(suspects)} of them on a hot path"
    # A long list is cut, but never a suspect.
    shown = [commit for at, commit in enumerate(commits) if at < _MOST_COMMITS or commit.sha in suspects]
    lines = [f"  {commit.line}{'  ← suspect' if commit.sha in suspects else ''}" for commit in shown]
    if len(shown) < len(commits):
        lines.append(f"  … and {len(commits) - len(shown)} more")
    return [f"{count}:", *lines]


def _look(runner: Git, path: Path) -> Completed:
    return _ask(runner, path, *_PLACES, "HEAD^{commit}", "HEAD^{tree}", "--symbolic-full-name", "HEAD")


def _ask(runner: Git, path: Path, *questions: str) -> Completed:
    # A repository further up, such as a home directory under git, says nothing about this directory.
    env = {"GIT_CEILING_DIRECTORIES": str(path.resolve().parent)}
    return runner.run("rev-parse", "--path-format=absolute", *questions, env=env, check=False)


def _refusal(runner: Git, path: Path, said: str) -> UnknownFact:
    """Why git would not tell, in words that name the reason."""
    if "dubious ownership" in said:
        owner = path.stat().st_uid
        return UnknownFact(
            f"git refuses the checkout {path} for its ownership: the directory belongs to {traces.user(owner)}, "
            f"and this process runs as {traces.user(os.geteuid())}",
            hint=f"run as its owner, or: git config --global --add safe.directory {path}",
        )
    if "not a git repository" in said:
        return UnknownFact(f"{path} is not a git repository")
    if "must be run in a work tree" in said:
        return UnknownFact(f"{path} is a bare repository, not a checkout")
    env = {"GIT_CEILING_DIRECTORIES": str(path.resolve().parent)}
    if runner.run("rev-parse", "--git-dir", env=env, check=False).code == 0:
        unborn = runner.run("symbolic-ref", "--quiet", "HEAD", env=env, check=False).code == 0
        if unborn and runner.run("rev-parse", "--verify", "--quiet", "HEAD", env=env, check=False).code != 0:
            return UnknownFact(f"the checkout {path} has no commit yet")
    return UnknownFact(f"git cannot read the checkout {path}: {said}")


def _safe_directories() -> tuple[str, ...]:
    """The safe.directory values of the user's own global configuration."""
    home = Path(os.environ.get("HOME") or Path.home())
    xdg = Path(os.environ.get("XDG_CONFIG_HOME") or home / ".config")
    values: list[str] = []
    for config in (xdg / "git" / "config", home / ".gitconfig"):
        if config.is_file():
            found = Git(()).run(
                "config",
                "--file",
                str(config),
                "--includes",
                "-z",
                "--get-all",
                "safe.directory",
                check=False,
            )
            values += [os.fsdecode(value) for value in found.stdout.split(b"\0")[:-1]]
    # An empty value clears what came before it; git does that itself, in the order given. `~` means the home.
    return tuple(str(home / value[2:]) if value.startswith("~/") else value for value in values)
