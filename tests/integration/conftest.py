"""What every test with real processes shares: a run id, and the proof that nothing of it is left."""

from __future__ import annotations

import os
import signal
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from pinner.host import procfs, rundir, runs
from pinner.host.runs import RUN_MARKER
from tests.integration.command import Pinner, nothing_left
from tests.integration.engine_run import Run, wait_for
from tests.integration.environments import (  # noqa: F401  # fixtures
    bare,
    base,
    cache,
    env,
    install,
    installation,
    packages,
    short_racy_window,
    template,
    venv,
)
from tests.integration.hub import FakeHub, served
from tests.integration.repeating import repeatable  # noqa: F401  # fixtures
from tests.nvml.stub import nvml, nvml_libraries  # noqa: F401  # fixtures


def strays(run: str) -> list[procfs.ProcessInfo]:
    """Processes that carry the run's marker in their environment or its id in their arguments."""
    found = []
    for one in procfs.processes():
        environment = procfs.environ(one.pid)
        marked = isinstance(environment, dict) and environment.get(RUN_MARKER) == run
        if one.pid != os.getpid() and (marked or any(run in word for word in one.argv)):
            found.append(one)
    return found


@pytest.fixture
def run_id() -> Iterator[str]:
    """A run id that no other test has; at the end nothing may carry it."""
    run = f"test-{uuid.uuid4().hex[:12]}"
    yield run
    left = strays(run)
    end = time.monotonic() + 2
    while left and time.monotonic() < end:  # a process that was just killed needs a moment
        time.sleep(0.02)
        left = strays(run)
    for one in left:
        os.kill(one.pid, signal.SIGKILL)
    assert not left, f"left behind by the test: {left}"


@pytest.fixture
def pinner(capsys: pytest.CaptureFixture[str]) -> Iterator[Pinner]:
    """`pinner …`, and at the end nothing of it runs on."""
    with nothing_left():
        yield Pinner(capsys)


@pytest.fixture
def run(tmp_path: Path, run_id: str) -> Iterator[Run]:
    one = Run(tmp_path, run_id)
    yield one
    if runs.is_alive(one.dir):
        holder = rundir.holder(str(one.dir))
        if holder:
            os.kill(holder, signal.SIGUSR1)
        wait_for(lambda: not runs.is_alive(one.dir))


@pytest.fixture(params=[True, False], ids=["cgroup", "no-cgroup"])
def cgroup(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    """A Hub that the environment names, with an empty cache in tmp_path."""
    with served(FakeHub()) as one:
        monkeypatch.setenv("HF_ENDPOINT", one.endpoint)
        monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
        monkeypatch.setenv("NO_PROXY", "127.0.0.1,localhost")
        yield one
