"""`python -m pinner` and the `pinner` program."""

from __future__ import annotations

import gc
import sys


def run() -> None:
    """Run the command line and exit with its code."""
    # What a command makes lives until it ends. Looking for garbage in it, on the way out too, took a tenth of the
    # time of a warm check.
    gc.set_threshold(100_000)
    from pinner.cli import main

    code = main()
    gc.freeze()
    gc.disable()
    sys.exit(code)


if __name__ == "__main__":
    run()
