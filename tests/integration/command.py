"""Running pinner in a test as a user does, in this process."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from pinner.cli import main
from pinner.deploy.running import all_runs, down
from pinner.host.home import home


class Said(NamedTuple):
    """What one command line gave."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> dict[str, Any]:
        """The envelope."""
        envelope: dict[str, Any] = json.loads(self.out)
        assert envelope["exit_code"] == self.code
        return envelope

    @property
    def data(self) -> dict[str, Any]:
        """The envelope's data."""
        data: dict[str, Any] = self.json["data"]
        return data


class Pinner:
    """`pinner …` with what it printed captured."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def __call__(self, *argv: str | Path) -> Said:
        self._capsys.readouterr()
        code = main([str(word) for word in argv])
        out, err = self._capsys.readouterr()
        assert "Traceback" not in out + err
        assert code != 70, err
        return Said(code, out, err)

    def json(self, *argv: str | Path) -> Said:
        """The same with `--output json`."""
        return self(*argv, "--output", "json")


@contextmanager
def nothing_left() -> Iterator[None]:
    """Stop whatever the test has left running below its own PINNER_HOME."""
    try:
        yield
    finally:
        for run in all_runs(home()):
            down(run, home(), force=True)


def differences(said: Said) -> dict[str, dict[str, Any]]:
    """The drift of a check by aspect.key."""
    return {f"{item['aspect']}.{item['key']}": item for item in said.data["drift"]}


def unknowns(said: Said) -> dict[str, dict[str, Any]]:
    """What a check could not tell by aspect.key."""
    return {f"{item['aspect']}.{item['key']}": item for item in said.data["unknown"]}
