"""The command line's contract: exit codes, streams, the JSON envelope, no traceback."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pinner import __version__
from pinner.cli import main


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
