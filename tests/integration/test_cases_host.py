"""Cases H13 and H23: caches that a reinstall leaves behind, and shared memory that is too small or full.

A /dev/shm of 64 MB is a tmpfs in a mount namespace of its own, so that the machine's is never filled.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pinner.deploy.running import all_runs, run_directory
from pinner.host import procfs, runs
from pinner.host.home import Home
from tests import tiny
from tests.integration.command import Pinner, differences
from tests.integration.engine_run import wait_for

REPO = Path(__file__).parents[2]
MIB = 1 << 20


class Small:
    """A mount namespace with a tmpfs of 64 MB as its /dev/shm."""

    def __init__(self) -> None:
        user = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
        mount = "mount -t tmpfs -o size=64m none /dev/shm && echo ready && exec sleep 600"
        self.holder = subprocess.Popen(
            ["unshare", *user, "--mount", "sh", "-c", mount], stdout=subprocess.PIPE, text=True
        )
        assert self.holder.stdout is not None
        self.is_there = self.holder.stdout.readline() == "ready\n"
        self.enter = ["nsenter", "--target", str(self.holder.pid), "--mount"]
        if user:
            self.enter += ["--user", "--preserve-credentials"]

    @property
    def shm(self) -> Path:
        return Path(f"/proc/{self.holder.pid}/root/dev/shm")

    def run(self, *argv: str | Path) -> tuple[int, dict[str, Any]]:
        """`pinner … --output json` in there: exit code and envelope."""
        words = [*self.enter, sys.executable, "-m", "pinner", *map(str, argv), "--output", "json"]
        done = subprocess.run(
            words, capture_output=True, text=True, check=False, env={**os.environ, "PYTHONPATH": str(REPO)}
        )
        assert "Traceback" not in done.stderr, done.stderr
        return done.returncode, json.loads(done.stdout)

    def hold(self, name: str) -> subprocess.Popen[str]:
        """A process that has a file of its shared memory open."""
        code = f"f=open('/dev/shm/{name}'); print('ready', flush=True); import time; time.sleep(600)"
        foreign = subprocess.Popen(
            [*self.enter, sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, cwd="/"
        )
        assert foreign.stdout is not None and foreign.stdout.readline() == "ready\n"
        return foreign

    def end(self) -> None:
        self.holder.kill()
        self.holder.communicate()


@pytest.fixture
def small(pinner: Pinner) -> Iterator[Small]:
    """`pinner` comes first, so that what runs in the namespace ends before the namespace."""
    found = Small()
    try:
        if not found.is_there:
            pytest.skip("no mount namespace can be made here")
        yield found
    finally:
        found.end()


def test_h23_too_small_is_refused_before_the_launch(small: Small, tmp_path: Path) -> None:
    manifest = tiny.deployment(tmp_path / "d")
    manifest.write_text(manifest.read_text().replace("tp-size = 1", "tp-size = 2"))
    code, envelope = small.run("up", manifest)
    assert (code, envelope["status"]) == (3, "failed")
    message = envelope["errors"][0]["message"]
    assert "/dev/shm: 64.0 MiB free of 64.0 MiB, 1.0 GiB needed" in message
    assert "nothing was started" in message
    assert not all_runs(Home(tmp_path / "pinner"))
    assert "--shm-size" in envelope["errors"][0]["hint"]
    with manifest.open("a") as file:
        file.write("[host]\nshm-free-bytes = 33554432\n")
    assert small.run("lock", manifest)[0] == 0
    assert small.run("up", manifest)[0] == 0, "the manifest says what is needed"


def test_h23_leftovers_are_listed_and_what_is_foreign_stays(small: Small, tmp_path: Path) -> None:
    manifest = tiny.deployment(tmp_path / "d")
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    sizes = {f"torch_{dead.pid}_17_0": 40, "psm_3f8a1c2d": 8, f"torch_{os.getpid()}_2_0": 1, "nccl-aBc123": 8}
    for name, size in sizes.items():
        (small.shm / name).write_bytes(b"x" * size * MIB)
    foreign = small.hold("nccl-aBc123")
    try:
        code, envelope = small.run("up", manifest)
        assert code == 3
        message = envelope["errors"][0]["message"]
        assert "/dev/shm: 7.0 MiB free of 64.0 MiB, 16.0 MiB needed" in message
        lines = message.splitlines()
        left = next(line for line in lines if "held by no process" in line)
        assert f"torch_{dead.pid}_17_0 (40.0 MiB" in left and "psm_3f8a1c2d" in left
        assert "nccl-aBc123" not in left and str(os.getpid()) not in left
        assert any(line.strip().startswith(f"of pid {foreign.pid} (") and "nccl-aBc123" in line for line in lines)
        assert any(f"of pid {os.getpid()}" in line for line in lines)
        assert {path.name for path in small.shm.iterdir()} == set(sizes), "nothing of others is removed"
    finally:
        foreign.kill()
        foreign.communicate()


def test_h23_what_its_own_dead_run_left_is_removed(small: Small, tmp_path: Path) -> None:
    """A crash leaks; the next `up` clears what is its own, and starts."""
    manifest = tiny.deployment(tmp_path / "d", env=f'STUB = "shm=psm_own:{50 * MIB}"')
    home = Home(tmp_path / "pinner")
    foreign = small.shm / "psm_foreign"
    foreign.write_bytes(b"x")
    code, envelope = small.run("up", manifest)
    assert code == 0, envelope
    own = small.shm / "psm_own"
    run = all_runs(home)[0]
    state = runs.read_state(run_directory(home, run.run))
    assert state.server is not None
    os.kill(state.supervisor.pid, signal.SIGKILL)
    wait_for(lambda: not runs.is_alive(run_directory(home, run.run)))
    wait_for(lambda: procfs.process(state.server.pid) is None if state.server else True)
    assert own.exists()
    code, envelope = small.run("up", manifest)
    assert code == 0, envelope
    assert any("1 files, 50.0 MiB" in note for note in envelope["data"]["notes"])
    assert foreign.exists()
    assert own.exists(), "the new run made one of its own"
    assert small.run("down", manifest)[0] == 0
    assert not own.exists(), "down leaves nothing"
    assert foreign.exists()


def test_too_few_open_files(tmp_path: Path, pinner: Pinner) -> None:
    """A low soft limit is raised for the engine; a low hard limit is refused, needed against allowed."""
    manifest = tiny.deployment(tmp_path / "d")
    with manifest.open("a") as file:
        file.write("[host]\nopen-files = 1000\n")
    assert pinner("lock", manifest).code == 0
    assert pinner("materialize", manifest).code == 0
    command = f"exec {sys.executable} -m pinner up {manifest} --output json"
    for limits, code in (("ulimit -Sn 300", 0), ("ulimit -Sn 200; ulimit -Hn 200", 1)):
        done = subprocess.run(
            ["sh", "-c", f"{limits}; {command}"],
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, "PYTHONPATH": str(REPO)},
        )
        assert done.returncode == code, done.stdout + done.stderr
        data = json.loads(done.stdout)["data"]
        if code:
            assert [(item["aspect"], item["key"], item["observed"]) for item in data["drift"]] == [
                ("host", "open-files", 200)
            ]
        else:
            assert pinner("check", manifest).code == 0
            assert pinner("down", manifest).code == 0
    manifest.write_text(manifest.read_text().replace("open-files = 1000", "cpu-count = 1"))
    assert pinner("lock", manifest).code == 0
    done = subprocess.run(
        ["sh", "-c", f"ulimit -Sn 200; ulimit -Hn 200; {command}"],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(REPO)},
    )
    assert done.returncode == 3
    assert "open files: 200 allowed (the hard limit), 256 needed" in done.stdout


def test_h13_a_reinstall_of_the_same_version_starts_cold(pinner: Pinner, tmp_path: Path) -> None:
    """Case H13: content P, then Q under the same version with older times; P's objects are never found."""
    manifest = tiny.deployment(tmp_path / "d", env='STUB = "compile=P"')
    first = pinner.json("up", manifest)
    assert first.code == 0, first.err
    assert first.data["caches"]["state"] == "cold"
    assert pinner("down", manifest).code == 0
    again = pinner.json("up", manifest)
    warm = again.data["caches"]
    assert (warm["state"], warm["files"], warm["made_by"]) == ("warm", 1, first.data["run"])
    assert all_runs(Home(tmp_path / "pinner"))[0].caches is not None, "the record of the run keeps it"
    assert pinner("down", manifest).code == 0
    text = pinner("up", manifest)
    assert "caches: warm, 1 file" in text.out
    assert pinner("down", manifest).code == 0

    engine = tmp_path / "d/engine"
    server = (engine / "pocket/launch_server.py").read_text()
    other = tiny.commit(engine, {"pocket/launch_server.py": server + "# Q\n"}, "Same version, other content")
    for path in engine.rglob("*.py"):
        os.utime(path, (0, 0))
    manifest.write_text(manifest.read_text().replace('commit = "good"', f'commit = "{other}"'))
    assert pinner("lock", manifest).code == 0
    said = pinner.json("up", manifest)
    assert said.code == 0, said.err
    cold = said.data["caches"]
    assert (cold["state"], cold["files"]) == ("cold", 0)
    assert cold["path"] != warm["path"]
    assert Path(warm["path"], "xdg/kernel.o").read_text() == "PPP", "the old one is kept for the old lock"
    assert pinner("down", manifest).code == 0

    shutil.rmtree(cold["path"])
    shutil.copytree(warm["path"], cold["path"])
    checked = pinner.json("check", manifest)
    assert checked.code == 1
    item = differences(checked)["caches.origin"]
    assert "cache made under another lock: workspace" in item["note"]
    refused = pinner.json("up", manifest)
    assert (refused.code, refused.data["run"]) == (1, None)
    assert Path(cold["path"], "xdg/kernel.o").exists(), "nothing is deleted in passing"


