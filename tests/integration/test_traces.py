"""Weak evidence: owners, times, and what git's directory shows of unfinished work."""

from __future__ import annotations

import os
import pwd
import time
from pathlib import Path

import pytest

from pinner.host import traces
from pinner.host.git import Git
from tests.integration.source_repos import Repo


def test_a_file_is_told_with_time_and_owner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Etc/GMT-1")
    time.tzset()
    file = tmp_path / "a.py"
    file.touch()
    known = [entry.pw_name for entry in pwd.getpwall() if entry.pw_uid == os.getuid()]
    me = known[0] if known else f"uid {os.getuid()}"
    told = traces.written(file)
    assert told.startswith("changed 20")
    assert told.endswith(f"+01:00 (file time), owner {me}")
    os.utime(file, (0, 1_000_000_000))
    assert "(file time; its content claims 2001-09-09T02:46:40+01:00)" in traces.written(file)
    assert traces.written(tmp_path / "sub" / "gone.py").startswith(f"its directory {tmp_path.name} changed 20")
    monkeypatch.undo()
    time.tzset()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_an_owner_without_a_name(tmp_path: Path) -> None:
    os.chown(tmp_path, 54321, -1)
    assert traces.written(tmp_path).endswith("owner uid 54321")


def test_unfinished_work_is_named(tmp_path: Path) -> None:
    assert traces.unfinished(tmp_path) == ""
    (tmp_path / "MERGE_HEAD").touch()
    (tmp_path / "BISECT_LOG").touch()
    assert traces.unfinished(tmp_path) == "an unfinished merge and bisect is in the checkout"


def test_marks_that_hide_edits(tmp_path: Path) -> None:
    repo = Repo(tmp_path / "r")
    repo.commit("one", a_dot_py="", b_dot_py="", c_dot_py="")
    repo.git("update-index", "--assume-unchanged", "a.py")
    repo.git("update-index", "--skip-worktree", "b.py")
    found = traces.hidden(Git.checkout(repo.path))
    assert found == {"a.py": "assume-unchanged", "b.py": "skip-worktree, as a sparse checkout does"}
