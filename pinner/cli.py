"""The command line: parse, call one verb, hand the result to render.

Typer declarations only; the bodies of the commands are in pinner/verbs/.
"""

from __future__ import annotations

import sys
from enum import StrEnum
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer

from pinner import __version__, cli_explain
from pinner.cli_base import (
    AcceptOption,
    Format,
    ManifestArgument,
    OutputOption,
    ReasonOption,
    RecordArgument,
    app,
    reached,
)
from pinner.cli_base import verb as _verb
from pinner.errors import ExitCode

records_app = typer.Typer(rich_markup_mode=None)
app.add_typer(records_app, name="records")


class Kind(StrEnum):
    """What a file that is imported can be."""

    RECORD = "record"
    LOG = "sglang-log"
    BENCH = "bench-serving"


def main(argv: list[str] | None = None) -> int:
    """Run one command line and return its exit code; the only way in, also for tests."""
    argv = sys.argv[1:] if argv is None else argv
    reached.clear()
    try:
        app(args=_with_upgrade_value(argv), prog_name="pinner")
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else ExitCode.OK if stop.code is None else ExitCode.INVALID
        if code == ExitCode.INVALID and not reached:
            from pinner.command import reject

            reject(argv)
        # Where no verb was reached 1 is Click's word for Ctrl-C, and must not read as drift.
        return ExitCode.INTERRUPTED if code == ExitCode.DIFFERENT and not reached else int(code)
    except KeyboardInterrupt:
        return ExitCode.INTERRUPTED
    return ExitCode.OK


def _with_upgrade_value(argv: list[str]) -> list[str]:
    """`--upgrade` may stand alone, which Typer cannot declare: then it means everything."""
    if "--upgrade" not in argv:
        return argv
    at = argv.index("--upgrade")
    following = argv[at + 1] if at + 1 < len(argv) else "-"
    alone = following.startswith("-") or following.endswith((".toml", ".lock"))
    return [*argv[: at + 1], "*", *argv[at + 1 :]] if alone else argv


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
    _verb("init", output, lambda out: _pins().init(out, name, directory))


@app.command()
def adopt(
    what: Annotated[
        str, typer.Argument(metavar="PID|URL", help="a process of a server that runs here, or its URL")
    ],
    name: Annotated[
        str | None,
        typer.Option("--name", metavar="NAME", help="the deployment's name; from the model's without it"),
    ] = None,
    directory: Annotated[Path, typer.Option(help="where to write NAME.toml and NAME.lock")] = Path(),
    output: OutputOption = Format.TEXT,
) -> None:
    """Write manifest and lock of a server that runs now, and check against them. 0 clean, 1 drift, 3 unknown."""
    _verb("adopt", output, lambda out: _adopting().adopt(out, what, name=name, directory=directory))


@app.command()
def lock(
    manifest: ManifestArgument,
    check: Annotated[bool, typer.Option("--check", help="offline: is the lock current? 1 if it is stale")] = False,
    upgrade: Annotated[
        str | None,
        typer.Option(
            metavar="[NAME]",
            help="take the newest of everything, or of one package, or of `engine`, `model` or `draft`",
        ),
    ] = None,
    capture: Annotated[
        bool, typer.Option("--capture", help="also pin this machine as it is now, as the golden one")
    ] = False,
    output: OutputOption = Format.TEXT,
) -> None:
    """Resolve everything and write NAME.lock and pylock.NAME.toml."""
    if check:
        _verb("lock", output, lambda out: _pins().lock_check(out, manifest))
    wanted = upgrade == "*" or upgrade or False
    _verb("lock", output, lambda out: _pins().lock(out, manifest, upgrade=wanted, capture=capture))


@app.command()
def materialize(
    manifest: ManifestArgument,
    rebuild: Annotated[bool, typer.Option("--rebuild", help="build it anew, whatever is there")] = False,
    output: OutputOption = Format.TEXT,
) -> None:
    """Build the workspace that the lock describes, or verify the one that is there. 1 if that has drifted."""
    _verb("materialize", output, lambda out: _pins().materialize(out, manifest, rebuild=rebuild))


@app.command()
def check(
    manifest: ManifestArgument,
    deep: Annotated[bool, typer.Option("--deep", help="re-read every byte, whatever is remembered")] = False,
    accept: AcceptOption = [],  # noqa: B006  # Typer reads the default, nobody changes it
    reason: ReasonOption = [],  # noqa: B006
    output: OutputOption = Format.TEXT,
) -> None:
    """Say what differs from the lock: all of it, without side effects. 0 clean, 1 drift, 3 could not be told."""
    _verb("check", output, lambda out: _pins().check(out, manifest, deep=deep, accepted=(accept, reason)))


@app.command()
def up(
    manifest: ManifestArgument,
    locked: Annotated[bool, typer.Option("--locked", help="refuse if there is no lock yet")] = False,
    deep: Annotated[bool, typer.Option("--deep", help="re-read every byte before the launch")] = False,
    foreground: Annotated[
        bool, typer.Option("--foreground", help="stay until the server ends; SIGTERM and Ctrl-C stop it")
    ] = False,
    accept: AcceptOption = [],  # noqa: B006
    reason: ReasonOption = [],  # noqa: B006
    output: OutputOption = Format.TEXT,
) -> None:
    """Materialize, check, launch, wait until it generates, and check the live processes."""
    how = {"locked": locked, "deep": deep, "foreground": foreground}
    _verb("up", output, lambda out: _serving().up(out, manifest, **how, accepted=(accept, reason)))


