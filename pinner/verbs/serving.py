"""The commands that launch and follow servers: up, status, logs, down.

Must not decide anything: the verbs in pinner/deploy do.
"""

from __future__ import annotations

from collections.abc import Callable

from pinner import render
from pinner.command import overrides, tell_unmatched
from pinner.deploy import running
from pinner.deploy.attend import attend
from pinner.errors import ExitCode, OperationFailed, UsageError
from pinner.host.home import home
from pinner.terminal import Output
from pinner.verbs.pins import Accepted


def up(out: Output, manifest: str, *, locked: bool, deep: bool, foreground: bool, accepted: Accepted) -> ExitCode:
    """Materialize, check, launch, wait until it generates, check the live processes.

    `foreground`: then stay until the server ends.
    """
    from pinner.deploy.check import exit_code
    from pinner.deploy.launch import UpOptions
    from pinner.deploy.launch import up as bring_up
    from pinner.deploy.load import find_manifest, load_manifest

    deployment = load_manifest(find_manifest(manifest))
    options = UpOptions(locked=locked, deep=deep, overrides=overrides(*accepted))
    outcome = bring_up(deployment, home(), options, say=out.say)

    def tell() -> ExitCode:
        code = exit_code(outcome.drift)
        render.up_text(out, outcome)
        tell_unmatched(out, outcome.drift, *accepted)
        out.envelope(code, render.up_data(outcome), status="unknown" if code is ExitCode.FAILED else "")
        return code

    return _stay(out, outcome.run, tell) if foreground and outcome.run is not None else tell()


def _stay(out: Output, run: running.Run, tell: Callable[[], object]) -> ExitCode:
    def show(piece: str) -> None:
        # After an envelope nothing else belongs on standard output; the log is a file as ever.
        if not out.as_json:
            out.piece(piece)

    ended = attend(run, home(), tell=tell, show=show)
    if ended.was_stopped:
        out.say(f"stopped {run.run}")
        return ExitCode.OK
    # Told and not raised: the envelope, if there is one, has been written.
    out.error(OperationFailed(f"{run.run}: {ended.detail}", hint=f"`pinner logs {run.run}` has its last lines"))
    return ExitCode.FAILED


def status(out: Output, which: str | None, *, ended: bool) -> ExitCode:
    """What runs, and whether it really generates."""
    state = home()
    if which is None:
        shown = running.all_status(state, ended=ended)
        fine = all(item.is_serving or item.was_stopped for item in shown)
    else:
        run = running.find_run(which, state)
        shown = [running.status(run, state)] if run else []
        fine = bool(shown) and shown[0].is_serving
    render.status_text(out, shown)
    code = ExitCode.OK if fine else ExitCode.FAILED
    out.envelope(code, render.status_data(shown))
    return code


def logs(out: Output, which: str, *, follow: bool, lines: int) -> ExitCode:
    """The engine's log."""
    state = home()
    run = running.find_run(which, state)
    if run is None:
        raise UsageError(f"{which} has not run here")
    directory = running.run_directory(state, run.run)
    if follow and not out.as_json:
        all(out.piece(piece) for piece in running.follow(run, state, lines=lines))
        return ExitCode.OK
    tail = running.log_tail(directory, lines)
    if not out.as_json:
        out.piece("".join(f"{line}\n" for line in tail))
    out.envelope(ExitCode.OK, {"run": run.run, "path": str(directory / running.SERVER_LOG), "lines": tail})
    return ExitCode.OK


def down(out: Output, which: str, *, force: bool) -> ExitCode:
    """Stop a run and everything that it started."""
    stopped = running.down_all(which, home(), force=force)
    render.stopped_text(out, stopped)
    code = ExitCode.FAILED if stopped.survivors else ExitCode.OK
    out.envelope(code, render.stopped_data(stopped))
    return code
