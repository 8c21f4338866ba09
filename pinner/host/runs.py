"""Runs as the CLI sees them: start one, find it again, list its processes, end it.

Owns the identity checks that stand before every signal: a process is signalled through a pidfd, after its
start time, the boot, the PID namespace and the host have been compared with what the run's state says, and
never because of its name. Must not judge an engine's health, and must not touch a run that lives elsewhere.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import select
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from pinner.errors import Busy, LaunchFailed, OperationFailed, UnknownFact
from pinner.host import kin, process, procfs, rundir
from pinner.host.runstate import (
    RUN_MARKER,
    Identity,
    LaunchSpec,
    NoRun,
    RunElsewhere,
    RunState,
    StopResult,
    Survivor,
    encode,
    read_state,
)

__all__ = [
    "RUN_MARKER",
    "Identity",
    "LaunchSpec",
    "NoRun",
    "RunElsewhere",
    "RunState",
    "StopResult",
    "Survivor",
    "is_alive",
    "processes",
    "read_state",
    "start",
    "stop",
    "survivors",
]

_SUPERVISOR = Path(__file__).with_name("supervisor.py")
_SETTLE_S = 1.0  # between taking the lock and writing its first state a supervisor needs milliseconds
_ORPHANS_S = 2.0  # the least time given to ending what a killed supervisor left


def start(run_dir: Path, spec: LaunchSpec) -> RunState:
    """Start an engine under its own supervisor; returns when the engine has been executed.

    Busy if the run directory has a live supervisor or survivors of an earlier one; LaunchFailed if the
    engine cannot be executed. Whatever interrupts this call, nothing is left running.
    """
    procfs.require()
    run_dir = Path(os.path.abspath(run_dir))  # noqa: PTH100  resolve() would follow links
    run_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    left = survivors(run_dir)
    if left:
        names = ", ".join(f"{one.pid} ({one.comm})" for one in left)
        raise Busy(f"processes of an earlier run are still alive: {names}", hint="pinner down ends them")
    with contextlib.ExitStack() as stack:
        spec_out, spec_in = _pipe(stack)
        ready_out, ready_in = _pipe(stack)
        program = [sys.executable, "-I", "-S", str(_SUPERVISOR), "--run-dir", str(run_dir)]
        supervisor = process.spawn_detached(
            [*program, "--spec-fd", str(spec_out.fileno()), "--ready-fd", str(ready_in.fileno())],
            pass_fds=(spec_out.fileno(), ready_in.fileno()),
            env={"PATH": "/usr/bin:/bin"},
            cwd=Path("/"),
            stdout=run_dir / rundir.SUPERVISOR_LOG,
        )
        try:
            spec_out.close()
            ready_in.close()
            with contextlib.suppress(BrokenPipeError):  # it ended: the answer, or the lack of it, says so
                rest = memoryview(encode(spec))
                while rest:
                    rest = rest[spec_in.write(rest) :]
                spec_in.close()
            answer = ready_out.read()
        except BaseException:
            stack.close()  # an incomplete specification is never executed
            supervisor.send_signal(signal.SIGUSR1)
            supervisor.wait()
            raise
    if not answer:
        supervisor.wait()
        said = (run_dir / rundir.SUPERVISOR_LOG).read_text(errors="replace").strip().splitlines()
        raise LaunchFailed(f"the supervisor ended without an answer: {said[-1] if said else 'it said nothing'}")
    told = json.loads(answer)
    if not told["ok"]:
        supervisor.wait()
        raise Busy(f"{run_dir.name} runs already") if told.get("busy") else LaunchFailed(str(told["error"]))
    return read_state(run_dir)


def is_alive(run_dir: Path) -> bool:
    """Whether a supervisor holds the run's lock; asking takes nothing. UnknownFact if it cannot be asked."""
    return _holder(run_dir) is not None


def processes(run_dir: Path) -> list[procfs.ProcessInfo]:
    """Every living process of the run but the supervisor, by PID: descendants and cgroup members.

    Of a run whose supervisor was killed: its survivors. RunElsewhere, NoRun, UnknownFact.
    """
    pid = _holder(run_dir)
    if pid is None:
        return survivors(run_dir)
    state = _live_state(run_dir, pid)
    everyone = procfs.living()
    found = kin.below({pid}, everyone)
    found.update({member: everyone[member] for member in _cgroup(state).members() & everyone.keys()})
    return procfs.describe(found)


