"""How a library and the way to it are told to a person. Pure but for reading a library's build id."""

from __future__ import annotations

import os
from collections.abc import Mapping

from pinner.host import linker
from pinner.host.elf import Elf, read_elf
from pinner.model.facts import Unknown
from pinner.probes.environment_files import NAMES_A_FILE, PRELOADS, SEARCH
from pinner.probes.library_versions import title


def described(path: str, versions: Mapping[str, str | Unknown]) -> str:
    """Path, version where it can be told, and build id."""
    parts = []
    version = versions.get(path)
    if isinstance(version, Unknown):
        parts.append(f"version unknown: {version.reason}")
    elif version is not None:
        parts.append(f"{title(path)} {version}")
    elf = read_elf(path)
    if isinstance(elf, Elf) and elf.build_id:
        parts.append(f"build id {elf.build_id}")
    return f"{path} ({', '.join(parts)})" if parts else path


def way(path: str, variables: Mapping[str, str]) -> str:
    """Which variable of the linker leads to a file, with its value; "" if none does."""
    real = os.path.realpath(path)
    for name in PRELOADS:
        value = variables.get(name, "")
        if any(os.path.realpath(f"/{item}") == real for item in linker.preloads(value)):
            return f"{name}={value}"
    for name in NAMES_A_FILE:
        value = variables.get(name, "")
        if value and os.path.realpath(f"/{value}") == real:
            return f"{name}={value}"
    value = variables.get(SEARCH, "")
    for directory in linker.search_path(value):
        for place in linker.candidates(directory):
            if os.path.realpath(place / path.rpartition("/")[2]) == real or real.startswith(
                f"{os.path.realpath(place)}/"
            ):
                return f"{SEARCH}={value}"
    return ""
