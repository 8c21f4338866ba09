"""Runs found again: locks, identities, killed callers and killed supervisors."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from pinner.errors import Busy, UnknownFact
from pinner.host import procfs, runs
from tests.integration.engine_run import ESCAPES, PYTHON, ROOT, SUPERVISOR, Run, alive, wait_for

if sys.platform != "linux":
    pytest.skip("supervision needs /proc", allow_module_level=True)


def test_nothing_to_stop(tmp_path: Path) -> None:
    assert runs.stop(tmp_path / "none", timeout_s=1) == runs.StopResult(True, True, None, False, 0, ())
    assert not runs.is_alive(tmp_path / "none")
    with pytest.raises(runs.NoRun):
        runs.read_state(tmp_path)


def test_stop_that_runs_out_of_time_names_who_is_left(run: Run) -> None:
    run.start("ignore-term", grace_s=60)
    result = run.stop(timeout_s=0.1)
    assert not result.stopped
    assert [one.pid for one in result.survivors] == [run.engine["pid"]]
    assert run.stop(force=True).stopped


def test_a_second_start_is_refused(run: Run) -> None:
    state = run.start()
    with pytest.raises(Busy):
        runs.start(run.dir, run.spec())
    now = runs.read_state(run.dir)
    # Without a cgroup the supervisor notes its processes from time to time.
    assert msgspec.structs.replace(now, members=state.members) == state
    assert run.stop().stopped
    run.out.unlink()
    assert run.start().supervisor != state.supervisor


def test_of_starts_at_once_one_wins(run: Run) -> None:
    answers: list[str] = []

    def start() -> None:
        try:
            answers.append(runs.start(run.dir, run.spec()).status)
        except Busy:
            answers.append("busy")

    threads = [threading.Thread(target=start) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(answers) == ["busy", "busy", "busy", "running"]
    assert len(runs.processes(run.dir)) == 1


def test_probes_do_not_disturb_a_start(run: Run) -> None:
    """Eight probes without a pause: never a false "alive" before, never a refused start."""
    seen: list[tuple[float, float, bool]] = []  # asked, answered, alive
    over = threading.Event()

    def probe() -> None:
        while not over.is_set():
            asked = time.monotonic()
            answer = runs.is_alive(run.dir)
            seen.append((asked, time.monotonic(), answer))

    run.dir.mkdir(mode=0o700)
    (run.dir / "lock").touch()
    threads = [threading.Thread(target=probe) for _ in range(8)]
    for thread in threads:
        thread.start()
    try:
        wait_for(lambda: len(seen) > 100)
        before = time.monotonic()
        state = runs.start(run.dir, run.spec())
        after = time.monotonic()
        wait_for(lambda: sum(asked > after for asked, _, _ in list(seen)) > 100)
    finally:
        over.set()
        for thread in threads:
            thread.join()
    assert state.status == "running"
    assert not any(answer for _, answered, answer in seen if answered < before)
    assert all(answer for asked, _, answer in seen if asked > after)


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
        try:
            wait_for(run.out.exists)
        finally:
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
        try:
            assert cli.wait(10) == -signal.SIGKILL
        finally:
            cli.kill()
    log = run.dir / "supervisor.log"
    wait_for(lambda: log.exists() and "did not arrive whole" in log.read_text())
    assert not runs.is_alive(run.dir)
    assert not (run.dir / "state.json").exists()


def test_a_caller_gone_before_the_answer_leaves_nothing(run: Run) -> None:
    """The specification is whole, but nobody waits any more: the engine is ended again."""
    run.dir.mkdir(mode=0o700)
    spec_out, spec_in = os.pipe()
    ready_out, ready_in = os.pipe()
    program = [*SUPERVISOR, "--run-dir", str(run.dir)]
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
    if cgroup and state.cgroup is None:
        pytest.skip("no permission for a cgroup")
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
    other = subprocess.Popen(["sleep", "600"])
    try:
        ticks = procfs.start_ticks(other.pid)
        assert ticks is not None
        reused = {"pid": other.pid, "start_ticks": ticks - 1}
        run.edit_state(supervisor=reused, server=reused, members=[[other.pid, ticks - 1, other.pid]])
        assert runs.survivors(run.dir) == []
        result = run.stop()
        assert (result.stopped, result.already) == (True, True)
        assert other.poll() is None
    finally:
        other.kill()
        other.wait()


def test_a_state_that_is_not_of_the_lock_holder_is_refused(run: Run) -> None:
    state = run.start()
    if state.cgroup is None:  # its notes of processes would write over the edit
        wait_for(lambda: runs.read_state(run.dir).members)
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
