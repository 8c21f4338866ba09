"""Pinning the engine's source: from a wish to a commit, a tree and the digests of patches.

Owns what `pinner lock` writes of the source. Must not judge a machine: see pinner/probes/source.py.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from pinner.errors import ManifestError, OperationFailed, UnknownFact
from pinner.host import checkout, git, history, mirror
from pinner.host.checkout import CheckoutMissing, CheckoutState
from pinner.host.digest import take_snapshot
from pinner.host.export import Patch
from pinner.host.history import SHORT
from pinner.model.lock import PatchPin, SourcePin
from pinner.model.manifest import Source
from pinner.probes.base import Wish
from pinner.probes.source_tree import SCOPE, comparable, differing


def pin(wish: Wish) -> tuple[SourcePin, tuple[PatchPin, ...]]:
    """The source's pins. What the previous lock pinned for the same wish stays, unless `wish.upgrade`.

    Raises ManifestError if the manifest asks for what is not there or is ambiguous, OperationFailed if a
    remote cannot be reached or a checkout is not at what is asked for, UnknownFact if git cannot tell.
    """
    source = wish.manifest.engine.source
    if source.path is not None:
        return _pin_checkout(wish, source, source.path), ()
    if source.git is not None:
        return _pin_repository(wish, source, source.git)
    return SourcePin(type="package", name=source.package, version=source.version), ()


def _pin_repository(wish: Wish, source: Source, url: str) -> tuple[SourcePin, tuple[PatchPin, ...]]:
    asked = source.commit or ""
    kept = _kept(wish, source)
    patches = [_read_patch(wish, index) for index in range(len(wish.manifest.engine.patches))]
    address = git.address(url, wish.directory)
    is_new = mirror.existing(wish.home.mirrors, address) is None
    mine = mirror.ensure(wish.home.mirrors, address, wish.say)
    try:
        resolved = mine.resolve(kept.commit if kept and kept.commit else asked, say=wish.say, is_new=is_new)
    except ManifestError as error:
        if error.message.startswith("engine.source."):
            raise
        raise ManifestError(f"engine.source.commit: {error.message}", hint=error.hint) from None
    except OperationFailed as error:
        if kept is None:
            raise
        hint = "`pinner lock --upgrade engine` takes what the manifest names now, and prints what that moves"
        raise OperationFailed(f"the commit that the lock pins is gone: {error.message}", hint=hint) from None
    if resolved.note:
        wish.warn(resolved.note)
    patched = None
    if patches:
        mine.make_present(resolved.commit, say=wish.say)
        patched = mine.patched_tree(resolved.commit, patches)
    _refuse_missing_subdirectory(source, mine.tree_entries(patched or resolved.tree))
    made = SourcePin(
        type="git",
        url=url,
        wish=asked,
        commit=resolved.commit,
        tree=resolved.tree,
        patched_tree=patched,
        subdirectory=source.subdirectory,
    )
    return made, tuple(
        PatchPin(file=patch.name, sha256=f"sha256:{hashlib.sha256(patch.data).hexdigest()}") for patch in patches
    )


def _pin_checkout(wish: Wish, source: Source, path: str) -> SourcePin:
    kept = _kept(wish, source)
    asked = source.commit or ""
    try:
        state = checkout.inspect(wish.directory / path)
    except CheckoutMissing as error:
        raise ManifestError(f"engine.source.path: {error.message}") from None
    if kept is not None:
        if state.head != kept.commit:
            wish.warn(
                f"kept commit {(kept.commit or '')[:SHORT]}; the checkout is at {state.head[:SHORT]} "
                "(`pinner lock --upgrade engine` pins that)"
            )
        return kept
    commit, tree = _asked_commit(state, asked)
    snapshot = take_snapshot(state.toplevel, wish.memory, SCOPE)
    entries = history.tree_entries(state.git, tree)
    differs = differing(comparable(entries), snapshot, source.subdirectory)
    if not (state.toplevel / source.subdirectory).is_dir():
        raise ManifestError(f"engine.source.subdirectory: {source.subdirectory!r} is not in {state.toplevel}")
    if differs:
        shown = ", ".join(list(differs)[:5]) + (", …" if len(differs) > 5 else "")
        wish.warn(f"{len(differs)} files differ from commit {commit[:SHORT]} and are pinned as they are: {shown}")
    return SourcePin(
        type="path",
        path=path,
        wish=asked,
        commit=commit,
        tree=tree,
        subdirectory=source.subdirectory,
        differs=differs,
    )


def _asked_commit(state: CheckoutState, asked: str) -> tuple[str, str]:
    """The commit that the manifest asks for; it must be where HEAD is, for nothing is checked out in place."""
    try:
        named = checkout.named(state, asked)
    except UnknownFact as error:
        raise ManifestError(f"engine.source.commit: {error.message}") from None
    if named is None:
        raise ManifestError(f"engine.source.commit: {state.toplevel} has no branch, tag or commit {asked!r}")
    if named[0] != state.head:
        what = asked if asked == named[0] else f"{asked}, which is {named[0]}"
        raise OperationFailed(
            f"HEAD of {state.toplevel} is at {state.head}, and the manifest asks for {what}",
            hint="check it out there, or change engine.source.commit; pinner changes no checkout in place",
        )
    return named


def _kept(wish: Wish, source: Source) -> SourcePin | None:
    """The previous pin if it was made for the very same wish."""
    if wish.previous is None or wish.upgrade:
        return None
    old = wish.previous.engine.source
    before = (old.url, old.path, old.wish, old.subdirectory)
    return old if before == (source.git, source.path, source.commit, source.subdirectory) else None


def _read_patch(wish: Wish, index: int) -> Patch:
    name = wish.manifest.engine.patches[index]
    path = Path(os.path.normpath(wish.directory / name))
    try:
        return Patch(name, path.read_bytes())
    except OSError as error:
        raise ManifestError(f"engine.patches[{index}]: cannot read {path}: {error.strerror}") from None


def _refuse_missing_subdirectory(source: Source, entries: dict[str, str]) -> None:
    directory = os.path.normpath(source.subdirectory) if source.subdirectory else "."
    if directory != "." and not any(path.startswith(f"{directory}/") for path in entries):
        raise ManifestError(f"engine.source.subdirectory: the commit has no directory {source.subdirectory!r}")
