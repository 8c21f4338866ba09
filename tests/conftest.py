"""What every test stands on: a home of its own, git that knows no user, nothing written outside tmp_path."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from pinner.host.home import Home

# Variables of the developer's shell that would change what is tested.
CALLER = ("UV_", "PIP_", "GIT_", "PINNER_", "PYTHON", "NCCL_", "SGLANG_", "CUDA_", "POCKET_", "HF_", "HUGGING")


@pytest.fixture(autouse=True)
def isolated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A home directory and a PINNER_HOME below tmp_path, and none of the developer's settings."""
    links = os.environ.get("PINNER_FIND_LINKS") or os.environ.get("PIP_FIND_LINKS")
    for name in list(os.environ):
        if name.startswith(CALLER):
            monkeypatch.delenv(name)
    user = tmp_path / "user"
    user.mkdir()
    monkeypatch.setenv("HOME", str(user))
    monkeypatch.setenv("PINNER_HOME", str(tmp_path / "pinner"))
    if links:
        monkeypatch.setenv("PINNER_TEST_FIND_LINKS", links)
    yield
    written = sorted(path.name for path in user.iterdir())
    assert not written, f"the test wrote to the user's home: {written}"


@pytest.fixture
def state(tmp_path: Path) -> Home:
    """The state directory that the test's PINNER_HOME names."""
    return Home(tmp_path / "pinner")
