"""Reading /proc: processes, their environments, and who listens on a port.

Owns the parsing and the honesty of it: what cannot be read is said to be unreadable, never shown as empty.
Must not signal anybody, and must not decide what a reading means. `proc` is the root of the file system to
read, for tests and for containers whose /proc is mounted elsewhere.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
import time
from collections.abc import Iterator, Set
from pathlib import Path

import msgspec

from pinner.errors import OperationFailed, UnknownFact
from pinner.host import kin

PROC = Path("/proc")
_LISTEN = "0A"
_EXEC_S = 0.002
_SOCKET = re.compile(r"socket:\[(\d+)\]")
_GONE = (FileNotFoundError, ProcessLookupError)


class Unsupported(OperationFailed):
    """This system has no /proc."""

    def __init__(self, proc: Path) -> None:
        super().__init__(
            f"no process information at {proc}: this needs Linux",
            hint="lock, check of files, diff, compare and report work without it",
        )


class ProcessInfo(msgspec.Struct, frozen=True):
    """One living process; `start_ticks` in clock ticks since boot, with `pid` its identity until reboot.

    `title` is the command line as a person sees it. `argv` is empty where the process has replaced its
    command line by a title (`retitled`), as setproctitle does, and for kernel threads. `exe` is None where
    it is not readable, and ends in " (deleted)" where the file has been replaced since.
    """

    pid: int
    ppid: int
    session: int
    start_ticks: int
    state: str
    comm: str
    title: str
    argv: tuple[str, ...]
    retitled: bool
    exe: str | None


class Unreadable(msgspec.Struct, frozen=True):
    """Why an environment cannot be told; `gone` when it is because the process has ended."""

    reason: str
    gone: bool = False


class Listener(msgspec.Struct, frozen=True):
    """A listening TCP socket, and a process that holds it; None where that is not readable."""

    address: str
    port: int
    inode: int
    pid: int | None


def process(pid: int, *, proc: Path = PROC) -> ProcessInfo | None:
    """One process, or None if it is gone; a zombie is gone. Unsupported without a /proc."""
    require(proc)
    before = kin.stat(pid, str(proc))
    if before is None or before.dead:
        return None
    return _describe(pid, before, proc)


def processes(*, proc: Path = PROC) -> list[ProcessInfo]:
    """All living processes that are visible, by PID. Unsupported without a /proc."""
    return describe(living(proc=proc), proc=proc)


def living(*, proc: Path = PROC) -> dict[int, kin.Stat]:
    """All living processes, only what `stat` says: cheap on a large machine. Unsupported without a /proc."""
    require(proc)
    found = kin.living(str(proc))
    if not found:
        raise Unsupported(proc)
    return found


def descendants(pid: int, *, proc: Path = PROC) -> list[ProcessInfo]:
    """Every living process below `pid`, without itself, by PID. Unsupported without a /proc."""
    return describe(kin.below({pid}, living(proc=proc)), proc=proc)


def describe(found: dict[int, kin.Stat], *, proc: Path = PROC) -> list[ProcessInfo]:
    """In full those that have not ended meanwhile, by PID."""
    told = (_describe(pid, one, proc) for pid, one in sorted(found.items()))
    return [one for one in told if one is not None]


def start_ticks(pid: int, *, proc: Path = PROC) -> int | None:
    """When the process started, in clock ticks since boot; None if gone. Unsupported without a /proc."""
    require(proc)
    one = kin.stat(pid, str(proc))
    return None if one is None or one.dead else one.start_ticks


def boot_id(*, proc: Path = PROC) -> str:
    """The random id of this boot. Unsupported without a /proc."""
    try:
        return (proc / "sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        raise Unsupported(proc) from None


def pid_namespace(*, proc: Path = PROC) -> int:
    """Inode of the caller's PID namespace. Unsupported without a /proc."""
    try:
        return (proc / "self/ns/pid").stat().st_ino
    except OSError:
        raise Unsupported(proc) from None


def environ(pid: int, *, proc: Path = PROC) -> dict[str, str] | Unreadable:
    """The environment that the process was started with, byte for byte (surrogateescape).

    What it changed itself since then does not show here. Of a name that is there twice the first value
    counts, as in getenv. Unsupported without a /proc.
    """
    require(proc)
    before = kin.stat(pid, str(proc))
    if before is None or before.dead:
        return Unreadable("the process has ended", gone=True)
    try:
        raw = (proc / str(pid) / "environ").read_bytes()
        has_memory = True
        if not raw:
            # In the middle of an exec the kernel shows nothing yet: arguments first, the environment some
            # microseconds later. Only what is still empty after that is empty.
            has_memory = bool((proc / str(pid) / "cmdline").read_bytes())
            time.sleep(_EXEC_S)
            raw = (proc / str(pid) / "environ").read_bytes()
    except _GONE:
        return Unreadable("the process has ended", gone=True)
    except OSError as error:
        return Unreadable(f"/proc/{pid}/environ: {error.strerror}")
    if start_ticks(pid, proc=proc) != before.start_ticks:
        return Unreadable("the process has ended", gone=True)
    if not raw and not has_memory:
        return Unreadable("no memory of its own: a kernel thread, or a process about to start or to end")
    return _parse_environ(raw)


def cwd(pid: int, *, proc: Path = PROC) -> str | None:
    """The directory that the process works in; None where it is gone or hidden from this user."""
    try:
        return os.fsdecode((proc / str(pid) / "cwd").readlink())
    except OSError:
        return None


