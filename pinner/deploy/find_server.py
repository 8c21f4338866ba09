"""Which process a PID or a URL means: the main process of a server that pinner knows, and how it was called.

Owns the words for everything that it can be instead. Only reads; the server is asked for its account of itself.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import msgspec

from pinner.deploy.port import reachable_host
from pinner.engines import ENGINES, Engine
from pinner.engines.command_line import TABLE_SCRIPT, Entry, Flag, entry_of, given, read_table
from pinner.errors import OperationFailed, UnknownFact, UsageError
from pinner.host import origin, procfs, runs, traces
from pinner.host.digest import DigestMemory
from pinner.host.home import Home
from pinner.host.http import Http, HttpFailed
from pinner.host.procfs import ProcessInfo
from pinner.model.facts import Unknown
from pinner.probes.base import RunningServer
from pinner.probes.source_capture import asker

_PARSER_S = 120.0


class Found(NamedTuple):
    """A server, the run that pinner started it as ("" if somebody else did), and what is worth telling."""

    server: RunningServer
    run: str
    notes: list[str]


class _Main(NamedTuple):
    process: ProcessInfo
    engine: Engine
    entry: Entry


def find_server(text: str, directory: Path, home: Home) -> Found:
    """The server that runs as a PID, or listens where a URL says.

    Raises UsageError for what is neither, OperationFailed for what is no server that can be adopted, UnknownFact
    where this user may not read it.
    """
    pid, asked_port = (int(text), None) if text.isdecimal() else _listener(text)
    main = _main_process(pid)
    _refuse_other_files(main.process)
    env = _environment(main.process)
    cwd = origin.working_directory(main.process.pid)
    if cwd is None:
        raise UnknownFact(f"the working directory of pid {main.process.pid} cannot be read, or is gone")
    notes: list[str] = []
    python = origin.interpreter(main.process, env, cwd)
    if python is None:
        why = "has been replaced since" if origin.is_replaced(main.process) else "cannot be told"
        raise UnknownFact(f"the interpreter of pid {main.process.pid} ({main.process.argv[0]}) {why}")
    server = RunningServer(
        kind=main.engine.NAME,
        main=main.process,
        entry=main.entry,
        given={},
        python=python,
        cwd=cwd,
        env=env,
        started_s=origin.started_s(main.process),
        port=None,
        account=None,
        directory=directory,
        home=home,
        memory=DigestMemory(home.digests),
    )
    flags = _flags(server, main, notes)
    port = _port(main.process.pid, flags, asked_port)
    account = _account(main.engine, flags, port)
    _tell_limits(main.process, notes)
    if account is None:
        notes.append("the server does not answer when asked for its own account of its arguments")
    server = msgspec.structs.replace(server, given=flags, port=port, account=account)
    return Found(server, env.get(runs.RUN_MARKER, ""), notes)


def _listener(text: str) -> tuple[int, int]:
    """The process that listens where a URL says, and the port."""
    given_text = text if "://" in text else f"http://{text}"
    try:
        parts = urlsplit(given_text)
        scheme, host, port = parts.scheme, parts.hostname, parts.port
    except ValueError:
        scheme, host, port = "", None, None
    port = port or (443 if scheme == "https" else 80)
    if host is None or scheme not in ("http", "https") or ("://" not in text and ":" not in text):
        raise UsageError(
            f"{text!r} is neither a process id nor the URL of a server", hint="for example http://127.0.0.1:30000"
        )
    here = True if host in ("0.0.0.0", "::") else origin.is_here(host)  # noqa: S104  # only compared
    if here is None:
        raise UsageError(f"{text}: the name {host} means no address")
    if not here:
        raise UsageError(
            f"{text}: {host} is another machine; adopt reads the processes of the machine that it runs on",
            hint="run pinner there",
        )
    listening = procfs.listeners(port)
    if not listening:
        raise OperationFailed(f"nothing listens on port {port} of this machine")
    pids = sorted({one.pid for one in listening if one.pid is not None})
    if not pids:
        raise UnknownFact(
            f"who listens on port {port} cannot be read: the process belongs to another user",
            hint="run pinner as that user",
        )
    return pids[0], port


def _main_process(pid: int) -> _Main:
    """The main process that a process belongs to: itself, one above it, or the only one below it."""
    first = procfs.process(pid)
    if first is None:
        raise OperationFailed(f"there is no process {pid}")
    chain = [first]
    while chain[-1].ppid > 1 and (above := procfs.process(chain[-1].ppid)) is not None:
        chain.append(above)
    mains = [_recognized(process) for process in chain]
    at = next((at for at, main in enumerate(mains) if main is not None), None)
    if at is not None:
        # A child that was forked and has called nothing else shows the command line of its parent.
        while at + 1 < len(mains) and mains[at + 1] is not None:
            at += 1
        found = mains[at]
        assert found is not None
        return found
    below = [main for process in procfs.descendants(pid) if (main := _recognized(process)) is not None]
    # Of a server that is started through others, the topmost is the main one.
    pids = {main.process.pid for main in below}
    below = [main for main in below if main.process.ppid not in pids]
    if len(below) == 1:
        return below[0]
    if below:
        listed = ", ".join(str(main.process.pid) for main in below)
        raise UsageError(f"several servers run below pid {pid}: {listed}", hint="name one of them")
    raise _stranger(first)


def _recognized(process: ProcessInfo) -> _Main | None:
    for engine in ENGINES.values():
        entry = entry_of(process.argv, engine.ENTRIES)
        if entry is not None:
            return _Main(process, engine, entry)
    return None


def _stranger(process: ProcessInfo) -> OperationFailed:
    """Why a process is nothing that can be adopted."""
    title = process.title[:80]
    who = origin.owner(process.pid)
    if process.title.startswith(tuple(f"{engine.PACKAGE}::" for engine in ENGINES.values())):
        return OperationFailed(
            f"pid {process.pid} ({title}) is a worker whose main process has ended",
            hint="its arguments and environment are gone with that one; start the server anew",
        )
    if not process.argv and who not in (None, os.geteuid()):
        return OperationFailed(
            f"the command line of pid {process.pid} cannot be read: it belongs to {traces.user(who or 0)}",
            hint="run pinner as that user",
        )
    ways = "; ".join(f"{engine.NAME}: python {engine.ENTRIES[0]}" for engine in ENGINES.values())
    return OperationFailed(
        f"pid {process.pid} ({title}) is no server that pinner knows, nor a process of one",
        hint=f"known are servers whose command line holds their arguments ({ways})",
    )


def _refuse_other_files(process: ProcessInfo) -> None:
    shares = origin.shares_files(process.pid)
    if shares is False:
        raise OperationFailed(
            f"pid {process.pid} runs in a container: its paths mean other files than here",
            hint="run pinner inside of that container",
        )


def _environment(process: ProcessInfo) -> dict[str, str]:
    env = procfs.environ(process.pid)
    if isinstance(env, dict):
        return env
    who = origin.owner(process.pid)
    if who not in (None, os.geteuid()):
        raise UnknownFact(
            f"the environment of pid {process.pid} cannot be read: it belongs to {traces.user(who or 0)}, and "
            f"this process runs as {traces.user(os.geteuid())}",
            hint="run pinner as that user",
        )
    raise UnknownFact(f"the environment of pid {process.pid} cannot be read: {env.reason}")


def _port(pid: int, flags: Mapping[str, list[str] | None], asked: int | None) -> int | None:
    """The port that the server is reached by: as it was told, as the user said, or the lowest it listens on."""
    given_port = flags.get("port")
    if given_port and given_port[-1].isdecimal() and given_port[-1] != "0":
        return int(given_port[-1])
    return asked or min(procfs.listening(pid), default=None)


def _account(engine: Engine, flags: Mapping[str, list[str] | None], port: int | None) -> Mapping[str, Any] | None:
    if port is None:
        return None
    host = reachable_host((flags.get("host") or ["127.0.0.1"])[-1])
    try:
        return engine.account(Http(), f"http://{host}:{port}") or None
    except HttpFailed:
        return None


def _flags(server: RunningServer, main: _Main, notes: list[str]) -> dict[str, list[str] | None]:
    """The flags by full name, as the engine's own parser knows them."""
    table = _table(server, main.engine, notes)
    arguments = list(server.entry.arguments)
    if server.entry.name.endswith(" serve") and arguments and not arguments[0].startswith("-"):
        arguments = ["--model-path", *arguments]
    found = given(arguments, table, main.engine.ALIASES)
    notes += found.notes
    if found.alone:
        notes.append(f"arguments that belong to no flag are left out: {' '.join(found.alone)}")
    flags = found.flags
    if flags.get("config"):
        raise OperationFailed(
            "the server takes arguments from a file (--config), which may have changed since",
            hint="start it with these arguments on its command line, and adopt again",
        )
    kind = flags.pop("model-type", None)
    if kind and kind[0] not in ("llm", "auto"):
        raise OperationFailed(f"--model-type {kind[0]}: pinner knows servers of language models only")
    return flags


def _table(server: RunningServer, engine: Engine, notes: list[str]) -> dict[str, Flag] | None:
    said = asker(server).run(engine.PARSER + TABLE_SCRIPT, timeout_s=_PARSER_S)
    table = None if isinstance(said, Unknown) else read_table(said)
    if table is None:
        why = f": {said.reason}" if isinstance(said, Unknown) else ""
        notes.append(
            f"the engine's own parser could not be asked{why}; every word after a flag is taken as its value"
        )
    return table


def _tell_limits(process: ProcessInfo, notes: list[str]) -> None:
    """What a shell or `numactl` gives a process besides variables."""
    bound = origin.bound_cpus(process.pid)
    if bound is not None:
        notes.append(f"it is bound to {bound} CPUs (taskset, numactl or a cgroup); `up` binds nothing")
    limits = origin.other_limits(process.pid)
    if limits:
        notes.append(f"its limits are not those of this shell, from which `up` gives them: {', '.join(limits)}")
