"""Staying with a run until it ends: `up --foreground`, for containers and service managers.

Owns that a signal to this process stops the run and that the run's end is this process's. Must not supervise: the
run has its own supervisor, which outlives this process if it is killed.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from pinner.deploy.running import Run, Status, down, follow, status
from pinner.errors import OperationFailed
from pinner.host import process
from pinner.host.home import Home


def attend(run: Run, home: Home, *, tell: Callable[[], object], show: Callable[[str], object]) -> Status:
    """Tell that a run is up, show its log from the beginning until it ends, and return how it ended.

    SIGTERM and Ctrl-C stop the run, from the moment of this call on; a second one does not wait for its requests.
    """

    def sleep(seconds: float) -> None:
        time.sleep(seconds)
        process.collect_orphans()

    try:
        tell()
        for piece in follow(run, home, lines=None, sleep=sleep):
            show(piece)
    except KeyboardInterrupt:
        _stop(run, home)
    return status(run, home)


def _stop(run: Run, home: Home) -> None:
    try:
        stopped = down(run, home)
    except KeyboardInterrupt:
        stopped = down(run, home, force=True)
    if stopped.survivors:
        raise OperationFailed(f"still alive after {run.run} was stopped: {', '.join(stopped.survivors)}")