def listeners(port: int, *, proc: Path = PROC) -> list[Listener]:
    """Who listens on a TCP port in the caller's network namespace, IPv4 and IPv6, one for each holder.

    UnknownFact if the socket table cannot be read; Unsupported without a /proc.
    """
    require(proc)
    found: dict[int, str] = {}
    for table in ("tcp", "tcp6"):
        try:
            lines = (proc / "net" / table).read_text().splitlines()[1:]
        except FileNotFoundError:
            continue  # a kernel without IPv6
        except OSError as error:
            raise UnknownFact(f"who listens on port {port}: {proc}/net/{table}: {error.strerror}") from None
        for line in lines:
            field = line.split()
            address, _, number = field[1].rpartition(":")
            if field[3] == _LISTEN and int(number, 16) == port:
                found[int(field[9])] = _address(address)
    if not found:
        return []
    holders = _holders(found.keys(), proc)
    return [
        Listener(address, port, inode, pid)
        for inode, address in sorted(found.items())
        for pid in sorted(holders.get(inode, {None}), key=lambda pid: pid or 0)
    ]


def listening(pid: int, *, proc: Path = PROC) -> set[int]:
    """The TCP ports that a process listens on, as far as its sockets can be read. Unsupported without a /proc."""
    require(proc)
    own = set(_sockets(proc / str(pid) / "fd"))
    found: set[int] = set()
    for table in ("tcp", "tcp6"):
        try:
            lines = (proc / str(pid) / "net" / table).read_text().splitlines()[1:]
        except OSError:
            continue
        fields = [line.split() for line in lines]
        found |= {
            int(field[1].rpartition(":")[2], 16)
            for field in fields
            if field[3] == _LISTEN and int(field[9]) in own
        }
    return found


def require(proc: Path = PROC) -> None:
    """Unsupported unless there is a /proc."""
    if not proc.is_dir():
        raise Unsupported(proc)


def _describe(pid: int, before: kin.Stat, proc: Path) -> ProcessInfo | None:
    try:
        raw = (proc / str(pid) / "cmdline").read_bytes()
    except _GONE:
        return None
    except OSError:
        raw = b""  # hidden from this user
    try:
        exe = os.fsdecode((proc / str(pid) / "exe").readlink())
    except OSError:
        exe = None
    after = kin.stat(pid, str(proc))
    if after is None or after.dead or after.start_ticks != before.start_ticks:
        return None  # what was read may belong to somebody else
    title, argv, retitled = _parse_cmdline(raw)
    return ProcessInfo(
        pid=pid,
        ppid=after.ppid,
        session=after.session,
        start_ticks=after.start_ticks,
        state=after.state,
        comm=after.name,
        title=title or after.name,
        argv=argv,
        retitled=retitled,
        exe=exe,
    )


def _parse_cmdline(raw: bytes) -> tuple[str, tuple[str, ...], bool]:
    """Title, arguments, and whether the arguments have been overwritten by a title.

    A title leaves the place of the old arguments filled with zero bytes, or runs over the last of them.
    A program called with nothing but empty arguments looks the same; none is.
    """
    text = raw.rstrip(b"\0")
    padding = len(raw) - len(text)
    title = " ".join(_decode(text).split("\0")).strip()
    if not text or padding == 0 or (padding > 1 and b"\0" not in text):
        return title, (), bool(text)
    return title, tuple(_decode(raw[:-1]).split("\0")), False


def _parse_environ(raw: bytes) -> dict[str, str] | Unreadable:
    if not raw:
        return {}
    entries = raw.split(b"\0")
    if entries.pop() != b"" or b"" in entries:
        return Unreadable("blanked by setproctitle, which reuses the memory (SPT_NOENV=1 prevents it)")
    found: dict[str, str] = {}
    for entry in entries:
        name, equals, value = entry.partition(b"=")
        if not equals:
            return Unreadable("overwritten: it holds an entry that is no variable")
        found.setdefault(_decode(name), _decode(value))
    return found


def _decode(raw: bytes) -> str:
    # Not os.fsdecode: the caller's locale must not decide what is read.
    return raw.decode("utf-8", "surrogateescape")


def _address(text: str) -> str:
    """The kernel prints 32-bit words in the byte order of the machine."""
    words = [int(text[at : at + 8], 16).to_bytes(4, sys.byteorder) for at in range(0, len(text), 8)]
    packed = b"".join(words)
    import socket  # noqa: PLC0415  # only for the table of sockets

    return socket.inet_ntop(socket.AF_INET if len(packed) == 4 else socket.AF_INET6, packed)


def _holders(wanted: Set[int], proc: Path) -> dict[int, set[int | None]]:
    """Which of the sockets are held by which processes, as far as this user may see."""
    found: dict[int, set[int | None]] = {}
    for pid in kin.living(str(proc)):
        for inode in _sockets(proc / str(pid) / "fd"):
            if inode in wanted:
                found.setdefault(inode, set()).add(pid)
    return found


def _sockets(folder: Path) -> Iterator[int]:
    try:
        links = list(folder.iterdir())
    except (*_GONE, PermissionError):
        return
    for link in links:
        with contextlib.suppress(OSError):  # closed meanwhile
            match = _SOCKET.fullmatch(os.fsdecode(link.readlink()))
            if match:
                yield int(match[1])
