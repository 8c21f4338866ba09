"""Owns the main process: arguments, environment, workers, start-up, shutdown. Run as a module.

HTTP is bound only after all workers have loaded. The server lives exactly as long as all its workers do.
Must not import numpy: starting quickly is a feature.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import shlex
import signal
import sys
import threading
import time
import uuid
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess

from pocket import faults, workers
from pocket.server_args import ServerArgs, parse_args

logger = logging.getLogger("pocket.launch_server")
WARMUP_PROMPT = "The capital city of France is"


class Stopped(Exception):
    """A signal asked the server to end."""


class WorkerDied(Exception):
    """A worker ended before the server did."""


def set_environment() -> None:
    """What the engine sets by itself before it spawns workers, as SGLang does."""
    os.environ.setdefault("NCCL_CUMEM_ENABLE", "0")
    os.environ.setdefault("NCCL_NVLS_ENABLE", "0")
    os.environ["CUDA_DEVICE_MAX_CONNECTIONS"] = "8"
    os.environ["POCKET_RUN_ID"] = f"pocket-run-{time.time_ns()}-{uuid.uuid4().hex[:8]}"
    # One BLAS thread: matrices this small only lose by more.
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ.setdefault(name, "1")
    faults.before_spawn()


class Workers:
    """The worker processes, by title, and the main process's two ends of their queue."""

    def __init__(self, args: ServerArgs) -> None:
        self.processes: dict[str, SpawnProcess] = {}
        self.context = multiprocessing.get_context("spawn")
        self.ready: dict[str, Connection] = {}
        scheduler_in, self.to_scheduler = self.context.Pipe(duplex=False)
        detokenizer_in, scheduler_out = self.context.Pipe(duplex=False)
        self.from_detokenizer, detokenizer_out = self.context.Pipe(duplex=False)
        pairs = [self.context.Pipe() for _ in range(args.tp_size - 1)]
        self._start(
            workers.scheduler_title(args, 0), workers.scheduler_process, args, 0,
            queues=(scheduler_in, scheduler_out), peers=[leader for leader, _ in pairs],
        )  # fmt: skip
        for rank, (_, follower) in enumerate(pairs, 1):
            title = workers.scheduler_title(args, rank)
            self._start(title, workers.scheduler_process, args, rank, queues=None, peers=[follower])
        self._start(
            "pocket::detokenizer", workers.detokenizer_process, args,
            inbox=detokenizer_in, outbox=detokenizer_out,
        )  # fmt: skip
        # Only the workers may hold their own ends, or nobody would see that one is gone.
        ends = [scheduler_in, scheduler_out, detokenizer_in, detokenizer_out]
        for end in ends + [end for pair in pairs for end in pair]:
            end.close()

    def _start(self, title: str, target: object, *args: object, **kwargs: object) -> None:
        receiver, sender = self.context.Pipe(duplex=False)
        kwargs |= {"parent": os.getpid(), "ready": sender}
        process = self.context.Process(target=target, name=title, args=args, kwargs=kwargs, daemon=True)
        process.start()
        sender.close()
        self.processes[title], self.ready[title] = process, receiver

    def wait_ready(self) -> None:
        """Until every worker has loaded; raises WorkerDied if one does not."""
        for title, receiver in self.ready.items():
            try:
                receiver.recv()
            except EOFError:
                self.processes[title].join(5)
                raise WorkerDied(self._obituary(title)) from None

    def watch(self) -> None:
        """Returns never: raises WorkerDied when a worker ends."""
        sentinels = {process.sentinel: title for title, process in self.processes.items()}
        gone = wait(list(sentinels))
        title = sentinels[gone[0]]
        self.processes[title].join(1)
        raise WorkerDied(self._obituary(title))

    def _obituary(self, title: str) -> str:
        code = self.processes[title].exitcode
        how = f"signal {-code}" if code is not None and code < 0 else f"exit code {code}"
        return f"{title} (pid {self.processes[title].pid}) ended with {how}"

    def stop(self) -> None:
        """End all workers, within a second."""
        for process in self.processes.values():
            process.terminate()
        deadline = time.monotonic() + 1
        for process in self.processes.values():
            process.join(max(0.0, deadline - time.monotonic()))
            if process.is_alive():
                process.kill()
                process.join(1)


def serve(args: ServerArgs, pool: Workers) -> None:
    """Bind and answer, until something raises."""
    from pocket.http_server import Server
    from pocket.sampling_params import SamplingParams
    from pocket.tokenizer_manager import TokenizerManager

    manager = TokenizerManager(args, pool.to_scheduler, pool.from_detokenizer)
    pool.wait_ready()
    server = Server(manager, shlex.join([sys.executable, "-m", "pocket.launch_server", *sys.argv[1:]]))
    threading.Thread(target=server.serve_forever, name="http", daemon=True).start()
    logger.info(f"Pocket running on http://{args.host}:{server.server_port}")

    def warm_up() -> None:
        if not (args.skip_server_warmup or "hang" in manager.faults):
            params = SamplingParams(max_new_tokens=8, temperature=0)
            generation = manager.generate(manager.tokenizer.encode(WARMUP_PROMPT), params, False)
            list(generation)
            generation.close()
        server.status = "Ready"
        logger.info("The server is fired up and ready to roll!")

    # In a thread, so that a worker's death during warm-up is seen.
    threading.Thread(target=warm_up, name="warm-up", daemon=True).start()
    pool.watch()


def main() -> int:
    def stop(number: int, _: object) -> None:
        raise Stopped(signal.Signals(number).name)

    args = parse_args(sys.argv[1:])
    workers.configure_logging(args.log_level)
    try:
        requested = faults.active()
    except ValueError as error:
        logger.error(str(error))
        return 2
    signal.signal(signal.SIGTERM, signal.SIG_IGN if "ignore-term" in requested else stop)
    signal.signal(signal.SIGINT, stop)
    logger.info(f"server_args={args}")
    set_environment()
    pool = None
    try:
        pool = Workers(args)
        serve(args, pool)
    except Stopped as reason:
        logger.info(f"Received {reason}, shutting down")
        return 0
    except WorkerDied as reason:
        logger.error(f"{reason}; shutting down")
        return 1
    except OSError as error:
        logger.error(f"cannot serve on {args.host}:{args.port}: {error}")
        return 1
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if pool:
            pool.stop()
    return 0


if __name__ == "__main__":
    status = main()
    sys.stderr.flush()
    # Connections may still be open; their threads must not keep the process.
    os._exit(status)
