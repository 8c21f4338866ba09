"""The supervisor and the runs it keeps, with real processes, each ended by its PID."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pinner.errors import Busy, LaunchFailed, UnknownFact
from pinner.host import procfs, rundir, runs

ENGINE = Path(__file__).parents[1] / "fake_engine.py"
ROOT = Path(__file__).parents[2]
ESCAPES = ("plain", "setsid", "daemon", "cleared", "stubborn")
PYTHON = (sys.executable, "-I", "-S")

if sys.platform != "linux":
    pytest.skip("supervision needs /proc", allow_module_level=True)


def wait_for(condition: Callable[[], object], timeout_s: float = 10) -> None:
    end = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.01)


def alive(pid: int) -> bool:
    return procfs.start_ticks(pid) is not None


class Run:
    """One run of the fake engine in a directory of its own."""

    def __init__(self, folder: Path, run: str) -> None:
        self.id, self.dir, self.out = run, folder / "run", folder / "engine.json"

    def spec(self, *kinds: str, **changes: Any) -> runs.LaunchSpec:
        values: dict[str, Any] = {
            "run": self.id,
            "argv": (*PYTHON, str(ENGINE), self.id, str(self.out), *kinds),
            "env": {"PATH": "/usr/bin:/bin"},
            "grace_s": 5.0,
        }
        return runs.LaunchSpec(**(values | changes))

    def start(self, *kinds: str, **changes: Any) -> runs.RunState:
        state = runs.start(self.dir, self.spec(*kinds, **changes))
        wait_for(self.out.exists)
        return state

    def stop(self, **options: Any) -> runs.StopResult:
        return runs.stop(self.dir, **({"timeout_s": 10} | options))

    @property
    def engine(self) -> dict[str, Any]:
        return json.loads(self.out.read_text())

    def edit_state(self, **changes: Any) -> None:
        path = self.dir / "state.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | changes))

    def kill_supervisor(self) -> None:
        pid = runs.read_state(self.dir).supervisor.pid
        os.kill(pid, signal.SIGKILL)
        wait_for(lambda: not runs.is_alive(self.dir))


@pytest.fixture
def run(tmp_path: Path, run_id: str) -> Iterator[Run]:
    one = Run(tmp_path, run_id)
    yield one
    if runs.is_alive(one.dir):
        os.kill(rundir.holder(str(one.dir)) or 0, signal.SIGUSR1)
        wait_for(lambda: not runs.is_alive(one.dir))


@pytest.fixture(params=[True, False], ids=["cgroup", "no-cgroup"])
def cgroup(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


def test_start_and_stop(run: Run) -> None:
    state = run.start()
    assert state.status == "running"
    assert state.server is not None
    assert state.server.pid == run.engine["pid"]
    assert runs.is_alive(run.dir)
    assert [one.pid for one in runs.processes(run.dir)] == [state.server.pid]
    assert runs.survivors(run.dir) == []
    result = run.stop()
    assert result == runs.StopResult(True, False, -signal.SIGTERM, False, 0, ())
    ended = runs.read_state(run.dir)
    assert (ended.status, ended.clean, ended.survivors, ended.error) == ("exited", True, (), None)
    assert ended.ended is not None
    assert ended.ended >= ended.started
    again = run.stop()
    assert (again.stopped, again.already) == (True, True)


def test_nothing_to_stop(tmp_path: Path) -> None:
    assert runs.stop(tmp_path / "none", timeout_s=1) == runs.StopResult(True, True, None, False, 0, ())
    assert not runs.is_alive(tmp_path / "none")
    with pytest.raises(runs.NoRun):
        runs.read_state(tmp_path)


@pytest.mark.parametrize("force", [False, True])
def test_no_escape_from_stop(run: Run, cgroup: bool, force: bool) -> None:
    run.start(*ESCAPES, cgroup=cgroup)
    pids = run.engine["pids"]
    assert {one.pid for one in runs.processes(run.dir)} >= {*pids.values(), run.engine["pid"]}
    result = run.stop(force=force)
    assert result.stopped
    assert result.forced == force
    assert result.killed == len(ESCAPES) + force
    assert [kind for kind, pid in pids.items() if alive(pid)] == []
    state = runs.read_state(run.dir)
    assert state.cgroup is None or not Path(state.cgroup).exists()


def test_a_forking_chain_is_caught(run: Run, cgroup: bool) -> None:
    run.start("hopper", cgroup=cgroup)
    assert run.stop().stopped
    assert runs.read_state(run.dir).clean


def test_grace_then_force(run: Run) -> None:
    run.start("ignore-term", grace_s=0.3)
    before = time.monotonic()
    result = run.stop()
    assert 0.3 <= time.monotonic() - before < 3
    assert result.stopped
    assert result.forced
    assert result.exit_code == -signal.SIGKILL


def test_stop_that_runs_out_of_time_names_who_is_left(run: Run) -> None:
    run.start("ignore-term", grace_s=60)
    result = run.stop(timeout_s=0.1)
    assert not result.stopped
    assert [one.pid for one in result.survivors] == [run.engine["pid"]]
    assert run.stop(force=True).stopped


def test_engine_that_ends_takes_its_children_along(run: Run, cgroup: bool) -> None:
    run.start(*ESCAPES, "exit-7", cgroup=cgroup)
    wait_for(lambda: not runs.is_alive(run.dir))
    state = runs.read_state(run.dir)
    assert (state.status, state.exit_code, state.forced, state.clean) == ("exited", 7, False, True)
    assert not any(alive(pid) for pid in run.engine["pids"].values())
    assert "ready" in (run.dir / "server.log").read_text()


def test_hangup_and_quit_are_ignored(run: Run) -> None:
    state = run.start()
    for number in (signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR2, signal.SIGALRM):
        os.kill(state.supervisor.pid, number)
    time.sleep(0.1)
    assert runs.is_alive(run.dir)
    assert alive(run.engine["pid"])


def test_the_engine_starts_from_a_clean_slate(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """H26: what arrives is what was given, byte for byte, and nothing else."""
    values = {
        "QUOTED": "\"double\" and 'single'",
        "DOLLAR": "$HOME ${HOME} $(id) `id`",
        "NCCL_IB_HCA": "=mlx5_0:1,mlx5_1",
        "BLANKS": "  trailing  ",
        "LINES": "one\ntwo\n",
        "HASH": "a # b; c & d | e \\ f",
        "UNICODE": "größe→模型",
        "NOT_UTF8": b"\xff\xfe".decode("utf-8", "surrogateescape"),
        "EMPTY": "",
        "ONE": "1",
        **{f"LONG_{number}": "x" * 100_000 for number in range(5)},
    }
    monkeypatch.setenv("NCCL_ALGO", "from-the-shell")
    monkeypatch.setenv("LC_ALL", "C")
    read, write = os.pipe()
    os.set_inheritable(write, True)
    try:
        state = run.start(env=values, cwd="/usr")
    finally:
        os.close(read)
        os.close(write)
    expected = {**values, runs.RUN_MARKER: run.id}
    raw = bytes.fromhex(run.engine["environ"])
    want = {f"{name}={value}".encode("utf-8", "surrogateescape") for name, value in expected.items()}
    assert set(raw.rstrip(b"\0").split(b"\0")) == want
    assert procfs.environ(run.engine["pid"]) == expected
    assert run.engine["cwd"] == "/usr"
    assert run.engine["fds"][:3] == [0, 1, 2]
    assert len(run.engine["fds"]) == 4  # the fourth is the listing itself
    assert int(run.engine["blocked"], 16) == 0
    written = b"".join(path.read_bytes() for path in run.dir.iterdir())
    assert b"mlx5" not in written
    assert (run.dir.stat().st_mode & 0o777, state.argv) == (0o700, run.spec().argv)
    supervisor = procfs.environ(state.supervisor.pid)
    assert isinstance(supervisor, dict)
    assert "NCCL_ALGO" not in supervisor


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"argv": ("/nonexistent/python", "x")}, "cannot start /nonexistent/python: No such file"),
        ({"argv": ("/etc/passwd",)}, "Permission denied"),
        ({"cwd": "/nonexistent"}, "cannot enter /nonexistent"),
        ({"env": {"A": "b\0c"}}, "null byte"),
        ({"env": {"A=B": "c"}}, "illegal environment variable name"),
    ],
)
def test_what_cannot_be_executed_is_said(run: Run, changes: dict[str, Any], words: str) -> None:
    with pytest.raises(LaunchFailed, match=words):
        runs.start(run.dir, run.spec(**changes))
    assert not runs.is_alive(run.dir)
    state = runs.read_state(run.dir)
    assert (state.status, state.clean, state.exit_code) == ("failed", True, None)
    assert run.stop().already


def test_a_second_start_is_refused(run: Run) -> None:
    state = run.start()
    with pytest.raises(Busy):
        runs.start(run.dir, run.spec())
    assert runs.read_state(run.dir) == state
    assert run.stop().stopped
    run.out.unlink()
    assert run.start().supervisor != state.supervisor


def test_probes_do_not_disturb_a_start(run: Run) -> None:
    """Eight probes without a pause: never a false "alive" before, never a refused start."""
    seen: list[tuple[float, bool]] = []
    over = threading.Event()

    def probe() -> None:
        while not over.is_set():
            before = time.monotonic()
            seen.append((before, runs.is_alive(run.dir)))

    run.dir.mkdir(mode=0o700)
    (run.dir / "lock").touch()
    threads = [threading.Thread(target=probe) for _ in range(8)]
    for thread in threads:
        thread.start()
    try:
        time.sleep(0.1)
        before = time.monotonic()
        state = runs.start(run.dir, run.spec())
        after = time.monotonic()
        time.sleep(0.05)
    finally:
        over.set()
        for thread in threads:
            thread.join()
    assert state.status == "running"
    assert not any(answer for at, answer in seen if at < before - 0.05)
    assert all(answer for at, answer in seen if at > after)
    assert {answer for _, answer in seen} == {True, False}


def launcher(run: Run, before: str = "", after: str = "time.sleep(600)") -> subprocess.Popen[bytes]:
    code = f"""
