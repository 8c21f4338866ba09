"""The runs of this machine: their directories, finding one again, status, logs and down.

Owns run.json, what pinner keeps of a launch (no values of variables). Signals go through pinner/host/runs.py only.
"""

from __future__ import annotations

import codecs
import contextlib
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal

import msgspec

from pinner.deploy import segments
from pinner.deploy.load import find_manifest, load_manifest
from pinner.deploy.port import reachable_host
from pinner.engines import engine_for
from pinner.errors import OperationFailed, PinnerError, UsageError
from pinner.host import runs
from pinner.host.files import write_atomic
from pinner.host.home import Home
from pinner.host.http import Http, HttpFailed
from pinner.model.caches import Caches
from pinner.model.facts import Override
from pinner.model.manifest import Manifest

SERVER_LOG = "server.log"
# Of these last lines of its log `status` takes the speed.
LOG_LINES = 200
# Seconds that `status` gives a server to generate a few tokens.
STATUS_GENERATE_S = 15.0
STATUS_HEALTH_S = 5.0
# Beyond the engine's own time to stop, the supervisor needs a moment to sweep what is left.
SWEEP_S = 15.0


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """One launch, as its run.json tells it. `lock` is the digest of the lock it was started from."""

    schema: int = 1
    run: str
    deployment: str
    name: str
    manifest: str
    lock: str
    kind: str
    url: str
    argv: tuple[str, ...]
    variables: tuple[str, ...]
    workspace: str = ""
    caches: Caches | None = None
    overrides: tuple[Override, ...] = ()
    stop_timeout_s: float = 30.0
    started: float = 0.0


class Ending(msgspec.Struct, frozen=True, kw_only=True):
    """Why pinner ended a run: `by` is the verb, `reason` what the user was told."""

    by: Literal["down", "up", "bench"]
    reason: str = ""


class Status(msgspec.Struct, frozen=True, kw_only=True):
    """What a run is doing. `generates` is None where it was not asked, since nothing runs."""

    run: Run
    state: Literal["running", "starting", "exited", "failed", "lost", "elsewhere"]
    pid: int | None
    uptime_s: float | None
    generates: bool | None
    detail: str
    ending: Ending | None = None

    @property
    def was_stopped(self) -> bool:
        """Whether it ended because pinner was asked to, or refused it; what ended by itself has crashed."""
        return self.state in ("exited", "failed") and self.ending is not None

    @property
    def is_serving(self) -> bool:
        return self.state == "running" and self.generates is True


class Stopped(msgspec.Struct, frozen=True, kw_only=True):
    """How a stop ended: `already` if there was nothing to do, `survivors` as "PID (name)"."""

    run: str | None
    already: bool
    forced: bool
    survivors: tuple[str, ...]


def run_directory(home: Home, run: str) -> Path:
    """Where a run keeps its state and its log."""
    return home.runs / run


def write_run(home: Home, run: Run) -> Path:
    """Make a run's directory, with its run.json."""
    directory = run_directory(home, run.run)
    directory.mkdir(mode=0o700, parents=True)
    (directory / "run.json").write_bytes(msgspec.json.format(msgspec.json.encode(run)))
    return directory


def keep_overrides(home: Home, run: Run, overrides: tuple[Override, ...]) -> Run:
    """Add to a run that is up what a later `up` accepted, so that `status` goes on showing it."""
    new = tuple(override for override in overrides if override not in run.overrides)
    if not new:
        return run
    run = msgspec.structs.replace(run, overrides=(*run.overrides, *new))
    write_atomic(run_directory(home, run.run) / "run.json", msgspec.json.format(msgspec.json.encode(run)))
    return run


def all_runs(home: Home) -> list[Run]:
    """Every run that is still known, newest first; a directory that cannot be understood is left out."""
    found = []
    for path in home.runs.glob("*/run.json") if home.runs.is_dir() else ():
        try:
            found.append(msgspec.json.decode(path.read_bytes(), type=Run))
        except (OSError, msgspec.DecodeError):
            continue
    return sorted(found, key=lambda run: (run.started, run.run), reverse=True)


