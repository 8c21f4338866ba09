"""The engine's source: what is pinned of it, and whether the files and the imports on this machine are that.

Owns the aspect "source" for all three kinds: a repository that pinner checks out, a checkout in place, and an
index package. Bytes decide, not what an index, a version string or a file's time says. Must not write
anywhere but below $PINNER_HOME, and `observe` uses no network.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

from pinner.engines import engine_for
from pinner.errors import OperationFailed
from pinner.host import files, git, history, mirror
from pinner.host.digest import take_snapshot
from pinner.host.export import Patch
from pinner.host.history import SHORT
from pinner.host.home import Home
from pinner.host.interpreter import locate
from pinner.host.process import Started
from pinner.model.facts import ABSENT, Observation, Unknown, compare_facts
from pinner.model.lock import Lock, SourcePin
from pinner.probes import importing, source_live
from pinner.probes.base import Captured, Findings, Judgement, LiveScene, RunningServer, Scene
from pinner.probes.importing import Found
from pinner.probes.source_checkout import observe_checkout
from pinner.probes.source_pin import pin, submodules_note
from pinner.probes.source_pinned import SCOPE, Pinned
from pinner.probes.source_tree import compare_files

__all__ = ["NAME", "ask", "capture", "compare", "export", "observe", "observe_live", "pin"]

NAME = "source"


def export(
    pin: SourcePin,
    patches: Sequence[Path],
    home: Home,
    destination: Path,
    *,
    directory: Path,
    say: Callable[[str], None] = lambda _line: None,
) -> None:
    """Write the files of a git source, patched, into `destination`, which must be new or empty.

    `directory` is where a relative address starts from. Raises OperationFailed, with nothing left in
    `destination`, if the commit cannot be had or the result is not the tree that is pinned.
    """
    if pin.url is None or pin.commit is None:
        raise OperationFailed(f"a source of type {pin.type!r} is not checked out")
    mine = mirror.ensure(home.mirrors, git.address(pin.url, directory), say)
    mine.make_present(pin.commit, say=say)
    read = [Patch(str(path), files.read_bytes(path, what="patch")) for path in patches]
    exported = mine.export(pin.commit, destination, read)
    if (exported.tree, exported.patched_tree) != (pin.tree, pin.patched_tree):
        files.remove_tree(destination)
        raise OperationFailed(
            f"commit {pin.commit} gives tree {exported.patched_tree or exported.tree}, and the lock says "
            f"{pin.patched_tree or pin.tree}"
        )
    for note in exported.notes:
        say(note)
    for pointer in exported.lfs_pointers:
        say(f"{files.escaped(pointer)} is a Git LFS pointer; its content is not fetched")


def ask(scene: Scene) -> Started | Unknown | None:
    """Start asking the launch interpreter for the engine's package, which takes time; `observe` must follow."""
    python = _interpreter(scene)
    if python is None:
        return None
    env, pin = dict(scene.lock.env.set), scene.lock.engine.source
    if pin.import_path:
        env["PYTHONPATH"] = str(importing.source_root(pin, scene.directory))
    return importing.ask(python, engine_for(scene.lock.engine.kind).PACKAGE, env)


def observe(scene: Scene) -> Observation | None:
    """The files of the engine against the pinned tree, and which file the launch interpreter imports."""
    pin = scene.lock.engine.source
    findings = Findings()
    asked = scene.asked if scene.asked is not None else ask(scene)
    found: Found | Unknown | None = None
    try:
        if pin.type == "path":
            observe_checkout(scene, findings, _hot_paths(scene.lock))
        elif pin.type == "git":
            _observe_tree(scene, findings)
    finally:
        if asked is not None:
            found = importing.answer(asked)
    if found is not None:
        _judge_import(scene, found, findings)
    return findings.observation(NAME)


def observe_live(live: LiveScene) -> Observation | None:
    """The program that runs, and where the processes' own variables make it import the engine from."""
    scene = live.scene
    if scene.workspace is None:
        return None
    package = engine_for(scene.lock.engine.kind).PACKAGE
    found = source_live.look(
        live, scene.workspace, package, lambda answer, findings: _judge_import(scene, answer, findings)
    )
    return found.observation(NAME)


def capture(server: RunningServer) -> Captured:
    """The checkout or the package that the server's interpreter takes the engine from."""
    from pinner.probes import source_capture  # noqa: PLC0415  # only `adopt` wants it

    return source_capture.capture(server)


