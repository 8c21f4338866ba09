"""`bench`: check, measure, check again, write the record.

Owns the refusals, the order of starts, interleaved with those of the baseline, and what stands in the record. One
server is measured at a time, and one benchmark runs on a machine.
"""

from __future__ import annotations

import difflib
import platform
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec

from pinner import __version__
from pinner.deploy.load import Deployment
from pinner.deploy.locks import load_lock
from pinner.deploy.materialize import materialize
from pinner.deploy.running import Run, live_run
from pinner.engines import engine_for
from pinner.errors import Busy, OperationFailed, PinnerError, UsageError
from pinner.host.files import exclusive
from pinner.host.home import Home
from pinner.measure import dataset, verdicts
from pinner.measure.client import SPARE_FILES, raise_file_limit
from pinner.measure.record_pins import deployment_files
from pinner.measure.records import Stored, store
from pinner.measure.session import Place, Say, Session, attached, fresh
from pinner.measure.workload import Workload, ordinary_tokens
from pinner.model.bench import Bench
from pinner.model.facts import Drift, Override
from pinner.model.lock import Lock
from pinner.model.record import DEPLOYMENT, FORMAT, READS_FORMAT, Measurement, Record, name_problem
from pinner.probes.machine_now import machine_now
from pinner.probes.target import weights_directory
from pinner.render import drift_data


class BenchOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How `bench` was asked.

    `reproduces` is the record that this one repeats: then no baseline is measured, `starts` is the most starts,
    and none is made any more as soon as `is_enough` says so of what was measured.
    """

    attach: bool = False
    overrides: tuple[Override, ...] = ()
    reproduces: str | None = None
    starts: int | None = None
    is_enough: Callable[[Sequence[Measurement]], bool] = lambda _measured: False
    say: Say = lambda _line: None


class BenchOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """The record, and that of the baseline; or the drift because of which nothing was measured."""

    stored: Stored | None
    baseline: Stored | None = None
    drift: Drift


class _Plan(msgspec.Struct, kw_only=True):
    """One bench under way. `stopped` says why no further start was made."""

    name: str
    place: Place
    workload: Workload
    sessions: list[Session] = []
    stopped: str = ""


def bench(deployment: Deployment, name: str | None, home: Home, options: BenchOptions) -> BenchOutcome:
    """Measure. Raises UsageError, LockError, Busy, LaunchFailed; drift before the first start is an outcome."""
    lock = load_lock(deployment)
    own = _plan(deployment, lock, chosen(deployment, name), home, options)
    baseline = own.workload.bench.baseline
    run = live_run(home, deployment.key)
    plans = [own]
    if options.attach:
        _refuse_attach(own, run, deployment)
    elif run is not None:
        raise Busy(
            f"{run.run} is up, and a benchmark starts servers of its own",
            hint=f"`pinner down {run.run}` first, or measure that one with --attach",
        )
    elif baseline is not None and options.reproduces is None:
        plans.append(_plan(deployment, lock, baseline, home, options))
    for plan in plans:
        raise_file_limit(_most_streams(plan.workload.bench) + SPARE_FILES)
    with exclusive(home.root / "locks" / "bench", what="measuring on this machine", timeout_s=0):
        began = time.time()
        machine = machine_now(lock)
        for plan, number in _order(plans, options):
            is_first = not any(one.sessions for one in plans)
            session = _session(plan, number, run if options.attach else None, is_first=is_first)
            if session is not None and session.refused and is_first:
                return BenchOutcome(stored=None, drift=session.before)
            plan.sessions += [session] if session is not None else []
            if options.is_enough([one for session in own.sessions for one in session.measurements]):
                break
        return _recorded(plans, options, (began, machine))


def chosen(deployment: Deployment, name: str | None) -> str:
    """The bench that is meant; without a name the only one. UsageError."""
    benches = deployment.manifest.bench
    if name is None and len(benches) == 1:
        return next(iter(benches))
    if not benches:
        raise UsageError(
            f"{deployment.shown} has no [bench.NAME]", hint="docs/manifest.md shows one; `expect` may come later"
        )
    if name is None:
        measured = [one for one in benches if all(other.baseline != one for other in benches.values())]
        if len(measured) == 1:
            return measured[0]
        raise UsageError(f"{deployment.shown} has several benches: name one of {', '.join(benches)}")
    if name not in benches:
        near = difflib.get_close_matches(name, benches, n=1)
        more = f"did you mean {near[0]!r}?" if near else f"it has {', '.join(benches)}"
        raise UsageError(f"{deployment.shown} has no [bench.{name}]; {more}")
    return name


def lock_for(bench: Bench, lock: Lock) -> Lock:
    """The lock of the servers that a bench measures: without the draft where it leaves speculation out."""
    if bench.speculation:
        return lock
    argv = engine_for(lock.engine.kind).without_draft(lock.engine.argv)
    return msgspec.structs.replace(lock, draft=None, engine=msgspec.structs.replace(lock.engine, argv=argv))


def _plan(deployment: Deployment, lock: Lock, name: str, home: Home, options: BenchOptions) -> _Plan:
    wanted = deployment.manifest.bench[name]
    if options.starts is not None:
        wanted = msgspec.structs.replace(wanted, starts=options.starts)
    rows = dataset.rows_of(name, wanted, lock.bench, deployment.directory)
    made_up = not rows and wanted.driver == "pinner"
    model = weights_directory(deployment.directory, home, lock.model)
    if made_up and not (model / "config.json").is_file():
        # Of a repository on the Hub nothing lies here before.
        materialize(deployment, lock, home, say=options.say)
    return _Plan(
        name=name,
        place=Place(
            deployment=deployment,
            lock=lock_for(wanted, lock),
            home=home,
            overrides=options.overrides,
            say=options.say,
        ),
        workload=Workload(
            bench=wanted,
            rows=rows,
            tokens=ordinary_tokens(model) if made_up else (),
            request=engine_for(lock.engine.kind).request,
        ),
    )


def _refuse_attach(plan: _Plan, run: Run | None, deployment: Deployment) -> None:
    if run is None:
        raise OperationFailed(
            f"{deployment.shown} is not up", hint=f"`pinner up {deployment.shown}`, or leave --attach out"
        )
    if not plan.workload.bench.speculation and deployment.manifest.draft is not None:
        raise UsageError(
            f"[bench.{plan.name}] leaves the draft out, and {run.run} runs with it: leave --attach out"
        )


def _most_streams(bench: Bench) -> int:
    return bench.requests if bench.rate else min(max(bench.concurrency or (1,)), bench.requests)


def _order(plans: Sequence[_Plan], options: BenchOptions) -> Iterator[tuple[_Plan, int]]:
    """The starts of all plans, interleaved, the first one changing: what drifts slowly hits all alike."""
    if options.attach:
        yield plans[0], 0
        return
    for number in range(max(plan.workload.bench.starts for plan in plans)):
        for plan in plans if number % 2 == 0 else reversed(plans):
            if number < plan.workload.bench.starts:
                yield plan, number


def _session(plan: _Plan, number: int, run: Run | None, *, is_first: bool) -> Session | None:
    """One start; None where there is none to be had any more. What was measured before must not be lost."""
    if plan.stopped:
        return None
    if run is not None:
        return attached(plan.place, plan.workload, run)
    try:
        session = fresh(plan.place, plan.workload, number)
    except PinnerError as error:
        if is_first:
            raise
        plan.stopped = f"start {number + 1} failed: {error.message}"
        return None
    if session.refused:
        names = ", ".join(item.name for item in (*session.before.differences, *session.before.unknown)[:3])
        plan.stopped = f"start {number + 1} was refused: {names} differs from the lock"
    elif session.start is not None and session.start.invalid:
        plan.stopped = f"start {number + 1}: {session.start.invalid[0]}"
    return session


def _recorded(plans: list[_Plan], options: BenchOptions, when: tuple[float, Any]) -> BenchOutcome:
    """Store the baseline's record, then the own one, which names it."""
    own, *others = plans
    stored_baseline = None
    for other in others:
        if other.sessions:
            record, files = _record(other, options, when)
            stored_baseline = store(record, files, other.place.home)
    record, files = _record(own, options, when)
    if others:
        base = stored_baseline.record.counting() if stored_baseline else ()
        # A bad start must not make its measurements count: `counting` knows.
        record = msgspec.structs.replace(
            record,
            measurements=tuple(verdicts.with_speedup(record.measurements, base)),
            baseline=stored_baseline.id if stored_baseline else None,
        )
    record = msgspec.structs.replace(record, verdicts=verdicts.verdicts(own.workload.bench, record.counting()))
    drift = next((one.after for one in reversed(own.sessions) if one.after is not None), Drift())
    return BenchOutcome(stored=store(record, files, own.place.home), baseline=stored_baseline, drift=drift)


