"""One server under test, from its launch to its end: warm-up, measurements, the check after, what it leaves.

Owns that the server is stopped whatever happens, unless it was up before. Must not write records: bench.py does.
"""

from __future__ import annotations

import gzip
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from pinner.deploy import check as checking
from pinner.deploy.environment import without_secrets
from pinner.deploy.launch import UpOptions, up_with
from pinner.deploy.live import check_live
from pinner.deploy.load import Deployment
from pinner.deploy.running import SERVER_LOG, Run, down, run_directory
from pinner.engines import engine_for
from pinner.host import procfs, runs
from pinner.host.home import Home
from pinner.host.http import Http, HttpFailed
from pinner.measure import bench_serving, evidence, measuring
from pinner.measure.foreign_log import without_secrets as without_passwords
from pinner.measure.measuring import Server
from pinner.measure.samples import packed
from pinner.measure.telemetry import Telemetry
from pinner.measure.workload import Workload
from pinner.model.facts import Drift, Override, accept
from pinner.model.lock import Lock
from pinner.model.record import Load, Measurement, Start
from pinner.probes.machine_now import gpu_places

Say = Callable[[str], None]


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """What is measured where: the deployment, the lock of its servers, the state directory, what is accepted."""

    deployment: Deployment
    lock: Lock
    home: Home
    overrides: tuple[Override, ...] = ()
    say: Say = lambda _line: None


class Session(msgspec.Struct, kw_only=True):
    """What came of one start. `refused` is set where drift kept it from being measured: then nothing else is."""

    start: Start | None = None
    before: Drift = Drift()
    after: Drift | None = None
    refused: bool = False
    measurements: list[Measurement] = []
    files: dict[str, bytes] = {}
    notes: list[str] = []
    url: str = ""


def fresh(place: Place, workload: Workload, number: int) -> Session:
    """Start a server, measure it, check it again and stop it. Raises LaunchFailed and what `up` raises."""
    began = time.time()
    options = UpOptions(locked=True, overrides=place.overrides)
    outcome = up_with(place.deployment, place.lock, place.home, options, say=place.say)
    if outcome.run is None:
        return Session(before=outcome.drift, refused=True)
    session = Session(before=outcome.drift, url=outcome.run.url)
    try:
        _measure(place, workload, outcome.run, session, (number, began, time.time() - began))
    except BaseException as error:
        down(outcome.run, place.home, by="bench", force=isinstance(error, KeyboardInterrupt))
        raise
    down(outcome.run, place.home, by="bench")
    return session


def attached(place: Place, workload: Workload, run: Run) -> Session:
    """Measure a server that is up, and leave it as it is."""
    scene = checking.scene_for(place.deployment, place.lock, place.home)
    drift = checking.joined([checking.check(scene), check_live(run, scene, place.home)])
    drift = accept(drift, place.overrides)
    if not drift.is_clean:
        return Session(before=drift, refused=True)
    session = Session(before=drift, url=run.url)
    _measure(place, workload, run, session, (0, run.started, None))
    return session


def _measure(
    place: Place, workload: Workload, run: Run, session: Session, when: tuple[int, float, float | None]
) -> None:
    number, began, ready_s = when
    directory = run_directory(place.home, run.run)
    engine = engine_for(place.lock.engine.kind)
    server = Server(
        engine=engine,
        http=Http(),
        url=run.url,
        log=directory / SERVER_LOG,
        speculates=place.lock.draft is not None,
    )
    state = runs.read_state(directory)
    pid = state.server.pid if state.server else None
    env = procfs.environ(pid) if pid else {}
    version, account = _account(server)
    with Telemetry(pid, gpu_places(place.lock)) as telemetry:
        for repeat in range(workload.bench.repeats):
            for load in workload.loads():
                if runs.is_alive(directory):
                    _one(place, workload, server, session, (number, repeat, load, telemetry))
    session.after = _check(place, run)
    invalid = _against(session.after, directory)
    session.notes += [f"start {number + 1}: {note}" for note in evidence.worth_knowing(telemetry.gpus)]
    if telemetry.is_blind:
        session.notes.append(f"start {number + 1}: the GPUs could not be sampled")
    session.files[f"telemetry/start-{number}.jsonl.gz"] = telemetry.compressed()
    log = _log(server.log, place.lock, env if isinstance(env, dict) else {})
    session.files[f"logs/start-{number}.log.gz"] = log
    session.start = Start(
        run=run.run,
        began=began,
        ready_s=ready_s,
        engine_version=version,
        account=account,
        caches=run.caches.state if run.caches else "",
        log=f"logs/start-{number}.log.gz",
        telemetry=f"telemetry/start-{number}.jsonl.gz",
        invalid=tuple(invalid),
    )


