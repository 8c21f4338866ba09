"""The dynamic linker: what it would load for a library, and which directories are the system's own.

Owns asking the linker itself. Its rules (RPATH before LD_LIBRARY_PATH before RUNPATH, glibc-hwcaps, what a preload
hides, wrong architectures passed over) are its own, so that it is asked and not imitated. It lists what it would
load and runs none of it. Must not judge.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from pinner.errors import OperationFailed
from pinner.host import process
from pinner.host.elf import Elf, read_elf
from pinner.model.facts import Unknown

_TIMEOUT_S = 20.0
_DEFAULTS = ("/lib", "/lib64", "/usr/lib", "/usr/lib64")
_ARROW = r"^\s*(\S.*?)(?: => (.*?))? \(0x[0-9a-f]+\)$"
_MOST_INCLUDES = 200


def search_path(value: str) -> list[Path]:
    """The directories of an LD_LIBRARY_PATH, in which an empty entry is the working directory: of an engine, /."""
    return [Path("/") / entry for entry in value.replace(";", ":").split(":")] if value else []


def preloads(value: str) -> list[str]:
    """The libraries of an LD_PRELOAD or of /etc/ld.so.preload; one without a slash is searched for."""
    return value.replace(":", " ").split()


def candidates(directory: Path) -> list[Path]:
    """The directories that the linker looks into for one of a search path, better ones for newer CPUs first."""
    better = directory / "glibc-hwcaps"
    try:
        return [*sorted(better.iterdir(), reverse=True), directory]
    except OSError:
        return [directory]


def system_directories(etc: Path = Path("/etc")) -> tuple[str, ...]:
    """Where the linker looks without being told: its own directories and those of ld.so.conf."""
    found = dict.fromkeys(_DEFAULTS)
    todo = [etc / "ld.so.conf"]
    for number, file in enumerate(todo):
        if number > _MOST_INCLUDES:
            break
        try:
            lines = file.read_text(errors="surrogateescape").splitlines()
        except OSError:
            continue
        for line in lines:
            word, _, rest = line.partition("#")[0].strip().partition(" ")
            if word == "include":
                for pattern in rest.split():
                    start = Path(pattern)
                    base = Path("/") if start.is_absolute() else etc
                    todo += sorted(base.glob(str(start.relative_to("/") if start.is_absolute() else start)))
            elif word.startswith("/"):
                found[word] = None
    return tuple(found)


def linker_of(program: Path) -> str | Unknown:
    """The dynamic linker that a program asks for."""
    elf = read_elf(program)
    if isinstance(elf, Unknown):
        return elf
    return elf.interpreter or Unknown(f"{program} is linked statically")


def would_load(library: Path, variables: Mapping[str, str], linker: str) -> dict[str, str] | Unknown:
    """What the linker would load along with a library: by the name that is asked for, the path.

    `variables` are the LD_ ones of the process. A library that is preloaded is listed by its SONAME; one that is
    not found is left out.
    """
    try:
        done = process.run(
            [linker, str(library)],
            # As ldd does. The option --list gives up at the first library that is missing.
            env={"PATH": "/usr/bin:/bin", "LC_ALL": "C", **variables, "LD_TRACE_LOADED_OBJECTS": "1"},
            cwd=Path("/"),
            timeout_s=_TIMEOUT_S,
            check=False,
        )
    except OperationFailed as error:
        return Unknown(error.message)
    if done.code != 0:
        said = done.stderr.decode(errors="replace").strip().splitlines()
        return Unknown(f"the dynamic linker cannot load {library}: {said[-1] if said else 'it says nothing'}")
    found: dict[str, str] = {}
    for line in done.stdout.decode(errors="surrogateescape").splitlines():
        match = re.match(_ARROW, line)
        if match and match[2]:
            found.setdefault(match[1], match[2])
        elif match and match[1].startswith("/"):
            elf = read_elf(match[1])
            name = elf.soname if isinstance(elf, Elf) and elf.soname else Path(match[1]).name
            found.setdefault(name, match[1])
    return found
