"""Digests of contents, alone, in threads and in forked workers."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from pinner.host import hashing, parallel
from pinner.host.digest import DigestMemory, FileDigest, file_digests
from pinner.host.hashing import Hashed, hash_file, hash_files
from pinner.model.facts import Unknown

CONTENT = os.urandom(1 << 16) * 20  # larger than what is read whole


def make(directory: Path, count: int) -> list[bytes]:
    paths = []
    for number in range(count):
        path = directory / f"{number}.bin"
        path.write_bytes(CONTENT + bytes([number]) if number % 2 else bytes([number]))
        paths.append(os.fsencode(path))
    return paths


def read(path: bytes) -> bytes:
    return Path(os.fsdecode(path)).read_bytes()


@pytest.mark.parametrize("way", ["alone", "threads", "forked"])
def test_all_ways_give_the_same(tmp_path: Path, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hashing, "_SHARE_FROM", 1 if way != "alone" else 1 << 60)
    monkeypatch.setattr(hashing, "can_fork", lambda: way == "forked")
    paths = make(tmp_path, 7)
    seen: list[int] = []
    sizes = [len(read(path)) for path in paths]
    found = hash_files(paths, sizes, "sha256", seen.append)
    assert [one.digest for one in found if isinstance(one, Hashed)] == [
        hashlib.sha256(read(path)).digest() for path in paths
    ]
    assert sum(seen) == sum(sizes)


def test_no_files() -> None:
    assert hash_files([], [], "sha256") == []


@pytest.mark.parametrize("is_disposable", [False, True])
def test_git_blob_id(tmp_path: Path, is_disposable: bool) -> None:
    (tmp_path / "f").write_bytes(CONTENT)
    found = hash_file(os.fsencode(tmp_path / "f"), "git", is_disposable=is_disposable)
    assert isinstance(found, Hashed)
    assert found.digest == hashlib.sha1(b"blob %d\0" % len(CONTENT) + CONTENT).digest()


def test_what_is_not_a_regular_file_is_not_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "link").symlink_to("fifo")
    assert hash_file(os.fsencode(tmp_path / "fifo"), "sha256") == Unknown("it is not a regular file")
    assert hash_file(os.fsencode(tmp_path / "link"), "sha256") == Unknown("a symlink has taken its place")
    assert hash_file(os.fsencode(tmp_path / "none"), "sha256") == Unknown("no such file or directory")


def test_a_file_that_shrinks_while_read_is_unknown(tmp_path: Path) -> None:
    path = tmp_path / "f"

    def shrink(_count: int) -> None:
        os.truncate(path, path.stat().st_size - 100)

    path.write_bytes(CONTENT * 4)
    assert hash_file(os.fsencode(path), "sha256", shrink) == Unknown("it changes while it is read")


def test_a_mapped_file_that_shrinks_ends_a_worker_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(hashing, "_SHARE_FROM", 1)
    monkeypatch.setattr(hashing, "can_fork", lambda: True)
    monkeypatch.setattr(hashing, "_WINDOW", 1 << 20)
    paths = make(tmp_path, 4)
    real = hashing._update_mapped

    def shrink_first(descriptor: int, size: int, *rest: object) -> int:
        os.truncate(paths[1], 4096)
        return real(descriptor, size, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(hashing, "_update_mapped", shrink_first)
    found = hash_files(paths, [len(read(path)) for path in paths], "sha256")
    assert [one.digest for one in found if isinstance(one, Hashed)] == [
        hashlib.sha256(read(path)).digest() for path in paths
    ]
    assert capfd.readouterr() == ("", "")


def test_workers_do_not_outlive_an_interrupt(tmp_path: Path) -> None:
    script = """
import os, time
from pinner.host.parallel import run_forked
def work(piece, send):
    send(str(os.getpid()).encode())
    time.sleep(60)
def stop(message):
    print(message.decode(), flush=True)
    raise KeyboardInterrupt
try:
    run_forked(work, 1, stop)
except KeyboardInterrupt:
    pass
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=20, check=True)
    with pytest.raises(ProcessLookupError):
        os.kill(int(done.stdout), 0)


def test_a_worker_that_raises_costs_only_its_piece() -> None:
    def work(piece: int, send: parallel.Send) -> None:
        if piece == 0:
            raise ValueError
        send(b"%d" % piece)

    seen: list[bytes] = []
    parallel.run_forked(work, 3, seen.append)
    assert b"0" not in seen


def test_file_digests_remember_by_identity(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hashing, "SAFE_AGE_NS", -1_000_000_000)
    memory = DigestMemory(tmp_path / "digests.sqlite")
    path, link = tmp_path / "blob", tmp_path / "link"
    path.write_bytes(b"one")
    link.symlink_to(path)
    one = f"sha256:{hashlib.sha256(b'one').hexdigest()}"
    assert file_digests([path], memory) == [FileDigest(3, one, True)]
    assert file_digests([link], memory) == [FileDigest(3, one, False)]
    assert file_digests([link], memory, deep=True) == [FileDigest(3, one, True)]
    before = path.stat()
    path.write_bytes(b"two")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert file_digests([path, tmp_path / "none"], memory) == [
        FileDigest(3, f"sha256:{hashlib.sha256(b'two').hexdigest()}", True),
        Unknown("no such file or directory"),
    ]


def test_a_young_file_is_read_again(tmp_path: Path) -> None:
    memory = DigestMemory(tmp_path / "digests.sqlite")
    (tmp_path / "f").write_bytes(b"x")
    for _ in range(2):
        found = file_digests([tmp_path / "f"], memory)[0]
        assert isinstance(found, FileDigest)
        assert found.read_anew


def test_where_no_process_may_be_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> int:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(hashing, "_SHARE_FROM", 1)
    monkeypatch.setattr(hashing, "can_fork", lambda: True)
    monkeypatch.setattr(parallel.os, "fork", refuse)
    paths = make(tmp_path, 3)
    found = hash_files(paths, [len(read(path)) for path in paths], "sha256")
    assert all(isinstance(one, Hashed) for one in found)
    assert len(found) == 3


def test_pieces_fit_into_one_page_of_a_pipe() -> None:
    for sizes in ([1] * 50_000, [10 << 30] * 700, [*range(0, 1 << 24, 1 << 12)], [0]):
        pieces = hashing._pieces(sizes)
        assert len(pieces) <= parallel.MAX_PIECES
        assert sorted(index for piece in pieces for index in piece) == list(range(len(sizes)))
