"""`up`: materialize, check, launch, wait until it generates, check the live processes.

Owns the order, the refusals, and that whatever goes wrong nothing is left running. The supervisor and its signals
are pinner/host/runs.py.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from pinner.deploy import caches, segments
from pinner.deploy import check as checking
from pinner.deploy.environment import (
    argv_here,
    launch_environment,
    not_passed_on,
    without_secrets,
    working_directory,
)
from pinner.deploy.live import check_live
from pinner.deploy.load import Deployment
from pinner.deploy.locks import load_lock
from pinner.deploy.materialize import materialize
from pinner.deploy.port import listens, refuse_busy_port, refuse_foreign_listener
from pinner.deploy.preflight import preflight
from pinner.deploy.resolve import LockOutcome
from pinner.deploy.resolve import lock as make_lock
from pinner.deploy.running import (
    SWEEP_S,
    Ending,
    Run,
    keep_overrides,
    leftovers,
    live_run,
    log_tail,
    run_directory,
    url_of,
    write_ending,
    write_run,
)
from pinner.deploy.tomlfile import data_digest
from pinner.deploy.workspace import is_in_place
from pinner.engines import Engine, engine_for
from pinner.engines.base import Health
from pinner.errors import Busy, LaunchFailed, OperationFailed, PinnerError, UnknownFact
from pinner.host import runs
from pinner.host.files import exclusive
from pinner.host.home import Home
from pinner.host.http import Http, HttpFailed
from pinner.model.facts import Drift, Override, accept
from pinner.model.lock import Lock
from pinner.probes.base import Scene, Workspace
from pinner.probes.caches import variables

Say = Callable[[str], None]

POLL_S = 0.02
# SGLang's /health generates a token, which takes a second or more while it warms up.
HEALTH_S = 20.0
TELL_EVERY_S = 10.0
# A start that took longer than this many seconds is followed by another check of the files.
LOOK_AGAIN_AFTER_S = 3.0
TAIL_LINES = 25
# More than an engine prints while it starts.
START_LINES = 5000


class UpOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How `up` was asked: `locked` refuses to make a missing lock, `overrides` let named differences pass."""

    locked: bool = False
    deep: bool = False
    overrides: tuple[Override, ...] = ()


class UpOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """A server that generates, or the drift because of which it was refused.

    `run` is None if it was refused; `started` if that was after the launch, and it was stopped again; `already` if
    it was up before; `left_up` names a run that was up before the refusal, and still is. `tokens` is what the
    proving generation gave.
    """

    url: str | None
    run: Run | None
    already: bool = False
    started: bool = False
    left_up: str | None = None
    tokens: int = 0
    drift: Drift
    locked: LockOutcome | None = None


def up(deployment: Deployment, home: Home, options: UpOptions, *, say: Say = lambda _line: None) -> UpOutcome:
    """Bring a deployment up. Raises LockError, LaunchFailed, Busy and OperationFailed; drift is an outcome."""
    with exclusive(home.root / "locks" / f"{deployment.key}.up", what="bringing this deployment up", timeout_s=0):
        locked = None
        if not deployment.lock_path.exists() and not options.locked:
            say(f"no lock yet: making {deployment.lock_path.name}")
            locked = make_lock(deployment, home, say=say)
        lock = load_lock(deployment)
        outcome = _up(deployment, lock, home, options, say)
        return msgspec.structs.replace(outcome, locked=locked)


def up_with(
    deployment: Deployment, lock: Lock, home: Home, options: UpOptions, *, say: Say = lambda _line: None
) -> UpOutcome:
    """The same with a lock that is given, as for a server without the draft that the deployment's lock has."""
    with exclusive(home.root / "locks" / f"{deployment.key}.up", what="bringing this deployment up", timeout_s=0):
        return _up(deployment, lock, home, options, say)


def _up(deployment: Deployment, lock: Lock, home: Home, options: UpOptions, say: Say) -> UpOutcome:
    running = live_run(home, deployment.key)
    _refuse_leftovers(home, deployment)
    built = materialize(deployment, lock, home, say=say)
    for note in built.views.notes:
        say(note)
    scene = checking.scene_for(deployment, lock, home, deep=options.deep)
    if built.drift is None:
        say("checking")
        drift = checking.check(scene, options.overrides)
    else:
        drift = accept(built.drift, options.overrides)
    if not drift.is_clean:
        return UpOutcome(url=None, run=None, left_up=running.run if running else None, drift=drift)
    if running is not None:
        return _join(running, scene, home, options, drift)
    return _launch(deployment, scene, built.workspace, home, (options, drift, say))


