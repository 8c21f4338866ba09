"""Start: `pinner --version` against the smallest Typer program, and what a bare interpreter costs."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from paired import command, paired

HELLO = """\
import typer
app = typer.Typer(add_completion=False)
@app.command()
def hello() -> None:
    typer.echo("hello")
app()
"""


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        program = Path(name) / "hello.py"
        program.write_text(HELLO)
        hello = command([sys.executable, str(program)])
        version = command([sys.executable, "-m", "pinner", "--version"])
        paired("pinner --version against a Typer hello-world", version, hello, limit=1.1)
        declared = command([sys.executable, "-m", "pinner", "check", "--help"])
        paired("pinner check --help, all commands declared, against the same", declared, hello)
        bare = command([sys.executable, "-c", "pass"])
        paired("Typer hello-world against python -c pass", hello, bare)


if __name__ == "__main__":
    main()
