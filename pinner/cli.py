"""The command line: parse, call one verb, hand the result to render.

Typer declarations only. Verbs are imported where they are called, so that `--version` and `--help` stay instant.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from pinner import __version__
from pinner.errors import ExitCode, UsageError

app = typer.Typer(
    name="pinner",
    help="Pin a language model deployment, refuse to run it on drift, and say what drifted, when and by whom.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


class Format(StrEnum):
    """How results are printed."""

    TEXT = "text"
    JSON = "json"


ManifestArgument = Annotated[
    str, typer.Argument(metavar="MANIFEST", help="NAME.toml; a bare name is also looked for in deployments/")
]
OutputOption = Annotated[
    Format, typer.Option("--output", help="text, or json: one envelope on stdout", show_default=True)
]
AcceptOption = Annotated[
    list[str], typer.Option("--accept", metavar="KEY", help="let this difference pass (needs a --reason each)")
]
ReasonOption = Annotated[list[str], typer.Option("--reason", metavar="TEXT", help="why the --accept is right")]


def main(argv: list[str] | None = None) -> int:
    """Run one command line and return its exit code; the only way in, also for tests."""
    argv = sys.argv[1:] if argv is None else argv
    _reached.clear()
    try:
        app(args=_with_upgrade_value(argv), prog_name="pinner")
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else ExitCode.OK if stop.code is None else ExitCode.INVALID
        if code == ExitCode.INVALID and not _reached:
            from pinner.command import reject

            reject(argv)
        # Where no verb was reached 1 is Click's word for Ctrl-C, and must not read as drift.
        return ExitCode.INTERRUPTED if code == ExitCode.DIFFERENT and not _reached else int(code)
    except KeyboardInterrupt:
        return ExitCode.INTERRUPTED
    return ExitCode.OK


# The verbs of this command line that were reached: none where Typer rejects it.
_reached: list[str] = []


def _with_upgrade_value(argv: list[str]) -> list[str]:
    """`--upgrade` may stand alone, which Typer cannot declare: then it means everything."""
    if "--upgrade" not in argv:
        return argv
    at = argv.index("--upgrade")
    following = argv[at + 1] if at + 1 < len(argv) else "-"
    alone = following.startswith("-") or following.endswith((".toml", ".lock"))
    return [*argv[: at + 1], "*", *argv[at + 1 :]] if alone else argv


def _verb(command: str, form: Format, call: Callable[[Any], ExitCode]) -> NoReturn:
    from pinner.command import run_verb

    _reached.append(command)
    raise typer.Exit(int(run_verb(command, form is Format.JSON, call)))


def _version(value: bool) -> None:
    if value:
        typer.echo(f"pinner {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    _show: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    pass


@app.command()
def init(
    name: Annotated[str, typer.Argument(help="the deployment's name: letters, digits, - and _")],
    directory: Annotated[Path, typer.Option(help="where to write NAME.toml")] = Path(),
    output: OutputOption = Format.TEXT,
) -> None:
    """Write a commented manifest to start from."""

    def body(out: Any) -> ExitCode:
        from pinner.deploy.init import init as write

        path = write(name, directory)
        out.line(f"wrote {path}")
        out.envelope(ExitCode.OK, {"manifest": str(path)})
        return ExitCode.OK

    _verb("init", output, body)


@app.command()
def lock(
    manifest: ManifestArgument,
    check: Annotated[bool, typer.Option("--check", help="offline: is the lock current? 1 if it is stale")] = False,
    upgrade: Annotated[
        str | None,
        typer.Option(metavar="[NAME]", help="take the newest of everything, or of one package, or of `engine`"),
    ] = None,
    output: OutputOption = Format.TEXT,
) -> None:
    """Resolve everything and write NAME.lock and pylock.NAME.toml."""

    def body(out: Any) -> ExitCode:
        from pinner import render
        from pinner.deploy import resolve
        from pinner.deploy.load import find_manifest, load_manifest
        from pinner.host.home import home

        deployment = load_manifest(find_manifest(manifest))
        if check:
            reason = resolve.is_current(deployment)
            code = ExitCode.OK if reason is None else ExitCode.DIFFERENT
            out.line(reason or f"{deployment.lock_path} is current")
            out.envelope(code, {"current": reason is None, "reason": reason}, status="" if not reason else "stale")
            return code
        outcome = resolve.lock(deployment, home(), upgrade=upgrade == "*" or upgrade or False, say=out.say)
        render.lock_text(out, outcome)
        out.envelope(ExitCode.OK, render.lock_data(outcome))
        return ExitCode.OK

    _verb("lock", output, body)


@app.command()
def materialize(
    manifest: ManifestArgument,
    rebuild: Annotated[bool, typer.Option("--rebuild", help="build it anew, whatever is there")] = False,
    output: OutputOption = Format.TEXT,
) -> None:
    """Build the workspace that the lock describes, or verify the one that is there. 1 if that has drifted."""

    def body(out: Any) -> ExitCode:
        from pinner import render
        from pinner.deploy import materialize as building
        from pinner.deploy.check import exit_code
        from pinner.deploy.load import find_manifest, load_manifest
        from pinner.deploy.locks import load_lock
        from pinner.host.home import home
        from pinner.model.facts import Drift

        deployment = load_manifest(find_manifest(manifest))
        lock_ = load_lock(deployment)
        result = building.materialize(deployment, lock_, home(), rebuild=rebuild, say=out.say)
        built = result.drift is not None
        drift = Drift() if built else building.verified(deployment, lock_, home())
        if not drift.is_clean:
            render.drift_text(out, drift, deep=False)
        else:
            out.line(f"{'built' if built else 'already there:'} {result.workspace.root}")
        code = exit_code(drift)
        data = {"workspace": str(result.workspace.root), "built": built, **render.drift_data(drift)}
        out.envelope(code, data, status="unknown" if code is ExitCode.FAILED else "")
        return code

    _verb("materialize", output, body)


@app.command()
def check(
    manifest: ManifestArgument,
    deep: Annotated[bool, typer.Option("--deep", help="re-read every byte, whatever is remembered")] = False,
    accept: AcceptOption = [],  # noqa: B006  # Typer reads the default, nobody changes it
    reason: ReasonOption = [],  # noqa: B006
    output: OutputOption = Format.TEXT,
) -> None:
    """Say what differs from the lock: all of it, without side effects. 0 clean, 1 drift, 3 could not be told."""

    def body(out: Any) -> ExitCode:
        from pinner import render
        from pinner.command import overrides, tell_unmatched
        from pinner.deploy.check import exit_code
        from pinner.deploy.live import check_all
        from pinner.deploy.load import find_manifest, load_manifest
        from pinner.deploy.locks import load_lock
        from pinner.host.home import home

        deployment = load_manifest(find_manifest(manifest))
        lock_ = load_lock(deployment)
        drift = check_all(deployment, lock_, home(), deep=deep, overrides=overrides(accept, reason))
        code = exit_code(drift)
        render.drift_text(out, drift, deep=deep)
        tell_unmatched(out, drift, accept, reason)
        out.envelope(code, render.drift_data(drift), status="unknown" if code is ExitCode.FAILED else "")
        return code

    _verb("check", output, body)


@app.command()
def up(
    manifest: ManifestArgument,
    locked: Annotated[bool, typer.Option("--locked", help="refuse if there is no lock yet")] = False,
    deep: Annotated[bool, typer.Option("--deep", help="re-read every byte before the launch")] = False,
    accept: AcceptOption = [],  # noqa: B006
    reason: ReasonOption = [],  # noqa: B006
    output: OutputOption = Format.TEXT,
) -> None:
    """Materialize, check, launch, wait until it generates, and check the live processes."""

    def body(out: Any) -> ExitCode:
        from pinner import render
        from pinner.command import overrides, tell_unmatched
        from pinner.deploy.check import exit_code
        from pinner.deploy.launch import UpOptions
        from pinner.deploy.launch import up as bring_up
        from pinner.deploy.load import find_manifest, load_manifest
        from pinner.host.home import home

        deployment = load_manifest(find_manifest(manifest))
        options = UpOptions(locked=locked, deep=deep, overrides=overrides(accept, reason))
        outcome = bring_up(deployment, home(), options, say=out.say)
        code = exit_code(outcome.drift)
        render.up_text(out, outcome)
        tell_unmatched(out, outcome.drift, accept, reason)
        out.envelope(code, render.up_data(outcome), status="unknown" if code is ExitCode.FAILED else "")
        return code

    _verb("up", output, body)


@app.command()
def status(
    which: Annotated[
        str | None, typer.Argument(metavar="[MANIFEST|RUN]", help="one run; all that are up without it")
    ] = None,
    all_: Annotated[bool, typer.Option("--all", help="also runs that have ended")] = False,
    output: OutputOption = Format.TEXT,
) -> None:
    """Show what runs, and whether it really generates. 3 if a run does not serve."""

    def body(out: Any) -> ExitCode:
        from pinner import render
        from pinner.deploy import running
        from pinner.host.home import home

        state = home()
        if which is None:
            shown = running.all_status(state, ended=all_)
            fine = all(item.is_serving or item.was_stopped for item in shown)
        else:
            run = running.find_run(which, state)
            shown = [running.status(run, state)] if run else []
            fine = bool(shown) and shown[0].is_serving
        render.status_text(out, shown)
        code = ExitCode.OK if fine else ExitCode.FAILED
        out.envelope(code, render.status_data(shown))
        return code

    _verb("status", output, body)


@app.command()
def logs(
    which: Annotated[str, typer.Argument(metavar="MANIFEST|RUN")],
    follow: Annotated[bool, typer.Option("-f", "--follow", help="go on until the run ends")] = False,
    lines: Annotated[int, typer.Option("-n", "--lines", min=0, help="how many of the last lines")] = 100,
    output: OutputOption = Format.TEXT,
) -> None:
    """Show the engine's log."""

    def body(out: Any) -> ExitCode:
        from pinner.deploy import running
        from pinner.host.home import home

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

    _verb("logs", output, body)


@app.command()
def down(
    which: Annotated[str, typer.Argument(metavar="MANIFEST|RUN")],
    force: Annotated[
        bool, typer.Option("--force", help="do not wait for the engine to finish its requests")
    ] = False,
    output: OutputOption = Format.TEXT,
) -> None:
    """Stop a run and everything that it started. A second `down` is fine."""

    def body(out: Any) -> ExitCode:
        from pinner import render
        from pinner.deploy import running
        from pinner.host.home import home

        state = home()
        stopped = running.down_all(which, state, force=force)
        render.stopped_text(out, stopped)
        code = ExitCode.FAILED if stopped.survivors else ExitCode.OK
        out.envelope(code, render.stopped_data(stopped))
        return code

    _verb("down", output, body)
