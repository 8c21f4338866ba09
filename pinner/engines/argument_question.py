"""The question whether an engine takes its arguments, as a program that the engine's own interpreter runs.

Owns the program's text and the shape of its answer. Must not start it: pinner/deploy/arguments.py does. The
program builds the engine's parser and nothing else: no GPU is touched and no model is read.
"""

from __future__ import annotations

import msgspec


class UnknownFlag(msgspec.Struct, frozen=True):
    """A flag that the engine does not have: those that it is the beginning of, and those that look like it."""

    flag: str
    begins: tuple[str, ...] = ()
    near: tuple[str, ...] = ()


class Answer(msgspec.Struct, frozen=True):
    """What the engine's parser said.

    `problems` are its own words; `deprecated` maps a flag to what it says of it; `variables` are those that
    nothing in it reads. `no_parser`: it has none where pinner looks for one; `import_error`: it does not load.
    """

    version: str = ""
    flags: int = 0
    unknown: tuple[UnknownFlag, ...] = ()
    problems: tuple[str, ...] = ()
    deprecated: dict[str, str] = {}
    variables: tuple[str, ...] = ()
    no_parser: str = ""
    import_error: str = ""


def program(build: str, parser_module: str) -> str:
    """The program. `build` defines `build()`, which gives the engine's parser, `version()` and `unread(names)`.

    Input is a JSON object with `argv`, the flags and their values, and `variables`, names of the environment.
    """
    return build + _ASK.replace("PARSER_MODULE", repr(parser_module))


_ASK = """

import difflib, json, os, sys, traceback

given = json.load(sys.stdin)
answer = {}
# What the engine prints while it is imported must not stand in the answer.
out = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)


class Refused(Exception):
    pass


def refuse(message=""):
    raise Refused(message)


def ask(parser):
    parser.error = refuse
    parser.exit = lambda status=0, message=None: refuse(message or "asks for help and would end the engine")
    # What is only the beginning of a flag must not pass: the next release may have two that begin so.
    parser.allow_abbrev = False
    options = parser._option_string_actions
    answer["flags"] = len(options)
    try:
        _, rest = parser.parse_known_args(given["argv"])
    except Refused as error:
        answer["problems"] = [str(error)]
        rest = [item for item in given["argv"] if item.startswith("--") and item.partition("=")[0] not in options]
    unknown, names = [], [name for name in options if name.startswith("--")]
    for item in rest:
        name = item.partition("=")[0]
        if not name.startswith("--"):
            if not unknown:
                answer.setdefault("problems", []).append(f"unrecognized: {item}")
            continue
        begins = sorted(flag for flag in names if flag.startswith(name))
        near = difflib.get_close_matches(name, names, n=1)
        unknown.append({"flag": name, "begins": begins[:6], "near": near})
    answer["unknown"] = unknown
    answer["deprecated"] = {
        item.partition("=")[0]: " ".join((options[item.partition("=")[0]].help or "").split())[:200]
        for item in given["argv"]
        if item.partition("=")[0] in options
        and type(options[item.partition("=")[0]]).__name__.startswith("Deprecated")
    }


try:
    parser = build()
    answer["version"] = str(version())
    answer["variables"] = list(unread(given["variables"]))
except ImportError as error:
    # The engine's package is there, and its parser is not where it was.
    known, missing = PARSER_MODULE, error.name or ""
    moved = "." in missing and (known + ".").startswith(missing + ".")
    answer["no_parser" if moved else "import_error"] = f"{type(error).__name__}: {error}"
except Exception as error:
    where = traceback.extract_tb(error.__traceback__)[-1]
    answer["import_error"] = f"{type(error).__name__}: {error} ({where.filename}, line {where.lineno})"
else:
    ask(parser)
json.dump(answer, out)
out.flush()
# Threads that the engine's packages have started must not keep the answer back.
os._exit(0)
"""
