"""Libraries that the processes of a run have loaded, by what the kernel shows of them.

Owns reading and judging these. Programs that the engine calls, such as compilers, compute nothing and are left
out. A library that the system provides and the environment does not is not judged: it is told where it is of a
family that decides speed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from pinner.host.elf import Elf, read_elf
from pinner.host.maps import MappedFile
from pinner.host.procfs import ProcessInfo, Unreadable
from pinner.model.facts import ABSENT, Unknown
from pinner.probes.base import Findings, LiveScene, Workspace
from pinner.probes.environment_files import NAMES_A_FILE, is_driver, is_family
from pinner.probes.library_places import LIBRARY, Place, Places
from pinner.probes.library_versions import title, versions
from pinner.probes.library_words import described, way

_DELETED = " (deleted)"
_MOST_NAMED = 3
# Where a file that has been replaced since says nothing about a pin: caches are written anew all the time.
_MAY_CHANGE = (Place.MADE, Place.SYSTEM)

Users = dict[MappedFile, list[ProcessInfo]]


def look(live: LiveScene, workspace: Workspace) -> Findings:
    """Every library of every process that runs the engine's interpreter."""
    found = Findings()
    users, count = _loaded(live, found)
    places = Places(live.scene, workspace, live.env)
    placed = {file: places.place(file.path) for file in users}
    told = [file for file in users if not file.replaced and (title(file.path) or placed[file] is Place.OUTSIDE)]
    known = versions((file.path for file in told), workspace.python, live.scene.memory)
    for file, place in placed.items():
        counts = is_family(_name(file.path))
        if file.replaced:
            if place not in _MAY_CHANGE or counts or is_driver(_name(file.path)):
                _replaced(file, users[file], found)
        elif is_driver(_name(file.path)):
            found.facts[_name(file.path)] = found.sealed[_name(file.path)] = file.path
        elif place is Place.OUTSIDE or (place in (Place.SYSTEM, Place.LISTED) and counts):
            _foreign(file, place, (live, workspace, places), users[file], found)
        elif counts:
            text = described(file.path, known)
            found.facts.setdefault(_name(file.path), text)
            found.sealed.setdefault(_name(file.path), text)
    _twice(users, found)
    found.how.append(_how(users, count, known))
    return found


def _loaded(live: LiveScene, found: Findings) -> tuple[Users, int]:
    """Which libraries are mapped, by whom, and by how many processes that could be read."""
    users: Users = {}
    count = 0
    program = _program(live.processes[0])
    for process in live.processes:
        if process.exe is not None and program is not None and _program(process) != program:
            continue
        seen = live.maps(process.pid)
        if isinstance(seen, Unreadable):
            if not seen.gone:
                key = f"of {_title(process)}"
                found.sealed[key], found.facts[key] = "readable", Unknown(f"pid {process.pid}: {seen.reason}")
            continue
        count += 1
        for file in seen:
            if file.executable and LIBRARY.fullmatch(_name(file.path)):
                users.setdefault(file, []).append(process)
    return {file: users[file] for file in sorted(users, key=lambda one: one.path)}, count


def _replaced(file: MappedFile, users: list[ProcessInfo], found: Findings) -> None:
    what = "has been deleted or replaced" if file.deleted else "is another file"
    found.differs(
        _name(file.path),
        file.path,
        f"{file.path}{_DELETED if file.deleted else ' (another file)'}",
        f"{file.path} {what} since it was loaded: what runs is not what lies there now; `pinner down` and `up`",
        *_who(users),
    )


def _foreign(
    file: MappedFile,
    place: Place,
    where: tuple[LiveScene, Workspace, Places],
    users: list[ProcessInfo],
    found: Findings,
) -> None:
    """A library from outside: a difference unless it is the system's and the environment ships none."""
    live, workspace, places = where
    elf = read_elf(file.path)
    name = elf.soname if isinstance(elf, Elf) and elf.soname else _name(file.path)
    shipped = places.shipped.get(name) or places.shipped.get(_name(file.path))
    expected = shipped[0].path if shipped else None
    paths = [file.path] if expected is None else [file.path, expected]
    known = versions(paths, workspace.python, live.scene.memory)
    variables = live.environ(users[0].pid)
    path = way(file.path, variables) if isinstance(variables, Mapping) else ""
    if place is Place.LISTED and (expected is None or path.startswith(NAMES_A_FILE)):
        return  # its bytes are pinned, and it hides nothing of the environment, or is named to do just that
    if place is Place.SYSTEM and expected is None and not name.startswith("libnccl-"):
        text = described(file.path, known)
        found.notes.append(f"{text} is the system's: the environment ships none, and no pin covers it")
        return
    unled = "no variable leads there: it was opened by its path or found by the system's linker"
    note = f"{path} leads there" if path else unled
    if expected is None:
        note += "; the environment ships no such library, and nobody listed it"
    pinned = ABSENT if expected is None else described(expected, known)
    found.differs(name, pinned, described(file.path, known), note, *_who(users))


def _twice(users: Iterable[MappedFile], found: Findings) -> None:
    """Two libraries of one name are told; one of them from elsewhere is a difference already."""
    paths: dict[str, set[str]] = {}
    for file in users:
        if is_family(_name(file.path)):
            paths.setdefault(_name(file.path), set()).add(file.path)
    for name, several in paths.items():
        if len(several) > 1:
            found.notes.append(f"{name} is loaded from {len(several)} places: {', '.join(sorted(several))}")


def _how(users: Iterable[MappedFile], count: int, known: Mapping[str, str | Unknown]) -> str:
    named = {f"{title(path)} {version}" for path, version in known.items() if isinstance(version, str)}
    paths = [file.path for file in users]
    named |= {f"driver {_name(path)}" for path in paths if _name(path).startswith("libcuda.so")}
    number = len(paths)
    text = f"{number} libraries mapped by {count} {'process' if count == 1 else 'processes'}"
    return ", ".join([text, *sorted(named)])


def _who(users: list[ProcessInfo]) -> tuple[str, ...]:
    lines = [f"pid {one.pid} ({_title(one)}) has it mapped" for one in users[:_MOST_NAMED]]
    rest = len(users) - _MOST_NAMED
    return (*lines, f"and {rest} more processes") if rest > 0 else tuple(lines)


def _program(process: ProcessInfo) -> str | None:
    return None if process.exe is None else process.exe.removesuffix(_DELETED)


def _title(process: ProcessInfo) -> str:
    return process.title or process.comm


def _name(path: str) -> str:
    return path.rpartition("/")[2]
