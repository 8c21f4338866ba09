"""What long work tells of itself, on a terminal and off it."""

from __future__ import annotations

import io
import os
import sys

import pytest

from pinner.host import process, progress
from pinner.host.progress import GitMeter, View
from pinner.terminal import Output


class Lines(View):
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def status(self, text: str) -> None:
        self.told.append(text)


def test_gits_own_progress_is_picked_out_whatever_the_pieces() -> None:
    view = Lines()
    meter = GitMeter(view)
    said = b"From https://x\nremote: Counting objects: 50% (1/2)\r"
    said += b"Receiving objects:  45% (9/20), 12.30 MiB | 3 MiB/s\r"
    for at in range(0, len(said), 7):
        meter(said[at : at + 7])
    assert view.told == ["Counting objects: 50% (1/2)", "Receiving objects:  45% (9/20), 12.30 MiB | 3 MiB/s"]


def test_a_server_cannot_steer_the_terminal() -> None:
    view = Lines()
    GitMeter(view)(b"remote: Counting objects\x1b]0;owned\x07: 1%\r")
    assert view.told == ["Counting objects]0;owned: 1%"]


def test_errors_are_told_without_progress() -> None:
    said = "Receiving objects: 45%\rReceiving objects: 90%\nfatal: early EOF\nremote: Counting objects: 1%\n"
    assert GitMeter.without_progress(said) == "fatal: early EOF"


@pytest.mark.parametrize("columns", [None, 90])
def test_a_watched_program_is_shown_as_it_writes(columns: int | None) -> None:
    pieces: list[bytes] = []
    code = (
        "import os, sys; print(sys.stdin.read(), os.isatty(2), os.isatty(1), flush=True);"
        "sys.stderr.write('half'); sys.stderr.flush(); sys.stderr.write(' done'); sys.exit(3)"
    )
    done = process.run_watched(
        [sys.executable, "-c", code],
        env={"PATH": os.environ["PATH"]},
        input=b"given",
        watch=process.Watch(pieces.append, columns),
    )
    assert done.code == 3
    assert done.stdout.decode().split() == ["given", str(columns is not None), "False"]
    assert done.stderr == b"".join(pieces) == b"half done"


def test_a_watched_program_that_cannot_start() -> None:
    with pytest.raises(Exception, match="cannot start"):
        process.run_watched(["/no/such/program"], env={}, watch=process.Watch(lambda _data: None))


def test_small_work_is_not_worth_a_bar() -> None:
    assert progress.hashing(1000) is None
    assert progress.hashing(progress.WORTH_TELLING_BYTES) is not None


def test_off_a_terminal_there_are_plain_lines() -> None:
    out, err = io.StringIO(), io.StringIO()
    output = Output("check", as_json=False, out=out, err=err)
    output.say("hashing")
    advance = output.transfer("reading", 100)
    advance(50)
    advance(50)
    output.line("done \udcff")
    assert err.getvalue() == "hashing\n", "a line now and then, not for each piece"
    assert out.getvalue() == "done \\xff\n"


def test_json_leaves_stdout_to_the_envelope() -> None:
    out, err = io.StringIO(), io.StringIO()
    output = Output("check", as_json=True, out=out, err=err)
    output.line("a result")
    output.say("working")
    assert out.getvalue() == ""
    assert err.getvalue() == "working\n"
