"""Owns the entry points of the worker processes: title, parent-death signal, logging, ready message.

Imports numpy only inside the schedulers, after the environment is what it should be.
"""

from __future__ import annotations

import ctypes
import logging
import os
import signal
import sys
from multiprocessing.connection import Connection

from setproctitle import setproctitle

from pocket import faults
from pocket.server_args import ServerArgs

PR_SET_PDEATHSIG = 1


def configure_logging(level: str, part: str = "") -> None:
    logging.basicConfig(
        level=level.upper(),
        format=f"[%(asctime)s{part}] %(message)s",
        datefmt="%Y-%m-%d %H:%M:%S",
        force=True,
    )


def scheduler_title(args: ServerArgs, rank: int) -> str:
    return f"pocket::scheduler_TP{rank}" if args.tp_size > 1 else "pocket::scheduler"


def _enter(title: str, args: ServerArgs, parent: int, part: str = "") -> None:
    """What every worker does first."""
    setproctitle(title)
    configure_logging(args.log_level, part)
    # A Ctrl-C goes to the whole group; the main process decides what follows.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if "ignore-term" in faults.active():
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        sys.exit(f"{title}: the main process is gone")


def scheduler_process(
    args: ServerArgs,
    rank: int,
    parent: int,
    ready: Connection,
    queues: tuple[Connection, Connection] | None,
    peers: list[Connection],
) -> None:
    """Rank 0 has the queues and leads; the other ranks follow it."""
    title = scheduler_title(args, rank)
    _enter(title, args, parent, f" TP{rank}" if args.tp_size > 1 else "")
    faults.before_loading(title)
    from pocket.parallel import Group
    from pocket.scheduler import Scheduler, load_target

    group = Group(rank, peers)
    if queues is None:
        target = load_target(args, group)
        ready.send("ready")
        group.follow(target)
        return
    scheduler = Scheduler(args, *queues, group)
    logging.getLogger(__name__).info(
        f"max_total_num_tokens={args.max_total_tokens}, max_running_requests={args.max_running_requests}, "
        f"context_len={args.context_length}"
    )
    ready.send("ready")
    scheduler.loop()


def detokenizer_process(
    args: ServerArgs, parent: int, ready: Connection, inbox: Connection, outbox: Connection
) -> None:
    _enter("pocket::detokenizer", args, parent)
    from pocket.detokenizer import Detokenizer

    detokenizer = Detokenizer(args, inbox, outbox)
    ready.send("ready")
    detokenizer.loop()
