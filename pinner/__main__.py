"""`python -m pinner` and the `pinner` program."""

from __future__ import annotations

import sys


def run() -> None:
    """Run the command line and exit with its code."""
    from pinner.cli import main

    sys.exit(main())


if __name__ == "__main__":
    run()
