"""How two locks differ, pin by pin, with what each package moved. Pure.

Owns the way from a lock to facts by aspect and key, so that what only one lock has is told too. Must not rank:
likelihood.py does.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from pinner.model.facts import ABSENT, Difference, Fact
from pinner.model.lock import Lock

Facts = dict[tuple[str, str], Fact]

# What a pylock offers of one package: its version, and the digests of its files.
Package = tuple[str, frozenset[str]]

# Aspects by the section of the lock; what is not here keeps its section's name.
_ASPECTS = {"env": "environment", "engine": "source"}
# Digests of files whose content is compared itself, and what only led to the pins.
_NOTHING_OF_THEIR_OWN = {
    ("version",),
    ("requires-pinner",),
    ("manifest",),
    ("engine", "hot-paths"),
    ("engine", "source", "wish"),
    ("model", "wish"),
    ("draft", "wish"),
    ("python", "exclude-newer"),
    ("python", "indexes"),
}
# Flags that another aspect tells, or that hold a placeholder.
_FLAGS_OF_OTHERS = frozenset(
    {
        "model-path",
        "speculative-draft-model-path",
        "speculative-algorithm",
        "speculative-num-steps",
        "speculative-eagle-topk",
        "speculative-num-draft-tokens",
    }
)


def packages(pylock: Mapping[str, Any]) -> dict[str, Package]:
    """Every package of a PEP 751 lockfile by name."""
    found = {}
    for package in pylock.get("packages", []):
        version = package.get("version") or package.get("vcs", {}).get("commit-id", "unversioned")
        files = [*package.get("wheels", []), *filter(None, [package.get("sdist")])]
        digests = frozenset(digest for one in files for digest in one.get("hashes", {}).values())
        found[package["name"]] = (version, digests)
    return found


def differences(before: Lock, after: Lock) -> list[Difference]:
    """Every pin that differs; packages of a pylock aside, see `package_differences`."""
    a, b = facts(before), facts(after)
    found = []
    for aspect, key in dict.fromkeys((*a, *b)):
        was, now = a.get((aspect, key), ABSENT), b.get((aspect, key), ABSENT)
        if was != now and not _follows(aspect, key, before, after):
            found.append(Difference(aspect=aspect, key=key, pinned=was, observed=now))
    return found


def package_differences(before: Mapping[str, Package], after: Mapping[str, Package]) -> list[Difference]:
    """The version steps of packages; of one version with no file in common, that."""
    found = []
    for name in sorted(before.keys() | after.keys()):
        was, now = before.get(name), after.get(name)
        if was is None or now is None:
            found.append(_package(name, was[0] if was else ABSENT, now[0] if now else ABSENT))
        elif was[0] != now[0]:
            found.append(_package(name, was[0], now[0]))
        elif was[1] and now[1] and was[1].isdisjoint(now[1]):
            note = "the same version, and no file of it is the same: it was built or published anew"
            found.append(_package(name, min(was[1]), min(now[1]), f"{name} {was[0]}: {note}"))
    return found


def _package(name: str, was: Fact, now: Fact, note: str = "") -> Difference:
    return Difference(aspect="python", key=name, pinned=was, observed=now, note=note)


def facts(lock: Lock) -> Facts:
    """Every pin of a lock as (aspect, key) and value."""
    data = msgspec.to_builtins(lock)
    found: Facts = {}
    for path, value in _leaves(data):
        if any(path[:length] in _NOTHING_OF_THEIR_OWN for length in (1, 2, 3)):
            continue
        if path == ("engine", "argv"):
            found.update(_arguments(value))
            continue
        aspect, key = _named(path)
        found[aspect, key] = value
    return found


def _leaves(value: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every value below tables; the entries of a list of tables by their names."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _leaves(item, (*path, key))
    elif isinstance(value, (list, tuple)) and value and isinstance(value[0], dict):
        for item in value:
            name = item.get("path") or item.get("name") or item.get("file") or str(item)
            rest = {key: one for key, one in item.items() if key not in ("path", "name", "file")}
            yield (*path, name), _entry(rest)
    elif isinstance(value, (list, tuple)):
        yield path, list(value)
    elif value is not None:
        yield path, value


def _entry(rest: Mapping[str, Any]) -> Fact:
    """A file or distribution as one value: its digest where there is one, in front of it its version."""
    digest = rest.get("sha256") or rest.get("content")
    version = rest.get("version")
    if digest and version:
        return f"{version} {digest}"
    return digest or version or dict(rest)


def _named(path: tuple[str, ...]) -> tuple[str, str]:
    section, *rest = path
    if section == "engine" and rest[0] == "patches":
        return "source", f"patch {'/'.join(rest[1:])}"
    if section == "engine" and rest[0] == "source":
        rest = rest[1:]
        # A file of the checkout that differs is named by its path.
        rest = rest[1:] if rest[0] == "differs" else rest
    elif section == "env" or (section in ("model", "draft") and rest[0] == "files" and len(rest) > 1):
        rest = rest[1:] if len(rest) > 1 else rest
    elif section == "python" and rest[0] in ("distributions", "loose", "linked") and len(rest) > 1:
        rest = rest[1:]
    return _ASPECTS.get(section, section), ".".join(rest) or section


def _arguments(argv: list[str]) -> Facts:
    """The flags of an argument list, each with its values; true stands for a bare one."""
    found: dict[str, list[str]] = {}
    flag = ""
    for word in argv:
        if word.startswith("--"):
            flag, _, value = word.removeprefix("--").partition("=")
            found[flag] = [value] if value else []
        elif flag:
            found[flag].append(word)
    return {
        ("arguments", name): " ".join(values) if values else True
        for name, values in found.items()
        if name not in _FLAGS_OF_OTHERS
    }


def _follows(aspect: str, key: str, before: Lock, after: Lock) -> bool:
    """Whether a difference only follows from another one that is told."""
    a, b = before.engine.source, after.engine.source
    if aspect == "source" and key == "tree":
        return a.commit != b.commit
    if aspect == "source" and key == "patched-tree":
        return a.commit != b.commit or before.engine.patches != after.engine.patches
    # The packages that a pylock names are told one by one.
    return aspect == "python" and key == "pylock" and None not in (before.python.pylock, after.python.pylock)
