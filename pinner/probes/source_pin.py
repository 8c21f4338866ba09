"""Pinning the engine's source: from a wish to a commit, a tree and the digests of patches.

Owns what `pinner lock` writes of the source. Must not judge a machine: see pinner/probes/source.py.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath

from pinner.engines import engine_for
from pinner.errors import ManifestError, OperationFailed, UnknownFact
from pinner.host import checkout, git, mirror, traces
from pinner.host.checkout import CheckoutMissing, CheckoutState
from pinner.host.digest import take_snapshot
from pinner.host.export import Patch
from pinner.host.files import escaped
from pinner.host.history import SHORT
from pinner.model.lock import PatchPin, SourcePin
from pinner.model.manifest import Source
from pinner.probes.base import Wish
from pinner.probes.source_links import elsewhere_note, find_links, told
from pinner.probes.source_pinned import DELETED, SCOPE, SUBMODULE, Pinned, submodules_now
from pinner.probes.source_tree import differing

_PROJECT_FILES = ("pyproject.toml", "setup.py")


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
    entries = mine.tree_entries(patched or resolved.tree)
    _refuse_no_project(source, entries)
    if note := submodules_note([escaped(path) for path, entry in entries.items() if entry.startswith(SUBMODULE)]):
        wish.warn(note)
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
    _refuse_no_package(wish, source, state)
    differs = _differs(wish, source, state, tree)
    return SourcePin(
        type="path",
        path=path,
        wish=asked,
        commit=commit,
        tree=tree,
        subdirectory=source.subdirectory,
        import_path=source.import_path,
        differs=differs,
    )


def _differs(wish: Wish, source: Source, state: CheckoutState, tree: str) -> dict[str, str]:
    """What of a checkout is not as its commit says, submodules included; it is pinned as it is."""
    submodules = {}
    for path, said, now in submodules_now(state.toplevel, state.git, tree):
        if now is None:
            submodules[path] = DELETED
            wish.warn(f"submodule {escaped(path)} is not checked out, and is pinned so")
        elif now != said:
            submodules[path] = f"{SUBMODULE} {now}"
            wish.warn(
                f"submodule {escaped(path)} is at {now[:SHORT]}, where the commit names {said[:SHORT]}; "
                "it is pinned as it is"
            )
    snapshot = take_snapshot(state.toplevel, wish.memory, SCOPE)
    links = find_links(state.toplevel, snapshot, source.subdirectory, wish.memory)
    if links.outside:
        what = "a symlink leads" if len(links.outside) == 1 else f"{len(links.outside)} symlinks lead"
        raise ManifestError(
            f"engine.source.path: in {state.toplevel} {what} out of the checkout, to what cannot be pinned: "
            f"{told(links.outside)}",
            hint="put the files themselves there, or remove the symlinks",
        )
    for note in (elsewhere_note(links), traces.unfinished(state.git_dir)):
        if note:
            wish.warn(note)
    pinned = Pinned(tree, state.git, submodules, state.toplevel).expected()
    if pinned is None:
        raise UnknownFact(f"the checkout {state.toplevel} does not hold tree {tree}")
    for path, reason in pinned.unreadable.items():
        raise UnknownFact(f"submodule {escaped(path)} cannot be pinned: {reason}")
    package = engine_for(wish.manifest.engine.kind).PACKAGE
    files = differing(pinned.files, snapshot, lambda path: links.counts(path, source.subdirectory, package))
    for path in (*submodules, *files):
        if escaped(path) != path:
            raise ManifestError(
                f"engine.source.path: {escaped(path)} in {state.toplevel} differs from the commit, and its name "
                "is not UTF-8, which no lock can hold",
                hint="rename or remove it",
            )
    if files:
        shown = ", ".join(list(files)[:5]) + (", …" if len(files) > 5 else "")
        what = "1 file differs" if len(files) == 1 else f"{len(files)} files differ"
        pinned_so = "is pinned as it is" if len(files) == 1 else "are pinned as they are"
        wish.warn(f"{what} from commit {state.head[:SHORT]} and {pinned_so}: {shown}")
    return dict(sorted({**submodules, **files}.items()))


def submodules_note(paths: Sequence[str]) -> str:
    """The sentence about submodules of a tree that pinner checks out; "" if there are none."""
    if not paths:
        return ""
    what = f"submodule {paths[0]} is" if len(paths) == 1 else f"submodules {', '.join(paths)} are"
    return f"{what} not checked out: pinner leaves submodules out"


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
    before = (old.url, old.path, old.wish, old.subdirectory, old.import_path)
    wished = (source.git, source.path, source.commit, source.subdirectory, source.import_path)
    return old if before == wished else None


def _read_patch(wish: Wish, index: int) -> Patch:
    name = wish.manifest.engine.patches[index]
    path = Path(os.path.normpath(wish.directory / name))
    try:
        return Patch(name, path.read_bytes())
    except OSError as error:
        raise ManifestError(f"engine.patches[{index}]: cannot read {path}: {error.strerror}") from None


def _refuse_no_project(source: Source, entries: Mapping[str, str]) -> None:
    """A git source is installed from its subdirectory: something there must say how."""
    directory = os.path.normpath(source.subdirectory) if source.subdirectory else "."
    prefix = "" if directory == "." else f"{directory}/"
    if any(f"{prefix}{name}" in entries for name in _PROJECT_FILES):
        return
    if prefix and not any(path.startswith(prefix) for path in entries):
        raise ManifestError(f"engine.source.subdirectory: the commit has no directory {source.subdirectory!r}")
    others = sorted({str(PurePosixPath(path).parent) for path in entries if path.endswith(_PROJECT_FILES)})
    where = f"{source.subdirectory!r} holds" if prefix else "the top of the repository holds"
    raise ManifestError(
        f"engine.source.subdirectory: {where} no project that can be installed ({' or '.join(_PROJECT_FILES)})",
        hint=f"there is one in {', '.join(map(_place, others[:5]))}" if others else None,
    )


def _refuse_no_package(wish: Wish, source: Source, state: CheckoutState) -> None:
    """A path source is imported from its subdirectory: the engine's package must lie there.

    An environment in place may bring it from anywhere below a project; which one, the import question answers.
    """
    package = engine_for(wish.manifest.engine.kind).PACKAGE
    root = state.toplevel / source.subdirectory
    if not root.is_dir():
        raise ManifestError(f"engine.source.subdirectory: {source.subdirectory!r} is not in {state.toplevel}")
    is_entry = wish.manifest.python.path is None or source.import_path
    if source.import_path and ":" in str(root):
        raise ManifestError(
            f"engine.source.path: {str(root)!r} holds a colon, which the import path cannot carry",
            hint="move the checkout, or install it editable into the environment and leave import-path out",
        )
    if is_entry and "\n" in str(root):
        raise ManifestError(f"engine.source.path: {str(root)!r} holds a line break, which no path entry can carry")

    def holds(directory: Path) -> bool:
        return (directory / package).is_dir() or (directory / f"{package}.py").is_file()

    if holds(root):
        return
    if not is_entry and (holds(root / "src") or any((root / name).is_file() for name in _PROJECT_FILES)):
        return
    places = [path for path in (root / "src", root / "python", root.parent) if holds(path)]
    inside = [path.relative_to(state.toplevel) for path in places if path.is_relative_to(state.toplevel)]
    raise ManifestError(
        f"engine.source.subdirectory: the package {package} cannot be imported from {root}",
        hint=f"it lies in {_place(str(inside[0]))}" if inside else None,
    )


def _place(subdirectory: str) -> str:
    """Where a project or package lies, as a manifest would say it."""
    return (
        "the top of the repository: leave it out"
        if subdirectory == "."
        else f'subdirectory = "{escaped(subdirectory)}"'
    )
