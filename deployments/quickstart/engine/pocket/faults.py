"""Owns the faults that tests ask for with POCKET_FAULT; README.md lists them."""

from __future__ import annotations

import logging
import os
import sys
import time

logger = logging.getLogger(__name__)
NAMES = {
    "hang", "detach", "slow-start", "crash-loading", "overwrite", "stream-error", "early-stop",
    "no-health-generate", "ignore-term",
}  # fmt: skip
# A detached worker ends by itself after this long, should a test forget it.
DETACHED_SECONDS = 300
DETACHED = """
import sys, time
from setproctitle import setproctitle
setproctitle(sys.argv[1])
time.sleep(float(sys.argv[2]))
"""


def active() -> dict[str, str]:
    """The requested faults with their arguments."""
    found = {}
    for item in filter(None, os.environ.get("POCKET_FAULT", "").split(",")):
        name, _, argument = item.partition(":")
        if name not in NAMES:
            raise ValueError(f"POCKET_FAULT: unknown fault {name!r}; known: {', '.join(sorted(NAMES))}")
        found[name] = argument
    return found


def before_spawn() -> None:
    """`overwrite:NAME=VALUE` sets a variable as an engine's start-up code does."""
    assignment = active().get("overwrite")
    if assignment:
        name, _, value = assignment.partition("=")
        os.environ[name] = value


def before_loading(title: str) -> None:
    """In a scheduler, before it loads: the faults `slow-start`, `crash-loading` and `detach`."""
    faults = active()
    if "detach" in faults:
        detach(title, clean=faults["detach"] == "clean")
    time.sleep(float(faults.get("slow-start") or 0))
    if "crash-loading" in faults:
        raise RuntimeError("crashed while loading, as POCKET_FAULT asks")


def detach(title: str, clean: bool) -> None:
    """Leave a process behind that belongs to nobody: forked twice, in a session of its own."""
    told, tell = os.pipe()
    if middle := os.fork():
        os.waitpid(middle, 0)
        logger.warning(f"POCKET_FAULT: left pid {os.read(told, 32).decode()} behind")
        os.close(told)
        os.close(tell)
        return
    os.setsid()
    if left := os.fork():
        os.write(tell, str(left).encode())
        os._exit(0)
    null = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(null, stream)
    os.closerange(3, 4096)
    # In the variant `clean` no variable tells whose it was. One is left, for setproctitle needs a place.
    environment = {"LANG": "C"} if clean else dict(os.environ)
    arguments = [sys.executable, "-c", DETACHED, title, str(DETACHED_SECONDS)]
    os.execve(sys.executable, arguments, environment)
