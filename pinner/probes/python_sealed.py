"""A built environment against what it held when it was sealed.

Owns naming every file that differs, and whose it is. Must not judge an environment in place: that is
probes/python_in_place.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from pinner.errors import OperationFailed
from pinner.host.digest import DigestMemory, Snapshot, take_snapshot
from pinner.host.interpreter import Interpreter, Question
from pinner.model.facts import ABSENT, Fact, Unknown
from pinner.model.lock import Lock
from pinner.probes.base import Findings, Scene, Workspace
from pinner.probes.base_interpreter import KEY, Base, digest_of
from pinner.probes.distributions import Distribution, is_byte_code, owners, read_distributions
from pinner.probes.inventory import Inventory, Origin, read_inventory, write_inventory
from pinner.probes.python_words import key_of, record_gone, shown, when

# What the keys of byte code that is kept in the workspace begin with.
BYTE_CODE = "bytecode/"

# More differing files of one distribution than these are told as one difference.
_MANY = 20


class _Change(msgspec.Struct, frozen=True):
    """A file that is not as sealed."""

    path: str
    pinned: str | None
    observed: str | None
    owner: Origin | None


class Damaged(OperationFailed):
    """Installed files are not what their RECORD says."""


def seal(root: Path, memory: DigestMemory) -> str:
    """The digest of every file below `root`, and the inventory beside it.

    Damaged if a file is not what its RECORD says: the same pass over the bytes shows that. OperationFailed if one
    is unreadable.
    """
    snapshot = take_snapshot(root, memory)
    digest = snapshot.digest
    if isinstance(digest, Unknown):
        raise OperationFailed(f"cannot seal {root}: {digest.reason}")
    distributions = read_distributions(root, site_directories(root))
    damaged = list(_damage(snapshot.entries, distributions))
    if damaged:
        raise Damaged("what was installed is not what its packages list:\n  " + "\n  ".join(damaged))
    write_inventory(root, snapshot.entries, distributions)
    return digest


def seal_base(workspace: Workspace, memory: DigestMemory, *, byte_code: bool) -> str:
    """The digest of the interpreter beneath a built environment, and the inventory in the workspace.

    `byte_code`: whether the engine reads byte code of the standard library. OperationFailed if it cannot be read.
    """
    answer = Question(workspace.python, workspace.env).answer()
    digest = (
        answer if isinstance(answer, Unknown) else digest_of(base := Base(answer, memory, byte_code=byte_code))
    )
    if isinstance(digest, Unknown):
        raise OperationFailed(f"cannot seal the interpreter of {workspace.env}: {digest.reason}")
    write_inventory(workspace.root / KEY, base.gathered.entries, [])
    return digest


def _damage(entries: Mapping[str, str], distributions: Iterable[Distribution]) -> Iterator[str]:
    """Sentences about files that are not what their RECORD says."""
    for one in distributions:
        for path in one.outside:
            yield f"{one.title}: RECORD names {path}, outside of the environment"
        for path, said in one.files.items():
            mode, _, digest = entries.get(path, "").partition(" ")
            if said is not None and (digest != said or mode not in ("100644", "100755")):
                yield f"{one.title}: {path}: its RECORD says {said}, the file is {digest or 'missing'}"


def site_directories(root: Path) -> list[Path]:
    """The site-packages of a built environment, by its layout."""
    return sorted(root.glob("lib/python3.*/site-packages"))


def look(scene: Scene, workspace: Workspace) -> Findings:
    """Everything in the workspace that is not as sealed."""
    question = Question(workspace.python, workspace.env)
    found = Findings()
    stored = _read_seal(workspace.seal)
    try:
        digest = stored.get("env")
        if isinstance(digest, str):
            look_at_tree(scene, workspace.env, digest, "", found)
        look_at_byte_code(scene, workspace, found)
    finally:
        answer = question.answer()
    _judge_base(scene, workspace, answer, stored, found)
    return found


def look_at_byte_code(scene: Scene, workspace: Workspace, found: Findings) -> None:
    """The byte code that a workspace keeps for code in place, where it has any: the engine runs it."""
    digest = _read_seal(workspace.seal).get("bytecode")
    if isinstance(digest, str):
        look_at_tree(scene, workspace.root / "bytecode", digest, BYTE_CODE, found)


def _judge_base(
    scene: Scene, workspace: Workspace, answer: Interpreter | Unknown, stored: Mapping[str, Any], found: Findings
) -> None:
    """The interpreter beneath the environment. One that was upgraded as a whole is one difference."""
    built_with, digest = str(stored.get("python", "")), stored.get(KEY)
    judge_interpreter(answer, workspace.python, built_with if digest is None else "", found)
    if isinstance(answer, Unknown) or not isinstance(digest, str) or answer.minor != scene.lock.python.version:
        return
    if answer.version != built_with:
        note = (
            f"the base interpreter was {built_with} when the workspace was built and is {answer.version}; "
            "`pinner materialize --rebuild` builds it anew"
        )
        found.differs("interpreter", built_with, answer.version, note, f"it lies in {answer.base}")
        return

    def before() -> Mapping[str, str] | None:
        inventory = read_inventory(workspace.root / KEY, digest)
        return None if inventory is None else inventory.entries

    base = Base(answer, scene.memory, byte_code=reads_byte_code(scene.lock), deep=scene.deep)
    base.judge(digest, before, found, since="when the workspace was built")


def reads_byte_code(lock: Lock) -> bool:
    """Whether the engine reads byte code of the standard library: not where its code lies in place."""
    return lock.engine.source.type != "path" and lock.python.path is None


def look_at_tree(scene: Scene, root: Path, digest: str, prefix: str, found: Findings) -> None:
    """Compare one sealed tree; `prefix` goes before the keys of its files."""
    whole = f"{prefix}files"
    if not root.is_dir():
        found.differs(whole, digest, ABSENT, f"{root} is missing")
        return
    snapshot = take_snapshot(root, scene.memory, deep=scene.deep)
    found.how.append(snapshot.how if not scene.deep else f"{snapshot.file_count:,} files, every byte read")
    if snapshot.digest == digest:
        found.sealed[whole] = found.facts[whole] = digest
        return
    for path, unknown in snapshot.unknown.items():
        found.facts[prefix + key_of(path)] = unknown
    inventory = read_inventory(root, digest)
    if inventory is None:
        note = "what was sealed cannot be told file by file: its inventory is missing or damaged"
        found.differs(whole, digest, snapshot.digest, note)
        return
    current = owners(read_distributions(root, site_directories(root)))
    changes = _changes(inventory, snapshot, current)
    before = {one.name: one for one in inventory.distributions}
    now = {one.name: one for one in current.values()}
    for name, changed in _by_owner(changes).items():
        group = _without_metadata(prefix, before.get(name), now.get(name), changed, found)
        if group is not changed:
            _tell_files(root, prefix, group, found)
        elif name and (len(group) > _MANY or any(change.path.endswith(".dist-info/RECORD") for change in group)):
            _tell_distribution(prefix + key_of(name), before.get(name), now.get(name), group, found)
        else:
            _tell_files(root, prefix, group, found)


def judge_interpreter(answer: Interpreter | Unknown, python: Path, built_with: str, found: Findings) -> None:
    """The fact `interpreter`: the minor version, absent where there is none, unknown where it does not run."""
    key = "interpreter"
    if not python.exists():
        link = f", it points to {python.readlink()}" if python.is_symlink() else ""
        found.facts[key] = ABSENT
        found.notes_by_key[key] = f"{python} cannot be run: the interpreter is gone{link}"
    elif isinstance(answer, Unknown):
        found.facts[key] = answer
    else:
        found.facts[key] = answer.minor
        found.notes_by_key[key] = f"{python} is Python {answer.version}"
        if built_with and answer.version != built_with and built_with.startswith(f"{answer.minor}."):
            found.notes.append(f"the interpreter is {answer.version}; it was {built_with}")


def _read_seal(path: Path) -> dict[str, Any]:
    return msgspec.json.decode(path.read_bytes(), type=dict[str, Any])


def _changes(inventory: Inventory, snapshot: Snapshot, current: dict[str, Distribution]) -> list[_Change]:
    sealed, entries, unknown = inventory.entries, snapshot.entries, snapshot.unknown
    changes = []
    for path in sorted(sealed.keys() | entries.keys()):
        before, after = sealed.get(path), entries.get(path)
        if before == after or path in unknown or any(path.startswith(f"{name}/") for name in unknown):
            continue
        owner = inventory.owner(path) or inventory.owner(_source_of(path))
        present = current.get(path) or current.get(_source_of(path))
        if owner is None and present is not None:
            owner = Origin(present.name, present.version, present.info, present.origin)
        changes.append(_Change(path, before, after, owner))
    return changes


def _source_of(path: str) -> str:
    """The source that byte code was compiled from, by its name; the path itself for anything else."""
    if not is_byte_code(path):
        return path
    directory, _, name = path.rpartition("/__pycache__/")
    return f"{directory}/{name.partition('.')[0]}.py"


def _by_owner(changes: list[_Change]) -> dict[str, list[_Change]]:
    groups: dict[str, list[_Change]] = {}
    for change in changes:
        groups.setdefault(change.owner.name if change.owner else "", []).append(change)
    return groups


def _without_metadata(
    prefix: str, before: Origin | None, now: Distribution | None, group: list[_Change], found: Findings
) -> list[_Change]:
    """Tell of a distribution whose RECORD was deleted, if that is what happened; returns what else differs."""
    if before is None or (now is not None and now.info != before.info):
        return group
    gone = {change.path: change for change in group if change.observed is None}
    record = f"{before.info}/RECORD"
    if record not in gone or not all(path.startswith(f"{before.info}/") for path in gone):
        return group
    rest = [change for change in group if change.path not in gone]
    what, key = ("RECORD", record) if now is not None else ("dist-info", before.info)
    found.differs(prefix + key_of(key), gone[record].pinned, ABSENT, record_gone(before.title, what, len(rest)))
    return rest


def _tell_files(root: Path, prefix: str, changes: list[_Change], found: Findings) -> None:
    for change in changes:
        found.differs(
            prefix + key_of(change.path),
            *shown(change.pinned, change.observed),
            _what_happened(root, change),
            *when(root / change.path),
        )


def _tell_distribution(
    key: str, before: Origin | None, now: Distribution | None, group: list[_Change], found: Findings
) -> None:
    pinned: Fact = _said(before.version, before.origin) if before else ABSENT
    observed: Fact = _said(now.version, now.origin) if now else ABSENT
    if before is None and now is not None:
        note = f"{now.title}: installed afterwards"
    elif before is not None and now is None:
        note = f"{before.title}: removed"
    elif pinned == observed:
        # The values must differ where the content does, though the metadata says the same of both.
        pinned, observed = f"{pinned}, as sealed", f"{observed}, {len(group)} edited"
        number = "1 of its files differs" if len(group) == 1 else f"{len(group)} of its files differ"
        note = f"{number}, though its metadata says the same"
    else:
        note = f"installed is {observed}, sealed was {pinned}"
    lines = [f"{_verb(change)} {key_of(change.path)}" for change in group]
    found.differs(key, pinned, observed, note, *lines)


def _said(version: str, origin: str) -> str:
    return f"version {version}" + (f" from {origin}" if origin else "")


def _verb(change: _Change) -> str:
    if change.pinned is None:
        return "added"
    return "removed" if change.observed is None else "changed"


def _what_happened(root: Path, change: _Change) -> str:
    """In plain words, the most telling thing first."""
    name = change.path.rpartition("/")[2]
    owner = f"{change.owner.title}: " if change.owner else "belongs to no distribution: "
    done = {"added": "added", "removed": "removed", "changed": "edited after installation"}[_verb(change)]
    if change.observed is not None and (root / change.path).is_symlink():
        done += f", points to {(root / change.path).readlink()}"
    if change.pinned and change.observed and change.pinned.split()[1] == change.observed.split()[1]:
        done = f"mode {change.pinned.split()[0]} became {change.observed.split()[0]}"
    if is_byte_code(change.path):
        return f"{owner}compiled byte code, which the interpreter runs instead of the source: {done}"
    if name in ("sitecustomize.py", "usercustomize.py"):
        return f"{name}: runs at every start of the interpreter: {done}"
    if name.endswith(".pth"):
        return f"a .pth file: adds to the import path or runs code at start: {done}"
    if name == "pyvenv.cfg":
        return f"decides what the environment can import: {done}"
    return owner + done