def _refuse_leftovers(home: Home, deployment: Deployment) -> None:
    left = leftovers(home, deployment.key)
    if left:
        raise Busy(
            f"the supervisor of {left[0].run} was killed, and processes of that run are still alive",
            hint=f"`pinner down {left[0].run}` ends them",
        )


def _join(running: Run, scene: Scene, home: Home, options: UpOptions, drift: Drift) -> UpOutcome:
    """A second `up`: wait for the server that is there and check it as if it had just been launched."""
    if running.lock != data_digest(msgspec.to_builtins(scene.lock)):
        raise Busy(
            f"{running.run} is up, started from another lock than the one here",
            hint=f"`pinner down {running.run}` first",
        )
    engine = engine_for(scene.lock.engine.kind)
    directory = run_directory(home, running.run)
    tokens = _wait_until_it_generates(running, directory, engine, scene.lock, lambda _line: None)
    live = accept(check_live(running, scene, home), options.overrides)
    drift = checking.joined([drift, live])
    if not drift.is_clean:
        return UpOutcome(url=None, run=None, left_up=running.run, drift=drift)
    running = keep_overrides(home, running, options.overrides)
    return UpOutcome(url=running.url, run=running, already=True, tokens=tokens, drift=drift)


def _launch(
    deployment: Deployment, scene: Scene, workspace: Workspace, home: Home, how: tuple[UpOptions, Drift, Say]
) -> UpOutcome:
    options, drift, say = how
    lock = scene.lock
    engine = engine_for(lock.engine.kind)
    ignored = not_passed_on(engine.FAMILIES, lock.env, os.environ)
    if ignored:
        say(f"set in your shell and not passed on: {', '.join(ignored)}")
    refuse_busy_port(lock.serve.host, lock.serve.port)
    ready = preflight(scene, options.overrides)
    if ready.open_files is not None:
        say(f"the engine may have {ready.open_files} open files, more than the shell that called")
    run, env = _new_run(deployment, scene, workspace, home, (options, drift))
    started = run.started
    directory = write_run(home, run)
    spec = runs.LaunchSpec(
        run=run.run,
        argv=run.argv,
        env=env,
        cwd=str(working_directory()),
        grace_s=lock.serve.stop_timeout_s,
        open_files=ready.open_files,
    )
    found = [*ready.notes, *(caches.notes(run.caches) if run.caches else ())]
    looked = Drift(accepted=ready.accepted, notes=tuple(found))
    drift = checking.joined([drift, looked])
    say(f"starting {run.run}")
    try:
        runs.start(directory, spec)
        tokens = _wait_until_it_generates(run, directory, engine, lock, say)
        say("checking the live processes")
        live = accept(check_live(run, scene, home), options.overrides)
        segments.remember(directory)
        if time.time() - started > LOOK_AGAIN_AFTER_S:
            # A pull can land while a large engine loads: what it has read may not be what was checked.
            again = checking.check(checking.scene_for(deployment, lock, home), options.overrides)
            drift = checking.joined([again, looked])
    except BaseException as error:
        # Whatever it was, an interrupt too: what this call has started must not run on.
        reason = error.message if isinstance(error, PinnerError) else "interrupted"
        _stop_quietly(directory, lock, reason, force=isinstance(error, KeyboardInterrupt))
        if isinstance(error, LaunchFailed):
            raise _with_last_lines(error, directory, lock, env) from None
        raise
    said = tuple(f"log: {note}" for note in engine.log_notes(log_tail(directory, START_LINES)))
    drift = checking.joined([drift, live, Drift(notes=said)])
    if not drift.is_clean:
        say("stopping it again")
        _stop_quietly(directory, lock, "its live processes differ from the lock")
        return UpOutcome(url=None, run=None, started=True, drift=drift)
    return UpOutcome(url=run.url, run=run, tokens=tokens, drift=drift)


