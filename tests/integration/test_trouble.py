"""Trouble that is not drift: streams, disks, servers and workspaces that misbehave. Each its own answer."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from pinner.deploy.running import all_runs, run_directory
from pinner.host import procfs, runs
from pinner.host.home import Home
from tests import tiny
from tests.integration.command import Pinner, differences


def shell(script: str, *, cwd: Path, **env: str) -> subprocess.CompletedProcess[bytes]:
    """A shell line in which `pinner` is this one."""
    whole = {**os.environ, **env}
    text = script.replace("pinner ", f"{sys.executable} -m pinner ")
    return subprocess.run(["bash", "-c", text], cwd=cwd, env=whole, capture_output=True, check=False, timeout=60)


@pytest.fixture
def ready(pinner: Pinner, tmp_path: Path) -> Path:
    """A deployment that is locked and materialized."""
    manifest = tiny.deployment(tmp_path / "d")
    assert pinner("lock", manifest).code == 0
    assert pinner("materialize", manifest).code == 0
    return manifest


@pytest.mark.parametrize(
    ("redirection", "code"),
    [
        (">&-", 0),
        ("2>&-", 0),
        ("<&- >&- 2>&-", 0),
        ("> /dev/full", 3),
        ("--output json > /dev/full", 3),
        ("2> /dev/full", 0),
    ],
)
def test_closed_and_full_streams_never_look_like_drift(ready: Path, redirection: str, code: int) -> None:
    done = shell(f"pinner check tiny.toml {redirection}", cwd=ready.parent)
    assert done.returncode == code, done.stderr
    assert b"Traceback" not in done.stderr + done.stdout


def test_a_reader_that_goes_away_changes_no_verdict(ready: Path) -> None:
    done = shell("set -o pipefail; pinner check tiny.toml | true", cwd=ready.parent)
    assert done.returncode == 0, done.stderr
    assert done.stderr == b""


def test_json_stays_json_whatever_a_file_is_called(pinner: Pinner, tmp_path: Path) -> None:
    directory = tmp_path / "d"
    manifest = tiny.deployment(directory, source='{ path = "engine", commit = "good" }')
    assert pinner("lock", manifest).code == 0
    assert pinner("materialize", manifest).code == 0
    for name in (b"b\xff.py", "文\x1b[31m.py".encode()):
        Path(os.fsdecode(os.fsencode(directory / "engine" / "pocket") + b"/" + name)).touch()
    for encoding in ("utf-8", "latin-1", "ascii"):
        done = shell(
            "pinner check tiny.toml --output json", cwd=directory, PYTHONIOENCODING=encoding, PYTHONUTF8="0"
        )
        assert done.returncode == 1, done.stderr
        assert len(json.loads(done.stdout)["data"]["drift"]) == 2
        text = shell("pinner check tiny.toml", cwd=directory, PYTHONIOENCODING=encoding, PYTHONUTF8="0")
        assert text.returncode == 1, text.stderr
        assert b"\x1b[31m" not in text.stdout


@pytest.mark.parametrize("place", ["/proc/no-such-place", "/dev/null/x"])
def test_a_home_that_cannot_be_written(ready: Path, place: str) -> None:
    for verb in ("lock", "materialize", "up"):
        done = shell(f"pinner {verb} tiny.toml", cwd=ready.parent, PINNER_HOME=place)
        assert done.returncode == 3, done.stderr
        assert b"bug" not in done.stderr
        assert b"PINNER_HOME" in done.stderr or place.encode() in done.stderr


def test_a_relative_home_is_refused(ready: Path) -> None:
    done = shell("pinner status", cwd=ready.parent, PINNER_HOME="somewhere")
    assert done.returncode == 2
    assert b"absolute" in done.stderr


@pytest.mark.parametrize(
    ("stub", "words"), [("drip", "does not generate"), ("drip-health", "not healthy after 2 s")]
)
def test_h21_a_server_that_dribbles_is_not_waited_for(
    pinner: Pinner, tmp_path: Path, stub: str, words: str
) -> None:
    manifest = tiny.deployment(tmp_path / "d", env=f'STUB = "{stub}"')
    manifest.write_text(manifest.read_text().replace("start-timeout-s = 20", "start-timeout-s = 2"))
    began = time.monotonic()
    said = pinner("up", manifest)
    assert said.code == 3
    assert words in said.err
    assert time.monotonic() - began < 15


@pytest.mark.parametrize("stub", ["null", "boolean"])
def test_h21_only_tokens_count(pinner: Pinner, tmp_path: Path, stub: str) -> None:
    manifest = tiny.deployment(tmp_path / "d", env=f'STUB = "{stub}"')
    assert "does not generate" in pinner("up", manifest).err


def test_a_damaged_workspace_is_told_and_rebuilt(pinner: Pinner, ready: Path) -> None:
    root = Path(pinner.json("materialize", ready).data["workspace"])
    (edited,) = root.glob("env/lib/python3*/site-packages/pocket/launch_server.py")
    edited.chmod(0o644)
    edited.write_text(edited.read_text() + "\n# edited\n")
    said = pinner.json("materialize", ready)
    assert said.code == 1
    assert any("launch_server.py" in key for key in differences(said))
    shown = pinner("up", ready)
    assert shown.code == 1
    assert "--rebuild" in shown.out and str(root) in shown.out
    assert "--accept 'python." in shown.err
    assert pinner("materialize", ready, "--rebuild").code == 0
    assert pinner("up", ready).code == 0
    refused = pinner("materialize", ready, "--rebuild")
    assert refused.code == 3
    assert "pinner down" in refused.err


def test_nccl_configuration_in_the_engines_home_is_drift(pinner: Pinner, ready: Path) -> None:
    root = Path(pinner.json("materialize", ready).data["workspace"])
    (root / "home" / ".nccl.conf").write_text("NCCL_ALGO=Tree\n")
    assert list(differences(pinner.json("check", ready))) == ["environment.~/.nccl.conf"]


def test_a_deployment_behind_a_link_is_the_same_one(pinner: Pinner, ready: Path, tmp_path: Path) -> None:
    assert pinner("up", ready).code == 0
    (tmp_path / "link").symlink_to(ready.parent)
    there = tmp_path / "link" / "tiny.toml"
    assert pinner("status", there).code == 0
    assert pinner.json("up", there).data["already"] is True
    assert pinner("down", there).out.startswith("down")
    assert pinner("status", ready).code == 3


def test_a_second_manifest_on_the_port_learns_which_run_has_it(pinner: Pinner, ready: Path) -> None:
    assert pinner("up", ready).code == 0
    run = all_runs(Home(Path(os.environ["PINNER_HOME"])))[0].run
    second = ready.with_name("second.toml")
    second.write_text(ready.read_text())
    said = pinner("up", second)
    assert said.code == 3
    assert run in said.err


def test_status_remembers_how_a_run_ended(pinner: Pinner, ready: Path, tmp_path: Path) -> None:
    home = Home(tmp_path / "pinner")
    assert pinner("up", ready).code == 0
    run = all_runs(home)[0]
    server = runs.read_state(run_directory(home, run.run)).server
    assert server is not None
    os.kill(server.pid, signal.SIGKILL)
    deadline = time.monotonic() + 10
    while runs.is_alive(run_directory(home, run.run)) and time.monotonic() < deadline:
        time.sleep(0.02)
    crashed = pinner("status")
    assert crashed.code == 3
    assert "killed by signal 9" in crashed.out
    assert pinner("up", ready).code == 0
    assert pinner("status").code == 0
    assert pinner("down", ready).code == 0
    assert pinner("status").out == "no runs\n"
    assert "stopped by `down`" in pinner("status", "--all").out


def test_status_says_why_up_refused(pinner: Pinner, tmp_path: Path) -> None:
    manifest = tiny.deployment(tmp_path / "d", env='STUB = "empty"')
    assert pinner("up", manifest).code == 3
    assert "does not generate" in pinner("status", manifest).out


def test_an_engine_that_dies_while_it_proves_itself(pinner: Pinner, tmp_path: Path) -> None:
    manifest = tiny.deployment(tmp_path / "d", env='STUB = "die"')
    said = pinner("up", manifest)
    assert said.code == 3
    assert "the engine ended while starting (exit code 7)" in said.err


def test_a_hung_server_is_told_by_check(pinner: Pinner, ready: Path, tmp_path: Path) -> None:
    home = Home(tmp_path / "pinner")
    assert pinner("up", ready).code == 0
    server = runs.read_state(run_directory(home, all_runs(home)[0].run)).server
    assert server is not None
    os.kill(server.pid, signal.SIGSTOP)
    try:
        assert "does not answer" in pinner("check", ready).out
    finally:
        os.kill(server.pid, signal.SIGCONT)
    assert procfs.process(server.pid) is not None


@pytest.mark.parametrize(
    ("before", "after", "part"),
    [
        ('NCCL_PROTO = "Simple"', 'NCCL_PROTO = "LL128"', "env"),
        ('"--tp-size",\n    "1"', '"--tp-size",\n    "8"', "engine.argv"),
        ('wish = "good"', 'wish = "main"', "engine.source.wish"),
        ("stop-timeout-s = 2.0", "stop-timeout-s = 9.0", "serve"),
    ],
)
def test_a_lock_that_was_edited_is_stale(pinner: Pinner, ready: Path, before: str, after: str, part: str) -> None:
    lock = ready.with_suffix(".lock")
    good = lock.read_text()
    assert before in good
    lock.write_text(good.replace(before, after))
    assert pinner("lock", ready, "--check").code == 1
    for verb in ("check", "up"):
        said = pinner(verb, ready)
        assert said.code == 2
        assert f"{part} is not what tiny.toml says" in said.err
    assert pinner("lock", ready).code == 0
    assert lock.read_text() == good


def test_accepting_what_does_not_differ_is_told(pinner: Pinner, ready: Path) -> None:
    said = pinner("check", ready, "--accept", "model.nothing", "--reason", "x")
    assert said.code == 0
    assert "model.nothing matched no difference" in said.err
    assert "--reason is empty" in pinner("check", ready, "--accept", "a.b", "--reason", " ").err


def test_upgrading_a_package_that_is_not_there(pinner: Pinner, ready: Path) -> None:
    said = pinner("lock", ready, "--upgrade", "nosuch")
    assert said.code == 2
    assert "nosuch" in said.err


def test_the_engines_last_words_cannot_steer_the_terminal(pinner: Pinner, tmp_path: Path) -> None:
    manifest = tiny.deployment(tmp_path / "d", env='STUB = "shout"')
    said = pinner("up", manifest)
    assert said.code == 3
    assert "\\x1b]0;title" in said.err
    assert "\x1b]" not in said.err


def test_a_helper_with_a_cleared_environment_is_no_drift(pinner: Pinner, tmp_path: Path) -> None:
    """Engines call programs such as nvidia-smi, some with an environment of their own."""
    manifest = tiny.deployment(tmp_path / "d", env='STUB = "helper"')
    said = pinner.json("up", manifest)
    assert said.code == 0, said.out
    assert pinner("check", manifest).code == 0


def test_what_a_later_up_accepts_is_shown_by_status(pinner: Pinner, ready: Path) -> None:
    assert pinner("up", ready).code == 0
    (ready.parent / "model" / "extra.txt").write_text("x")
    refused = pinner("up", ready)
    assert refused.code == 1
    assert "is still up" in refused.err
    assert pinner("up", ready, "--accept", "model.extra.txt", "--reason", "a note").code == 0
    assert "model.extra.txt: a note" in pinner("status", ready).out


def test_hints_can_be_typed(pinner: Pinner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    manifest = tiny.deployment(tmp_path / "d")
    monkeypatch.chdir(tmp_path)
    assert pinner("lock", manifest).code == 0
    assert "`pinner materialize d/tiny.toml`" in pinner("check", "d/tiny.toml").out
    assert pinner("materialize", "d/tiny.toml").code == 0


def test_a_home_behind_a_link_is_the_same_one(
    pinner: Pinner, ready: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert pinner("up", ready).code == 0
    (tmp_path / "other").symlink_to(tmp_path / "pinner")
    monkeypatch.setenv("PINNER_HOME", str(tmp_path / "other"))
    assert pinner("check", ready).code == 0


def test_a_lock_that_needs_a_newer_pinner(pinner: Pinner, ready: Path) -> None:
    lock = ready.with_suffix(".lock")
    lock.write_text(lock.read_text().replace('requires-pinner = "0.1.0"', 'requires-pinner = "9.9"'))
    said = pinner("check", ready)
    assert said.code == 2
    assert "pinner 9.9 or newer" in said.err


def test_a_pull_while_the_engine_loads_is_seen(
    pinner: Pinner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest = tiny.deployment(
        tmp_path / "d", source='{ path = "engine", commit = "good" }', env='STUB = "slow=1.5"'
    )
    monkeypatch.setattr("pinner.deploy.launch.LOOK_AGAIN_AFTER_S", 1.0)
    assert pinner("lock", manifest).code == 0
    assert pinner("materialize", manifest).code == 0
    home = Home(tmp_path / "pinner")

    def pull() -> None:
        deadline = time.monotonic() + 20
        while not all_runs(home) and time.monotonic() < deadline:
            time.sleep(0.02)
        tiny.commit(manifest.parent / "engine", {"pocket/more.py": ""}, "Arrives while loading")

    thread = threading.Thread(target=pull)
    thread.start()
    said = pinner.json("up", manifest)
    thread.join()
    assert said.code == 1
    assert "source.commit" in differences(said)
    assert not runs.is_alive(run_directory(home, all_runs(home)[0].run))
