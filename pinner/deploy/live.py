"""Drift of what runs: the processes of a run, against the lock.

Owns gathering what the probes look at live. Only reads; no process is signalled.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path

import msgspec

from pinner.deploy import check as checking
from pinner.deploy.environment import argv_here, launch_environment
from pinner.deploy.load import Deployment
from pinner.deploy.running import Run, live_run, run_directory
from pinner.deploy.tomlfile import data_digest
from pinner.deploy.workspace import is_in_place
from pinner.engines import engine_for
from pinner.host import maps, procfs, runs
from pinner.host.home import Home
from pinner.host.http import Http, HttpFailed
from pinner.model.facts import Difference, Drift, Override, accept
from pinner.model.lock import Lock
from pinner.probes import PROBES, caches, environment, libraries
from pinner.probes.base import LiveScene, Scene, Workspace

# A helper such as nvidia-smi is gone by then.
SECOND_LOOK_S = 1.0


def check_all(
    deployment: Deployment, lock: Lock, home: Home, *, deep: bool, overrides: tuple[Override, ...]
) -> Drift:
    """What `pinner check` answers: drift at rest and, if the deployment is up, of its processes."""
    scene = checking.scene_for(deployment, lock, home, deep=deep)
    parts = [checking.check(scene)]
    run = live_run(home, deployment.key)
    if run is not None:
        parts.append(check_live(run, scene, home))
    return accept(checking.joined(parts), overrides)


def check_live(run: Run, scene: Scene, home: Home) -> Drift:
    """What the processes of a run show, against the lock.

    Engines start helpers that come and go, some with an environment of their own. A difference counts if a second
    look still finds it.
    """
    drift = _look(run, scene, home)
    if any(item.aspect in (environment.NAME, libraries.NAME) for item in (*drift.differences, *drift.unknown)):
        time.sleep(SECOND_LOOK_S)
        drift = _look(run, scene, home)
    return drift


def _look(run: Run, scene: Scene, home: Home) -> Drift:
    directory = run_directory(home, run.run)
    state = runs.read_state(directory)
    everyone = runs.processes(directory)
    main = state.server.pid if state.server else None
    processes = sorted(everyone, key=lambda process: (process.pid != main, process.pid))
    if not processes or processes[0].pid != main:
        return checking.unknown_aspect("run", "its main process is gone")
    if scene.workspace is None:
        return checking.unknown_aspect("run", f"the workspace that {run.run} runs from is gone")
    live = LiveScene(
        scene=scene,
        processes=processes,
        argv=argv_here(scene.lock, scene.workspace, scene.directory, home),
        env=_launched_environment(run, scene, scene.workspace, processes[0]),
        environ=_environ,
        account=_account(run),
        maps=maps.mapped_files,
        cwd=procfs.cwd,
    )
    parts = [checking.judged(probe, scene.lock, probe.observe_live(live)) for probe in PROBES.values()]
    digest = data_digest(msgspec.to_builtins(scene.lock))
    if run.lock != digest:
        stale = Difference(
            aspect="run",
            key="lock",
            pinned=digest,
            observed=run.lock,
            note=f"{run.run} was started from another lock; `pinner down` and `up` bring the pinned state",
        )
        parts.append(Drift(differences=(stale,)))
    return checking.joined(parts)


def _launched_environment(
    run: Run, scene: Scene, workspace: Workspace, main: procfs.ProcessInfo
) -> dict[str, str]:
    """What the main process was given. Values that were passed through are read from it: they are kept nowhere."""
    seen = procfs.environ(main.pid)
    pin = scene.lock.env
    given: Mapping[str, str] = seen if isinstance(seen, dict) else {}
    passed = {name: given[name] for name in (*pin.secret, *pin.site) if name in given}
    marker = {runs.RUN_MARKER: given[runs.RUN_MARKER]} if runs.RUN_MARKER in given else {}
    caller = dict.fromkeys((*pin.secret.values(), *pin.site.values()), "")
    placed = caches.variables(scene.lock, Path(run.caches.path)) if run.caches else {}
    fixed = launch_environment(workspace, pin, caller, in_place=is_in_place(scene.lock), caches=placed)
    return {**fixed, **passed, **marker}


def _environ(pid: int) -> dict[str, str] | procfs.Unreadable | None:
    seen = procfs.environ(pid)
    return None if isinstance(seen, procfs.Unreadable) and seen.gone else seen


def _account(run: Run) -> Mapping[str, object] | None:
    try:
        return engine_for(run.kind).account(Http(), run.url)
    except HttpFailed:
        return None
