"""The command line's contract: exit codes, streams, the JSON envelope, no traceback."""

from __future__ import annotations

import errno
import json
from pathlib import Path

import msgspec
import pytest

from pinner import __version__
from pinner.cli import main
from pinner.deploy.running import Run, all_status, leftovers, write_run
from pinner.host import procfs
from pinner.host.home import Home
from pinner.host.runstate import Identity, RunState


def run(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, str, str]:
    code = main(list(argv))
    out, err = capsys.readouterr()
    assert "Traceback" not in err + out
    return code, out, err


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "--version") == (0, f"pinner {__version__}\n", "")


@pytest.mark.parametrize(
    "argv",
    [("nonsense",), ("check",), ("check", "a", "b"), ("up", "x", "--output", "xml"), ("logs", "x", "-n", "-3")],
)
def test_usage_errors_are_2(capsys: pytest.CaptureFixture[str], argv: tuple[str, ...]) -> None:
    code, out, err = run(capsys, *argv)
    assert code == 2
    assert out == ""
    assert err


@pytest.mark.parametrize("verb", ["lock", "materialize", "check", "up", "status", "logs", "down"])
def test_a_missing_manifest_is_2_and_named(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, err = run(capsys, verb, "no-such.toml")
    assert code == 2
    assert out == ""
    assert "no-such.toml" in err
    code, out, err = run(capsys, verb, "no-such.toml", "--output", "json")
    envelope = json.loads(out)
    assert code == envelope["exit_code"] == 2
    assert envelope["command"] == verb
    assert envelope["status"] == "invalid"
    assert "no-such.toml" in envelope["errors"][0]["message"]


def test_a_rejected_command_line_still_gives_an_envelope(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "check", "--output", "json")
    assert code == 2
    assert json.loads(out)["status"] == "invalid"


def test_accepting_needs_a_reason(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    code, _, err = run(capsys, "init", "one", "--directory", str(tmp_path))
    assert code == 0
    (tmp_path / "one.lock").write_text("version = 1\n")
    code, _, err = run(capsys, "up", str(tmp_path / "one.toml"), "--accept", "source.commit")
    assert code == 2
    assert "--reason" in err


def test_init_never_overwrites(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert run(capsys, "init", "one", "--directory", str(tmp_path))[0] == 0
    before = (tmp_path / "one.toml").read_text()
    code, _, err = run(capsys, "init", "one", "--directory", str(tmp_path))
    assert code == 2
    assert "exists already" in err
    assert (tmp_path / "one.toml").read_text() == before
    assert run(capsys, "init", "../two", "--directory", str(tmp_path))[0] == 2
    assert run(capsys, "init", "two", "--directory", str(tmp_path / "missing"))[0] == 3


def test_status_without_runs(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "status") == (0, "no runs\n", "")


def test_a_bug_is_70_and_leaves_a_report(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_args: object) -> None:
        raise RuntimeError("unexpected")

    monkeypatch.setattr("pinner.deploy.running.all_runs", broken)
    code, out, err = run(capsys, "status", "--output", "json")
    assert code == 70
    assert json.loads(out)["status"] == "bug"
    reports = list((tmp_path / "pinner" / "logs").glob("bug-*.txt"))
    assert len(reports) == 1
    assert str(reports[0]) in err
    assert "RuntimeError: unexpected" in reports[0].read_text()


def test_an_interrupt_is_130(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_args: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("pinner.deploy.running.all_runs", interrupted)
    assert run(capsys, "status")[0] == 130


def test_an_interrupt_before_the_verb_never_looks_like_drift(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_args: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("pinner.cli._verb", interrupted)
    assert run(capsys, "status")[0] == 130


@pytest.mark.parametrize("home", ["relative", "~nobody-of-that-name/x"])
def test_a_home_that_is_no_place_is_2_and_hides_no_other_error(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, home: str
) -> None:
    def full(*_args: object) -> None:
        raise OSError(errno.ENOSPC, "no space left")

    monkeypatch.setenv("PINNER_HOME", home)
    code, _, err = run(capsys, "status")
    assert (code, "absolute" in err) == (2, True)
    monkeypatch.setattr("pinner.verbs.pins.find_manifest", full)
    code, _, err = run(capsys, "check", "x.toml")
    assert (code, "no space left" in err) == (3, True)


def test_a_user_without_a_home_directory_is_told(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PINNER_HOME")
    monkeypatch.setattr("platformdirs.user_data_path", lambda *_args, **_more: Path("~/.local/share/pinner"))
    code, _, err = run(capsys, "status")
    assert (code, "PINNER_HOME" in err) == (2, True)


def test_a_launch_that_was_killed_before_it_began_is_no_crash(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    home = Home(tmp_path / "pinner")
    write_run(home, launch("one-1"))
    assert run(capsys, "status") == (0, "no runs\n", "")
    code, out, _ = run(capsys, "status", "one-1")
    assert (code, "it was not started" in out) == (3, True)


def test_what_a_container_that_is_gone_left_blocks_nothing(tmp_path: Path) -> None:
    home = Home(tmp_path / "pinner")
    state = RunState(
        schema=1,
        run="one-1",
        status="running",
        supervisor=Identity(1, 1),
        server=Identity(2, 2),
        boot_id=procfs.boot_id(),
        pid_namespace=0,
        host="another",
        cgroup=None,
        cgroup_missing=None,
        subreaper=True,
        argv=(),
        started=0.0,
        ended=None,
        exit_code=None,
        forced=False,
        killed=0,
        survivors=(),
        clean=None,
        error=None,
        members=(),
    )
    (write_run(home, launch("one-1")) / "state.json").write_bytes(msgspec.json.encode(state))
    assert leftovers(home, "one") == []
    assert [one.state for one in all_status(home, ended=False)] == ["elsewhere"]
    write_run(home, launch("one-2", started=1.0))
    assert all_status(home, ended=False) == []


def launch(run: str, started: float = 0.0) -> Run:
    return Run(
        run=run,
        deployment="one",
        name="one",
        manifest="/one.toml",
        lock="sha256:0",
        kind="pocket",
        url="http://127.0.0.1:1",
        argv=(),
        variables=(),
        started=started,
    )
