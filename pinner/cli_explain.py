"""The commands that explain: compare, diff, reproduce. Declarations only, like cli.py."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from pinner.cli_base import AcceptOption, Format, OutputOption, ReasonOption, app, verb

AlphaOption = Annotated[float, typer.Option(metavar="P", help="how often identical code may be called different")]
ToleranceOption = Annotated[float, typer.Option(metavar="SHARE", help="a change that nobody minds: 0.02 is 2 %")]


def compare(
    before: Annotated[
        str, typer.Argument(metavar="A", help="a record: the beginning of its id, a path, a manifest")
    ],
    after: Annotated[str, typer.Argument(metavar="B", help="the record that is judged against it")],
    tolerance: ToleranceOption = 0.02,
    alpha: AlphaOption = 0.05,
    accept: AcceptOption = [],  # noqa: B006
    reason: ReasonOption = [],  # noqa: B006
    output: OutputOption = Format.TEXT,
) -> None:
    """Judge B against A. 0 equivalent or better, 1 worse, 2 not comparable, 3 inconclusive or unknown."""
    verb(
        "compare",
        output,
        lambda out: _explaining().compare(
            out, before, after, tolerance=tolerance, alpha=alpha, accepted=(accept, reason)
        ),
    )


def diff(
    before: Annotated[
        str, typer.Argument(metavar="A", help="a record, a manifest, a lock, or `now`: this machine")
    ],
    after: Annotated[str, typer.Argument(metavar="B", help="the same")],
    output: OutputOption = Format.TEXT,
) -> None:
    """Say what differs, the likeliest cause of a changed speed first. 0 the same, 1 different."""
    verb("diff", output, lambda out: _explaining().diff(out, before, after))


def reproduce(
    which: Annotated[
        str,
        typer.Argument(metavar="RECORD|MANIFEST", help="a manifest means its newest record, or its expectations"),
    ],
    bench: Annotated[
        str | None,
        typer.Option("--bench", metavar="NAME", help="which [bench.NAME] of a manifest"),
    ] = None,
    tolerance: Annotated[
        float, typer.Option(metavar="SHARE", help="a loss that nobody minds: 0.05 is 5 %")
    ] = 0.05,
    alpha: AlphaOption = 0.05,
    starts_max: Annotated[int, typer.Option(metavar="N", help="the most fresh starts to judge by")] = 8,
    directory: Annotated[
        Path | None, typer.Option(metavar="DIR", help="where to write the deployment; a new directory")
    ] = None,
    place: Annotated[
        list[str], typer.Option(metavar="KEY=PATH", help="where a local path of the record lies on this machine")
    ] = [],  # noqa: B006
    accept: AcceptOption = [],  # noqa: B006
    reason: ReasonOption = [],  # noqa: B006
    output: OutputOption = Format.TEXT,
) -> None:
    """Rebuild a past result from its record and measure it again. 0 reproduced, 1 not, 3 inconclusive."""

    def call(out: Any) -> Any:
        body = _explaining()
        asked = body.Asked(tolerance, alpha, starts_max, directory, place, bench, (accept, reason))
        return body.reproduce(out, which, asked)

    verb("reproduce", output, call)


def declare() -> None:
    """Add these commands to the program, after those that are there."""
    for command in (compare, diff, reproduce):
        app.command()(command)


def _explaining() -> Any:
    from pinner.verbs import explaining

    return explaining
