"""What is installed in an environment in place against what was locked.

Owns naming what differs, in the words that fit: an edited file, a file that was added, a distribution that was
reinstalled, one whose RECORD is gone. Looks at nothing but what it is given and the entries that are remembered.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from pinner.host.digest import DigestMemory
from pinner.model.facts import ABSENT
from pinner.model.lock import DistributionPin, PythonPin
from pinner.probes.base import Findings
from pinner.probes.distributions import Distribution
from pinner.probes.installed import MISSING, Contents, content, edited, members
from pinner.probes.inventory import recall_entries
from pinner.probes.python_words import key_of, record_gone, shown, when

_MANY = 20  # more files than these are not listed as evidence


def judge_contents(
    pinned: PythonPin, contents: Contents, memory: DigestMemory, root: Path, found: Findings
) -> None:
    """Add everything that is installed and not as locked."""
    found.facts.update({key_of(path): unknown for path, unknown in contents.unknown.items()})
    loose = dict(contents.loose)
    before = {one.name: one for one in pinned.distributions}
    now = {one.name: one for one in contents.distributions}
    for name in sorted(before.keys() | now.keys()):
        if name in before and _has_no_record(before[name], now.get(name)):
            claimed = _without_record(before[name], contents, memory, found)
            if claimed is not None:
                loose = {path: one for path, one in loose.items() if path not in claimed or path in pinned.loose}
                continue
        if name not in now:
            # Absent by not being a fact.
            found.notes_by_key[key_of(name)] = f"{name} {before[name].version}: not installed any more"
        elif name not in before:
            found.facts[key_of(name)] = content(members(now[name], contents.digests))
            found.notes_by_key[key_of(name)] = f"{now[name].title}: installed after locking"
        else:
            _compare_distribution(before[name], now[name], contents.digests, memory, found)
    _compare_loose(pinned.loose, loose, root, found)


def _compare_loose(pinned: Mapping[str, str], loose: Mapping[str, str], root: Path, found: Findings) -> None:
    now = {key_of(path): digest for path, digest in loose.items()}
    paths = {key_of(path): path for path in loose}
    found.facts.update(now)
    for key in sorted(pinned.keys() | now.keys()):
        if pinned.get(key) == now.get(key):
            continue
        done = "changed" if key in pinned and key in now else "added" if key in now else "removed"
        found.notes_by_key[key] = f"{_what(key)}: {done}"
        if key in paths:
            found.evidence[key] = when(root / paths[key])


def _what(path: str) -> str:
    name = path.rpartition("/")[2]
    if name in ("sitecustomize.py", "usercustomize.py"):
        return "runs at every start of the interpreter"
    if name.endswith(".pth"):
        return "a .pth file: adds to the import path or runs code at start"
    if path == "pyvenv.cfg":
        return "decides what the environment can import"
    if path.startswith("bin/") and name.startswith("python"):
        return "a program that is started in place of the interpreter"
    if path.startswith("bin/"):
        return "a program of no distribution, in the first place of the engine's PATH"
    return "belongs to no distribution"


def _has_no_record(before: DistributionPin, now: Distribution | None) -> bool:
    return now is None or (before.version == now.version and f"{now.info}/RECORD" not in now.read)


def _without_record(
    before: DistributionPin, contents: Contents, memory: DigestMemory, found: Findings
) -> set[str] | None:
    """A distribution whose metadata is gone, told as that; returns its files. None where it is another story."""
    title = f"{before.name} {before.version}"
    known = recall_entries(memory, before.content)
    if known is None:
        return _unchecked(before, contents, found)
    record = next((path for path in known if path.endswith(".dist-info/RECORD")), None)
    if record is None:
        return None
    info = record.removesuffix("/RECORD")
    gone = [path for path in known if path not in contents.digests]
    if not gone or any(not path.startswith(f"{info}/") for path in gone):
        return None
    changed = [
        path
        for path, entry in known.items()
        if path in contents.digests and entry != f"100644 {contents.digests[path]}"
    ]
    whole = all(path in gone for path in known if path.startswith(f"{info}/"))
    what, key = ("dist-info", key_of(info)) if whole else ("RECORD", key_of(record))
    found.facts[key_of(before.name)] = before.content
    found.differs(key, *shown(known[record], None), record_gone(title, what, len(changed)))
    for path in changed:
        want = known[path].partition(" ")[2]
        found.differs(key_of(path), want, contents.digests[path], f"{title}: edited")
    return set(known)


def _unchecked(before: DistributionPin, contents: Contents, found: Findings) -> set[str] | None:
    """The same where nothing is remembered of its files: those that look like its own are not told one by one."""
    module = before.name.replace("-", "_").lower()
    named = f"{module}-{before.version}.dist-info".lower()
    mine = set()
    for path in contents.loose:
        below = path.partition("-packages/")[2].partition("/")[0].lower()
        if below.removesuffix(".py") == module or below == named:
            mine.add(path)
    if not any(not path.lower().partition(".dist-info/")[1] for path in mine):
        return None
    found.facts[key_of(before.name)] = ABSENT
    found.notes_by_key[key_of(before.name)] = (
        f"{before.name} {before.version}: its RECORD is gone, so that its files are not checked against it"
    )
    return mine


def _compare_distribution(
    before: DistributionPin, now: Distribution, digests: Mapping[str, str], memory: DigestMemory, found: Findings
) -> None:
    """Name the edited files where they explain the whole difference; else the distribution."""
    key = key_of(before.name)
    files = members(now, digests)
    differs = content(files)
    if differs == before.content:
        found.facts[key] = differs
        return
    current = edited(now, digests)
    touched = [path for path in sorted(before.edited.keys() | current.keys()) if path in now.files]
    expected = dict(files)
    for path in touched:
        locked = before.edited.get(path) or now.files[path]
        if locked is None or locked == MISSING:
            expected.pop(path, None)
        else:
            expected[path] = locked
    if content(expected) != before.content:
        found.facts[key] = differs
        found.notes_by_key[key] = _reinstalled(before, now)
        lines = _differing(before, files, memory)
        lines += [f"not as its RECORD says: {key_of(path)}" for path in sorted(current)]
        if lines:
            found.evidence[key] = tuple(lines)
        return
    # Apart from these files the content is the locked one: that was just computed.
    found.facts[key] = before.content
    for path in touched:
        want, seen = expected.get(path), files.get(path)
        if want != seen:
            said = now.files[path]
            found.differs(
                key_of(path),
                want or ABSENT,
                seen or ABSENT,
                f"{now.title}: its RECORD says {said}, the file is {seen or MISSING}",
            )


def _differing(before: DistributionPin, files: Mapping[str, str], memory: DigestMemory) -> list[str]:
    """The files of a distribution that are not as locked, where it is remembered what was locked."""
    known = recall_entries(memory, before.content)
    if known is None:
        return []
    lines = []
    for path in sorted(known.keys() | files.keys()):
        was, seen = known.get(path, "").partition(" ")[2], files.get(path, "")
        if was != seen:
            lines.append(f"{'added' if not was else 'removed' if not seen else 'changed'} {key_of(path)}")
    return lines if len(lines) <= _MANY else [*lines[:_MANY], f"and {len(lines) - _MANY:,} more"]


def _reinstalled(before: DistributionPin, now: Distribution) -> str:
    text = f"reinstalled: version {before.version} → {now.version}"
    if before.origin or now.origin:
        text += f", direct_url {before.origin or 'none'} → {now.origin or 'none'}"
    return text
