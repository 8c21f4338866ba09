"""`up`, `status`, `logs` and `down` on a real server with real processes."""

from __future__ import annotations

import http.server
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from pathlib import Path

import pytest

from pinner.deploy.running import all_runs, run_directory
from pinner.host import procfs, runs
from pinner.host.home import Home
from tests import tiny
from tests.integration.command import Pinner, Said, differences

REPO = Path(__file__).parent.parent.parent


def fetch(url: str, path: str) -> dict[str, object]:
    with urllib.request.urlopen(f"{url}{path}", timeout=10) as answer:
        found: dict[str, object] = json.load(answer)
        return found


def alive(pid: int) -> bool:
    return procfs.process(pid) is not None


def processes_with(word: str) -> list[int]:
    return [one.pid for one in procfs.processes() if word in one.argv]


def test_up_status_logs_down(pinner: Pinner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    manifest = tiny.deployment(tmp_path / "d")
    said = pinner.json("up", manifest)
    assert said.code == 0, said.err
    url, run = said.data["url"], said.data["run"]
    assert said.data["tokens"] == 3
    assert said.data["lock"]["changed"], "a missing lock is made, and it says so"
    assert "no lock yet" in said.err

    shown = pinner.json("status", manifest).data["runs"][0]
    assert (shown["run"], shown["state"], shown["generates"]) == (run, "running", True)
    assert "fired up" in pinner("logs", manifest).out
    assert "fired up" in pinner("logs", run, "-n", "5").out
    assert pinner("check", manifest).code == 0

    again = pinner.json("up", manifest)
    assert again.code == 0
    assert (again.data["run"], again.data["already"]) == (run, True)

    assert pinner("down", manifest).code == 0
    with pytest.raises(OSError, match="refused"):
        urllib.request.urlopen(f"{url}/health", timeout=5)
    second = pinner("down", manifest)
    assert second.code == 0
    assert "nothing to do" in second.out
    assert pinner.json("status", manifest).code == 3


def test_locked_refuses_to_make_a_lock(pinner: Pinner, tmp_path: Path) -> None:
    manifest = tiny.deployment(tmp_path / "d")
    said = pinner("up", manifest, "--locked")
    assert said.code == 2
    assert "does not exist" in said.err
    assert not manifest.with_suffix(".lock").exists()


def test_an_outdated_lock_is_never_remade_in_passing(pinner: Pinner, tmp_path: Path) -> None:
    manifest = tiny.deployment(tmp_path / "d")
    assert pinner("lock", manifest).code == 0
    before = manifest.with_suffix(".lock").read_bytes()
    manifest.write_text(manifest.read_text().replace('"Simple"', '"LL128"'))
    for verb in ("up", "check", "materialize"):
        said = pinner(verb, manifest)
        assert said.code == 2
        assert "out of date" in said.err
    assert manifest.with_suffix(".lock").read_bytes() == before


def test_h26_the_process_sees_exactly_the_manifests_strings(pinner: Pinner, tmp_path: Path) -> None:
    """Case H26: quotes, blanks, #, $, =, newline, non-ASCII; numbers and booleans have one spelling."""
    values = {
        "NCCL_IB_HCA": "=mlx5_0:1,mlx5_1",
        "A": 'say "hi" it\'s',
        "B": "$HOME ${HOME} `id` %PATH% \\n",
        "C": " leading and trailing \t",
        "D": "# no comment",
        "E": "two\nlines\n",
        "F": "grüße 世界 \u00a0",
        "G": "",
        "H": "a=b=c",
    }
    lines = "\n".join(f"{name} = {json.dumps(value, ensure_ascii=False)}" for name, value in values.items())
    manifest = tiny.deployment(tmp_path / "d", env=f"{lines}\nONE = 1\nYES = true\nNO = false\nBIG = -42")
    said = pinner.json("up", manifest)
    assert said.code == 0, said.err
    seen = fetch(said.data["url"], "/env")["env"]
    assert isinstance(seen, dict)
    expected = {**values, "ONE": "1", "YES": "1", "NO": "0", "BIG": "-42"}
    assert {name: seen.get(name) for name in expected} == expected
    assert pinner("check", manifest).code == 0, "'1' and 1 are no drift"


def test_the_callers_shell_does_not_reach_the_engine(
    pinner: Pinner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest = tiny.deployment(
        tmp_path / "d", env='TOKEN = { secret = "MY_TOKEN" }\nIFNAME = { site = "MY_IFNAME" }'
    )
    shadow = tmp_path / "pocket"
    shadow.mkdir()
    (shadow / "__init__.py").write_text("raise SystemExit('the wrong pocket')")
    monkeypatch.chdir(tmp_path)
    for name, value in (
        ("NCCL_ALGO", "Ring"),
        ("PYTHONPATH", str(tmp_path)),
        ("LD_PRELOAD", ""),
        ("SOMETHING", "else"),
    ):
        monkeypatch.setenv(name, value)
    missing = pinner("up", manifest)
    assert missing.code == 3
    assert "MY_TOKEN (for TOKEN)" in missing.err and "MY_IFNAME" in missing.err
    monkeypatch.setenv("MY_TOKEN", "hush-hush")
    monkeypatch.setenv("MY_IFNAME", "eth7")
    said = pinner.json("up", manifest)
    assert said.code == 0, said.err
    assert "NCCL_ALGO" in said.err and "not passed on" in said.err
    seen = fetch(said.data["url"], "/env")
    environment = seen["env"]
    assert isinstance(environment, dict)
    assert not {"NCCL_ALGO", "PYTHONPATH", "LD_PRELOAD", "SOMETHING"} & environment.keys()
    assert (environment["TOKEN"], environment["IFNAME"]) == ("hush-hush", "eth7")
    assert seen["cwd"] == "/"
    assert str(seen["file"]).startswith(str(tmp_path / "pinner" / "workspaces"))
    kept = [path for path in (tmp_path / "pinner" / "runs").rglob("*") if path.is_file()]
    assert kept and all(b"hush-hush" not in path.read_bytes() for path in kept)
    assert b"hush-hush" not in manifest.with_suffix(".lock").read_bytes()
    assert "hush-hush" not in said.out + said.err


@pytest.mark.parametrize(
    ("stub", "words"),
    [
        ("hang", "healthy but does not generate"),
        ("hang;no-health-generate", "healthy but does not generate"),
        ("empty", "healthy but does not generate"),
        ("error", "out of memory"),
        ("crash", "cannot load the model"),
    ],
)
def test_h21_ready_means_that_tokens_came(pinner: Pinner, tmp_path: Path, stub: str, words: str) -> None:
    """Case H21: health says 200 and generation hangs; whatever was started is stopped again."""
    manifest = tiny.deployment(tmp_path / "d", env=f'STUB = "{stub};worker"')
    said = pinner.json("up", manifest)
    assert said.code == 3
    assert said.json["status"] == "failed"
    assert words in said.json["errors"][0]["message"]
    assert_nothing_of_it_runs(tmp_path)


def test_h21_a_missing_optional_endpoint_is_no_failure(pinner: Pinner, tmp_path: Path) -> None:
    manifest = tiny.deployment(tmp_path / "d", env='STUB = "no-health-generate"')
    assert pinner("up", manifest).code == 0


def test_h21_status_does_not_trust_health(pinner: Pinner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    manifest = tiny.deployment(tmp_path / "d")
    assert pinner("up", manifest).code == 0
    run = all_runs(Home(tmp_path / "pinner"))[0]
    state = runs.read_state(run_directory(Home(tmp_path / "pinner"), run.run))
    assert state.server is not None
    monkeypatch.setattr("pinner.deploy.running.STATUS_GENERATE_S", 0.5)
    os.kill(state.server.pid, signal.SIGSTOP)
    try:
        said = pinner.json("status", manifest)
        assert said.code == 3
        assert said.data["runs"][0]["generates"] is False
    finally:
        os.kill(state.server.pid, signal.SIGCONT)


def assert_nothing_of_it_runs(tmp_path: Path) -> None:
    for run in all_runs(Home(tmp_path / "pinner")):
        directory = run_directory(Home(tmp_path / "pinner"), run.run)
        assert not runs.is_alive(directory)
        assert not runs.survivors(directory)


def test_secrets_stay_out_of_the_last_lines(
    pinner: Pinner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOKEN", "hush-hush")
    manifest = tiny.deployment(tmp_path / "d", env='STUB = "crash"\nTOKEN = { secret = "TOKEN" }')
    said = pinner("up", manifest)
    assert said.code == 3
    assert "secret is (hidden)" in said.err
    assert "hush-hush" not in said.err


def test_h22_nothing_survives_down(pinner: Pinner, tmp_path: Path) -> None:
    """Case H22: a child that left session and tree and bears no mark; a stranger of its name stays."""
    mark = "4321.125"
    manifest = tiny.deployment(tmp_path / "d", env=f'STUB = "escape={mark}"')
    stranger = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)", mark])
    try:
        assert pinner("up", manifest).code == 0
        deadline = time.monotonic() + 5
        while len(processes_with(mark)) < 2 and time.monotonic() < deadline:
            time.sleep(0.02)
        assert len(processes_with(mark)) == 2
        assert pinner("down", manifest).code == 0
        assert processes_with(mark) == [stranger.pid]
        assert pinner("down", manifest).code == 0
    finally:
        stranger.kill()
        stranger.wait()


def test_h22_a_killed_launcher_and_a_killed_supervisor(pinner: Pinner, tmp_path: Path) -> None:
    mark = "4322.125"
    manifest = tiny.deployment(tmp_path / "d", env=f'STUB = "escape={mark}"')
    home = Home(tmp_path / "pinner")
    assert pinner("up", manifest).code == 0
    first = all_runs(home)[0]
    state = runs.read_state(run_directory(home, first.run))
    assert state.server is not None
    os.kill(state.server.pid, signal.SIGKILL)
    wait_until(lambda: not runs.is_alive(run_directory(home, first.run)))
    assert processes_with(mark) == []
    assert pinner.json("status", manifest).data["runs"][0]["state"] == "exited"

    assert pinner("up", manifest).code == 0
    second = all_runs(home)[0]
    state = runs.read_state(run_directory(home, second.run))
    os.kill(state.supervisor.pid, signal.SIGKILL)
    wait_until(lambda: not runs.is_alive(run_directory(home, second.run)))
    if processes_with(mark):
        refused = pinner("up", manifest)
        assert refused.code == 3
        assert "still alive" in refused.err
    assert pinner("down", manifest).code == 0
    assert processes_with(mark) == []


def wait_until(condition: object, timeout_s: float = 10.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_h14_a_variable_overwritten_in_a_worker_is_refused(pinner: Pinner, tmp_path: Path) -> None:
    """Case H14: the parent's /proc entry still shows the pinned value."""
    manifest = tiny.deployment(tmp_path / "d", env='STUB = "overwrite=NCCL_PROTO:LL"')
    said = pinner.json("up", manifest)
    assert said.code == 1, said.err
    item = differences(said)["environment.NCCL_PROTO"]
    assert (item["pinned"], item["observed"]) == ("Simple", "LL")
    assert "has LL" in item["evidence"][0]
    assert_nothing_of_it_runs(tmp_path)
    text = pinner("up", manifest)
    assert "pinned Simple, observed LL" in text.out

    accepted = pinner.json("up", manifest, "--accept", "environment.NCCL_PROTO", "--reason", "measuring LL")
    assert accepted.code == 0, accepted.err
    assert accepted.data["accepted"][0]["note"] == "accepted: measuring LL"
    shown = pinner("status", manifest).out
    assert "environment.NCCL_PROTO: measuring LL" in shown
    assert pinner("check", manifest).code == 1, "an override of `up` is not one of `check`"


def test_a_busy_port_names_its_holder(pinner: Pinner, tmp_path: Path) -> None:
    manifest = tiny.deployment(tmp_path / "d")
    assert pinner("materialize", manifest).code == 2
    assert pinner("lock", manifest).code == 0
    port = int(manifest.read_text().partition("port = ")[2].splitlines()[0])
    with socket.create_server(("127.0.0.1", port)):
        said = pinner("up", manifest)
    assert said.code == 3
    assert f"port {port} is in use by pid {os.getpid()}" in said.err


def test_a_port_answered_by_somebody_else(pinner: Pinner, tmp_path: Path) -> None:
    """Another server takes the port after the pre-flight: its answers must not count as ours."""
    manifest = tiny.deployment(tmp_path / "d", env='STUB = "slow=2"')
    assert pinner("lock", manifest).code == 0
    assert pinner("materialize", manifest).code == 0
    port = int(manifest.read_text().partition("port = ")[2].splitlines()[0])

    class Foreign(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    servers: list[http.server.ThreadingHTTPServer] = []

    def take_the_port() -> None:
        home = Home(tmp_path / "pinner")
        wait_until(lambda: all_runs(home) and runs.is_alive(run_directory(home, all_runs(home)[0].run)))
        servers.append(http.server.ThreadingHTTPServer(("127.0.0.1", port), Foreign))
        servers[0].serve_forever()

    thread = threading.Thread(target=take_the_port)
    thread.start()
    said = pinner("up", manifest)
    wait_until(lambda: servers)
    servers[0].shutdown()
    thread.join()
    servers[0].server_close()
    assert said.code == 3
    assert "answered by somebody else" in said.err
    assert_nothing_of_it_runs(tmp_path)


def test_a_second_up_at_the_same_time_is_told(pinner: Pinner, tmp_path: Path) -> None:
    manifest = tiny.deployment(tmp_path / "d", env='STUB = "slow=1.5"')
    assert pinner("lock", manifest).code == 0
    assert pinner("materialize", manifest).code == 0
    command = [sys.executable, "-m", "pinner", "up", str(manifest)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    other = subprocess.Popen(command, text=True, env=dict(os.environ), **pipes)
    home = Home(tmp_path / "pinner")
    wait_until(lambda: all_runs(home))
    said = pinner("up", manifest)
    assert said.code == 3
    assert "bringing this deployment up" in said.err
    out, err = other.communicate(timeout=30)
    assert other.returncode == 0, out + err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_up_leaves_nothing(pinner: Pinner, tmp_path: Path, number: int) -> None:
    manifest = tiny.deployment(tmp_path / "d", env='STUB = "slow=20;worker"')
    assert pinner("lock", manifest).code == 0
    command = [sys.executable, "-m", "pinner", "up", str(manifest)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    other = subprocess.Popen(command, text=True, env=dict(os.environ), **pipes)
    home = Home(tmp_path / "pinner")
    wait_until(lambda: all_runs(home) and runs.is_alive(run_directory(home, all_runs(home)[0].run)), 30)
    other.send_signal(number)
    out, err = other.communicate(timeout=30)
    assert other.returncode == 130, out + err
    assert_nothing_of_it_runs(tmp_path)


def test_a_server_from_an_older_lock(pinner: Pinner, tmp_path: Path) -> None:
    manifest = tiny.deployment(tmp_path / "d")
    assert pinner("up", manifest).code == 0
    manifest.write_text(manifest.read_text().replace('"Simple"', '"LL128"'))
    assert pinner("lock", manifest).code == 0
    said = pinner.json("check", manifest)
    assert said.code == 1
    assert {"run.lock", "environment.NCCL_PROTO"} <= differences(said).keys()
    refused = pinner("up", manifest)
    assert refused.code == 3
    assert "another lock" in refused.err
    assert pinner("down", manifest).code == 0
    assert pinner("up", manifest).code == 0


def test_the_same_verdict_from_any_directory(
    pinner: Pinner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest = tiny.deployment(tmp_path / "deployments")
    assert pinner("lock", manifest).code == 0
    assert pinner("materialize", manifest).code == 0
    seen: list[Said] = []
    for directory in (tmp_path, manifest.parent, manifest.parent / "engine", Path("/")):
        monkeypatch.chdir(directory)
        seen.append(pinner("check", manifest))
    assert {said.code for said in seen} == {0}
    monkeypatch.chdir(tmp_path)
    assert pinner("check", "tiny.toml").code == 0
