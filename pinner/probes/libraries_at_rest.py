"""Libraries that the launched process would load, as the dynamic linker answers.

Owns the question which of the environment's libraries are hidden by what variables lead to. The linker lists what
it would load and runs none of it. Versions are asked only of libraries that are in question.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from pinner.host import linker
from pinner.host.elf import Elf, read_elf
from pinner.model.facts import Unknown
from pinner.probes.base import Findings, Scene, Workspace
from pinner.probes.environment_files import PRELOADS, SEARCH, is_family
from pinner.probes.library_places import LIBRARY, Place, Places
from pinner.probes.library_versions import versions
from pinner.probes.library_words import described, way


def look(scene: Scene, workspace: Workspace, variables: Mapping[str, str], found: Findings) -> None:
    """Add every library that the environment ships and that `variables` of the linker put another one before."""
    places = Places(scene, workspace, scene.lock.env.set)
    names = dict(_offered(variables))
    wanted = {name for name in names if name in places.shipped}
    found.how.append(f"{' and '.join(sorted(variables))} offer {len(names)} libraries, {len(wanted)} also shipped")
    if not wanted:
        return
    program = Path(workspace.python).resolve()
    asked = linker.linker_of(program)
    if isinstance(asked, Unknown):
        found.sealed["linker"], found.facts["linker"] = "asked", asked
        return
    taken = _taken(places, wanted, variables, asked, found)
    for name in wanted - taken.keys():
        # Nothing in the environment asks for it by name, but programs open such libraries by name, too.
        if not _asking(places, name) and (names[name] in PRELOADS or is_family(name)):
            first = str(_first(name, variables))
            if _place(places, first) is not Place.ENVIRONMENT:
                taken[name] = (first, "a program that opens it by name")
    expected = {name: places.shipped[name][0].path for name in taken}
    told = versions([*(path for path, _ in taken.values()), *expected.values()], workspace.python, scene.memory)
    for name, (path, who) in taken.items():
        found.differs(
            name,
            described(expected[name], told),
            described(path, told),
            f"{way(path, variables) or 'the linker'} makes {who} load {path}, "
            "not the library that the environment ships",
        )


def _taken(
    places: Places, wanted: set[str], variables: Mapping[str, str], program: str, found: Findings
) -> dict[str, tuple[str, str]]:
    """By SONAME a library from elsewhere that the linker takes because of the variables, and who would get it.

    What it takes without them decides: a package may well need the system's own library of a name that another
    package ships.
    """
    taken: dict[str, tuple[str, str]] = {}
    for group in list(places.shipped.values()):
        for asking in group:
            names = wanted.intersection(asking.elf.needed) - taken.keys()
            if not names:
                continue
            path = Path(asking.path)
            alone, steered = linker.would_load(path, {}, program), linker.would_load(path, variables, program)
            if isinstance(alone, Unknown):
                continue  # for another machine, or damaged, and then a difference of the environment's files
            if isinstance(steered, Unknown):
                found.sealed[f"of {path.name}"], found.facts[f"of {path.name}"] = "what it loads", steered
                continue
            for name in names & steered.keys():
                usual = alone.get(name)
                is_ours = usual is None or _place(places, usual) is Place.ENVIRONMENT
                if is_ours and _place(places, steered[name]) is not Place.ENVIRONMENT:
                    taken[name] = (steered[name], path.name)
    return taken


def _place(places: Places, path: str) -> Place:
    return places.place(str(Path(path).resolve()))


def _asking(places: Places, name: str) -> bool:
    return any(name in one.elf.needed for group in places.shipped.values() for one in group)


def _offered(variables: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Names under which the variables offer a library, and the variable; a preload counts by its SONAME, too."""
    for directory in linker.search_path(variables.get(SEARCH, "")):
        for place in linker.candidates(directory):
            try:
                names = [path.name for path in place.iterdir()]
            except OSError:
                continue
            yield from ((name, SEARCH) for name in names if LIBRARY.fullmatch(name))
    for variable in PRELOADS:
        for item in linker.preloads(variables.get(variable, "")):
            yield item.rpartition("/")[2], variable
            elf = read_elf(Path("/") / item)
            if isinstance(elf, Elf) and elf.soname:
                yield elf.soname, variable


def _first(name: str, variables: Mapping[str, str]) -> Path:
    """The library that is found first under a name."""
    for variable in PRELOADS:
        for item in linker.preloads(variables.get(variable, "")):
            elf = read_elf(Path("/") / item)
            if name in (item.rpartition("/")[2], elf.soname if isinstance(elf, Elf) else None):
                return Path("/") / item
    directories = [
        place for entry in linker.search_path(variables.get(SEARCH, "")) for place in linker.candidates(entry)
    ]
    return next((place / name for place in directories if (place / name).exists()), Path(name))
