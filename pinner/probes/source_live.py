"""Where the living processes take the engine's package from.

Owns what can be told of that from outside: the program that runs, and where the same interpreter finds the package
when it is asked with a process's own variables and directory. The kernel shows no Python file once it is read, so
that this is inference; what a process has done to its own path since its start cannot be seen. Shared objects of
the engine are seen for certain, by pinner/probes/libraries_live.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from pinner.host.elf import Elf, read_elf
from pinner.host.process import Started
from pinner.host.procfs import ProcessInfo
from pinner.model.facts import Unknown
from pinner.probes import importing
from pinner.probes.base import Findings, LiveScene, Workspace
from pinner.probes.importing import Found

EXECUTABLE = "executable"
_DELETED = " (deleted)"
_MOST_QUESTIONS = 4

# What decides where an import looks: variables of the interpreter, and the directory where that counts.
Steering = tuple[tuple[tuple[str, str], ...], str]


def look(
    live: LiveScene, workspace: Workspace, package: str, judge: Callable[[Found | Unknown, Findings], None]
) -> Findings:
    """The program, and where each process that is steered in a way of its own would find the package."""
    found = Findings()
    program = str(Path(workspace.python).resolve())
    _executable(live.processes[0], program, found)
    asked: list[tuple[ProcessInfo, Started | Unknown]] = []
    seen = {_steering(live.env, "/")}
    same = 0
    for process in live.processes:
        environ = live.environ(process.pid)
        if (
            process.exe is None
            or process.exe.removesuffix(_DELETED) != program
            or not isinstance(environ, Mapping)
        ):
            continue
        steering = _steering(environ, live.cwd(process.pid) or "/")
        if steering in seen:
            same += 1
        elif len(asked) < _MOST_QUESTIONS:
            seen.add(steering)
            asked.append((process, importing.ask_as(workspace.python, package, environ, steering[1])))
    for process, started in asked:
        one = Findings()
        judge(importing.answer(started), one)
        if one.facts != one.sealed:
            _add(one, process, found)
    anew = f", {len(asked)} of them asked anew" if asked else ""
    # Their memory cannot be read from outside: an import of before a change shows nowhere.
    found.how.append(f"{same + len(asked)} processes would import it from there{anew}")
    return found


def _executable(main: ProcessInfo, program: str, found: Findings) -> None:
    if not isinstance(read_elf(program), Elf):
        return  # a script that runs the interpreter, and that no process shows
    found.sealed[EXECUTABLE] = program
    found.facts[EXECUTABLE] = main.exe if main.exe is not None else Unknown(f"/proc/{main.pid}/exe is hidden")
    if main.exe is not None and main.exe.endswith(_DELETED):
        found.notes_by_key[EXECUTABLE] = "the interpreter has been replaced since it was started"


def _steering(environ: Mapping[str, str], cwd: str) -> Steering:
    variables = tuple(sorted((name, value) for name, value in environ.items() if name.startswith("PYTHON")))
    return variables, "" if environ.get("PYTHONSAFEPATH") else cwd


def _add(one: Findings, process: ProcessInfo, found: Findings) -> None:
    who = f"pid {process.pid} ({process.title or process.comm}), by its own variables and directory"
    for key in one.facts:
        if key not in found.facts:
            found.facts[key], found.sealed[key] = one.facts[key], one.sealed[key]
            found.notes_by_key[key] = one.notes_by_key.get(key, "")
            found.evidence[key] = (who, *one.evidence.get(key, ()))
