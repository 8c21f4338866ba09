"""The memory of digests: whatever happens to its database, no error and no wrong answer."""

from __future__ import annotations

import multiprocessing
import os
import sqlite3
from pathlib import Path

import pytest

from pinner.host.memory import DigestMemory


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "home" / "digests.sqlite"


def test_what_is_remembered_comes_back(path: Path) -> None:
    memory = DigestMemory(path)
    assert memory.recall("file", b"k") is None
    assert not path.exists()  # looking makes nothing
    memory.remember("file", {b"k": b"v", b"l": b"w"})
    again = DigestMemory(path)
    assert (again.recall("file", b"k"), again.recall("tree", b"k")) == (b"v", None)
    assert sorted(again.keys("file")) == [b"k", b"l"]
    again.forget("file", [b"k"])
    assert memory.recall("file", b"k") is None


def test_no_database_at_all() -> None:
    memory = DigestMemory(None)
    memory.remember("file", {b"k": b"v"})
    assert (memory.recall("file", b"k"), memory.keys("file")) == (None, [])


def test_deleted_while_open(path: Path) -> None:
    memory = DigestMemory(path)
    memory.remember("file", {b"k": b"v"})
    path.unlink()
    assert memory.recall("file", b"k") in (b"v", None)
    memory.remember("file", {b"l": b"w"})
    assert DigestMemory(path).recall("file", b"k") is None


@pytest.mark.parametrize("damage", [b"no database", b"", os.urandom(9000)])
def test_damaged(path: Path, damage: bytes) -> None:
    DigestMemory(path).remember("file", {b"k": b"v"})
    path.write_bytes(damage)
    memory = DigestMemory(path)
    assert memory.recall("file", b"k") is None
    memory.remember("file", {b"k": b"w"})
    after = DigestMemory(path)
    after.remember("file", {b"k": b"w"})
    assert after.recall("file", b"k") == b"w"


def test_every_flipped_byte(path: Path) -> None:
    """Damage that SQLite does not notice must not change a value."""
    memory = DigestMemory(path)
    memory.remember("file", {b"key": b"value" * 10})
    memory.close()
    data = path.read_bytes()
    for at in [*range(0, 200, 7), *range(len(data) - 300, len(data))]:
        path.write_bytes(data[:at] + bytes([data[at] ^ 0x21]) + data[at + 1 :])
        memory = DigestMemory(path)
        assert memory.recall("file", b"key") in (b"value" * 10, None)
        memory.close()


def test_locked_by_another_process(path: Path) -> None:
    DigestMemory(path).remember("file", {b"k": b"v"})
    other = sqlite3.connect(path)
    other.execute("BEGIN EXCLUSIVE")
    memory = DigestMemory(path)
    assert memory.recall("file", b"k") is None
    memory.remember("file", {b"k": b"w"})
    other.close()
    assert DigestMemory(path).recall("file", b"k") == b"v"


def test_of_a_newer_pinner(path: Path) -> None:
    DigestMemory(path).remember("file", {b"k": b"v"})
    with sqlite3.connect(path) as database:
        database.execute("PRAGMA user_version = 99")
    database.close()
    memory = DigestMemory(path)
    memory.remember("file", {b"k": b"w"})
    assert memory.recall("file", b"k") is None
    with sqlite3.connect(path) as database:
        assert database.execute("SELECT value FROM digest").fetchall() == [(b"v",)]
    database.close()


def test_of_an_older_pinner(path: Path) -> None:
    path.parent.mkdir()
    with sqlite3.connect(path) as database:
        database.execute("CREATE TABLE digest (name TEXT)")
    database.close()
    memory = DigestMemory(path)
    memory.remember("file", {b"k": b"w"})
    assert memory.recall("file", b"k") == b"w"


def test_where_nothing_can_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no directory")
    memory = DigestMemory(tmp_path / "file" / "digests.sqlite")
    memory.remember("file", {b"k": b"v"})
    assert memory.recall("file", b"k") is None


def test_a_full_disk(path: Path) -> None:
    memory = DigestMemory(path)
    memory.remember("file", {b"k": b"v"})
    assert memory._connection is not None
    memory._connection.execute("PRAGMA max_page_count = 1")
    memory.remember("file", {bytes([number]): bytes(200_000) for number in range(20)})
    assert DigestMemory(path).recall("file", b"k") == b"v"


def hammer(path: Path, mark: bytes) -> None:
    memory = DigestMemory(path)
    for number in range(30):
        key = b"%d" % number
        memory.remember("file", {key: key * 100})
        assert memory.recall("file", key) in (key * 100, None)


def test_several_processes(path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    workers = [context.Process(target=hammer, args=(path, b"%d" % number)) for number in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert [worker.exitcode for worker in workers] == [0, 0, 0]
    assert DigestMemory(path).recall("file", b"29") == b"29" * 100