def test_h13_a_lock_of_a_dead_build_is_cleared(pinner: Pinner, tmp_path: Path) -> None:
    manifest = tiny.deployment(tmp_path / "d", env='STUB = "compile=P"')
    first = pinner.json("up", manifest)
    assert pinner("down", manifest).code == 0
    stale = Path(first.data["caches"]["path"], "xdg/torch_extensions/fused/lock")
    stale.parent.mkdir(parents=True)
    stale.write_text("")
    assert pinner("check", manifest).code == 0
    assert stale.exists(), "a check changes nothing"
    said = pinner.json("up", manifest)
    assert said.code == 0
    assert said.data["caches"]["cleared"] == ["xdg/torch_extensions/fused/lock"]
    assert any("cleared locks that dead builds left" in note for note in said.data["notes"])
    assert not stale.exists()


def test_h13_a_rebuilt_workspace_starts_cold(pinner: Pinner, tmp_path: Path) -> None:
    manifest = tiny.deployment(tmp_path / "d", env='STUB = "compile=P"')
    assert pinner("up", manifest).code == 0
    assert pinner("down", manifest).code == 0
    assert pinner("materialize", manifest, "--rebuild").code == 0
    started = time.monotonic()
    assert pinner.json("up", manifest).data["caches"]["state"] == "cold"
    assert time.monotonic() - started < 60
