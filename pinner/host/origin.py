"""How a process came to be: where it runs, when and by whom it was started, which interpreter it is.

Owns what /proc tells of that besides pinner/host/procfs.py. Reads only.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from pinner.host.procfs import PROC, ProcessInfo

_DELETED = " (deleted)"


def working_directory(pid: int, *, proc: Path = PROC) -> Path | None:
    """Where the process is now; None if it cannot be read or is gone."""
    try:
        place = os.fsdecode((proc / str(pid) / "cwd").readlink())
    except OSError:
        return None
    return None if place.endswith(_DELETED) else Path(place)


def owner(pid: int, *, proc: Path = PROC) -> int | None:
    """The user that the process runs as."""
    try:
        for line in (proc / str(pid) / "status").read_text(errors="replace").splitlines():
            if line.startswith("Uid:"):
                return int(line.split()[2])
    except (OSError, ValueError, IndexError):
        pass
    return None


def shares_files(pid: int, *, proc: Path = PROC) -> bool | None:
    """Whether a path means the same file to the process and to the caller; None if it cannot be told.

    A container has a root of its own.
    """
    try:
        theirs, ours = (proc / str(pid) / "root").stat(), Path("/").stat()
    except OSError:
        return None
    return (theirs.st_dev, theirs.st_ino) == (ours.st_dev, ours.st_ino)


def started_s(info: ProcessInfo, *, proc: Path = PROC) -> float | None:
    """When the process was started, in seconds since the epoch, to a second or so."""
    try:
        for line in (proc / "stat").read_text().splitlines():
            if line.startswith("btime "):
                return int(line.split()[1]) + info.start_ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        pass
    return None


def interpreter(info: ProcessInfo, env: Mapping[str, str], cwd: Path | None) -> Path | None:
    """The interpreter by the name it was started with, which is what makes it one of a virtual environment.

    None where no such name leads to the program that really runs.
    """
    if info.exe is None or not info.argv:
        return None
    real = info.exe.removesuffix(_DELETED)
    for candidate in _candidates(info.argv[0], env, cwd):
        if os.path.realpath(candidate) == os.path.realpath(real):
            return candidate
    return None


def _candidates(called: str, env: Mapping[str, str], cwd: Path | None) -> list[Path]:
    """Where Python itself looks for its own name, in its order."""
    if "/" in called:
        start = cwd or Path("/")
        return [Path(os.path.normpath(start / called))]
    found = [Path(entry) / called for entry in env.get("PATH", "").split(os.pathsep) if entry.startswith("/")]
    found = [one for one in found if os.access(one, os.X_OK) and one.is_file()]
    if "VIRTUAL_ENV" in env:
        found.append(Path(env["VIRTUAL_ENV"]) / "bin" / "python")
    return found


def is_replaced(info: ProcessInfo) -> bool:
    """Whether the program file that runs has been replaced on the disk since."""
    return info.exe is not None and info.exe.endswith(_DELETED)


def bound_cpus(pid: int) -> str | None:
    """How many of the CPUs that the caller may use the process may use ("2 of 8"); None if it is no fewer."""
    try:
        theirs, ours = os.sched_getaffinity(pid), os.sched_getaffinity(0)
    except OSError:
        return None
    return f"{len(theirs)} of {len(ours | theirs)}" if theirs < ours or not ours <= theirs else None


def other_limits(pid: int) -> list[str]:
    """The hard limits of a process that are not the caller's own, as "name theirs, here ours"."""
    import resource  # noqa: PLC0415  # only `adopt` wants it

    kinds = {"open files": resource.RLIMIT_NOFILE, "locked memory": resource.RLIMIT_MEMLOCK}
    found = []
    for name, kind in kinds.items():
        try:
            theirs, ours = resource.prlimit(pid, kind)[1], resource.getrlimit(kind)[1]
        except (OSError, ValueError):
            continue
        if theirs != ours:
            found.append(f"{name} {_limit(theirs)}, here {_limit(ours)}")
    return found


def _limit(value: int) -> str:
    return "unlimited" if value < 0 else f"{value:,}"


def is_here(host: str) -> bool | None:
    """Whether a name or address means this machine; None if the name means nothing."""
    import socket  # noqa: PLC0415  # only where a URL is asked about

    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_DGRAM)
    except (OSError, UnicodeError):
        return None
    return any(_can_bind(family, address) for family, _, _, _, address in found)


def _can_bind(family: int, address: tuple[object, ...]) -> bool:
    import socket  # noqa: PLC0415  # as above

    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            # Port 0: nothing is taken. Only an address of this machine can be bound.
            probe.bind((address[0], 0, *address[2:]))
    except OSError:
        return False
    return True
