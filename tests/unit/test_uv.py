"""What uv is asked for."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from pinner.errors import CommandFailed
from pinner.host.home import Home
from pinner.host.uv import Uv


def test_a_python_that_is_missing_is_fetched_below_pinners_home(
    state: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, str | None]] = []

    def answer(self: Uv, argv: list[str], **_more: Any) -> str:
        asked.append((argv[1], self._environment().get("UV_PYTHON_INSTALL_DIR")))
        if len(asked) == 1:
            raise CommandFailed(("uv", "python", "find"), 2, "no interpreter found")
        return f"{sys.executable}\n"

    monkeypatch.setattr(Uv, "_run", answer)
    path, version = Uv(state).find_python("3.99")
    own = str(state.root / "pythons")
    assert asked == [("find", None), ("install", own), ("find", own)]
    assert (path, version) == (Path(sys.executable), ".".join(map(str, sys.version_info[:3])))
