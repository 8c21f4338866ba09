"""One real SGLang for all end-to-end tests: its environment is installed once."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import tiny
from tests.conftest import CALLER
from tests.integration.command import Said

ROOT = Path(__file__).parent.parent.parent
_COPIED = (
    "quickstart/model",
    "quickstart/draft",
    "quickstart/prompts.jsonl",
    "sglang-cpu",
    "sglang-cpu.toml",
    "sglang-cpu.lock",
)


class Box:
    """A machine of its own: a directory with the deployment, a PINNER_HOME, and `pinner` as a program."""

    def __init__(self, root: Path) -> None:
        self.home = root / "home"
        self.port = tiny.free_port()
        self.deployments = root / "deployments"
        for name in (*_COPIED, "pylock.sglang-cpu.toml"):
            source, target = ROOT / "deployments" / name, self.deployments / name
            target.parent.mkdir(parents=True, exist_ok=True)
            if source.is_dir():
                shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(source, target)
        self.manifest = self.deployments / "sglang-cpu.toml"
        text = self.manifest.read_text()
        assert "port = 30000" in text
        self.manifest.write_text(text.replace("port = 30000", f"port = {self.port}"))
        user = root / "user"
        user.mkdir()
        self._env = {name: value for name, value in os.environ.items() if not name.startswith(CALLER)}
        self._env |= {"HOME": str(user), "PINNER_HOME": str(self.home), "NO_COLOR": "1"}
        links = os.environ.get("PINNER_FIND_LINKS") or os.environ.get("PIP_FIND_LINKS")
        if links:
            self._env["PINNER_FIND_LINKS"] = links

    def __call__(self, *argv: str | Path) -> Said:
        command = [sys.executable, "-m", "pinner", *map(str, argv)]
        done = subprocess.run(command, cwd=ROOT, env=self._env, capture_output=True, text=True, check=False)
        assert "Traceback" not in done.stdout + done.stderr
        return Said(done.returncode, done.stdout, done.stderr)

    def json(self, *argv: str | Path) -> Said:
        """The same with `--output json`."""
        return self(*argv, "--output", "json")

    def needs(self, *argv: str | Path) -> dict[str, Any]:
        """The data of a command that must succeed; its errors are the test's message."""
        said = self.json(*argv)
        assert said.code == 0, f"pinner {argv[0]}: exit {said.code}\n{said.out}\n{said.err}"
        return said.data

    def runs(self) -> list[str]:
        """Names of all runs that have not ended."""
        return [run["run"] for run in json.loads(self.json("status").out)["data"]["runs"]]


@pytest.fixture(scope="session")
def box(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Box]:
    """The deployment locked and materialized, and at the end nothing of it runs on."""
    one = Box(tmp_path_factory.mktemp("sglang"))
    one.needs("lock", one.manifest)
    one.needs("materialize", one.manifest)
    try:
        yield one
    finally:
        for run in one.runs():
            one("down", run, "--force")
        shutil.rmtree(one.home, ignore_errors=True)