import os, sys, time
from pathlib import Path
from pinner.host import process, runs
{before}
spec = runs.LaunchSpec(run={run.id!r}, argv={run.spec("daemon").argv!r}, env={{}})
runs.start(Path({str(run.dir)!r}), spec)
{after}
"""
    return subprocess.Popen([sys.executable, "-c", code], cwd=ROOT)


def test_the_run_outlives_a_killed_cli(run: Run) -> None:
    with launcher(run) as cli:
        wait_for(run.out.exists)
        cli.kill()
    time.sleep(0.1)
    assert runs.is_alive(run.dir)
    assert alive(run.engine["pid"])
    assert run.stop().stopped


def test_a_cli_killed_before_the_hand_over_leaves_nothing(run: Run) -> None:
    """Killed once the supervisor is started, with half of the specification written."""
    before = """
def die(self, data):
    os.write(self.fileno(), data[:50])
    os.kill(os.getpid(), 9)
whole = runs._pipe
def pipe(stack):
    out, into = whole(stack)
    class Half:
        fileno, close = into.fileno, into.close
        write = die
    return out, Half()
runs._pipe = pipe
"""
    with launcher(run, before) as cli:
        assert cli.wait(10) == -signal.SIGKILL
    log = run.dir / "supervisor.log"
    wait_for(lambda: log.exists() and "did not arrive whole" in log.read_text())
    assert not runs.is_alive(run.dir)
    assert not (run.dir / "state.json").exists()


def test_a_caller_gone_before_the_answer_leaves_nothing(run: Run) -> None:
    """The specification is whole, but nobody waits any more: the engine is ended again."""
    run.dir.mkdir(mode=0o700)
    spec_out, spec_in = os.pipe()
    ready_out, ready_in = os.pipe()
    program = [*PYTHON, str(ROOT / "pinner/host/supervisor.py"), "--run-dir", str(run.dir)]
    with subprocess.Popen(
        [*program, "--spec-fd", str(spec_out), "--ready-fd", str(ready_in)],
        pass_fds=(spec_out, ready_in),
        env={},
        start_new_session=True,
    ) as supervisor:
        for fd in (spec_out, ready_in, ready_out):
            os.close(fd)
        os.write(spec_in, runs.encode(run.spec("daemon")))
        os.close(spec_in)
        assert supervisor.wait(10) == 3
    state = runs.read_state(run.dir)
    assert (state.status, state.clean) == ("failed", True)
    assert "before it was handed over" in (state.error or "")


def test_interrupted_start_leaves_nothing(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(_: object) -> bytes:
        raise KeyboardInterrupt

    monkeypatch.setattr(runs, "encode", interrupt)
    with pytest.raises(KeyboardInterrupt):
        runs.start(run.dir, run.spec())
    assert not runs.is_alive(run.dir)


def test_a_killed_supervisor_takes_the_server_along(run: Run, cgroup: bool) -> None:
    """H22: the server dies with its supervisor; what escaped is found and ended by the next stop."""
    state = run.start(*ESCAPES, cgroup=cgroup)
    pids = run.engine["pids"]
    if not cgroup:  # the one without the marker is known from the noted members only
        wait_for(lambda: pids["cleared"] in {pid for pid, *_ in runs.read_state(run.dir).members})
    run.kill_supervisor()
    wait_for(lambda: not alive(run.engine["pid"]))
    assert {one.pid for one in runs.survivors(run.dir)} == set(pids.values())
    with pytest.raises(Busy, match="still alive"):
        runs.start(run.dir, run.spec())
    result = run.stop()
    assert (result.stopped, result.forced, result.survivors) == (True, True, ())
    assert result.killed >= len(ESCAPES)
    assert not any(alive(pid) for pid in pids.values())
    after = runs.read_state(run.dir)
    assert (after.status, after.clean, after.error) == ("exited", True, "the supervisor was killed")
    assert after.cgroup is None or not Path(after.cgroup).exists()
    assert after.started == state.started
    assert run.stop().already


def test_a_namesake_survives(run: Run, cgroup: bool) -> None:
    """H22: never by name. A process of the same name, arguments and directory, but not of the run."""
    run.start("daemon", cgroup=cgroup)
    pid = run.engine["pids"]["daemon"]
    one = procfs.process(pid)
    assert one is not None
    namesake = subprocess.Popen([*PYTHON, "-c", "import time; time.sleep(600)", run.id[:-1]], cwd="/")
    other = subprocess.Popen(["sleep", "600"], env={runs.RUN_MARKER: run.id + "x"}, start_new_session=True)
    try:
        run.kill_supervisor()
        wait_for(lambda: not alive(run.engine["pid"]))
        assert run.stop().stopped
        assert not alive(pid)
        assert namesake.poll() is None
        assert other.poll() is None
    finally:
        for process in (namesake, other):
            process.kill()
            process.wait()


def test_a_reused_pid_is_not_signalled(run: Run) -> None:
    """The supervisor is dead and its numbers belong to others now; both are left alone."""
    run.start(cgroup=False)
    run.kill_supervisor()
    wait_for(lambda: not alive(run.engine["pid"]))
    with subprocess.Popen(["sleep", "600"]) as other:
        ticks = procfs.start_ticks(other.pid)
        assert ticks is not None
        reused = {"pid": other.pid, "start_ticks": ticks - 1}
        run.edit_state(supervisor=reused, server=reused, members=[[other.pid, ticks - 1, other.pid]])
        assert runs.survivors(run.dir) == []
        result = run.stop()
        assert (result.stopped, result.already) == (True, True)
        assert other.poll() is None
        other.kill()


def test_a_state_that_is_not_of_the_lock_holder_is_refused(run: Run) -> None:
    state = run.start()
    run.edit_state(supervisor={"pid": state.supervisor.pid, "start_ticks": state.supervisor.start_ticks + 1})
    with pytest.raises(UnknownFact, match="not the one"):
        run.stop()
    assert alive(run.engine["pid"])


@pytest.mark.parametrize("change", [{"boot_id": "other"}, {"host": "other"}, {"pid_namespace": 1}])
def test_a_run_elsewhere_is_never_signalled(run: Run, change: dict[str, Any]) -> None:
    run.start()
    run.edit_state(**change)
    for call in (run.stop, lambda: runs.processes(run.dir)):
        with pytest.raises(runs.RunElsewhere, match="running elsewhere"):
            call()
    assert alive(run.engine["pid"])


def test_after_a_reboot_there_is_nothing_to_do(run: Run) -> None:
    run.start(cgroup=False)
    run.kill_supervisor()
    run.edit_state(boot_id="an earlier one")
    assert runs.survivors(run.dir) == []
    assert run.stop().already


@pytest.mark.parametrize("content", ["", "{", "[]", '{"schema": 1}', '{"schema": 99}'])
def test_a_damaged_state_is_said(tmp_path: Path, content: str) -> None:
    (tmp_path / "state.json").write_text(content)
    with pytest.raises(UnknownFact, match=r"state\.json"):
        runs.read_state(tmp_path)
    with pytest.raises(UnknownFact):
        runs.stop(tmp_path, timeout_s=1)


def test_what_cannot_be_killed_is_named(run: Run) -> None:
    """With a supervisor whose SIGKILL does nothing, as against a process that hangs in the kernel."""
    run.dir.mkdir(mode=0o700)
    code = (
        f"import sys; sys.path.insert(0, {str(ROOT)!r}); from pinner.host import kin, supervisor;"
        "kin.kill = lambda pid: None; supervisor.SWEEP_S = 0.2;"
        f"sys.exit(supervisor.main(['--run-dir', {str(run.dir)!r}, '--spec-fd', '0']))"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE) as supervisor:
        supervisor.communicate(runs.encode(run.spec("daemon", "exit-7", cgroup=False)), 10)
        assert supervisor.returncode == 3
    pid = run.engine["pids"]["daemon"]
    state = runs.read_state(run.dir)
    assert (state.status, state.clean, state.killed) == ("exited", False, 0)
    assert [one.pid for one in state.survivors] == [pid]
    assert [one.pid for one in runs.survivors(run.dir)] == [pid]
    result = run.stop()
    assert (result.stopped, result.already, result.exit_code) == (True, False, 7)
    assert not alive(pid)


def test_as_pid_1_of_a_container(run: Run) -> None:
    """In a PID namespace of its own, without the CLI; from outside it is "elsewhere"."""
    unshare = ["unshare", "--map-root-user", "--pid", "--fork", "--mount-proc", "--kill-child"]
    try:
        subprocess.run([*unshare, "true"], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("no permission for a PID namespace")
    run.dir.mkdir(mode=0o700)
    program = [*PYTHON, str(ROOT / "pinner/host/supervisor.py"), "--run-dir", str(run.dir), "--spec-fd", "0"]
    with subprocess.Popen([*unshare, *program], stdin=subprocess.PIPE, env={}) as outer:
        assert outer.stdin is not None
        outer.stdin.write(runs.encode(run.spec(*ESCAPES)))
        outer.stdin.close()
        wait_for(run.out.exists)
        with pytest.raises(runs.RunElsewhere, match="PID namespace"):
            run.stop()
        inside = procfs.descendants(outer.pid)
        assert len(inside) == 2 + len(ESCAPES)
        os.kill(rundir.holder(str(run.dir)) or 0, signal.SIGTERM)
        assert outer.wait(10) == 0
    state = runs.read_state(run.dir)
    assert (state.supervisor.pid, state.status, state.clean) == (1, "exited", True)
    assert not any(alive(one.pid) for one in inside)
