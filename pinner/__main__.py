"""`python -m pinner` and the `pinner` program."""

from __future__ import annotations

import os
import sys

from pinner import __version__


def run() -> None:
    """Run the command line and exit with its code."""
    _open_closed_streams()
    if sys.argv[1:] == ["--version"]:
        # Before anything is loaded; the same option in cli.py serves every other spelling.
        sys.stdout.write(f"pinner {__version__}\n")
        return
    from pinner.cli import main

    sys.exit(main())


def _open_closed_streams() -> None:
    """Under cron or systemd a standard stream may be closed: what is opened next must not take its place."""
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free number, which is this one
    if sys.stdout is None:
        sys.stdout = open(os.devnull, "w")  # noqa: PTH123, SIM115  # for the rest of the process
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")  # noqa: PTH123, SIM115


if __name__ == "__main__":
    run()
