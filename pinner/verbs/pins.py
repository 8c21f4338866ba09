"""The commands that make and judge pins: init, lock, materialize, check.

Must not decide anything: the verbs in pinner/deploy do.
"""

from __future__ import annotations

from pathlib import Path

from pinner import render
from pinner.command import overrides, tell_unmatched
from pinner.deploy.check import exit_code
from pinner.deploy.load import find_manifest, load_manifest
from pinner.errors import ExitCode
from pinner.host.home import home
from pinner.model.facts import Drift
from pinner.terminal import Output

# What `--accept` and `--reason` named, in the order given.
Accepted = tuple[list[str], list[str]]


def init(out: Output, name: str, directory: Path) -> ExitCode:
    """Write a commented manifest."""
    from pinner.deploy.init import init as write

    path = write(name, directory)
    out.line(f"wrote {path}")
    out.envelope(ExitCode.OK, {"manifest": str(path)})
    return ExitCode.OK


def lock_check(out: Output, manifest: str) -> ExitCode:
    """Whether the lock is current; offline."""
    from pinner.deploy import resolve

    deployment = load_manifest(find_manifest(manifest))
    reason = resolve.is_current(deployment)
    code = ExitCode.OK if reason is None else ExitCode.DIFFERENT
    out.line(reason or f"{deployment.lock_path} is current")
    out.envelope(code, {"current": reason is None, "reason": reason}, status="" if not reason else "stale")
    return code


def lock(out: Output, manifest: str, *, upgrade: bool | str, capture: bool) -> ExitCode:
    """Resolve everything and write the lock."""
    from pinner.deploy import resolve

    deployment = load_manifest(find_manifest(manifest))
    outcome = resolve.lock(deployment, home(), upgrade=upgrade, capture=capture, say=out.say)
    render.lock_text(out, outcome)
    out.envelope(ExitCode.OK, render.lock_data(outcome))
    return ExitCode.OK


def materialize(out: Output, manifest: str, *, rebuild: bool) -> ExitCode:
    """Build the workspace, or verify the one that is there."""
    from pinner.deploy import materialize as building
    from pinner.deploy.locks import load_lock

    deployment = load_manifest(find_manifest(manifest))
    lock_ = load_lock(deployment)
    result = building.materialize(deployment, lock_, home(), rebuild=rebuild, say=out.say)
    for note in result.views.notes:
        out.note(note)
    drift = Drift() if result.built else building.verified(deployment, lock_, home())
    if not drift.is_clean:
        render.drift_text(out, drift, deep=False)
    else:
        for aspect, place in result.views.made.items():
            out.line(f"{aspect} in {place}")
        out.line(f"{'built' if result.built else 'already there:'} {result.workspace.root}")
    code = exit_code(drift)
    told = render.drift_data(drift)
    told["notes"] = [*result.views.notes, *told["notes"]]
    models = {aspect: str(place) for aspect, place in result.views.made.items()}
    data = {"workspace": str(result.workspace.root), "built": result.built, "models": models, **told}
    out.envelope(code, data, status="unknown" if code is ExitCode.FAILED else "")
    return code


def check(out: Output, manifest: str, *, deep: bool, accepted: Accepted) -> ExitCode:
    """Say what differs from the lock."""
    from pinner.deploy.live import check_all
    from pinner.deploy.locks import load_lock

    deployment = load_manifest(find_manifest(manifest))
    lock_ = load_lock(deployment)
    drift = check_all(deployment, lock_, home(), deep=deep, overrides=overrides(*accepted))
    code = exit_code(drift)
    render.drift_text(out, drift, deep=deep)
    tell_unmatched(out, drift, *accepted)
    out.envelope(code, render.drift_data(drift), status="unknown" if code is ExitCode.FAILED else "")
    return code
