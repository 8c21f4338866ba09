"""The alternative driver: SGLang's own benchmark, of the pinned environment, with its options pinned.

Owns its command line and how its result becomes a measurement; what its names mean is foreign_bench.py's.
"""

from __future__ import annotations

import json
import re
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from pinner.deploy.environment import fixed_variables
from pinner.deploy.workspace import find_workspace, is_in_place
from pinner.errors import CommandFailed, OperationFailed
from pinner.host import process
from pinner.measure.evidence import Measured
from pinner.measure.foreign_bench import measurement_of
from pinner.measure.measuring import Server
from pinner.measure.workload import Workload
from pinner.model.bench import Bench
from pinner.model.record import Load

if TYPE_CHECKING:
    from pinner.measure.session import Place

MODULE = "sglang.bench_serving"


def arguments(bench: Bench, load: Load, url: str, *, seed: int, output: Path) -> tuple[str, ...]:
    """After the interpreter. Without a ratio of 1.0 its lengths would be uniform from 1 to what was asked for."""
    parts = urlsplit(url)
    flags: dict[str, Any] = {
        "backend": "sglang",
        "host": parts.hostname,
        "port": parts.port,
        "dataset-name": "random-ids",
        "random-input-len": bench.input_tokens,
        "random-output-len": bench.output_tokens,
        "random-range-ratio": 1.0,
        "num-prompts": bench.requests,
        "warmup-requests": bench.warmup,
        "seed": seed,
        "temperature": bench.temperature,
        "disable-ignore-eos": not bench.ignore_eos,
        "disable-tqdm": True,
        "output-details": True,
        "output-file": str(output),
        **({"request-rate": load.value} if load.kind == "rate" else {"max-concurrency": int(load.value)}),
        **bench.driver_args,
    }
    rendered = ["-m", MODULE]
    for flag, value in flags.items():
        if value is True:
            rendered.append(f"--{flag}")
        elif value is not False:
            rendered += [f"--{flag}", str(value)]
    return tuple(rendered)


def put(place: Place, server: Server, workload: Workload, load: Load, which: tuple[int, int]) -> Measured:
    """Put one load with it. OperationFailed where it gives no result."""
    bench, (start, repeat) = workload.bench, which
    workspace = find_workspace(place.lock, place.deployment.directory, place.home)
    assert workspace is not None
    env = {**fixed_variables(workspace, in_place=is_in_place(place.lock)), **place.lock.env.set}
    seed = bench.seed if bench.cache == "warm" else bench.seed + 1000 * start + repeat
    with tempfile.TemporaryDirectory(prefix="pinner-bench-") as name:
        output = Path(name) / "result.jsonl"
        argv = arguments(bench, load, server.url, seed=seed, output=output)
        began = time.time()
        try:
            process.run(
                (str(workspace.python), *argv),
                env=env,
                cwd=Path(name),
                timeout_s=bench.timeout_s * bench.requests,
            )
            row = json.loads(output.read_text().splitlines()[-1])
        except CommandFailed as error:
            raise _failure(error) from None
        except (OSError, ValueError, IndexError) as error:
            raise OperationFailed(f"{MODULE} left no result: {error}") from None
    return _measured(row, load, began, bench.requests)


def _failure(error: CommandFailed) -> OperationFailed:
    """Its last line is what went wrong; the lines before say where in its own code."""
    last = error.stderr.strip().splitlines()[-1:] or [error.message]
    missing = re.search(r"No module named '([\w.]+)'", last[0])
    hint = f"add {missing[1]} to python.requirements and lock again" if missing else None
    return OperationFailed(f"{MODULE} failed: {last[0]}", hint=hint)


def _measured(row: dict[str, Any], load: Load, began: float, requests: int) -> Measured:
    one, kept = measurement_of(row, load, began)
    failures = dict(one.failures)
    missing = requests - (one.requests or 0)
    if missing > 0:
        failures["not completed"] = missing
    return Measured(
        began=began,
        duration_s=one.duration_s,
        metrics=one.metrics,
        requests=requests,
        failures=failures,
        input_tokens=one.input_tokens or 0,
        output_tokens=one.output_tokens or 0,
        cached_share=one.cached_share,
        samples=(kept,),
    )