@app.command()
def status(
    which: Annotated[
        str | None, typer.Argument(metavar="[MANIFEST|RUN]", help="one run; all that are up without it")
    ] = None,
    all_: Annotated[bool, typer.Option("--all", help="also runs that have ended")] = False,
    output: OutputOption = Format.TEXT,
) -> None:
    """Show what runs, and whether it really generates. 3 if a run does not serve."""
    _verb("status", output, lambda out: _serving().status(out, which, ended=all_))


@app.command()
def logs(
    which: Annotated[str, typer.Argument(metavar="MANIFEST|RUN")],
    follow: Annotated[bool, typer.Option("-f", "--follow", help="go on until the run ends")] = False,
    lines: Annotated[int, typer.Option("-n", "--lines", min=0, help="how many of the last lines")] = 100,
    output: OutputOption = Format.TEXT,
) -> None:
    """Show the engine's log."""
    _verb("logs", output, lambda out: _serving().logs(out, which, follow=follow, lines=lines))


@app.command()
def down(
    which: Annotated[str, typer.Argument(metavar="MANIFEST|RUN")],
    force: Annotated[
        bool, typer.Option("--force", help="do not wait for the engine to finish its requests")
    ] = False,
    output: OutputOption = Format.TEXT,
) -> None:
    """Stop a run and everything that it started. A second `down` is fine."""
    _verb("down", output, lambda out: _serving().down(out, which, force=force))


@app.command()
def bench(
    manifest: ManifestArgument,
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="which [bench.NAME]; the only one without")
    ] = None,
    attach: Annotated[
        bool, typer.Option("--attach", help="measure the server that is up, not fresh ones")
    ] = False,
    accept: AcceptOption = [],  # noqa: B006
    reason: ReasonOption = [],  # noqa: B006
    output: OutputOption = Format.TEXT,
) -> None:
    """Check, measure, check again, write the record. 1 if an expectation is not met, 2 if it does not count."""
    _verb(
        "bench",
        output,
        lambda out: _measuring().bench(out, manifest, name, attach=attach, accepted=(accept, reason)),
    )


@records_app.callback(invoke_without_command=True)
def records(
    context: typer.Context,
    deployment: Annotated[str | None, typer.Option(metavar="NAME", help="only of this deployment")] = None,
    bench: Annotated[str | None, typer.Option(metavar="NAME", help="only of this bench")] = None,
    since: Annotated[str | None, typer.Option(metavar="TIME", help="2026-11-23, or 12h, 7d, 2w ago")] = None,
    valid: Annotated[bool, typer.Option("--valid", help="only those that may serve as a baseline")] = False,
    output: OutputOption = Format.TEXT,
) -> None:
    """List what was measured, newest first; the commands below show, carry and sign records."""
    if context.invoked_subcommand is None:
        wanted = {"deployment": deployment, "bench": bench, "since": since, "valid": valid}
        _verb("records", output, lambda out: _records().list_(out, **wanted))


@records_app.command("show")
def records_show(record: RecordArgument, output: OutputOption = Format.TEXT) -> None:
    """Show one record: what was measured, under which pins, what came out. 2 if it is damaged."""
    _verb("records show", output, lambda out: _records().show(out, record))


@records_app.command("export")
def records_export(
    record: RecordArgument,
    file: Annotated[Path, typer.Argument(metavar="[FILE]", help="a new file, or a directory")] = Path(),
    output: OutputOption = Format.TEXT,
) -> None:
    """Write a record with all that belongs to it to one file."""
    _verb("records export", output, lambda out: _records().export(out, record, file))


@records_app.command("import")
def records_import(
    file: Annotated[Path, typer.Argument(metavar="FILE")],
    kind: Annotated[
        Kind | None, typer.Option(help="what FILE is; without it, it is told by how it begins")
    ] = None,
    deployment: Annotated[
        str | None, typer.Option(metavar="NAME", help="whose log or result it is; by default FILE's name")
    ] = None,
    ended: Annotated[
        str | None, typer.Option(metavar="TIME", help="when a result without times was measured")
    ] = None,
    output: OutputOption = Format.TEXT,
) -> None:
    """Take in an exported record, verified, or an SGLang log or bench_serving result as a foreign one."""
    given = {"kind": kind and kind.value, "deployment": deployment, "ended": ended}
    _verb("records import", output, lambda out: _records().import_(out, file, **given))


@records_app.command("sign")
def records_sign(
    record: RecordArgument,
    key: Annotated[Path, typer.Option(metavar="FILE", help="an SSH key; its .pub if the agent holds it")],
    output: OutputOption = Format.TEXT,
) -> None:
    """Sign a record with an SSH key; the signature travels with it."""
    _verb("records sign", output, lambda out: _records().sign(out, record, key))


@records_app.command("verify")
def records_verify(
    record: RecordArgument,
    allowed_signers: Annotated[
        Path | None, typer.Option(metavar="FILE", help="demand a signature by one of these; see ssh-keygen(1)")
    ] = None,
    output: OutputOption = Format.TEXT,
) -> None:
    """Read every byte of a record again, and tell who signed it. 2 if anything is not as it was written."""
    _verb("records verify", output, lambda out: _records().verify(out, record, allowed_signers))


cli_explain.declare()


def _bodies(name: str) -> Any:
    """A module of commands' bodies, imported when one is called, so that `--help` stays instant."""
    return import_module(f"pinner.verbs.{name}")


_pins, _serving, _measuring, _adopting, _records = (
    partial(_bodies, name) for name in ("pins", "serving", "measuring", "adopting", "records")
)
