"""The commits between two pinned sources, marked by the paths that they touch, and who moved the checkout between.

Owns finding a repository on this machine that has both commits: pinner's mirror, or a checkout in place. Must not
use the network.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from pinner.engines import ENGINES
from pinner.errors import PinnerError
from pinner.explain.sides import Side
from pinner.host import checkout, git, history, mirror
from pinner.host.checkout import CheckoutState, Story
from pinner.host.git import Git, Move
from pinner.host.history import SHORT, CommitInfo
from pinner.host.home import Home
from pinner.model.lock import Lock


class Between(msgspec.Struct, frozen=True, kw_only=True):
    """What lies between two commits: lines for a person, and what the one-line answer is made of."""

    old: str
    new: str
    lines: tuple[str, ...] = ()
    moves: tuple[Move, ...] = ()
    suspects: tuple[CommitInfo, ...] = ()
    same_tree: bool = False

    @property
    def sentence(self) -> str:
        """`source moved bba2fc4 → 3207427 by `pull` at …; suspects 0be30d4 …`."""
        text = f"source moved {self.old[:SHORT]} → {self.new[:SHORT]}"
        if self.moves:
            last = self.moves[-1]
            text += f" by `{last.action}` at {last.when} by {last.who}"
        if self.suspects:
            named = ", ".join(f"{one.sha[:SHORT]} {one.subject}" for one in self.suspects[:2])
            more = len(self.suspects) - 2
            text += f"; {'suspect' if len(self.suspects) == 1 else 'suspects'} {named}"
            text += f" and {more} more" if more > 0 else ""
        return text


def between(a: Side, b: Side, home: Home) -> Between | None:
    """What lies between the commits of two sides; None where there are none, or they are the same."""
    if a.lock is None or b.lock is None:
        return None
    old, new = a.commit, b.commit
    if old is None or new is None or old == new:
        return None
    found = Between(old=old, new=new)
    for runner, state in _repositories((a, b), home):
        if history.peel(runner, old) is not None and history.peel(runner, new) is not None:
            return _told(found, runner, state, _hot_paths(a.lock, b.lock))
    why = "no mirror or checkout on this machine has both: the commits between cannot be told"
    return msgspec.structs.replace(found, lines=(why,))


def _repositories(sides: Sequence[Side], home: Home) -> Iterator[tuple[Git, CheckoutState | None]]:
    """Checkouts in place first: they know who moved them."""
    sources = [(side.lock.engine.source, side.directory) for side in sides if side.lock is not None]
    seen: set[Path] = set()
    for source, directory in sources:
        if source.path is None or directory is None or directory / source.path in seen:
            continue
        seen.add(directory / source.path)
        try:
            state = checkout.inspect(directory / source.path)
        except PinnerError:
            continue
        yield state.git, state
    for source, directory in sources:
        if source.url is None or (directory is None and "://" not in source.url):
            continue
        try:
            existing = mirror.existing(home.mirrors, git.address(source.url, directory or Path("/")))
        except PinnerError:
            continue
        if existing is not None and existing.path not in seen:
            seen.add(existing.path)
            yield existing.git, None


def _told(found: Between, runner: Git, state: CheckoutState | None, hot_paths: Sequence[str]) -> Between:
    trees = [history.peel(runner, commit) for commit in (found.old, found.new)]
    story = (
        Story(
            pinned=found.old,
            head=found.new,
            came=history.log(runner, found.old, found.new),
            went=history.log(runner, found.new, found.old),
        )
        if state is None
        else checkout.story_between(state, found.old, found.new)
    )
    suspects = [one for one in (*story.came, *story.went) if checkout.is_suspect(one, hot_paths)]
    return msgspec.structs.replace(
        found,
        lines=story.lines(hot_paths),
        moves=story.moves,
        suspects=tuple(suspects),
        same_tree=None not in trees and trees[0][1] == trees[1][1],  # type: ignore[index]  # None is ruled out
    )


def _hot_paths(a: Lock, b: Lock) -> tuple[str, ...]:
    known = ENGINES[b.engine.kind].HOT_PATHS if b.engine.kind in ENGINES else ()
    return tuple(dict.fromkeys((*known, *a.engine.hot_paths, *b.engine.hot_paths)))
