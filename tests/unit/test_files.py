"""Files written whole, locks, and directories removed."""

from __future__ import annotations

import os
import stat
import threading
from pathlib import Path

import pytest

from pinner.errors import Busy
from pinner.host.files import exclusive, make_read_only, remove_tree, write_atomic


def test_a_file_is_replaced_whole(tmp_path: Path) -> None:
    path = tmp_path / "new" / "file"
    write_atomic(path, b"one")
    write_atomic(path, b"two")
    assert path.read_bytes() == b"two"
    assert stat.S_IMODE(path.stat().st_mode) == 0o644
    assert [entry.name for entry in path.parent.iterdir()] == ["file"]


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.mkdir()
    (path / "in the way").touch()
    with pytest.raises(OSError, match="directory"):
        write_atomic(path, b"data")
    assert not list(tmp_path.glob(".file*"))


def test_read_only_trees_are_removed_and_links_are_not_followed(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "kept").touch()
    tree = tmp_path / "tree"
    (tree / "a" / "b").mkdir(parents=True)
    (tree / "a" / "b" / "file").touch()
    (tree / "a" / "link").symlink_to(outside)
    make_read_only(tree)
    assert not (tree / "a" / "b" / "file").stat().st_mode & 0o222
    remove_tree(tree)
    assert not tree.exists()
    assert (outside / "kept").exists()
    assert outside.stat().st_mode & 0o200
    remove_tree(tree)


def test_an_exclusive_lock_is_held_by_one(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    waited: list[str] = []
    with exclusive(path, what="first"):
        with pytest.raises(Busy, match="second"), exclusive(path, what="second", timeout_s=0):
            pass

        def later() -> None:
            with exclusive(path, what="third", on_wait=lambda: waited.append("waited")):
                waited.append("got it")

        thread = threading.Thread(target=later)
        thread.start()
        while not waited:
            os.sched_yield()
    thread.join()
    assert waited == ["waited", "got it"]
