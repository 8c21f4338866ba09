"""The process that outlives the CLI: starts one engine, waits, and leaves nothing of it behind.

Owns the run directory's `lock`, `state.json` and `server.log`, the run's cgroup, and every process that
descends from the engine. Started as `python -I supervisor.py --run-dir D --spec-fd N [--ready-fd M]`, by
the CLI or as PID 1 of a container.

Must not load anything but the standard library and two siblings that keep to the same rule (so that it
starts fast, and no broken environment breaks it), must not write an environment value anywhere, and must
not signal a process that is neither its descendant nor in its own cgroup.

How nothing survives: the supervisor is a child subreaper, so whatever a descendant does (setsid, double
fork, cleared environment) its orphans become the supervisor's children; with no child left there is no
descendant left, and `waitpid` says so. The cgroup, where one can be made, adds a kill that no fork can
outrun, and a list of members that outlives a supervisor that was killed.
"""

# Only cheap imports: this file stands between `pinner up` and the engine. pathlib, typing, argparse and
# dataclasses cost 5 to 10 ms each, so paths are strings here and in the two modules that it loads.
# ruff: noqa: PTH100, PTH116, PTH120, PTH208

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING or __name__ != "__main__":
    from pinner.host import kin, rundir
else:
    # -I keeps this directory off the path. Last, so that nothing here can stand before the library.
    sys.path.append(os.path.dirname(os.path.abspath(__file__)))
    import kin
    import rundir

    sys.path.pop()
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, NoReturn

# Seconds until the sweep gives up on what SIGKILL does not end (a driver call that hangs, state D).
SWEEP_S = 30.0
# Seconds between looks at the process tree: from dense, while the engine starts, to sparse.
SNAPSHOT_FIRST_S, SNAPSHOT_LAST_S = 0.02, 60.0

_PR_SET_PDEATHSIG, _PR_SET_NAME, _PR_SET_CHILD_SUBREAPER = 1, 15, 36
_HANDLED = {signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGCHLD}
# An engine's children send SIGQUIT to their parent when they crash; a closed terminal sends SIGHUP.
_IGNORED = (signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR2, signal.SIGALRM, signal.SIGTSTP)


