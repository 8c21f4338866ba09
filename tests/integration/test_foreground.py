"""`up --foreground`: this process ends with the server, and the server with this process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pinner.deploy.running import all_runs, run_directory
from pinner.host import runs
from pinner.host.home import Home
from tests import tiny
from tests.integration.command import Pinner


@contextmanager
def foreground(manifest: Path, *more: str) -> Iterator[subprocess.Popen[bytes]]:
    """`pinner up --foreground`, once the server serves."""
    command = [sys.executable, "-m", "pinner", "up", str(manifest), "--foreground", *more]
    # Without a buffer, which would swallow what comes with that line.
    with subprocess.Popen(
        command, bufsize=0, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=dict(os.environ)
    ) as one:
        assert one.stdout is not None
        for line in iter(one.stdout.readline, b""):
            if b"http://" in line:
                break
        try:
            yield one
        finally:
            one.kill()


def finish(one: subprocess.Popen[bytes]) -> tuple[int, str, str]:
    out, err = one.communicate(timeout=60)
    return one.returncode, out.decode(), err.decode()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_the_run(pinner: Pinner, tmp_path: Path, state: Home, number: signal.Signals) -> None:
    manifest = tiny.deployment(tmp_path / "d", env='STUB = "worker"')
    with foreground(manifest) as one:
        (run,) = all_runs(state)
        server = runs.read_state(run_directory(state, run.run)).server
        assert server is not None
        one.send_signal(number)
        code, out, err = finish(one)
    assert (code, "stopped tiny-" in err) == (0, True), err
    assert "Traceback" not in out + err
    assert not runs.is_alive(run_directory(state, run.run))
    assert runs.processes(run_directory(state, run.run)) == []
    assert "stopped by `down`" in pinner("status", "--all").out


def test_a_server_that_dies_is_a_failure(pinner: Pinner, tmp_path: Path, state: Home) -> None:
    with foreground(tiny.deployment(tmp_path / "d"), "--output", "json") as one:
        (run,) = all_runs(state)
        server = runs.read_state(run_directory(state, run.run)).server
        assert server is not None
        os.kill(server.pid, signal.SIGKILL)
        code, out, err = finish(one)
    assert code == 3
    assert "killed by signal 9" in err
    assert '"schema"' not in out, "one envelope, which was written when the server was up"


def test_down_from_elsewhere_ends_it_well(pinner: Pinner, tmp_path: Path, state: Home) -> None:
    manifest = tiny.deployment(tmp_path / "d")
    with foreground(manifest) as one:
        assert pinner("down", manifest).code == 0
        code, out, err = finish(one)
    assert code == 0, err
    assert "The server is fired up" in out, "its log is shown from the beginning"
