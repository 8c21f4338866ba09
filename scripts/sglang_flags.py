"""Write pinner/engines/sglang_flags.tsv: which flags each release of SGLang has, read from its wheels.

`scripts/sglang_flags.py WHEEL ...`, one wheel for each release, as `pip download --no-deps sglang==VERSION` gets
them. Nothing of a wheel is run: flags are found in the syntax trees of the modules that declare them.
"""

from __future__ import annotations

import ast
import re
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import msgspec

TABLE = Path(__file__).parent.parent / "pinner" / "engines" / "sglang_flags.tsv"
HEAD = """\
# Flags of `sglang.launch_server` by release, written by scripts/sglang_flags.py from the wheels on PyPI.
# flag, first release with it ("": the oldest had it), first without it, full name of an alias, replacement.
"""


class Flag(msgspec.Struct, frozen=True):
    """A flag in one release: the first name of the same option if this is another, and what replaces it."""

    alias_of: str = ""
    instead: str = ""


def flags_of(wheel: Path) -> dict[str, Flag]:
    """Every flag that one release declares, without leading dashes."""
    found: dict[str, Flag] = {}
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            if name == "sglang/srt/server_args.py" or name.startswith("sglang/srt/arg_groups/fields/"):
                for node in ast.walk(ast.parse(archive.read(name))):
                    for names, instead in _declared(node):
                        texts = [text.lstrip("-") for text in names]
                        alias_of = ["", *texts[:1] * (len(texts) - 1)]
                        found |= {text: Flag(first, instead) for text, first in zip(texts, alias_of, strict=True)}
    return found


def _declared(node: ast.AST) -> Iterator[tuple[list[str], str]]:
    """The names of one option, the first one first, and its replacement."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "add_argument":
        names = [
            item.value for item in node.args if isinstance(item, ast.Constant) and isinstance(item.value, str)
        ]
        words = {word.arg or "": word.value for word in node.keywords}
        if names and names[0].startswith("-"):
            yield from _with_negation(names, words)
    is_field = isinstance(node, ast.AnnAssign) and isinstance(node.annotation, ast.Subscript)
    if is_field and ast.unparse(node.annotation.value) in ("A", "Annotated") and isinstance(node.target, ast.Name):
        meta = node.annotation.slice.elts[1:] if isinstance(node.annotation.slice, ast.Tuple) else []
        words = {word.arg or "": word.value for word in meta[0].keywords} if _is_call(meta) else {}
        if not meta or _literal(words.get("no_cli")):
            return
        name = _literal(words.get("cli_name")) or f"--{node.target.id.replace('_', '-')}"
        yield from _with_negation([name, *(_literal(words.get("aliases")) or [])], words)


def _with_negation(names: list[str], words: dict[str, ast.expr]) -> Iterator[tuple[list[str], str]]:
    said = _literal(words.get("new_flag")) or (_literal(words.get("action_kwargs")) or {}).get("new_flag")
    yield names, (said or "").replace("--", "")
    if "action" in words and "BooleanOptionalAction" in ast.unparse(words["action"]):
        yield [f"--no-{name.removeprefix('--')}" for name in names], ""


def _is_call(meta: list[ast.expr]) -> bool:
    return bool(meta) and isinstance(meta[0], ast.Call)


def _literal(node: ast.expr | None) -> object:
    try:
        return None if node is None else ast.literal_eval(node)
    except ValueError:
        return None


def _order(version: str) -> list[int]:
    return [int(part) for part in re.findall(r"\d+", version)]


def table(releases: dict[str, dict[str, Flag]]) -> str:
    """The text of the table; one line for each time that a flag came."""
    versions = sorted(releases, key=_order)
    lines = [HEAD + "releases\t" + " ".join(versions)]
    for flag in sorted({flag for flags in releases.values() for flag in flags}):
        since = None
        for index, version in enumerate([*versions, ""]):
            is_there = flag in releases.get(version, {})
            if is_there and since is None:
                since = version if index else ""
            elif since is not None and not is_there:
                last = releases[versions[index - 1]][flag]
                lines.append(f"{flag}\t{since}\t{version}\t{last.alias_of}\t{last.instead}")
                since = None
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    wheels = [Path(argument) for argument in sys.argv[1:]]
    TABLE.write_text(table({wheel.name.split("-")[1]: flags_of(wheel) for wheel in wheels}))
