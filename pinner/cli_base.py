"""What all declarations of commands share: the program, its options, and the way to a verb.

Must not declare a command: cli.py and cli_explain.py do.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import Annotated, Any, NoReturn

import typer

from pinner.errors import ExitCode

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
RecordArgument = Annotated[
    str,
    typer.Argument(
        metavar="RECORD", help="the start of an id, a directory, an exported file, or a manifest's newest"
    ),
]
OutputOption = Annotated[
    Format, typer.Option("--output", help="text, or json: one envelope on stdout", show_default=True)
]
AcceptOption = Annotated[
    list[str], typer.Option("--accept", metavar="KEY", help="let this difference pass (needs a --reason each)")
]
ReasonOption = Annotated[list[str], typer.Option("--reason", metavar="TEXT", help="why the --accept is right")]

# The verbs of this command line that were reached: none where Typer rejects it.
reached: list[str] = []


def verb(command: str, form: Format, call: Callable[[Any], ExitCode]) -> NoReturn:
    """Call a verb's body and end with the exit code that its end means."""
    from pinner.command import run_verb

    reached.append(command)
    raise typer.Exit(int(run_verb(command, form is Format.JSON, call)))
