"""The command line of a running server, read back: how it was called, and which flags it was given.

Owns the grammar of a Python command line and of argparse as far as reading one needs it. Pure: what the engine's
own parser knows of its flags comes in as a table.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import PurePosixPath
from typing import Literal, NamedTuple

import msgspec

Takes = Literal["none", "optional", "one", "many"]

_NUMBER = re.compile(r"-\d+(\.\d*)?(e[-+]?\d+)?\Z|-\.\d+\Z")
# Options of the interpreter that take a value of their own.
_WITH_VALUE = "XW"

# Runs in the engine's interpreter, behind lines that make `parser`. What an engine prints while it is imported
# stands before the mark.
TABLE_MARK = "pinner-flags:"
TABLE_SCRIPT = f"""
import argparse, json, os, sys
found = {{}}
for action in parser._actions:
    longs = [option for option in action.option_strings if option.startswith("--")]
    own = "--" + action.dest.replace("_", "-")
    is_pair = isinstance(action, argparse.BooleanOptionalAction)
    takes = {{None: "one", 0: "none", "?": "optional"}}.get(action.nargs, "many")
    adds = isinstance(action, argparse._AppendAction)
    for option in longs:
        name = option if is_pair else own if own in longs else longs[0]
        found[option[2:]] = {{"name": name[2:], "takes": "none" if is_pair else takes, "adds": adds}}
sys.stdout.flush()
sys.stdout.buffer.write(("\\n" + {TABLE_MARK!r} + json.dumps(found)).encode())
sys.stdout.flush()
# Threads that the engine's packages have started must not keep the answer back.
os._exit(0)
"""


class Flag(msgspec.Struct, frozen=True):
    """What an engine's parser knows of one spelling: the full name, how many values, whether repeats add up."""

    name: str
    takes: Takes
    adds: bool = False


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """How a server's main process was called: the entry point, the interpreter's options, and what follows."""

    name: str
    options: tuple[str, ...] = ()
    arguments: tuple[str, ...] = ()

    @property
    def is_module(self) -> bool:
        """Whether `python -m` was used, which puts the working directory first on the import path."""
        return self.name.startswith("-m ")


class Given(NamedTuple):
    """The flags of a command line by full name (`None`: bare), what stood alone, and what is worth telling."""

    flags: dict[str, list[str] | None]
    alone: list[str]
    notes: list[str]


def read_table(said: str) -> dict[str, Flag] | None:
    """What TABLE_SCRIPT printed; None if it is not there."""
    _, mark, text = said.rpartition(f"\n{TABLE_MARK}")
    if not mark:
        return None
    try:
        return msgspec.json.decode(text, type=dict[str, Flag])
    except msgspec.MsgspecError:
        return None


def entry_of(argv: Sequence[str], entries: Iterable[str]) -> Entry | None:
    """The entry point of a Python command line, if it is one of `entries`.

    Those are "-m MODULE", "PROGRAM SUBCOMMAND" (a script of that name) or "package/file.py".
    """
    options: list[str] = []
    rest = list(argv[1:])
    words: list[str] = []
    while rest and not words:
        word = rest.pop(0)
        if not word.startswith("-") or word == "-":
            words = [word, *rest]
            break
        found = _interpreter_option(word, rest)
        if found is None:
            return None  # code on the command line itself
        option, module = found
        options += option
        if module is not None:
            words = ["-m", module, *rest]
    if not words:
        return None
    for name in entries:
        wanted = name.split()
        count = len(wanted)
        seen = words[:count]
        if words[0] != "-m":
            parts = PurePosixPath(words[0]).parts
            seen = ["/".join(parts[-len(PurePosixPath(wanted[0]).parts) :]), *words[1:count]]
        if seen == wanted:
            return Entry(name=name, options=tuple(options), arguments=tuple(words[count:]))
    return None


def _interpreter_option(word: str, rest: list[str]) -> tuple[list[str], str | None] | None:
    """(the options in one word, the module that -m names); None for -c. Takes values from `rest`."""
    if word.startswith("--"):
        # --check-hash-based-pycs takes a value.
        return ([word, rest.pop(0)] if "=" not in word and rest else [word]), None
    options: list[str] = []
    for at, letter in enumerate(word[1:], 1):
        value = word[at + 1 :]
        if letter == "c":
            return None
        if letter == "m":
            return options, value or (rest.pop(0) if rest else "")
        if letter in _WITH_VALUE:
            options.append(f"-{letter}{value or (rest.pop(0) if rest else '')}")
            break
        options.append(f"-{letter}")
    return options, None


def given(arguments: Sequence[str], known: Mapping[str, Flag] | None, aliases: Mapping[str, str]) -> Given:
    """The flags that `arguments` give.

    `known` is the engine's own table. Without it a flag takes every word up to the next one, and `aliases` are the
    short names that are known anyway.
    """
    flags: dict[str, list[str] | None] = {}
    alone: list[str] = []
    notes: list[str] = []
    rest = list(arguments)
    while rest:
        word = rest.pop(0)
        if not word.startswith("--") or word == "--":
            alone.append(word)
            continue
        spelled, has_value, value = word[2:].partition("=")
        flag = _flag(spelled, known, aliases)
        values = [value] if has_value else _values(rest, flag)
        before = flags.get(flag.name)
        if flag.name in flags and flag.adds and before is not None:
            values = before + values
            notes.append(
                f"--{flag.name} was given more than once, and each adds a value: the manifest gives all after one"
            )
        elif flag.name in flags:
            notes.append(f"--{flag.name} was given more than once; the last one counts, and is kept")
        flags[flag.name] = values if values or has_value else None
    return Given(flags, alone, notes)


def _flag(spelled: str, known: Mapping[str, Flag] | None, aliases: Mapping[str, str]) -> Flag:
    if known is None:
        return Flag(aliases.get(spelled, spelled), "many")
    if spelled in known:
        return known[spelled]
    # argparse takes the beginning of a name where it is that of one flag only.
    longer = {flag.name: flag for name, flag in known.items() if name.startswith(spelled)}
    return next(iter(longer.values())) if len(longer) == 1 else Flag(aliases.get(spelled, spelled), "many")


def _values(rest: list[str], flag: Flag) -> list[str]:
    """Take the words from `rest` that belong to a flag."""
    most = {"none": 0, "optional": 1, "one": 1, "many": len(rest)}[flag.takes]
    values: list[str] = []
    while rest and len(values) < most and not _is_flag(rest[0]):
        values.append(rest.pop(0))
    return values


def _is_flag(word: str) -> bool:
    return word.startswith("-") and len(word) > 1 and _NUMBER.match(word) is None
