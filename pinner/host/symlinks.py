"""Where symlinks lead within a tree, by their texts alone.

Owns following a path step by step, as the kernel does. Must not touch the disk: a tree may not be written yet.
"""

from __future__ import annotations

import posixpath
from collections.abc import Mapping

_MAX_LINKS = 40  # as the kernel's own limit


def follow(path: str, links: Mapping[str, str], root: str | None = None) -> str | None:
    """The path below a tree's top that `path` leads to; None if a step on the way leaves the tree.

    `links` are the targets of the tree's symlinks by path, `root` where the tree lies: an absolute target below it
    stays within. A loop leads to `path` itself: the kernel gives up too, and nothing outside is reached.
    """
    at: list[str] = []
    todo = list(reversed(path.split("/")))
    followed = 0
    while todo:
        part = todo.pop()
        if part in ("", "."):
            continue
        if part == "..":
            if not at:
                return None
            at.pop()
            continue
        target = links.get("/".join((*at, part)))
        if target is None:
            at.append(part)
            continue
        followed += 1
        if followed > _MAX_LINKS:
            return path
        if target.startswith("/"):
            below = _below(target, root)
            if below is None:
                return None
            at, target = [], below
        todo.extend(reversed(target.split("/")))
    return "/".join(at)


def _below(target: str, root: str | None) -> str | None:
    """An absolute target relative to the tree's top, if it is spelled as one below it."""
    if root is None:
        return None
    top = posixpath.normpath(root)
    if target == top or target.startswith(f"{top}/"):
        return target[len(top) :]
    return None
