"""The supervisor with real processes: what it starts, what it ends, what it says."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from pinner.errors import LaunchFailed
from pinner.host import procfs, rundir, runs
from tests.integration.engine_run import ESCAPES, ROOT, SUPERVISOR, Run, alive, wait_for

if sys.platform != "linux":
    pytest.skip("supervision needs /proc", allow_module_level=True)


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
    program = [*SUPERVISOR, "--run-dir", str(run.dir), "--spec-fd", "0"]
    with subprocess.Popen([*unshare, *program], stdin=subprocess.PIPE, env={}) as outer:
        try:
            assert outer.stdin is not None
            outer.stdin.write(runs.encode(run.spec(*ESCAPES)))
            outer.stdin.close()
            wait_for(run.out.exists)
            with pytest.raises(runs.RunElsewhere, match="PID namespace"):
                run.stop()
            inside = procfs.descendants(outer.pid)
            assert len(inside) == 2 + len(ESCAPES)
            os.kill(rundir.holder(str(run.dir)) or outer.pid, signal.SIGTERM)
            assert outer.wait(10) == 0
        finally:
            outer.kill()
    state = runs.read_state(run.dir)
    assert (state.supervisor.pid, state.status, state.clean) == (1, "exited", True)
    assert not any(alive(one.pid) for one in inside)
