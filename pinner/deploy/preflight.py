"""What `up` makes sure of before it starts an engine: room and limits without which it would fail late.

Owns how much of each is needed and the words of the refusal. Removes only what ended runs of pinner have left in
shared memory; must not start anything or change a setting of the machine.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence

import msgspec

from pinner.deploy import segments
from pinner.deploy.running import all_runs, run_directory
from pinner.engines.sglang_api import value_of
from pinner.errors import LaunchFailed, OperationFailed
from pinner.host import machine, procfs, runs
from pinner.host.machine import Place
from pinner.host.shm import SHM
from pinner.model.facts import Difference, Drift, Override, Unknown, accept
from pinner.model.hostfacts import BEFORE_LAUNCH, UNLIMITED, needed_bytes
from pinner.model.lock import Lock
from pinner.model.units import size_text
from pinner.probes import hardware
from pinner.probes.base import Scene

MIB, GIB = 1 << 20, 1 << 30
# NVIDIA's own advice for NCCL in a container is --shm-size=1g; one process alone only keeps semaphores there.
SHM_SEVERAL_BYTES, SHM_ALONE_BYTES = GIB, 16 * MIB
# Sockets between ranks, shards, and a client's connections; 1024, a common limit, is soon too few.
OPEN_FILES_SEVERAL, OPEN_FILES_ALONE = 4096, 256
# Beneath this much room on disk caches and logs will soon fail.
DISK_BYTES = GIB
# Leftovers beneath this many bytes are not worth a word.
WORTH_TELLING_BYTES = 64 * MIB


class Ready(msgspec.Struct, frozen=True, kw_only=True):
    """What a launch may count on: the soft limit of open files to give the engine, and what is worth knowing.

    `accepted` are others on the GPUs, where the user lets them be.
    """

    open_files: int | None = None
    accepted: tuple[Difference, ...] = ()
    notes: tuple[str, ...] = ()


def preflight(scene: Scene, overrides: tuple[Override, ...] = (), place: Place | None = None) -> Ready:
    """Look before the launch. Raises LaunchFailed naming everything that is too little, needed against there."""
    place = place or Place()
    lock = scene.lock
    notes = _clean_up(scene, place)
    several = _has_several_processes(lock)
    open_files, short = _open_files(OPEN_FILES_SEVERAL if several else OPEN_FILES_ALONE, place)
    needed = needed_bytes(lock.host, "shm-free-bytes", SHM_SEVERAL_BYTES if several else SHM_ALONE_BYTES)
    others = accept(_others_on_gpus(lock), overrides)
    busy = [f"GPU in use: {line}" for one in others.differences for line in one.evidence]
    problems = [*_untold(lock, place), *_shm(needed, place), *_memory(lock, place), *short]
    if problems or busy:
        lines = "".join(f"\n  {line}" for line in (*problems, *busy))
        hint = "; ".join([*([_MORE_HINT] if problems else ()), *([_GPU_HINT] if busy else ())])
        raise LaunchFailed(f"nothing was started: this machine is not ready for the engine{lines}", hint=hint)
    found = (*notes, *_leftovers(place), *_disk(scene))
    return Ready(open_files=open_files, accepted=others.accepted, notes=found)


_MORE_HINT = (
    f"{SHM} grows by `docker run --shm-size 32g` or `mount -o remount,size=32g {SHM}`; "
    "shm-free-bytes and memory-available-bytes in [host] say what is needed"
)
_GPU_HINT = "end what uses the GPUs, or let it be: --accept hardware.processes --reason TEXT"


def _has_several_processes(lock: Lock) -> bool:
    """Whether ranks talk to each other, on GPUs or not."""
    if hardware.uses_gpus(lock):
        return True
    sizes = [value_of(flag, lock.engine.argv) for flag in ("tp-size", "pp-size", "dp-size", "ep-size")]
    return any(size is not None and size.isdigit() and int(size) > 1 for size in sizes)


def _clean_up(scene: Scene, place: Place) -> list[str]:
    ended = (run_directory(scene.home, run.run) for run in all_runs(scene.home))
    removed = segments.clean_up(ended, root=place.shm)
    if not removed:
        return []
    size = size_text(sum(one.size_bytes for one in removed))
    return [f"removed from {SHM} what ended runs of pinner had left there: {len(removed)} files, {size}"]


def _untold(lock: Lock, place: Place) -> list[str]:
    """What the lock demands by name, and nobody can tell."""
    demanded = [key for key in sorted(BEFORE_LAUNCH) if needed_bytes(lock.host, key, 0)]
    told = machine.read(demanded, place)
    return [
        f"{key}: {fact}, {size_text(needed_bytes(lock.host, key, 0))} needed"
        for key, fact in told.items()
        if isinstance(fact, Unknown)
    ]


def _shm(needed: int, place: Place) -> list[str]:
    told = machine.read(("shm-free-bytes", "shm-size-bytes"), place)
    free, size = told["shm-free-bytes"], told["shm-size-bytes"]
    if needed == 0 or isinstance(free, Unknown):
        return []
    if not isinstance(free, int):
        return [f"{SHM}: there is none, {size_text(needed)} needed"]
    if free >= needed:
        return []
    said = f"{SHM}: {size_text(free)} free of {size_text(size)}, {size_text(needed)} needed"
    return [said, *(f"  {line}" for line in segments.listed(root=place.shm, proc=place.root / "proc"))]


def _leftovers(place: Place) -> list[str]:
    """What fills shared memory though it leaves enough for now."""
    if segments.size_bytes(root=place.shm) < WORTH_TELLING_BYTES:
        return []
    lines = segments.listed(root=place.shm, proc=place.root / "proc")
    return [f"{SHM}: {line}" for line in lines if line.startswith(segments.LEFT_OVER)]


def _memory(lock: Lock, place: Place) -> list[str]:
    """A server without a GPU holds its weights in memory."""
    files = (*lock.model.files, *(lock.draft.files if lock.draft else ()))
    weights = 0 if hardware.uses_gpus(lock) else sum(one.size for one in files)
    needed = needed_bytes(lock.host, "memory-available-bytes", weights)
    available = machine.read(("memory-available-bytes",), place)["memory-available-bytes"]
    if not isinstance(available, int) or available >= needed:
        return []
    why = " for the weights alone" if needed == weights else ""
    return [f"memory: {size_text(available)} available, {size_text(needed)} needed{why}"]


def _others_on_gpus(lock: Lock) -> Drift:
    """Who else computes on the GPUs that the engine would use; other servers of pinner's are named as such."""
    foreign = hardware.foreign_on_visible(lock, frozenset()) if hardware.uses_gpus(lock) else []
    if not foreign:
        return Drift()
    pids = ", ".join(str(pid) for pid in sorted({one.pid for one in foreign}))
    difference = Difference(
        aspect=hardware.NAME,
        key="processes",
        pinned="none but its own",
        observed=f"pid {pids}",
        evidence=tuple(f"{one.sentence}{_of_run(one.pid)}" for one in foreign),
    )
    return Drift(differences=(difference,))


def _of_run(pid: int) -> str:
    with contextlib.suppress(OperationFailed):
        environment = procfs.environ(pid)
        if isinstance(environment, dict) and runs.RUN_MARKER in environment:
            return f", of {environment[runs.RUN_MARKER]}"
    return ""


def _open_files(needed: int, place: Place) -> tuple[int | None, list[str]]:
    """The limit to give the engine (None: it has enough), and what is too little."""
    soft, hard = machine.open_files_limits(place)
    if soft == UNLIMITED or not isinstance(soft, int):
        return None, []
    most = machine.OPEN_FILES if not isinstance(hard, int) else hard
    if max(soft, most) < needed:
        return None, [f"open files: {max(soft, most)} allowed (the hard limit), {needed} needed"]
    raised = min(most, machine.OPEN_FILES)
    return (raised, []) if raised > soft else (None, [])


def _disk(scene: Scene) -> Sequence[str]:
    told = os.statvfs(scene.home.root)
    free = told.f_bavail * told.f_frsize
    if free >= DISK_BYTES:
        return ()
    return (f"{scene.home.root}: only {size_text(free)} of disk left, and caches and logs grow there",)
