"""SIGKILL at random moments of `materialize` and `up`: no later call is wrong or stuck, nothing survives.

200 kills are for `uv run pytest -m slow`; the default run does a few.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pinner.deploy.running import all_runs, run_directory
from pinner.host import procfs, runs
from pinner.host.home import Home
from tests import tiny
from tests.integration.command import Pinner

# Seconds within which a later call must have answered, however the one before it ended.
PATIENCE_S = 60


def start(verb: str, manifest: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "pinner", verb, str(manifest)]
    return subprocess.Popen(
        command, env=dict(os.environ), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )


def own_processes(tmp_path: Path) -> list[procfs.ProcessInfo]:
    """Everything that has a path of this test in its arguments or in its environment's PINNER_HOME."""
    found = []
    for one in procfs.processes():
        environment = procfs.environ(one.pid)
        home = environment.get("PINNER_HOME", "") if isinstance(environment, dict) else ""
        is_ours = any(str(tmp_path) in word for word in one.argv) or home.startswith(str(tmp_path))
        if is_ours and one.pid != os.getpid():
            found.append(one)
    return found


def hammer(pinner: Pinner, tmp_path: Path, kills: int, seed: int) -> None:
    manifest = tiny.deployment(tmp_path / "d", env='STUB = "worker;slow=0.2"')
    home = Home(tmp_path / "pinner")
    assert pinner("lock", manifest).code == 0
    chance = random.Random(seed)
    for number in range(kills):
        verb = chance.choice(["materialize", "up"])
        if chance.random() < 0.5 and home.workspaces.exists():
            subprocess.run(["chmod", "-R", "u+w", str(home.workspaces)], check=True)
            shutil.rmtree(home.workspaces)
        process = start(verb, manifest)
        delay = chance.uniform(0.05, 3.0)
        time.sleep(delay)
        process.send_signal(signal.SIGKILL)
        process.wait()
        where = f"kill {number} (seed {seed}): {verb} after {delay:.2f} s"

        # Whatever it left: a check must not call something finished that is not.
        said = pinner.json("check", manifest)
        assert said.code in (0, 3), f"{where}: {said.out}"
        if said.code == 3:
            assert all("nothing is materialized" in str(item) for item in said.data["unknown"]), (
                f"{where}: {said.out}"
            )
        # A later call works, at once or after `down` has cleared what was left running.
        again = start("up", manifest)
        code = again.wait(timeout=PATIENCE_S)
        if code != 0:
            assert pinner("down", manifest).code == 0, where
            assert start("up", manifest).wait(timeout=PATIENCE_S) == 0, where
        assert pinner("check", manifest).code == 0, where
        assert pinner("down", manifest).code == 0, where
        for run in all_runs(home):
            assert not runs.is_alive(run_directory(home, run.run)), where
        deadline = time.monotonic() + 10
        while own_processes(tmp_path) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert own_processes(tmp_path) == [], where
        stages = [path for path in home.workspaces.glob(".stage-*") if path.is_dir()]
        assert not stages, f"{where}: {stages}"


@pytest.mark.timeout(300)
def test_a_few_kills(pinner: Pinner, tmp_path: Path) -> None:
    hammer(pinner, tmp_path, kills=4, seed=int(time.time()))


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("seed", range(4))
def test_200_kills(pinner: Pinner, tmp_path: Path, seed: int) -> None:
    hammer(pinner, tmp_path, kills=50, seed=seed)
