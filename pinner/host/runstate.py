"""What a run is to be and what it was: the specification, the state, the result of a stop.

Owns the types and their form in JSON. Must not start, signal or look at a process.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

import msgspec

from pinner.errors import OperationFailed, UnknownFact
from pinner.host import rundir

# The variable that marks every process of a run, unless it clears its environment.
RUN_MARKER = "PINNER_RUN"


class RunElsewhere(OperationFailed):
    """The run belongs to another host, boot or PID namespace, where its process numbers mean others."""


class NoRun(OperationFailed):
    """The directory holds no run."""


class LaunchSpec(msgspec.Struct, frozen=True, kw_only=True):
    """What to start. `argv[0]` is a path, not looked up; `run` is unique on this machine, for all users.

    The engine's environment is exactly `env` and RUN_MARKER. `grace_s` is the time in seconds between
    SIGTERM and SIGKILL. `cgroup` = False leaves cgroups alone. `open_files` is the soft limit that the engine
    gets; None leaves that of the caller.
    """

    run: str
    argv: tuple[str, ...]
    env: dict[str, str]
    cwd: str = "/"
    grace_s: float = 10.0
    umask: int = 0o022
    cgroup: bool = True
    open_files: int | None = None

    def __repr__(self) -> str:
        """Without the values of the environment, among which are secrets."""
        return f"LaunchSpec(run={self.run!r}, argv={self.argv!r}, env=<{len(self.env)} variables>)"


class Identity(msgspec.Struct, frozen=True):
    """A process until reboot: its number, and its start in clock ticks since boot."""

    pid: int
    start_ticks: int


class Survivor(Identity, frozen=True):
    """A process that did not end, and its name."""

    name: str


class RunState(msgspec.Struct, frozen=True):
    """What `state.json` says. Times in Unix seconds; a negative exit code is a signal's number.

    `status` is what was written last: whether the run lives is told by `is_alive`, not by this.
    `members` are (pid, start ticks, session), noted from time to time where there is no cgroup.
    """

    schema: int
    run: str
    status: Literal["starting", "running", "exited", "failed"]
    supervisor: Identity
    server: Identity | None
    boot_id: str
    pid_namespace: int
    host: str
    cgroup: str | None
    cgroup_missing: str | None
    subreaper: bool
    argv: tuple[str, ...]
    started: float
    ended: float | None
    exit_code: int | None
    forced: bool
    killed: int
    survivors: tuple[Survivor, ...]
    clean: bool | None
    error: str | None
    members: tuple[tuple[int, int, int], ...]


class StopResult(msgspec.Struct, frozen=True):
    """How a stop ended. `stopped`: nothing of the run is left; else `survivors` are the ones that are.

    `already`: there was nothing to do. `forced`: the engine's main process had to be killed. `killed`:
    how many processes were.
    """

    stopped: bool
    already: bool
    exit_code: int | None
    forced: bool
    killed: int
    survivors: tuple[Survivor, ...]


def encode(spec: LaunchSpec) -> bytes:
    """What the supervisor reads; holds secrets, so it goes through a pipe and never to a file."""
    value = {name: getattr(spec, name) for name in spec.__struct_fields__}
    value["schema"] = rundir.SCHEMA
    value["env"] = {**spec.env, RUN_MARKER: spec.run}
    return json.dumps(value).encode()  # the library's: it keeps bytes that are not UTF-8 as surrogates


def _read(run_dir: Path) -> Any:
    path = run_dir / rundir.STATE
    try:
        return json.loads(path.read_bytes())
    except FileNotFoundError:
        raise NoRun(f"no run in {run_dir}") from None
    except (OSError, ValueError) as error:
        raise UnknownFact(f"{path}: cannot be read: {error}") from None


def _convert(run_dir: Path, value: Any) -> RunState:
    path = run_dir / rundir.STATE
    schema = value.get("schema") if isinstance(value, dict) else None
    if isinstance(schema, int) and schema > rundir.SCHEMA:
        raise UnknownFact(f"{path}: written by a newer pinner (schema {schema})")
    try:
        return msgspec.convert(value, RunState)
    except msgspec.ValidationError as error:
        raise UnknownFact(f"{path}: damaged: {error}") from None


def read_state(run_dir: Path) -> RunState:
    """The run's state as last written. NoRun without one; UnknownFact if it cannot be understood."""
    return _convert(run_dir, _read(run_dir))
