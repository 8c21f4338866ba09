"""The command that saves what runs: adopt.

Must not decide anything: pinner/deploy/adopt.py does.
"""

from __future__ import annotations

from pathlib import Path

from pinner import render
from pinner.deploy.adopt import adopt as adopt_server
from pinner.deploy.check import exit_code
from pinner.errors import ExitCode
from pinner.host.home import home
from pinner.terminal import Output


def adopt(out: Output, what: str, *, name: str | None, directory: Path) -> ExitCode:
    """Write the manifest and the lock of a running server, and check against them."""
    adopted = adopt_server(what, home(), name=name, directory=directory, say=out.say)
    code = exit_code(adopted.drift)
    render.adopted_text(out, adopted)
    out.envelope(code, render.adopted_data(adopted), status="unknown" if code is ExitCode.FAILED else "")
    return code