def survivors(run_dir: Path) -> list[procfs.ProcessInfo]:
    """Living processes of a run whose supervisor lives no more. RunElsewhere, UnknownFact."""
    if _holder(run_dir) is not None:
        return []
    try:
        state = read_state(run_dir)
    except NoRun:
        return []
    left = procfs.describe(_orphans(state)) if _may_have_left(state) else []
    return left if _holder(run_dir) is None else []  # else a start came in between, and they are its own


def stop(run_dir: Path, *, timeout_s: float, force: bool = False) -> StopResult:
    """End a run and all of its processes; a second call finds nothing to do.

    Waits `timeout_s` seconds at most, which should be more than the run's grace time; `force` skips the
    grace. What a killed supervisor left is found and ended too. RunElsewhere, without a signal, if the
    run is not of this host, boot and PID namespace; UnknownFact if its state cannot be read.
    """
    end = time.monotonic() + timeout_s
    pid = _holder(run_dir)
    if pid is not None:
        state = _live_state(run_dir, pid)
        try:
            _signal(state.supervisor, signal.SIGUSR1 if force else signal.SIGTERM, wait_s=timeout_s)
        except PermissionError:
            raise OperationFailed(f"{state.run} belongs to another user; nothing was stopped") from None
        if _holder(run_dir) == pid:
            left = tuple(Survivor(one.pid, one.start_ticks, one.comm) for one in processes(run_dir))
            return StopResult(False, False, None, False, 0, left)
        process.collect_detached()
    try:
        state = read_state(run_dir)
    except NoRun:
        return StopResult(True, True, None, False, 0, ())
    if _holder(run_dir) is not None:  # a start came in between
        return stop(run_dir, timeout_s=max(end - time.monotonic(), 0), force=force)
    if _may_have_left(state):
        ended = _end_orphans(run_dir, state, max(end, time.monotonic() + _ORPHANS_S))
        return msgspec.structs.replace(ended, already=ended.already and pid is None)
    return StopResult(True, pid is None, state.exit_code, state.forced, state.killed, ())


def _pipe(stack: contextlib.ExitStack) -> tuple[Any, Any]:
    """A pipe above the standard descriptors, which the caller may have closed."""
    ends = []
    for fd, mode in zip(os.pipe(), ("rb", "wb"), strict=True):
        high = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 3)
        os.close(fd)
        ends.append(stack.enter_context(os.fdopen(high, mode, buffering=0)))
    return ends[0], ends[1]


def _holder(run_dir: Path) -> int | None:
    procfs.require()
    try:
        return rundir.holder(str(run_dir))
    except OSError as error:
        raise UnknownFact(f"{run_dir}: cannot tell whether it runs: {error.strerror}") from None


def _live_state(run_dir: Path, pid: int) -> RunState:
    """The state of the supervisor that holds the lock, here. RunElsewhere, UnknownFact."""
    end = time.monotonic() + _SETTLE_S
    while True:
        try:
            state = read_state(run_dir)
        except NoRun:
            state = None
        if state is not None:
            _require_here(state)
            if state.supervisor == Identity(pid, procfs.start_ticks(pid) or 0):
                return state
        if time.monotonic() > end:
            raise UnknownFact(f"{run_dir}: process {pid} holds the lock, but is not the one its state tells of")
        time.sleep(0.01)


def _require_here(state: RunState) -> None:
    for what, theirs, ours in (
        ("host", state.host, os.uname().nodename),
        ("boot", state.boot_id, procfs.boot_id()),
        ("PID namespace", state.pid_namespace, procfs.pid_namespace()),
    ):
        if theirs != ours:
            raise RunElsewhere(f"{state.run} is running elsewhere: {what} {theirs}, this is {ours}")


def _may_have_left(state: RunState) -> bool:
    """Whether a dead supervisor can have left processes here. RunElsewhere if that is told elsewhere."""
    if state.status in ("exited", "failed") and not state.survivors:
        return False
    if state.host == os.uname().nodename and state.boot_id != procfs.boot_id():
        return False  # this machine has been restarted since, and nothing outlives that
    _require_here(state)
    return True


