"""Reading TOML files into types, with errors that name file, key and line; digests of what was read.

Owns the words for what is wrong with a file's text and types. Must not know what the files mean.
"""

from __future__ import annotations

import hashlib
import json
import re
import tomllib
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from pinner.errors import LockError, ManifestError

MAX_BYTES = 64 * 1024 * 1024

Struct = TypeVar("Struct", bound=msgspec.Struct)


def bytes_digest(data: bytes) -> str:
    """`sha256:<hex>` of some bytes."""
    return "sha256:" + hashlib.sha256(data).hexdigest()


def data_digest(data: Any) -> str:
    """`sha256:<hex>` of parsed data: comments, order of keys and spelling of values (3 or 3.0) do not count."""
    text = json.dumps(_plain_numbers(data), sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return bytes_digest(text.encode())


def _plain_numbers(data: Any) -> Any:
    if isinstance(data, dict):
        return {key: _plain_numbers(value) for key, value in data.items()}
    if isinstance(data, (list, tuple)):
        return [_plain_numbers(value) for value in data]
    return int(data) if isinstance(data, float) and data.is_integer() else data


def read_toml(path: Path, error: type[ManifestError | LockError]) -> dict[str, Any]:
    """The data of a TOML file. Raises `error` naming the file and, for syntax, the line."""
    try:
        if path.stat().st_size > MAX_BYTES:
            raise error(f"{path}: larger than {MAX_BYTES // 2**20} MiB, which no manifest or lock is")
        return tomllib.loads(path.read_bytes().decode("utf-8-sig"))
    except OSError as problem:
        raise error(f"cannot read {path}: {problem.strerror}") from None
    except UnicodeDecodeError as problem:
        raise error(f"{path}: not UTF-8 text (byte {problem.start})") from None
    except tomllib.TOMLDecodeError as problem:
        raise error(f"{path}: not valid TOML: {problem}") from None
    except (RecursionError, ValueError, OverflowError) as problem:
        # tomllib lets these through for absurd nesting, dates and numbers.
        raise error(f"{path}: not valid TOML: {str(problem) or 'nested too deeply'}") from None


def refuse_version(path: Path, data: dict[str, Any], known: int, error: type[ManifestError | LockError]) -> None:
    version = data.get("version")
    if isinstance(version, bool) or not isinstance(version, int):
        raise error(f"{path}: version: must be the format's number", hint=f"write version = {known}")
    if version > known:
        needs = data.get("requires-pinner")
        which = f"pinner {needs} or newer" if isinstance(needs, str) else "a newer pinner"
        raise error(
            f"{path}: version: format {version} is newer than this pinner reads (format {known})",
            hint=f"{which} reads it",
        )
    if version < 1:
        raise error(f"{path}: version: there is no format {version}", hint=f"write version = {known}")


def convert(
    path: Path, data: dict[str, Any], struct: type[Struct], error: type[ManifestError | LockError]
) -> Struct:
    try:
        return msgspec.convert(data, struct)
    except msgspec.ValidationError as problem:
        text, _, where = str(problem).partition(" - at `")
        key = where.rstrip("`").removeprefix("$").lstrip(".")
        missing = re.match(r"Object missing required field `([^`]+)`", text)
        if missing:
            key, text = f"{key}.{missing[1]}" if key else missing[1], "is missing"
        if "[...]" in key:
            key, text = _name_entry(data, key, text, struct)
        raise error(f"{path}: {key}: {_plain(text)}" if key else f"{path}: {_plain(text)}") from None


def _name_entry(data: dict[str, Any], key: str, text: str, struct: type[msgspec.Struct]) -> tuple[str, str]:
    """msgspec does not say which entry of a table is wrong; try each one alone."""
    section, _, rest = key.partition("[...]")
    table: Any = data
    for part in section.split("."):
        table = table[part]
    for name, value in table.items():
        probe = _with_only(data, section.split("."), {name: value})
        try:
            msgspec.convert(probe, struct)
        except msgspec.ValidationError as problem:
            if "[...]" in str(problem):
                return f"{section}.{name}{rest}", str(problem).partition(" - at `")[0]
    return f"{section}{rest}", text


def _with_only(data: dict[str, Any], parts: list[str], table: dict[str, Any]) -> dict[str, Any]:
    head, *tail = parts
    return {**data, head: _with_only(data[head], tail, table) if tail else table}


def _plain(text: str) -> str:
    """msgspec's words in this project's: TOML has tables and strings, not objects and str."""
    if text.startswith("Expected `bool | int | str | object`"):
        return 'must be a string, or { secret = "NAME" } or { site = "NAME" }'
    words = {"object": "table", "str": "string", "array": "list", "null": "nothing"}
    text = re.sub(r"`([a-z |]+)`", lambda m: " or ".join(words.get(w, w) for w in m[1].split(" | ")), text)
    return text[:1].lower() + text[1:]
