"""The port a server is to listen on: free before the launch, answered by the right process after it.

Must not start or stop anything.
"""

from __future__ import annotations

import contextlib
import errno
import os
from pathlib import Path

from pinner.errors import Busy, OperationFailed
from pinner.host import procfs, runs

# What a client on this machine connects to where the server listens on every address.
_ANY = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104  # compared, not bound


def reachable_host(host: str) -> str:
    """The address by which this machine reaches a server that listens on `host`."""
    return _ANY.get(host, host)


def listens(host: str, port: int) -> bool:
    """Whether anything accepts connections; far cheaper to ask than for an HTTP answer."""
    import socket  # noqa: PLC0415  # of no use to a deployment that is not up

    try:
        socket.create_connection((reachable_host(host), port), timeout=1).close()
    except OSError:
        return False
    return True


def refuse_busy_port(host: str, port: int) -> None:
    """Raise Busy, saying who has it, if the port cannot be bound."""
    import socket  # noqa: PLC0415

    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with contextlib.closing(socket.socket(family, socket.SOCK_STREAM)) as probe:
        # As servers do: a connection that is only waiting to be forgotten does not keep a port.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
            probe.listen(1)
        except socket.gaierror:
            raise OperationFailed(f"serve.host: {host!r} is not an address of this machine") from None
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise OperationFailed(f"cannot listen on {host}:{port}: {error.strerror}") from None
            raise Busy(
                f"port {port} is in use{_by_whom(port)}",
                hint="stop it, or choose another serve.port and lock again",
            ) from None


def _by_whom(port: int) -> str:
    with contextlib.suppress(OperationFailed, OSError):
        for listener in procfs.listeners(port):
            process = procfs.process(listener.pid) if listener.pid else None
            if process is not None:
                environment = procfs.environ(process.pid)
                run = environment.get(runs.RUN_MARKER) if isinstance(environment, dict) else None
                if run:
                    return f" by {run}, which pinner runs (pid {process.pid})"
                return f" by pid {process.pid} ({process.title[:80]})"
    return ""


def refuse_foreign_listener(run: str, directory: Path, port: int) -> None:
    """The server that answers must be the one just started: another may have taken the port meanwhile."""
    own = {process.pid for process in runs.processes(directory)}
    holders = {listener.pid for listener in procfs.listeners(port)}
    if not holders or holders & own:
        return
    if None in holders and not all(os.access(f"/proc/{pid}/fd", os.R_OK) for pid in own):
        # A holder that cannot be read may be the engine itself, where its own sockets cannot be read either.
        return
    raise Busy(f"port {port} is answered by somebody else{_by_whom(port)}, not by {run}")