def live_run(home: Home, deployment_key: str) -> Run | None:
    """The run of a deployment that is up or coming up."""
    for run in all_runs(home):
        if run.deployment == deployment_key and runs.is_alive(run_directory(home, run.run)):
            return run
    return None


def leftovers(home: Home, deployment_key: str) -> list[Run]:
    """Runs of a deployment whose supervisor was killed and whose processes are still there."""
    found = []
    for run in all_runs(home):
        # What a container that is gone or another host has left is not here, and must not block an `up` for ever.
        with contextlib.suppress(runs.RunElsewhere):
            if run.deployment == deployment_key and runs.survivors(run_directory(home, run.run)):
                found.append(run)
    return found


def find_run(text: str, home: Home) -> Run | None:
    """The run that a command line names: a run's name, or a manifest for its live or else newest run.

    None if the manifest is known and has no run. Raises UsageError where neither exists.
    """
    known = all_runs(home)
    for run in known:
        if run.run == text:
            return run
    try:
        deployment = load_manifest(find_manifest(text))
    except UsageError:
        # A manifest may have been removed while its server runs on.
        gone = [run for run in known if run.name == text or run.manifest == str(Path(text).absolute())]
        if not gone:
            raise UsageError(
                f"{text} is neither a manifest nor a run", hint="`pinner status` lists the runs"
            ) from None
        return gone[0]
    own = [run for run in known if run.deployment == deployment.key]
    alive = [run for run in own if runs.is_alive(run_directory(home, run.run))]
    return next(iter(alive or own), None)


def status(run: Run, home: Home) -> Status:
    """Look at one run; if it is up, have it generate."""
    directory = run_directory(home, run.run)
    alive = False
    try:
        alive = runs.is_alive(directory)
        state = runs.read_state(directory)
        left = [] if alive else runs.survivors(directory)
    except runs.NoRun:
        if alive:
            return Status(run=run, state="starting", pid=None, uptime_s=None, generates=None, detail="")
        # `up` was killed, or is about to start it.
        never = Ending(by="up", reason="it was not started")
        return _status(run, "failed", detail=never.reason, ending=never)
    except runs.RunElsewhere as error:
        return _status(run, "elsewhere", detail=error.message)
    except PinnerError as error:
        return _status(run, "lost", detail=error.message)
    if left:
        names = ", ".join(f"{one.pid} ({one.comm})" for one in left)
        return _status(run, "lost", detail=f"its supervisor was killed; still alive: {names}")
    if not alive:
        ended: Literal["exited", "failed"] = "failed" if state.status == "failed" else "exited"
        ending = read_ending(directory)
        return _status(run, ended, detail=_how_it_ended(state, ending), ending=ending)
    pid = state.server.pid if state.server else None
    uptime_s = max(0.0, time.time() - state.started)
    generates, detail = _generates(run)
    said = engine_for(run.kind).log_summary(log_tail(directory, LOG_LINES)) if generates else ""
    detail = f"{detail}; its log: {said}" if said else detail
    up: Literal["running", "starting"] = "running" if generates or detail else "starting"
    return Status(run=run, state=up, pid=pid, uptime_s=uptime_s, generates=generates, detail=detail)


def _status(
    run: Run,
    state: Literal["exited", "failed", "lost", "elsewhere"],
    *,
    detail: str,
    ending: Ending | None = None,
) -> Status:
    return Status(run=run, state=state, pid=None, uptime_s=None, generates=None, detail=detail, ending=ending)


def _how_it_ended(state: runs.RunState, ending: Ending | None) -> str:
    if ending is not None:
        return ending.reason or f"stopped by `{ending.by}`"
    if state.error:
        return state.error
    if state.exit_code is None:
        return "ended, and nobody saw how"
    return (
        f"killed by signal {-state.exit_code}"
        if state.exit_code < 0
        else f"ended with exit code {state.exit_code}"
    )


def write_ending(directory: Path, ending: Ending) -> None:
    """Keep why a run is ended; before it is, so that no moment looks like a crash."""
    with contextlib.suppress(OSError):
        write_atomic(directory / "ending.json", msgspec.json.encode(ending), mode=0o600)


