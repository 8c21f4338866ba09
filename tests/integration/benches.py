"""Deployments of the stub engine with a bench, for the tests of `pinner bench`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pinner.deploy.running import all_runs, run_directory
from pinner.host import runs
from pinner.host.home import Home
from tests import tiny
from tests.integration.command import Pinner, Said

# The machine of a test may be busy: the client's own lag must decide only where a test is about it.
BENCH = """
[bench.decode]
requests = 6
input-tokens = 16
output-tokens = 6
concurrency = [3]
warmup = 1
repeats = 2
starts = 1
timeout-s = 20
client-lag-ms = 10000
"""


def deployment(directory: Path, bench: str = BENCH, **more: str) -> Path:
    return tiny.deployment(directory, more=bench, **more)


def locked(pinner: Pinner, manifest: Path) -> Path:
    said = pinner("lock", manifest)
    assert said.code == 0, said.err
    return manifest


def record_of(said: Said) -> dict[str, Any]:
    path = Path(said.data["record"]["path"]) / "record.json"
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def nothing_runs(home: Home) -> bool:
    return not any(runs.is_alive(run_directory(home, run.run)) for run in all_runs(home))
