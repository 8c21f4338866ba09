"""Reports of bugs in pinner itself: a traceback goes to a file, never to the terminal."""

from __future__ import annotations

import os
import platform
import sys
import time
import traceback
from pathlib import Path

from pinner import __version__
from pinner.errors import ExitCode, PinnerError
from pinner.host.home import home


class Bug(PinnerError):
    """pinner went wrong where it should have had an answer."""

    exit_code = ExitCode.BUG


def report(command: str, error: BaseException) -> Bug:
    """Write what is needed to mend it, and return the error to show. Variables and their values are left out."""
    text = (
        f"pinner {__version__}, Python {platform.python_version()}, {platform.platform()}\n"
        f"command: {command}\n\n{''.join(traceback.format_exception(error))}"
    )
    if os.environ.get("PINNER_DEBUG"):
        sys.stderr.write(text)
    name = f"bug-{time.strftime('%Y%m%dT%H%M%S')}-{os.getpid()}.txt"
    import tempfile  # noqa: PLC0415  # hardly ever wanted

    try:
        places = [home().logs]
    except PinnerError:
        places = []
    for directory in (*places, Path(tempfile.gettempdir())):
        try:
            directory.mkdir(parents=True, exist_ok=True)
            path = directory / name
            path.write_text(text)
        except OSError:
            continue
        return Bug(f"this is a bug in pinner ({type(error).__name__}: {error}); its report is {path}")
    return Bug(f"this is a bug in pinner ({type(error).__name__}: {error}); set PINNER_DEBUG=1 to see where")
