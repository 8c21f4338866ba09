"""A checkout in place against what was pinned of it: where HEAD is, its files, its submodules.

Owns looking at somebody's checkout and telling each thing once: what commits did is told by the commit. Must not
ask an interpreter: pinner/probes/source.py does.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from pinner.engines import engine_for
from pinner.errors import UnknownFact
from pinner.host import checkout, traces
from pinner.host.checkout import CheckoutMissing, CheckoutState
from pinner.host.digest import Snapshot, take_snapshot
from pinner.host.files import escaped
from pinner.host.history import SHORT
from pinner.model.facts import ABSENT, Unknown
from pinner.model.lock import SourcePin
from pinner.probes.base import Findings, Scene
from pinner.probes.source_links import find_links, tell_links
from pinner.probes.source_pinned import SCOPE, Expected, Pinned
from pinner.probes.source_tree import Rules, compare_files, key_of


def observe_checkout(scene: Scene, findings: Findings, hot_paths: Sequence[str]) -> None:
    """Where HEAD is and how it came there, and the bytes of the files; the pinned side stands in `findings`."""
    pin = scene.lock.engine.source
    try:
        state = checkout.inspect(scene.directory / (pin.path or ""))
    except CheckoutMissing as error:
        findings.facts["commit"] = ABSENT
        findings.notes_by_key["commit"] = error.message
        return
    except UnknownFact as error:
        findings.facts["commit"] = Unknown(error.message)
        findings.evidence["commit"] = (error.hint,) if error.hint else ()
        return
    findings.facts["commit"] = state.head
    if state.head != pin.commit:
        findings.evidence["commit"] = checkout.story(state, pin.commit or "").lines(hot_paths)
    if begun := traces.unfinished(state.git_dir):
        findings.notes.append(begun)
    snapshot = take_snapshot(state.toplevel, scene.memory, SCOPE, deep=scene.deep)
    findings.how.append(snapshot.how)
    _observe_files(scene, state, snapshot, findings, hot_paths)
    tell_links(findings, find_links(state.toplevel, snapshot, pin.subdirectory, scene.memory))


def _observe_files(
    scene: Scene, state: CheckoutState, snapshot: Snapshot, findings: Findings, hot_paths: Sequence[str]
) -> None:
    pin = scene.lock.engine.source
    pinned = Pinned(pin.tree or "", state.git, pin.differs, state.toplevel)
    if pinned.digest(scene.memory) == snapshot.digest:
        return
    expected = pinned.expected()
    if expected is None:
        if state.head == pin.commit:
            findings.facts["tree"] = Unknown(f"the checkout does not hold the pinned tree {pin.tree}")
        else:
            findings.notes.append(
                "files edited on top of HEAD are not told: the pinned tree is not in the checkout"
            )
        return
    links = find_links(state.toplevel, snapshot, pin.subdirectory, scene.memory)
    package = engine_for(scene.lock.engine.kind).PACKAGE
    between = _Between(state, pin, expected)
    for path, commit in expected.submodules.items():
        _tell_submodule(findings, snapshot, expected, (path, commit), between, hot_paths)
    come = [path for path in expected.left_out if os.path.lexists(state.toplevel / path / ".git")]
    for path in come:
        if links.counts(f"{path}/", pin.subdirectory, package):
            findings.differs(key_of(path), ABSENT, "checked out", "the submodule has been checked out")
    below_come = tuple(f"{path}/" for path in come)
    rules = Rules(
        is_expected=lambda path, seen: path.startswith(below_come) or between.tells(path, seen),
        counts=lambda path: path in pin.differs or links.counts(path, pin.subdirectory, package),
        marks=lambda: traces.hidden(state.git),
    )
    compare_files(findings, expected.files, snapshot, state.toplevel, rules)


class _Between:
    """What the commits between the pinned ones and those that are checked out did to files."""

    def __init__(self, state: CheckoutState, pin: SourcePin, expected: Expected) -> None:
        self._expected = expected
        self._differs = pin.differs
        self._main: Mapping[str, str] | None = None
        if state.head != pin.commit:
            found = Pinned(state.tree, state.git, {}, state.toplevel).expected()
            self._main = found.files if found is not None else {}
        self._moved: dict[str, Mapping[str, str]] = {}
        for path, at in expected.checkouts.items():
            if at.head != expected.submodules[path] and path not in expected.unreadable:
                found = Pinned(at.tree, at.git, {}, at.toplevel).expected()
                files = found.files if found is not None else {}
                self._moved[path] = {f"{path}/{name}": entry for name, entry in files.items()}

    def has_moved(self, submodule: str) -> bool:
        return submodule in self._moved

    def tells(self, path: str, seen: str | None) -> bool:
        """Whether a commit or a submodule tells what is seen at a path, so that the file itself need not."""
        submodule = self._expected.submodule_of(path)
        if submodule is not None and submodule in self._expected.unreadable:
            return True
        files = self._main if submodule is None else self._moved.get(submodule)
        return files is not None and path not in self._differs and seen == files.get(path)


def _tell_submodule(
    findings: Findings,
    snapshot: Snapshot,
    expected: Expected,
    pinned: tuple[str, str],
    between: _Between,
    hot_paths: Sequence[str],
) -> None:
    """One difference for a submodule that is gone or at another commit; its own edits are told as files."""
    path, commit = pinned
    key, want = key_of(path), f"commit {commit[:SHORT]}"
    state = expected.checkouts.get(path)
    if state is None:
        if expected.unreadable[path] != "it is not checked out":
            findings.sealed[key], findings.facts[key] = want, Unknown(expected.unreadable[path])
        elif any(name.startswith(f"{path}/") for name in snapshot.entries):
            findings.differs(key, want, "files without a repository", "the submodule has lost its repository")
        else:
            findings.differs(key, want, ABSENT, "the submodule is not checked out")
        return
    if state.head == commit:
        if path in expected.unreadable:
            findings.sealed[key], findings.facts[key] = want, Unknown(expected.unreadable[path])
        return
    below = [name for name in (*expected.files, *snapshot.entries) if expected.submodule_of(name) == path]
    seen = snapshot.entries
    if between.has_moved(path) and all(seen.get(name) == expected.files.get(name) for name in below):
        return
    hot = [name.removeprefix(f"{path}/") for name in hot_paths if name.startswith(f"{path}/")]
    lines = checkout.story(state, commit).lines(hot)
    note = f"the submodule {escaped(path)} is at another commit"
    findings.differs(key, want, f"commit {state.head[:SHORT]}", note, *lines)
