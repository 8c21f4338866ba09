"""The only place where programs are started.

Owns argument lists in, exit code and output out: no shell, no inherited environment, no process left
behind. Must not know what the programs are, and must not put a secret into an error's text.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

from pinner.errors import CommandFailed, OperationFailed

# Seconds a program gets between SIGTERM and SIGKILL, to remove its own lock files.
_GRACE_S = 2.0
_STDERR_TAIL = 2000  # characters
_SECRET_NAME = re.compile(r"TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIAL|AUTH|(^|_)(KEY|PAT)($|_)", re.IGNORECASE)
_USER_INFO = re.compile(r"(?<=://)[^/\s@]+(?=@)")

_detached: list[subprocess.Popen[bytes]] = []


# A program whose answer `collect` takes.
Started = subprocess.Popen[bytes]


class Watch(NamedTuple):
    """Who is shown a program's stderr. With `columns` the program sees a terminal of that width."""

    show: Callable[[bytes], None]
    columns: int | None = None


class Completed(NamedTuple):
    """A program that has ended; a negative code is the signal that ended it."""

    argv: tuple[str, ...]
    code: int
    stdout: bytes
    stderr: bytes


def run(
    argv: Sequence[str],
    *,
    env: Mapping[str, str],
    cwd: Path | None = None,
    input: bytes | None = None,
    timeout_s: float | None = None,
    check: bool = True,
) -> Completed:
    """Run a program to its end and return what it said.

    The environment is exactly `env`; the program is looked up in its PATH. Without `input`, standard input
    is empty. OperationFailed if it cannot be started; CommandFailed after `timeout_s` seconds, and with
    `check` also for any code but 0. On a timeout and on an interrupt its whole process group is ended.
    """
    argv = tuple(argv)
    with _popen(
        argv,
        env=dict(env),
        cwd=cwd,
        stdin=subprocess.DEVNULL if input is None else subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        try:
            stdout, stderr = process.communicate(input, timeout_s)
        except subprocess.TimeoutExpired:
            said = _end_group(process)
            text = f"{_tail(said, env)}\n(ended after {timeout_s:g} s without an answer)"
            raise CommandFailed(argv, process.returncode, text.strip()) from None
        except BaseException:
            _end_group(process)
            raise
    if check and process.returncode != 0:
        raise CommandFailed(argv, process.returncode, _tail(stderr, env))
    return Completed(argv, process.returncode, stdout, stderr)


def run_watched(
    argv: Sequence[str],
    *,
    env: Mapping[str, str],
    watch: Watch,
    cwd: Path | None = None,
    input: bytes | None = None,
) -> Completed:
    """Run a program and show its stderr as it comes; whatever its code. OperationFailed if it cannot start."""
    import fcntl  # noqa: PLC0415  # none of these is wanted where nothing takes long
    import pty  # noqa: PLC0415
    import struct  # noqa: PLC0415
    import tempfile  # noqa: PLC0415
    import termios  # noqa: PLC0415

    argv = tuple(argv)
    stderr_end, stderr_writer = pty.openpty() if watch.columns else os.pipe()
    with contextlib.ExitStack() as stack:
        stack.callback(os.close, stderr_end)
        stdout, given = (stack.enter_context(tempfile.TemporaryFile()) for _ in range(2))
        given.write(input or b"")
        given.seek(0)
        try:
            if watch.columns:
                size = struct.pack("HHHH", 24, watch.columns, 0, 0)
                fcntl.ioctl(stderr_writer, termios.TIOCSWINSZ, size)
            process = _popen(argv, env=dict(env), cwd=cwd, stdin=given, stdout=stdout, stderr=stderr_writer)
        finally:
            os.close(stderr_writer)
        said = bytearray()
        with process:
            try:
                while piece := _read(stderr_end):
                    said += piece
                    watch.show(piece)
                process.wait()
            except BaseException:
                _end_group(process)
                raise
        stdout.seek(0)
        return Completed(argv, process.returncode, stdout.read(), bytes(said))


def _read(descriptor: int) -> bytes:
    """A piece of what a program writes; nothing when it has closed its end, which a terminal tells by EIO."""
    try:
        return os.read(descriptor, 65536)
    except OSError as error:
        if error.errno == errno.EIO:
            return b""
        raise


def start(argv: Sequence[str], *, env: Mapping[str, str], cwd: Path | None = None) -> Started:
    """Start a program whose short answer `collect` takes later, so that other work can go on meanwhile.

    Input is empty. OperationFailed if it cannot be started.
    """
    return _popen(
        tuple(argv),
        env=dict(env),
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def collect(process: Started, *, timeout_s: float) -> Completed:
    """The answer of a program that `start` started; one that gives none in time is ended with its group."""
    argv = tuple(map(str, process.args)) if isinstance(process.args, (list, tuple)) else (str(process.args),)
    with process:
        try:
            stdout, stderr = process.communicate(timeout=timeout_s)
        except BaseException as error:
            _end_group(process)
            if not isinstance(error, subprocess.TimeoutExpired):
                raise
            why = f"ended after {timeout_s:g} s without an answer"
            raise CommandFailed(argv, process.returncode, why) from None
    return Completed(argv, process.returncode, stdout, stderr)


def collect_or_leave(process: Started, *, timeout_s: float) -> Completed:
    """As `collect`, for a program that the kernel may hold in a call: then nobody can end it, and nobody waits."""
    argv = tuple(map(str, process.args)) if isinstance(process.args, (list, tuple)) else (str(process.args),)
    try:
        stdout, stderr = process.communicate(timeout=timeout_s)
    except BaseException as error:
        os.killpg(process.pid, signal.SIGKILL)
        for stream in (process.stdout, process.stderr):
            if stream is not None:
                stream.close()
        _detached.append(process)
        collect_detached()
        if not isinstance(error, subprocess.TimeoutExpired):
            raise
        raise CommandFailed(argv, -signal.SIGKILL, f"left after {timeout_s:g} s without an answer") from None
    return Completed(argv, process.returncode, stdout, stderr)


def drained(process: Started) -> bytes:
    """What a program that goes on has written since it was last asked; never waits."""
    if process.stdout is None:
        return b""
    os.set_blocking(process.stdout.fileno(), False)
    found = bytearray()
    with contextlib.suppress(BlockingIOError):
        while piece := os.read(process.stdout.fileno(), 65536):
            found += piece
    return bytes(found)


def leave(process: Started) -> None:
    """End a program that `start` started; one that the kernel holds is not waited for."""
    with contextlib.suppress(CommandFailed):
        collect_or_leave(process, timeout_s=0.0)


def spawn_detached(
    argv: Sequence[str], *, pass_fds: Sequence[int], env: Mapping[str, str], cwd: Path, stdout: Path
) -> subprocess.Popen[bytes]:
    """Start a program that outlives this one: own session, no input, output appended to a file (0600).

    The caller may ignore the handle: it stays referenced here and is collected by `collect_detached`.
    OperationFailed if it cannot be started.
    """
    collect_detached()
    fd = os.open(stdout, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        process = _popen(
            tuple(argv),
            env=dict(env),
            cwd=cwd,
            pass_fds=tuple(pass_fds),
            stdin=subprocess.DEVNULL,
            stdout=fd,
            stderr=fd,
        )
    finally:
        os.close(fd)
    _detached.append(process)
    return process


def collect_detached() -> None:
    """Reap those detached programs that have ended, so that a long-lived caller keeps no zombies."""
    _detached[:] = [process for process in _detached if process.poll() is None]


def collect_orphans() -> None:
    """As PID 1 of a container: reap what its parents have left to it. Anywhere else there is nothing to do.

    Only while this process waits for no program of its own.
    """
    collect_detached()
    if os.getpid() != 1:
        return
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG) != (0, 0):
            pass


def redact(text: str, env: Mapping[str, str]) -> str:
    """Replace user info in URLs, and the values of variables whose names sound secret, by `***`."""
    for name, value in env.items():
        if len(value) >= 6 and _SECRET_NAME.search(name):
            text = text.replace(value, "***")
    return _USER_INFO.sub("***", text)


def _popen(argv: tuple[str, ...], **options: Any) -> subprocess.Popen[bytes]:
    process = None
    try:
        with _interrupts_held():
            # Its own session: a prompt cannot reach the terminal, and one signal reaches the whole group.
            process = subprocess.Popen(argv, start_new_session=True, **options)
    except OSError as error:
        what = argv[0] if error.filename in (None, argv[0]) else os.fspath(error.filename)
        raise OperationFailed(f"cannot start {argv[0]}: {what}: {error.strerror}") from None
    except ValueError as error:
        raise OperationFailed(f"cannot start {argv[0]}: {error}") from None
    except BaseException:
        if process is not None:
            with process:
                _end_group(process)
        raise
    return process


@contextlib.contextmanager
def _interrupts_held() -> Iterator[None]:
    """Let an interrupt wait until the block has ended: in the midst of a start it would lose the child.

    Masking the signal would do the same to the child, which inherits the mask.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    arrived: list[tuple[int, FrameType | None]] = []
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    held = {number: handler for number, handler in before.items() if callable(handler)}
    for number in held:
        signal.signal(number, lambda *told: arrived.append(told))
    try:
        yield
    finally:
        for number, handler in held.items():
            signal.signal(number, handler)
    for came, frame in arrived[:1]:
        held[signal.Signals(came)](came, frame)


def _end_group(process: subprocess.Popen[bytes]) -> bytes:
    """End the process and its group, gently first; what it had written to stderr."""
    if process.returncode is None:
        # Until the leader is reaped the kernel gives the group's number to nobody else.
        os.killpg(process.pid, signal.SIGTERM)
        end = time.monotonic() + _GRACE_S
        how = os.WEXITED | os.WNOWAIT | os.WNOHANG
        while os.waitid(os.P_PID, process.pid, how) is None and time.monotonic() < end:
            time.sleep(0.01)
        os.killpg(process.pid, signal.SIGKILL)
    try:
        return process.communicate(timeout=_GRACE_S)[1] or b""
    except subprocess.TimeoutExpired as left_open:
        # Something left the group and holds the pipes; the caller closes them.
        process.wait()
        return left_open.stderr or b""


def _tail(stderr: bytes, env: Mapping[str, str]) -> str:
    return redact(stderr.decode(errors="replace").strip(), env)[-_STDERR_TAIL:]