def _new_run(
    deployment: Deployment, scene: Scene, workspace: Workspace, home: Home, how: tuple[UpOptions, Drift]
) -> tuple[Run, dict[str, str]]:
    """The run about to start, with its caches made, and the environment it will have."""
    options, drift = how
    lock = scene.lock
    started = time.time()
    stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime(started))
    run = Run(
        run=f"{deployment.name}-{stamp}-{secrets.token_hex(2)}",
        deployment=deployment.key,
        name=deployment.name,
        manifest=str(deployment.path),
        lock=data_digest(msgspec.to_builtins(lock)),
        kind=lock.engine.kind,
        url=url_of(deployment.manifest),
        argv=argv_here(lock, workspace, deployment.directory, home),
        variables=(),
        workspace=str(workspace.root),
        overrides=options.overrides,
        stop_timeout_s=lock.serve.stop_timeout_s,
        started=started,
    )
    # First what can be refused for a reason that is the caller's: a missing variable leaves nothing behind.
    launch_environment(workspace, lock.env, os.environ, in_place=is_in_place(lock))
    found = caches.prepare(lock, workspace, run, home, drift.accepted)
    env = launch_environment(
        workspace, lock.env, os.environ, in_place=is_in_place(lock), caches=variables(lock, Path(found.path))
    )
    return msgspec.structs.replace(run, caches=found, variables=tuple(sorted(env))), env


def _wait_until_it_generates(run: Run, directory: Path, engine: Engine, lock: Lock, say: Say) -> int:
    """Wait for health, then for tokens; returns how many came. Raises LaunchFailed, Busy."""
    deadline = time.monotonic() + lock.serve.start_timeout_s
    told = time.monotonic()
    http = Http()
    health = Health(False, detail="nothing listens")
    while not health.is_up:
        left = deadline - time.monotonic()
        if not runs.is_alive(directory):
            raise LaunchFailed(_ended(directory))
        if left <= 0:
            raise LaunchFailed(
                f"not healthy after {lock.serve.start_timeout_s:g} s ({health.detail})",
                hint="serve.start-timeout-s sets how long to wait",
            )
        if time.monotonic() - told > TELL_EVERY_S:
            told = time.monotonic()
            last = log_tail(directory, 1)
            say(f"still starting: {last[0][:160] if last else 'it has printed nothing yet'}")
        if listens(lock.serve.host, lock.serve.port):
            health = engine.health(http, run.url, timeout_s=max(POLL_S, min(left, HEALTH_S)))
        if not health.is_up:
            time.sleep(POLL_S)
    refuse_foreign_listener(run.run, directory, lock.serve.port)
    try:
        tokens = engine.generate(http, run.url, timeout_s=lock.serve.generate_timeout_s)
    except HttpFailed as error:
        if _has_ended(directory):
            raise LaunchFailed(_ended(directory)) from None
        raise LaunchFailed(f"healthy but does not generate: {error}") from None
    if tokens < 1:
        raise LaunchFailed("healthy but does not generate: an answer came with no tokens in it")
    return tokens


def _has_ended(directory: Path) -> bool:
    """Whether the engine is gone; its supervisor needs a moment to notice and to sweep."""
    deadline = time.monotonic() + 1.0
    while runs.is_alive(directory):
        if time.monotonic() > deadline:
            return False
        time.sleep(POLL_S)
    return True


def _ended(directory: Path) -> str:
    with contextlib.suppress(OperationFailed):
        state = runs.read_state(directory)
        if state.error:
            return f"the engine could not be started: {state.error}"
        if state.exit_code is not None:
            how = f"signal {-state.exit_code}" if state.exit_code < 0 else f"exit code {state.exit_code}"
            return f"the engine ended while starting ({how})"
    return "the engine ended while starting"


def _stop_quietly(directory: Path, lock: Lock, reason: str, *, force: bool = False) -> None:
    """Stop what this call started; the error that led here is the one to tell."""
    with contextlib.suppress(OperationFailed, UnknownFact):
        if runs.is_alive(directory):
            write_ending(directory, Ending(by="up", reason=reason))
            segments.remember(directory)
        runs.stop(directory, timeout_s=lock.serve.stop_timeout_s + SWEEP_S, force=force)


def _with_last_lines(error: LaunchFailed, directory: Path, lock: Lock, env: Mapping[str, str]) -> LaunchFailed:
    tail = "\n".join(f"  | {line}" for line in log_tail(directory, TAIL_LINES))
    text = without_secrets(tail, lock.env, env)
    message = f"{error.message}\nits last lines:\n{text}" if text else error.message
    return LaunchFailed(message, hint=error.hint or f"the whole log: {directory / 'server.log'}")