def _one(
    place: Place, workload: Workload, server: Server, session: Session, which: tuple[int, int, Load, Telemetry]
) -> None:
    number, repeat, load, telemetry = which
    bench = workload.bench
    name = f"start {number + 1}/{bench.starts} · {load.name} · {repeat + 1}/{bench.repeats}"
    is_foreign = bench.driver != "pinner"
    if repeat == 0 and not is_foreign:
        place.say(f"{name}: warming up")
        failed = measuring.warm_up(server, workload, load, start=number)
        if failed:
            session.notes.append(f"{name}: of the warm-up failed: {failed}")
    is_flushed = _flush(server, session, name) if bench.cache == "flush" else None
    place.say(f"{name}: {bench.requests} requests")
    telemetry.take()
    telemetry.since = time.monotonic()
    # What the GPUs were like just before belongs to it: a short measurement may lie between two samples.
    first, first_gpu = len(telemetry.samples) - 1, max(0, len(telemetry.gpus) - 1)
    if is_foreign:
        measured = bench_serving.put(place, server, workload, load, (number, repeat))
    else:
        measured = measuring.put(server, workload, load, start=number, repeat=repeat)
    telemetry.since = None
    telemetry.take()
    invalid = [
        *evidence.against_measured(bench, measured, is_flushed=is_flushed),
        *evidence.against_machine(telemetry.samples[first:], telemetry.gpus[first_gpu:]),
    ]
    file = f"samples/start-{number}-repeat-{repeat}-{load.kind}-{load.value:g}.jsonl.gz"
    session.files[file] = packed(measured.samples)
    session.measurements.append(
        Measurement(
            start=number,
            repeat=repeat,
            load=load,
            began=measured.began,
            duration_s=measured.duration_s,
            metrics=measured.metrics,
            requests=measured.requests,
            failures=measured.failures,
            input_tokens=measured.input_tokens,
            output_tokens=measured.output_tokens,
            cached_share=measured.cached_share,
            is_flushed=is_flushed,
            client_lag_ms=measured.lag_ms,
            invalid=tuple(invalid),
            samples=file,
        )
    )
    place.say(f"{name}: {_told(measured, invalid)}")


def _told(measured: evidence.Measured, invalid: list[str]) -> str:
    if invalid:
        return f"does not count: {invalid[0]}"
    found = measured.metrics
    accepted = f", accept length {found['accept_length']:.2f}" if "accept_length" in found else ""
    return f"{found['output_throughput']:.1f} tok/s, TTFT {found.get('ttft_median_ms', 0):.1f} ms{accepted}"


def _flush(server: Server, session: Session, name: str) -> bool:
    why = server.engine.flush(server.http, server.url)
    if why is not None:
        session.notes.append(f"{name}: the prefix cache was not emptied: {why}")
    return why is None


def _account(server: Server) -> tuple[str | None, dict[str, Any]]:
    try:
        account = server.engine.account(server.http, server.url)
        found = {name: without_passwords(value) for name, value in account.items()}
        return server.engine.state(server.http, server.url).version, found
    except HttpFailed:
        return None, {}


def _check(place: Place, run: Run) -> Drift:
    scene = checking.scene_for(place.deployment, place.lock, place.home)
    drift = checking.joined([checking.check(scene), check_live(run, scene, place.home)])
    return accept(drift, place.overrides)


def _against(drift: Drift, directory: Path) -> list[str]:
    """Why nothing of a start counts, by the check after it."""
    if not runs.is_alive(directory):
        return ["the server ended while it was measured"]
    names = [item.name for item in (*drift.differences, *drift.unknown)]
    if not names:
        return []
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    word = "differs from the lock" if drift.differences else "can no longer be told"
    return [f"the check after the measuring: {', '.join(names[:3])}{more} {word}"]


def _log(path: Path, lock: Lock, env: Mapping[str, str]) -> bytes:
    try:
        text = path.read_bytes().decode(errors="replace")
    except OSError:
        text = ""
    return gzip.compress(without_secrets(text, lock.env, env).encode(), mtime=0)