def _record(plan: _Plan, options: BenchOptions, when: tuple[float, Any]) -> tuple[Record, dict[str, bytes]]:
    began, machine = when
    deployment, done = plan.place.deployment, [one for one in plan.sessions if one.start is not None]
    files = {name: data for session in done for name, data in session.files.items()}
    pinned, left_out = _pinned_files(plan)
    after = [one.after for one in plan.sessions if one.after is not None]
    notes = [note for session in plan.sessions for note in session.notes]
    if options.attach:
        notes.append(f"measured on {done[0].start.run if done and done[0].start else 'a server'}, which was up")
    record = Record(
        format=FORMAT,
        requires_pinner=READS_FORMAT,
        origin="pinner",
        deployment=deployment.name,
        bench=plan.name,
        began=began,
        ended=time.time(),
        manifest=str(deployment.path),
        workload=plan.workload.bench,
        workload_digest=plan.workload.digest(),
        lock=dataset.digest(pinned[f"{DEPLOYMENT}/{deployment.lock_path.name}"]),
        measurements=tuple(one for session in done for one in session.measurements),
        starts=tuple(session.start for session in done if session.start is not None),
        invalid=(plan.stopped,) if plan.stopped else (),
        before=drift_data(plan.sessions[0].before) if plan.sessions else None,
        after=drift_data(_worst(after)) if after else None,
        overrides=options.overrides,
        machine=machine,
        tools={"pinner": __version__, "python": platform.python_version(), "client": plan.workload.bench.driver},
        reproduces=options.reproduces,
        notes=tuple(dict.fromkeys([*notes, *left_out])),
    )
    return record, {**pinned, **files}


def _worst(after: Sequence[Drift]) -> Drift:
    """The check after a start that found something, or else the last one."""
    return next((drift for drift in after if not drift.is_clean), after[-1])


def _pinned_files(plan: _Plan) -> tuple[dict[str, bytes], list[str]]:
    """The deployment's files with the dataset, and notes on what could not be taken in."""
    deployment = plan.place.deployment
    files = deployment_files(deployment, plan.place.lock)
    notes = []
    for name, wanted in deployment.manifest.bench.items():
        if wanted.dataset is None:
            continue
        path = f"{DEPLOYMENT}/{wanted.dataset}"
        if name_problem(path) is not None:
            notes.append(
                f"bench.{name}: {wanted.dataset} lies outside of the manifest's directory, and is not kept"
            )
            continue
        try:
            files[path] = (deployment.directory / wanted.dataset).read_bytes()
        except OSError as error:
            notes.append(f"bench.{name}: {wanted.dataset} could not be read: {error.strerror}")
    return files, notes