def _cgroup(state: RunState) -> kin.Cgroup:
    # Only a group that bears the run's own name: a damaged state must not end a foreign one.
    name = f"pinner-{state.run}-{state.supervisor.pid}"
    return kin.Cgroup(state.cgroup if state.cgroup and Path(state.cgroup).name == name else None)


def _orphans(state: RunState) -> dict[int, kin.Stat]:
    """Processes that certainly belong to the run: recorded, marked, in its cgroup, or born of those."""
    everyone = procfs.living()
    known = {(one.pid, one.start_ticks) for one in (state.server, *state.survivors) if one is not None}
    known.update((pid, ticks) for pid, ticks, _ in state.members)
    sessions = {session for _, _, session in state.members}
    found = {pid for pid, one in everyone.items() if (pid, one.start_ticks) in known}
    found |= _cgroup(state).members() & everyone.keys()
    found |= {pid for pid, one in everyone.items() if _marked(pid, one, state)}
    while True:
        # A session's number is used again only when its last member has gone. While one that is certainly
        # ours is in it, all of it is ours.
        ours = {everyone[pid].session for pid in found} & sessions
        grown = found | kin.below(found, everyone).keys()
        grown |= {pid for pid, one in everyone.items() if one.session in ours}
        if grown == found:
            break
        found = grown
    return {pid: everyone[pid] for pid in found - _own_line(everyone)}


def _marked(pid: int, one: kin.Stat, state: RunState) -> bool:
    if one.start_ticks < state.supervisor.start_ticks:
        return False
    environment = procfs.environ(pid)
    return isinstance(environment, dict) and environment.get(RUN_MARKER) == state.run


def _own_line(everyone: dict[int, kin.Stat]) -> set[int]:
    """This process and its ancestors, which may stand in a shell that the engine opened."""
    line, pid = set(), os.getpid()
    while pid in everyone and pid not in line:
        line.add(pid)
        pid = everyone[pid].ppid
    return line


def _end_orphans(run_dir: Path, state: RunState, end: float) -> StopResult:
    group = _cgroup(state)
    killed: set[int] = set()
    while left := _orphans(state):
        if time.monotonic() > end:
            break
        killed.update(left)
        if os.getpid() not in group.members():
            group.kill()
        for pid, one in left.items():
            with contextlib.suppress(PermissionError):
                _signal(Identity(pid, one.start_ticks), signal.SIGKILL, wait_s=0)
        time.sleep(0.01)
    group.remove()
    remaining = tuple(Survivor(pid, one.start_ticks, one.name) for pid, one in sorted(left.items()))
    lost = state.status in ("starting", "running")
    closing = msgspec.structs.replace(
        state,
        status="exited" if lost else state.status,
        ended=state.ended or time.time(),
        forced=state.forced or lost,
        killed=state.killed + len(killed - left.keys()),
        survivors=remaining,
        clean=not remaining,
        error=state.error or ("the supervisor was killed" if lost else None),
    )
    with contextlib.suppress(OSError):  # a full disk: the processes have ended all the same
        rundir.replace_dead_state(str(run_dir), msgspec.to_builtins(closing))
    already = not killed and not remaining
    return StopResult(not remaining, already, closing.exit_code, closing.forced, closing.killed, remaining)


def _signal(who: Identity, number: signal.Signals, *, wait_s: float) -> None:
    """Signal exactly this process, and wait for its end if asked to; nothing if it has gone already.

    PermissionError if it belongs to another user.
    """
    with _handle(who) as handle:
        if handle is None:
            return
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(handle, number)
        poll = select.poll()
        poll.register(handle, select.POLLIN)
        poll.poll(wait_s * 1000)


@contextlib.contextmanager
def _handle(who: Identity) -> Iterator[int | None]:
    """A pidfd: opened first and compared then, so that the number cannot change hands in between."""
    try:
        handle = os.pidfd_open(who.pid)
    except ProcessLookupError:
        yield None
        return
    try:
        yield handle if procfs.start_ticks(who.pid) == who.start_ticks else None
    finally:
        os.close(handle)
