"""Reading /proc: a made-up one for every odd form, the real one for the rest."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from pinner.host import procfs
from pinner.host.procfs import Listener, Unreadable

linux = pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")


def wait_for(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.002)


class FakeProc:
    """A /proc in a directory."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def add(self, pid: int, ppid: int = 1, **has: object) -> Path:
        folder = self.root / str(pid)
        (folder / "fd").mkdir(parents=True)
        tail = ["0"] * 13 + [str(has.get("threads", 1)), "0", str(has.get("start", 500))] + ["0"] * 30
        head = [str(has.get("state", "S")), str(ppid), str(pid), str(has.get("session", pid))]
        (folder / "stat").write_text(f"{pid} ({has.get('comm', 'python')}) " + " ".join(head + tail) + "\n")
        for name in ("cmdline", "environ"):
            (folder / name).write_bytes(bytes(has.get(name, b"x\0")))  # type: ignore[call-overload]
        return folder


@pytest.fixture
def fake(tmp_path: Path) -> FakeProc:
    return FakeProc(tmp_path)


@pytest.mark.parametrize(
    ("raw", "title", "argv", "retitled"),
    [
        (b"python\0-m\0sglang\0", "python -m sglang", ("python", "-m", "sglang"), False),
        (b"prog\0", "prog", ("prog",), False),
        (b"prog\0--name\0\0", "prog --name", ("prog", "--name", ""), False),
        (b"prog\0\0--name\0x\0", "prog  --name x", ("prog", "", "--name", "x"), False),
        (b"sglang::scheduler_TP0" + b"\0" * 60, "sglang::scheduler_TP0", (), True),
        (b"sglang::detokenizer", "sglang::detokenizer", (), True),
        (b"", "python", (), False),
        (b"\0\0\0", "python", (), False),
        (b"a\xff\0", "a\udcff", ("a\udcff",), False),
    ],
)
def test_command_lines(fake: FakeProc, raw: bytes, title: str, argv: tuple[str, ...], retitled: bool) -> None:
    fake.add(7, cmdline=raw)
    one = procfs.process(7, proc=fake.root)
    assert one is not None
    assert (one.title, one.argv, one.retitled, one.exe) == (title, argv, retitled, None)


def test_a_name_may_hold_anything(fake: FakeProc) -> None:
    fake.add(7, ppid=3, comm="a) S 1 (b", start=12345, session=4)
    one = procfs.process(7, proc=fake.root)
    assert one is not None
    assert (one.comm, one.ppid, one.start_ticks, one.session) == ("a) S 1 (b", 3, 12345, 4)


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (b"A=1\0B=x=y\0", {"A": "1", "B": "x=y"}),
        (b"A=1\0A=2\0", {"A": "1"}),
        (b"A=\0", {"A": ""}),
        (b"A= b \n\0", {"A": " b \n"}),
        ("A=größe\0".encode(), {"A": "größe"}),
        (b"A=\xff\0", {"A": "\udcff"}),
        (b"", {}),
    ],
)
def test_environments(fake: FakeProc, raw: bytes, expected: dict[str, str]) -> None:
    fake.add(7, environ=raw)
    assert procfs.environ(7, proc=fake.root) == expected


@pytest.mark.parametrize(
    "raw",
    [
        b"\0",
        b"\0" * 400,
        b"cheduler_TP0" + b"\0" * 80,
        b"A=1\0\0\0\0B=2\0",
        b"\0\0A=1\0",
        b"A=1\0B=2",
        b"A=1\0tail\0",
    ],
)
def test_a_blanked_environment_is_never_empty(fake: FakeProc, raw: bytes) -> None:
    fake.add(7, environ=raw)
    answer = procfs.environ(7, proc=fake.root)
    assert isinstance(answer, Unreadable)
    assert not answer.gone
    assert "blanked by setproctitle" in answer.reason or "overwritten" in answer.reason


def test_an_environment_that_cannot_be_told(fake: FakeProc, monkeypatch: pytest.MonkeyPatch) -> None:
    fake.add(7, state="Z")
    for pid in (7, 8):
        assert procfs.environ(pid, proc=fake.root) == Unreadable("the process has ended", gone=True)
    fake.add(9, cmdline=b"", environ=b"")
    answer = procfs.environ(9, proc=fake.root)
    assert isinstance(answer, Unreadable)
    assert "kernel thread" in answer.reason

    def denied(self: Path) -> bytes:
        raise PermissionError(13, "Permission denied", str(self))

    fake.add(10)
    monkeypatch.setattr(Path, "read_bytes", denied)
    assert procfs.environ(10, proc=fake.root) == Unreadable("/proc/10/environ: Permission denied")