def read_ending(directory: Path) -> Ending | None:
    """Why pinner ended a run; None if it did not."""
    try:
        return msgspec.json.decode((directory / "ending.json").read_bytes(), type=Ending)
    except (OSError, msgspec.DecodeError):
        return None


def all_status(home: Home, *, ended: bool) -> list[Status]:
    """What every run is doing, newest first; without `ended` those that are up or whose last end was a crash."""
    found = []
    seen: set[str] = set()
    for run in all_runs(home):
        is_newest = run.deployment not in seen
        seen.add(run.deployment)
        one = status(run, home)
        if ended or one.state not in ("exited", "failed", "elsewhere") or (is_newest and not one.was_stopped):
            found.append(one)
    return found


def _generates(run: Run) -> tuple[bool, str]:
    """Whether a real generation returns tokens now; "" as detail means that the server does not listen yet."""
    engine = engine_for(run.kind)
    http = Http()
    # SGLang's /health takes a second even when all is well: it generates a token.
    health = engine.health(http, run.url, timeout_s=STATUS_HEALTH_S)
    if not health.is_up:
        return False, "" if health.is_starting else f"not healthy: {health.detail}"
    try:
        tokens = engine.generate(http, run.url, timeout_s=STATUS_GENERATE_S)
    except HttpFailed as error:
        return False, f"healthy, but it does not generate: {error}"
    return tokens > 0, "generates" if tokens > 0 else "healthy, but it does not generate: no tokens came"


def down(run: Run, home: Home, *, force: bool = False, by: Literal["down", "bench"] = "down") -> Stopped:
    """Stop a run and everything it started; a second call finds nothing to do."""
    directory = run_directory(home, run.run)
    if runs.is_alive(directory):
        write_ending(directory, Ending(by=by))
        segments.remember(directory)
    result = runs.stop(directory, timeout_s=run.stop_timeout_s + SWEEP_S, force=force)
    segments.clean_up([directory])
    return Stopped(
        run=run.run,
        already=result.already,
        forced=result.forced,
        survivors=tuple(f"{one.pid} ({one.name})" for one in result.survivors),
    )


def down_all(text: str, home: Home, *, force: bool = False) -> Stopped:
    """Stop what a command line names: one run, or every run of a manifest that has left something alive."""
    run = find_run(text, home)
    if run is None:
        return Stopped(run=None, already=True, forced=False, survivors=())
    others = [] if run.run == text else leftovers(home, run.deployment)
    results = [down(item, home, force=force) for item in dict.fromkeys([run, *others])]
    return Stopped(
        run=run.run,
        already=all(result.already for result in results),
        forced=any(result.forced for result in results),
        survivors=tuple(survivor for result in results for survivor in result.survivors),
    )


def log_tail(directory: Path, lines: int) -> list[str]:
    """The last lines of the engine's log."""
    try:
        with (directory / SERVER_LOG).open("rb") as stream:
            stream.seek(0, os.SEEK_END)
            stream.seek(max(0, stream.tell() - 64 * 1024 - 400 * lines))
            text = stream.read().decode(errors="replace")
    except OSError:
        return []
    return text.splitlines()[-lines:] if lines else []


def follow(
    run: Run, home: Home, *, lines: int | None, sleep: Callable[[float], None] = time.sleep
) -> Iterator[str]:
    """The last lines of a run's log (None: all of it), then each new piece of it until the run ends."""
    directory = run_directory(home, run.run)
    path = directory / SERVER_LOG
    if not path.exists():
        raise OperationFailed(f"{run.run} has no log")
    # A piece may end within a character.
    decode = codecs.getincrementaldecoder("utf-8")(errors="replace").decode
    with path.open("rb") as stream:
        if lines is not None:
            yield from (f"{line}\n" for line in log_tail(directory, lines))
            stream.seek(0, os.SEEK_END)
        while True:
            alive = runs.is_alive(directory)
            piece = stream.read()
            if piece:
                yield decode(piece)
            elif not alive:
                return
            else:
                sleep(0.2)


def url_of(manifest: Manifest) -> str:
    """Where a client on this machine reaches the server."""
    host = reachable_host(manifest.serve.host)
    return f"http://[{host}]:{manifest.serve.port}" if ":" in host else f"http://{host}:{manifest.serve.port}"
