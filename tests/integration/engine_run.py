"""One run of the fake engine, for the tests of the supervisor and of runs."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pinner.host import procfs, runs

ROOT = Path(__file__).parents[2]
ENGINE = ROOT / "tests/fake_engine.py"
ESCAPES = ("plain", "setsid", "daemon", "cleared", "stubborn")
PYTHON = (sys.executable, "-I", "-S")
SUPERVISOR = (*PYTHON, str(ROOT / "pinner/host/supervisor.py"))


def wait_for(condition: Callable[[], object], timeout_s: float = 10) -> None:
    end = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.01)


def alive(pid: int) -> bool:
    return procfs.start_ticks(pid) is not None


class Run:
    """One run of the fake engine in a directory of its own."""

    def __init__(self, folder: Path, run: str) -> None:
        self.id, self.dir, self.out = run, folder / "run", folder / "engine.json"

    def spec(self, *kinds: str, **changes: Any) -> runs.LaunchSpec:
        values: dict[str, Any] = {
            "run": self.id,
            "argv": (*PYTHON, str(ENGINE), self.id, str(self.out), *kinds),
            "env": {"PATH": "/usr/bin:/bin"},
            "grace_s": 5.0,
        }
        return runs.LaunchSpec(**(values | changes))

    def start(self, *kinds: str, **changes: Any) -> runs.RunState:
        state = runs.start(self.dir, self.spec(*kinds, **changes))
        wait_for(lambda: self.out.exists() or not runs.is_alive(self.dir))
        assert self.out.exists(), (self.dir / "server.log").read_text()
        return state

    def stop(self, **options: Any) -> runs.StopResult:
        return runs.stop(self.dir, **({"timeout_s": 10} | options))

    @property
    def engine(self) -> dict[str, Any]:
        return json.loads(self.out.read_text())

    def edit_state(self, **changes: Any) -> None:
        path = self.dir / "state.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | changes))

    def kill_supervisor(self) -> None:
        pid = runs.read_state(self.dir).supervisor.pid
        os.kill(pid, signal.SIGKILL)
        wait_for(lambda: not runs.is_alive(self.dir))