def compare(lock: Lock, observation: Observation) -> Judgement:
    """Pure. The files that differ, with their pinned side, stand in the observation."""
    pin = lock.engine.source
    is_live = source_live.EXECUTABLE in observation.facts
    pinned = {"commit": pin.commit} if pin.type == "path" and not is_live else {}
    if "tree" in observation.facts:
        pinned["tree"] = pin.patched_tree or pin.tree
    return compare_facts(pinned, observation)


def _interpreter(scene: Scene) -> Path | None:
    """The interpreter that a launch uses; None before anything is materialized."""
    if scene.workspace is not None:
        return scene.workspace.python
    if scene.lock.python.path is None:
        return None
    return locate(scene.directory / scene.lock.python.path)[1]


def _observe_tree(scene: Scene, findings: Findings) -> None:
    """What pinner has checked out, by its bytes; the facts hold `tree` if they are the pinned ones."""
    pin = scene.lock.engine.source
    if scene.workspace is None or scene.workspace.tree is None:
        findings.facts["tree"] = Unknown("nothing is materialized to look at")
        return
    if not scene.workspace.tree.is_dir():
        findings.facts["tree"] = ABSENT
        return
    tree = pin.patched_tree or pin.tree or ""
    existing = mirror.existing(scene.home.mirrors, git.address(pin.url or "", scene.directory))
    pinned = Pinned(tree, existing.git if existing is not None else None)
    if note := submodules_note(pinned.submodules(scene.memory)):
        findings.notes.append(note)
    snapshot = take_snapshot(scene.workspace.tree, scene.memory, SCOPE, deep=scene.deep)
    findings.how.append(snapshot.how)
    if pinned.digest(scene.memory) == snapshot.digest:
        findings.facts["tree"] = tree
        return
    expected = pinned.expected()
    if expected is not None:
        compare_files(findings, expected.files, snapshot, scene.workspace.tree)
    elif snapshot.unknown:
        findings.facts["tree"] = snapshot.digest
    else:
        # Without the mirror the files still prove the tree, but cannot be told one by one.
        findings.facts["tree"] = history.tree_id(snapshot.entries)
        findings.notes_by_key["tree"] = "the mirror is missing, so which files differ cannot be told"


def _hot_paths(lock: Lock) -> tuple[str, ...]:
    return (*engine_for(lock.engine.kind).HOT_PATHS, *lock.engine.hot_paths)


def _judge_import(scene: Scene, found: Found | Unknown, findings: Findings) -> None:
    """Whether the engine's package comes from where it should."""
    pin = scene.lock.engine.source
    package = engine_for(scene.lock.engine.kind).PACKAGE
    expected, also = _import_root(scene, package)
    findings.sealed["imported-from"] = str(expected)
    if isinstance(found, Unknown):
        findings.facts["imported-from"] = found
        return
    is_exact = expected.name == package
    strangers = [place for place in found.places if not _is_below(place, expected, is_exact)]
    if found.places and not strangers:
        findings.facts["imported-from"] = str(expected)
        return
    if not found.places:
        findings.facts["imported-from"] = ABSENT
        findings.notes_by_key["imported-from"] = f"the launch interpreter finds no package {package}"
    else:
        findings.facts["imported-from"] = strangers[0]
        findings.notes_by_key["imported-from"] = f"{package} is imported from another place than is pinned"
    at = f" at {pin.commit[:SHORT]}" if pin.commit else ""
    findings.evidence["imported-from"] = (*found.lines(strangers), f"expected: {also}{at}")


def _import_root(scene: Scene, package: str) -> tuple[Path, Path]:
    """The directory that the package must come from, and the tree or environment that it belongs to."""
    pin = scene.lock.engine.source
    if pin.type == "path":
        top = scene.directory / (pin.path or "")
        root = Path(os.path.normpath(top / pin.subdirectory))
        # Where the package lies at the root, a copy of it further down is not the one that is pinned.
        inner = root / package
        return (inner if inner.is_dir() else root), Path(os.path.normpath(top))
    if scene.workspace is not None:
        return scene.workspace.env, scene.workspace.env
    place = scene.directory / (scene.lock.python.path or "")
    return place, place


def _is_below(place: str, root: Path, is_exact: bool) -> bool:
    """Whether a module file or directory lies below `root`, or in it and no further down if `is_exact`."""
    real, above = Path(os.path.realpath(place)), Path(os.path.realpath(root))
    return above in (real, real.parent) or (not is_exact and above in real.parents)
