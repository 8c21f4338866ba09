"""Shared memory that a run has made: noted while it runs, removed when it has ended and left some.

Owns `shm.json` of a run directory and the answer to whose a segment is. A segment is a run's own if one of its
processes had it mapped or open, and it did not exist before the run; it is removed only when no process has it any
more. Nothing else in /dev/shm is ever removed.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterable
from pathlib import Path

import msgspec

from pinner.errors import OperationFailed, PinnerError, UnknownFact
from pinner.host import procfs, runs, shm
from pinner.host.files import write_atomic
from pinner.host.shm import SHM, Segment
from pinner.model.units import size_text

NOTES = "shm.json"
LEFT_OVER = "left over"
MOST_NAMED = 5


class Noted(msgspec.Struct, frozen=True):
    """Segments that processes of a run had; inode numbers mean something only until the next boot."""

    boot_id: str
    segments: tuple[Segment, ...]


def remember(directory: Path, *, root: Path = SHM) -> None:
    """Note what the living processes of a run have of shared memory, besides what was noted before."""
    with contextlib.suppress(OperationFailed, UnknownFact, OSError):
        found = shm.segments(root)
        if not found:
            return
        started_ns = int(runs.read_state(directory).started * 1e9)
        held = shm.holders([one.pid for one in runs.processes(directory)], root=root).pids
        mine = [one for one in found if one.identity in held and one.changed_ns >= started_ns]
        known = {one.identity: one for one in (*_read(directory), *mine)}
        if mine:
            noted = Noted(procfs.boot_id(), tuple(known.values()))
            write_atomic(directory / NOTES, msgspec.json.encode(noted), mode=0o600)


def clean_up(directories: Iterable[Path], *, root: Path = SHM) -> list[Segment]:
    """Remove what runs of pinner that have ended left in shared memory; returns it.

    A process that cannot be looked into may still map one: its memory stays, only the name goes.
    """
    left: dict[tuple[str, tuple[int, int]], Path] = {}
    for directory in directories:
        left |= {(one.name, one.identity): directory for one in _read(directory)}
    there = [one for one in shm.segments(root) if (one.name, one.identity) in left] if left else []
    if not there:
        return []
    held = shm.holders(root=root)
    removed = []
    for one in there:
        if one.identity in held.pids or one.uid != os.geteuid() or not _has_ended(left[one.name, one.identity]):
            continue
        if shm.remove(one, root=root):
            removed.append(one)
    return removed


def _has_ended(directory: Path) -> bool:
    try:
        return not runs.is_alive(directory) and not runs.survivors(directory)
    except PinnerError:
        return False


def _read(directory: Path) -> tuple[Segment, ...]:
    try:
        noted = msgspec.json.decode((directory / NOTES).read_bytes(), type=Noted)
        return noted.segments if noted.boot_id == procfs.boot_id() else ()
    except (OSError, msgspec.DecodeError, OperationFailed):
        return ()


def size_bytes(*, root: Path = SHM) -> int:
    """What all segments take together."""
    return sum(one.size_bytes for one in shm.segments(root))


def listed(*, root: Path = SHM, proc: Path = procfs.PROC) -> list[str]:
    """What lies in shared memory, a line for each group: what nobody has open, and what living processes have."""
    found = shm.segments(root)
    if not found:
        return []
    held = shm.holders(root=root, proc=proc)
    orphans: list[Segment] = []
    living: dict[int, list[Segment]] = {}
    for one in found:
        pids = held.pids.get(one.identity) or [shm.named_after(one, proc=proc) or 0]
        (living.setdefault(pids[0], []) if pids[0] else orphans).append(one)
    lines = []
    if orphans:
        unseen = f" that can be seen from here ({held.unreadable} cannot)" if held.unreadable else ""
        lines.append(f"{LEFT_OVER}, held by no process{unseen}: {_summary(orphans)}")
    for pid, mine in living.items():
        process = procfs.process(pid, proc=proc)
        title = f" ({process.title[:60]})" if process else ""
        lines.append(f"of pid {pid}{title}: {_summary(mine)}")
    return lines


def _summary(found: list[Segment]) -> str:
    total = size_text(sum(one.size_bytes for one in found))
    names = ", ".join(f"{one.name} ({size_text(one.size_bytes)}, {_age(one)} old)" for one in found[:MOST_NAMED])
    more = f" and {len(found) - MOST_NAMED} more" if len(found) > MOST_NAMED else ""
    return f"{len(found)} file{'s' if len(found) > 1 else ''}, {total}: {names}{more}"


def _age(one: Segment) -> str:
    hours = max(0.0, time.time() - one.changed_ns / 1e9) / 3600
    return f"{hours / 24:.0f} d" if hours >= 48 else f"{hours:.0f} h" if hours >= 2 else f"{hours * 60:.0f} min"