class Supervisor:
    """One engine from start to sweep. `state` is what state.json holds; no environment value is in it."""

    def __init__(self, run_dir: str, spec: dict[str, Any]) -> None:
        self.run_dir, self.spec = run_dir, spec
        self.pid = 0
        self.exit_code: int | None = None
        self.stop_requested = False
        self.cgroup, why = kin.Cgroup(None), "not asked for" if not spec.get("cgroup", True) else None
        if why is None:
            self.cgroup, why = kin.Cgroup.create(f"pinner-{spec['run']}-{os.getpid()}")
        me = kin.stat(os.getpid())
        self.state: dict[str, Any] = {
            "schema": rundir.SCHEMA,
            "run": spec["run"],
            "status": "starting",
            "supervisor": {"pid": os.getpid(), "start_ticks": me.start_ticks if me else 0},
            "server": None,
            "boot_id": kin.text("/proc/sys/kernel/random/boot_id").strip(),
            "pid_namespace": os.stat("/proc/self/ns/pid").st_ino,
            "host": os.uname().nodename,
            "cgroup": self.cgroup.path,
            "cgroup_missing": why,
            "argv": spec["argv"],
            "started": time.time(),
            "ended": None,
            "exit_code": None,
            "forced": False,
            "killed": 0,
            "survivors": [],
            "clean": None,
            "error": None,
            "members": [],
        }

    def save(self) -> None:
        """Write state.json. OSError when the disk does not take it."""
        rundir.replace_state(self.run_dir, self.state)

    def launch(self, prctl: Callable[..., int]) -> str | None:
        """Fork and exec the engine; the error as text when it did not start."""
        self.state["subreaper"] = prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0
        self.save()
        for name in os.listdir("/proc/self/fd"):
            if int(name) > 2:
                with contextlib.suppress(OSError):  # the descriptor of the listing itself
                    os.set_inheritable(int(name), False)
        appending = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        log = os.open(f"{self.run_dir}/{rundir.SERVER_LOG}", appending, 0o600)
        reports, report = os.pipe()
        me = os.getpid()
        self.pid = os.fork()
        if self.pid == 0:
            _become_engine(self.spec, self.cgroup, (log, report), me, prctl)
        os.close(report)
        os.close(log)
        with os.fdopen(reports, encoding="utf-8", errors="replace") as pipe:
            said = pipe.read().splitlines()
        self.spec["env"] = {}  # secrets are needed no longer
        if said and said[0].startswith("cgroup "):
            self.cgroup.remove()
            self.cgroup = kin.Cgroup(None)
            self.state.update(cgroup=None, cgroup_missing=said.pop(0))
        if said:
            return "; ".join(said)
        one = kin.stat(self.pid)  # not reaped yet, so this is the engine and nobody else
        self.state["server"] = {"pid": self.pid, "start_ticks": one.start_ticks if one else 0}
        self.state["status"] = "running"
        self.save()
        return None

    def watch(self) -> None:
        """Wait until the engine ends, or is to be ended and its grace is over."""
        stop_at: float | None = None
        pause, next_look = SNAPSHOT_FIRST_S, time.monotonic() + SNAPSHOT_FIRST_S
        while True:
            self._reap()
            now = time.monotonic()
            if self.exit_code is not None or (stop_at is not None and now >= stop_at):
                return
            if self.cgroup.path is None and now >= next_look:
                self._remember_members()
                pause = min(pause * 2, SNAPSHOT_LAST_S)
                next_look = now + pause
            wait = 3600.0 if self.cgroup.path is not None else next_look - now
            if stop_at is not None:
                wait = min(wait, stop_at - now)
            info = signal.sigtimedwait(_HANDLED, max(wait, 0))
            number = info.si_signo if info is not None else signal.SIGCHLD
            if number == signal.SIGUSR1:
                self.stop_requested, stop_at = True, time.monotonic()
            elif number in (signal.SIGTERM, signal.SIGINT) and stop_at is None:
                self.stop_requested, stop_at = True, time.monotonic() + float(self.spec["grace_s"])
                # The main process only: how its children end is the engine's business until the sweep.
                with contextlib.suppress(OSError):
                    os.kill(self.pid, signal.SIGTERM)

    def sweep(self) -> None:
        """Kill and reap until this process has no child left, and write down how it ended."""
        forced = self.exit_code is None and self.pid != 0
        killed: set[int] = set()
        give_up, pause = time.monotonic() + SWEEP_S, 0.0
        while True:
            childless = self._reap()
            left = self._living(childless)
            if (childless and not left) or time.monotonic() >= give_up:
                break
            self.cgroup.kill()
            for pid in left:
                kin.kill(pid)
            # A tight loop while new ones appear, else a process that forks and exits stays ahead.
            pause = 0.0 if left.keys() - killed else min(pause + 0.001, 0.02)
            killed.update(left)
            time.sleep(pause)
        survivors = [(pid, one.name, one.start_ticks) for pid, one in sorted(left.items())]
        self.cgroup.remove()
        if self.state["status"] != "failed":
            self.state["status"] = "exited"
        self.state.update(
            ended=time.time(),
            exit_code=self.exit_code if self.state["error"] is None else None,
            forced=forced,
            killed=len(killed - left.keys()),
            survivors=[dict(zip(("pid", "name", "start_ticks"), one, strict=True)) for one in survivors],
            clean=not survivors,
        )

    def _living(self, childless: bool) -> dict[int, kin.Stat]:
        # Children first: one small file, fast enough to catch what forks and exits in a loop.
        found = {} if childless else kin.still_living(kin.children()) or self._below_me()
        found.update(kin.still_living(self.cgroup.members()))
        return found

    @staticmethod
    def _below_me() -> dict[int, kin.Stat]:
        return kin.below({os.getpid()}, kin.living())

    def _reap(self) -> bool:
        """Collect what has ended, adopted orphans too; True when there is no child left at all."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return True
            if pid == 0:
                return False
            if pid == self.pid:
                self.exit_code = os.waitstatus_to_exitcode(status)

    def _remember_members(self) -> None:
        """Without a cgroup: note who belongs to the run, for the day this process is killed itself."""
        members = [[pid, one.start_ticks, one.session] for pid, one in sorted(self._below_me().items())]
        if members != self.state["members"]:
            self.state["members"] = members
            try:
                self.save()
            except OSError as error:
                _log(f"state.json: {error.strerror}")


def _become_engine(
    spec: dict[str, Any], cgroup: kin.Cgroup, fds: tuple[int, int], parent: int, prctl: Callable[..., int]
) -> NoReturn:
    """In the child: become the engine, or report why not (a line each) and end."""
    (log, report), step = fds, "prepare"
    try:
        # No supervisor, no server: nothing runs that nobody watches.
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:
            os._exit(127)  # it died before the kernel was told
        try:
            cgroup.enter()
        except OSError as error:
            os.write(report, f"cgroup {cgroup.path}: {error.strerror}\n".encode())
        os.setsid()
        null = os.open("/dev/null", os.O_RDONLY)
        for fd, target in ((null, 0), (log, 1), (log, 2)):
            os.dup2(fd, target)
        for number in signal.valid_signals():
            if signal.getsignal(number) is signal.SIG_IGN:  # ignoring is inherited through exec
                signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        os.umask(int(spec.get("umask", 0o022)))
        if spec.get("open_files"):
            step = f"raise the limit of open files to {spec['open_files']}"
            hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
            resource.setrlimit(resource.RLIMIT_NOFILE, (int(spec["open_files"]), hard))
        step = f"enter {spec['cwd']}"
        os.chdir(_bytes(spec["cwd"]))
        step = f"start {spec['argv'][0]}"
        argv = [_bytes(word) for word in spec["argv"]]
        os.execve(  # noqa: S606  this is the point of it all
            argv[0], argv, {_bytes(name): _bytes(value) for name, value in spec["env"].items()}
        )
    except BaseException as error:
        why = error.strerror if isinstance(error, OSError) else error
        os.write(report, f"cannot {step}: {why}\n".encode(errors="backslashreplace"))
    finally:
        os._exit(127)


def _bytes(text: str) -> bytes:
    # Explicitly, since the locale of whoever started the supervisor must not decide.
    return text.encode("utf-8", "surrogateescape")


def _tell(fd: int | None, answer: dict[str, Any]) -> bool:
    """Answer whoever started this process; False when it is gone."""
    if fd is None:
        return True
    try:
        return os.write(fd, json.dumps(answer).encode()) > 0
    except BrokenPipeError:
        return False
    finally:
        os.close(fd)


def _load_prctl() -> Callable[..., int]:
    import ctypes  # noqa: PLC0415  not needed by those who import this module for its constants

    prctl: Callable[..., int] = ctypes.CDLL(None, use_errno=True).prctl
    prctl(_PR_SET_NAME, b"pinner-run", 0, 0, 0)
    return prctl


def _supervise(one: Supervisor, ready: int | None) -> None:
    """Launch, answer, watch, sweep; whatever goes wrong in between, the sweep comes."""
    try:
        error = one.launch(_load_prctl())
        if error is None:
            answer_to, ready = ready, None
            if _tell(answer_to, {"ok": True}):
                one.watch()
            else:
                error = "whoever started this run was gone before it was handed over"
        if error is not None:
            one.state.update(status="failed", error=error)
    except Exception as error:
        one.state.update(status="failed", error=f"supervisor: {type(error).__name__}: {error}")
    one.sweep()
    try:
        one.save()
    finally:
        _tell(ready, {"ok": False, "error": one.state["error"]})


def main(words: list[str]) -> int:
    """Supervise one run; the exit code is the engine's, 0 where it was asked to stop, 3 with survivors."""
    options = dict(zip(words[::2], words[1::2], strict=True))
    signal.pthread_sigmask(signal.SIG_BLOCK, _HANDLED)
    for number in _IGNORED:
        signal.signal(number, signal.SIG_IGN)
    # Inherited as ignored it would let the kernel reap, and the exit code would be lost.
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    run_dir, ready = options["--run-dir"], int(options["--ready-fd"]) if "--ready-fd" in options else None
    with os.fdopen(int(options["--spec-fd"]), "rb") as pipe:
        raw = pipe.read()
    while (null := os.open("/dev/null", os.O_RDWR)) <= 2:
        pass  # 0, 1 and 2 are taken now, so that no file opened below is mistaken for them
    os.close(null)
    os.chdir("/")
    try:
        spec = json.loads(raw)
    except ValueError:
        return _refuse(ready, "the specification did not arrive whole: whoever started this run is gone")
    if spec.get("schema") != rundir.SCHEMA:
        return _refuse(ready, f"specification of schema {spec.get('schema')}, not {rundir.SCHEMA}")
    if not rundir.take_for_life(run_dir):
        _tell(ready, {"ok": False, "busy": True, "error": "the run directory has a live supervisor"})
        return 3
    one = Supervisor(run_dir, spec)
    _supervise(one, ready)
    if one.state["survivors"] or one.state["error"]:
        return 3
    if one.stop_requested or one.exit_code is None:
        return 0
    return one.exit_code if one.exit_code >= 0 else 128 - one.exit_code


def _log(text: str) -> None:
    print(text, file=sys.stderr)  # noqa: T201  supervisor.log


def _refuse(ready: int | None, why: str) -> int:
    _log(why)
    _tell(ready, {"ok": False, "error": why})
    return 3


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
