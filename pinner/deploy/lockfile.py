"""NAME.lock and pylock.NAME.toml as text: layout, comments that survive, and what changed between two locks.

Pure: takes locks and text, gives text. Must not read or write files.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import tomlkit
from tomlkit.items import AbstractTable, InlineTable

from pinner.model.lock import Lock

HEADER = (
    "Written by `pinner lock`; commit it beside the manifest. Comments that you add stay when it is written anew.",
)

# A pinned fact of the machine takes one line.
_FACT_KEYS = {"value", "class", "tolerance", "captured"}


def render_lock(lock: Lock, previous: str | None = None) -> str:
    """The text of a lock. With the text of the previous one, a person's comments there are kept."""
    data = _pruned(msgspec.to_builtins(lock))
    if previous is not None:
        try:
            document = tomlkit.parse(previous)
        except tomlkit.exceptions.TOMLKitError:
            document = None
        if document is not None:
            if document.unwrap() == data:
                return previous
            _update(document, data)
            return tomlkit.dumps(document)
    document = tomlkit.document()
    for line in HEADER:
        document.add(tomlkit.comment(line))
    for key, value in data.items():
        document.add(key, _item(value))
    return tomlkit.dumps(document)


def render_pylock(data: Mapping[str, Any]) -> str:
    """The text of a PEP 751 lockfile from its data."""
    document = tomlkit.document()
    packages = tomlkit.aot()
    for key, value in data.items():
        if key != "packages":
            document.add(key, value)
    for package in data["packages"]:
        table = tomlkit.table()
        for key, value in package.items():
            table.add(key, _list_of_inline(value) if isinstance(value, list) else _inline(value))
        packages.append(table)
    document.add("packages", packages)
    return tomlkit.dumps(document)


def changes(old: Lock | None, new: Lock, packages: tuple[Mapping[str, str], Mapping[str, str]]) -> list[str]:
    """What re-locking moved, a line each, old before new; `packages` are (old, new) name to version."""
    if old is None:
        return []
    before, after = _flat(old), _flat(new)
    before.update({f"python.{name}": version for name, version in packages[0].items()})
    after.update({f"python.{name}": version for name, version in packages[1].items()})
    lines = []
    for key in sorted(before.keys() | after.keys()):
        was, now = before.get(key), after.get(key)
        if was != now:
            lines.append(f"{key}: {_short(was, now)} → {_short(now, was)}")
    return lines


def _pruned(value: Any) -> Any:
    """Without empty tables, which say nothing; an empty string is a value, as of a variable."""
    if isinstance(value, dict):
        pruned = {key: _pruned(item) for key, item in value.items()}
        return {key: item for key, item in pruned.items() if item is not None and item != {}}
    if isinstance(value, (list, tuple)):
        return [_pruned(item) for item in value]
    return value


def _item(value: Any) -> Any:
    if isinstance(value, dict) and "value" in value and value.keys() <= _FACT_KEYS:
        return _inline(value)
    if isinstance(value, dict):
        table = tomlkit.table()
        for key, item in value.items():
            table.add(key, _item(item))
        return table
    if isinstance(value, list):
        return _list_of_inline(value)
    return value


def _list_of_inline(values: list[Any]) -> Any:
    array = tomlkit.array()
    for value in values:
        array.append(_inline(value))
    return array.multiline(len(values) > 1 or bool(values and isinstance(values[0], dict)))


def _inline(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    table = tomlkit.inline_table()
    for key, item in value.items():
        table.append(key, _inline(item))
    return table


def _update(table: AbstractTable | tomlkit.TOMLDocument | InlineTable, data: Mapping[str, Any]) -> None:
    """Make a parsed table hold `data`, touching only what differs."""
    for key in [key for key in table if key not in data]:
        table.remove(key)
    for key, value in data.items():
        if key not in table:
            table.add(key, _item(value))
        elif isinstance(value, dict) and isinstance(table[key], AbstractTable):
            _update(table[key], value)
        elif tomlkit.item(table[key]).unwrap() != value:
            table[key] = _item(value)


def _flat(lock: Lock) -> dict[str, str]:
    """Every pin of a lock by a dotted key; digests of the manifest and pylock say nothing of their own."""
    flat: dict[str, str] = {}

    def walk(prefix: str, value: Any) -> None:
        if isinstance(value, dict) and "value" in value:
            # A fact that is expected of the machine: its value, and how it is compared unless that is exact.
            more = [str(value[key]) for key in ("class", "tolerance") if key in value]
            flat[prefix] = f"{value['value']} ({' '.join(more)})" if more else str(value["value"])
        elif isinstance(value, dict):
            for key, item in value.items():
                walk(f"{prefix}.{key}" if prefix else key, item)
        elif isinstance(value, list) and value and isinstance(value[0], dict):
            for item in value:
                name = item.get("path") or item.get("name") or item.get("file")
                flat[f"{prefix}.{name}"] = item.get("sha256") or item.get("content") or str(item)
        elif isinstance(value, list):
            flat[prefix] = " ".join(str(item) for item in value)
        elif value is not None:
            flat[prefix] = str(value)

    walk("", _pruned(msgspec.to_builtins(lock)))
    for key in ("manifest", "python.pylock", "version", "requires-pinner"):
        flat.pop(key, None)
    return flat


def _short(value: str | None, other: str | None) -> str:
    """A value for a line; of a long one the part where it parts from the other."""
    if value is None:
        return "none"
    if value.startswith("sha256:"):
        return value[:19]
    if len(value) <= 60:
        return value
    same = next((at for at, (one, two) in enumerate(zip(value, other or "", strict=False)) if one != two), 0)
    start = max(0, min(same - 20, len(value) - 57))
    return f"{'…' if start else ''}{value[start : start + 57]}{'…' if start + 57 < len(value) else ''}"