def test_zombies_are_gone_unless_threads_go_on(fake: FakeProc) -> None:
    fake.add(7, state="Z")
    fake.add(8, state="Z", threads=3)
    assert procfs.process(7, proc=fake.root) is None
    assert procfs.start_ticks(7, proc=fake.root) is None
    assert procfs.start_ticks(8, proc=fake.root) == 500
    assert [one.pid for one in procfs.processes(proc=fake.root)] == [8]


def test_descendants(fake: FakeProc) -> None:
    for pid, ppid in ((1, 0), (10, 1), (11, 10), (12, 11), (13, 10), (20, 1)):
        fake.add(pid, ppid)
    assert [one.pid for one in procfs.descendants(10, proc=fake.root)] == [11, 12, 13]
    assert procfs.descendants(99, proc=fake.root) == []


def test_listeners_of_a_table(fake: FakeProc) -> None:
    (fake.root / "net").mkdir()
    head = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"

    def row(local: str, state: str, inode: int) -> str:
        return f"   0: {local} 00000000:0000 {state} 00000000:00000000 00:00000000 00000000 0 0 {inode} 1 0\n"

    swap = sys.byteorder == "little"
    loopback, one = ("0100007F", "01000000") if swap else ("7F000001", "00000001")
    rows = [row(f"{loopback}:7530", "0A", 71), row("00000000:7530", "01", 72), row("00000000:7531", "0A", 73)]
    (fake.root / "net/tcp").write_text(head + "".join(rows))
    assert procfs.listeners(30000, proc=fake.root) == [Listener("127.0.0.1", 30000, 71, None)]
    (fake.root / "net/tcp6").write_text(head + row(f"{'0' * 24}{one}:7530", "0A", 74))
    for pid in (8, 7):
        (fake.add(pid) / "fd/3").symlink_to("socket:[74]")
    assert procfs.listeners(30000, proc=fake.root) == [
        Listener("127.0.0.1", 30000, 71, None),
        Listener("::1", 30000, 74, 7),
        Listener("::1", 30000, 74, 8),
    ]
    assert procfs.listeners(1, proc=fake.root) == []


def test_without_a_proc_it_says_so(tmp_path: Path) -> None:
    for missing in (tmp_path / "none", tmp_path):
        with pytest.raises(procfs.Unsupported, match="Linux"):
            procfs.boot_id(proc=missing)
        with pytest.raises(procfs.Unsupported):
            procfs.pid_namespace(proc=missing)
        with pytest.raises(procfs.Unsupported):
            procfs.processes(proc=missing)
    for call in (procfs.process, procfs.environ, procfs.start_ticks, procfs.listeners, procfs.descendants):
        with pytest.raises(procfs.Unsupported):
            call(1, proc=tmp_path / "none")


@linux
def test_this_process() -> None:
    me = procfs.process(os.getpid())
    assert me is not None
    # A worker of pytest-xdist has replaced its title; arguments are looked at in a child below.
    assert (me.ppid, me.session) == (os.getppid(), os.getsid(0))
    assert me.exe is not None
    assert Path(me.exe).samefile(sys.executable)
    assert len(procfs.boot_id()) == 36
    assert procfs.pid_namespace() == Path("/proc/self/ns/pid").stat().st_ino


@linux
def test_a_real_child_from_start_to_zombie() -> None:
    env = {"A": "1 2", "B": "größe\n"}
    child = subprocess.Popen(["sleep", "600"], env=env)
    try:
        wait_for(lambda: procfs.environ(child.pid) == env)  # until it has been executed
        assert child.pid in [one.pid for one in procfs.descendants(os.getpid())]
        assert procfs.start_ticks(child.pid) is not None
    finally:
        child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert procfs.start_ticks(child.pid) is None
    assert procfs.environ(child.pid) == Unreadable("the process has ended", gone=True)
    child.wait()


@linux
def test_an_empty_environment_is_empty_once_there_is_one() -> None:
    """While the child is being executed its environment is unknown, or still its parent's; never empty."""
    for _ in range(20):
        child = subprocess.Popen(["sleep", "600"], env={"A": "b"})
        try:
            while (seen := procfs.environ(child.pid)) != {"A": "b"}:
                assert seen != {}
        finally:
            child.kill()
            child.wait()
    child = subprocess.Popen(["sleep", "600"], env={})
    try:
        wait_for(lambda: procfs.environ(child.pid) == {})
    finally:
        child.kill()
        child.wait()


@linux
@pytest.mark.parametrize(("family", "address"), [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")])
def test_a_real_listener(family: socket.AddressFamily, address: str) -> None:
    with socket.socket(family) as server:
        try:
            server.bind((address, 0))
        except OSError:
            pytest.skip("no IPv6 here")
        server.listen()
        port, inode = server.getsockname()[1], os.fstat(server.fileno()).st_ino
        assert procfs.listeners(port) == [Listener(address, port, inode, os.getpid())]
    assert procfs.listeners(port) == []
