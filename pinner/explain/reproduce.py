"""A past result, run again from its own record: reproduced, not reproduced, or inconclusive.

Owns the order (rebuild, say what cannot be the same, measure start by start, judge) and when it is enough. The
measuring itself is pinner/measure/bench.py's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from pathlib import Path

import msgspec

from pinner.deploy.check import exit_code as drift_code
from pinner.deploy.load import find_manifest, load_manifest
from pinner.errors import ExitCode, RecordError, UsageError
from pinner.explain import machine
from pinner.explain.comparable import comparability
from pinner.explain.compare import Comparison, Word, compare
from pinner.explain.rebuild import Rebuilt, rebuild
from pinner.explain.sides import accepted
from pinner.host.home import Home
from pinner.measure.bench import BenchOptions, bench, chosen
from pinner.measure.find_records import Wanted, find_record
from pinner.measure.records import Stored
from pinner.measure.session import Say
from pinner.measure.statistics import ALPHA, Look, looks
from pinner.model.facts import Difference, Drift, Override
from pinner.model.record import Measurement, Record, Verdict
from pinner.probes.machine_now import machine_now

TOLERANCE = 0.05
MOST_STARTS = 8


class Answer(StrEnum):
    """What became of a past result."""

    REPRODUCED = "reproduced"
    NOT_REPRODUCED = "not-reproduced"
    INCONCLUSIVE = "inconclusive"
    NOT_COMPARABLE = "not-comparable"
    REFUSED = "drift"


class ReproduceOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How `reproduce` was asked. `places` are local paths by key, `directory` where the deployment is written."""

    most_starts: int = MOST_STARTS
    tolerance: float = TOLERANCE
    alpha: float = ALPHA
    directory: Path | None = None
    places: Mapping[str, Path] = {}
    bench: str | None = None
    overrides: tuple[Override, ...] = ()
    say: Say = lambda _line: None


class Reproduction(msgspec.Struct, frozen=True, kw_only=True):
    """The answer and what it stands on.

    `original` is the record that was repeated, None where only a manifest's expectations were. `stored` is the new
    record, None where nothing was measured: then `drift` or the comparison says why. `other_machine` is what of
    this machine is not as it was.
    """

    answer: Answer
    original: Stored | None = None
    stored: Stored | None = None
    comparison: Comparison | None = None
    directory: Path | None = None
    other_machine: tuple[Difference, ...] = ()
    verdicts: tuple[Verdict, ...] = ()
    drift: Drift = Drift()
    notes: tuple[str, ...] = ()


def reproduce(text: str, home: Home, options: ReproduceOptions) -> Reproduction:
    """Repeat what a command line names: a record, or a manifest's newest one, or else its expectations."""
    is_manifest = text.endswith((".toml", ".lock"))
    try:
        # Of a manifest's records one that counts; an id means the very record.
        original = find_record(text, home, Wanted(bench=options.bench, valid=is_manifest))
    except UsageError:
        if not is_manifest:
            raise
        return _expectations(text, home, options)
    return _of_record(original, home, options)


def exit_code(found: Reproduction) -> ExitCode:
    """What the process tells its caller."""
    if found.answer is Answer.REFUSED:
        return drift_code(found.drift)
    codes = {
        Answer.REPRODUCED: ExitCode.OK,
        Answer.NOT_REPRODUCED: ExitCode.DIFFERENT,
        Answer.NOT_COMPARABLE: ExitCode.INVALID,
    }
    return codes.get(found.answer, ExitCode.FAILED)


def judge(comparison: Comparison) -> Answer:
    """A comparison of the repetition with the original, as an answer. Pure.

    Worse is not reproduced; no worse than the tolerance, with all that counts, is. Being better is no failure.
    """
    if comparison.verdict is Word.NOT_COMPARABLE:
        return Answer.NOT_COMPARABLE
    if comparison.verdict is Word.WORSE:
        return Answer.NOT_REPRODUCED
    counted = comparison.counted
    if counted and all(metric.is_no_worse(comparison.tolerance) for metric in counted):
        return Answer.REPRODUCED
    return Answer.INCONCLUSIVE


class Looking(msgspec.Struct, frozen=True):
    """Looks at growing data, and the comparison at the last look. Pure."""

    original: Record
    plan: tuple[Look, ...]
    tolerance: float
    overrides: tuple[Override, ...]
    machine: machine.Machine

    def is_enough(self, measured: Sequence[Measurement]) -> bool:
        """Whether the answer is certain. Looked at only when the plan says so: each look costs."""
        starts = len({one.start for one in measured})
        look = next((one for one in self.plan if one.starts == starts), None)
        if look is None:
            return False
        so_far = msgspec.structs.replace(
            self.original,
            measurements=tuple(measured),
            starts=(),
            invalid=(),
            machine={aspect: dict(facts) for aspect, facts in self.machine.items()},
        )
        return judge(self.compared(so_far, look)) is not Answer.INCONCLUSIVE

    def compared(self, record: Record, look: Look) -> Comparison:
        """The repetition against the original at one look."""
        return compare(self.original, record, tolerance=self.tolerance, alpha=look.alpha, overrides=self.overrides)

    def at(self, record: Record) -> Look:
        """The look that a finished repetition is judged by: the last one that its starts reached."""
        starts = len({one.start for one in record.counting()})
        reached = [look for look in self.plan if look.starts <= starts]
        return reached[-1] if reached else self.plan[0]


def _of_record(original: Stored, home: Home, options: ReproduceOptions) -> Reproduction:
    record = original.record
    if not record.is_valid:
        reasons = "; ".join(dict.fromkeys(record.invalid)) or "none of its measurements counts"
        raise RecordError(
            f"record {original.short} is invalid and proves nothing: {reasons}",
            hint="`pinner records --valid` lists those that can be repeated",
        )
    rebuilt = rebuild(original, home, directory=options.directory, places=options.places)
    options.say(f"rebuilt from record {original.short} in {rebuilt.deployment.directory}")
    here = machine_now(rebuilt.lock)
    other = tuple(machine.differences(record.machine, here))
    for item in other:
        options.say(f"cannot be the same: {item.name}: {item.pinned} then, {item.observed} here")
    overrides = (*record.overrides, *options.overrides)
    against = comparability(record, msgspec.structs.replace(record, machine=here), overrides)
    notes = (*rebuilt.notes, *_accepted_then(record))
    if not against.is_comparable:
        nothing = Comparison(verdict=Word.NOT_COMPARABLE, comparability=against, tolerance=options.tolerance)
        return Reproduction(
            answer=Answer.NOT_COMPARABLE,
            original=original,
            comparison=nothing,
            directory=rebuilt.deployment.directory,
            other_machine=other,
            notes=notes,
        )
    looking = Looking(
        original=record,
        plan=looks(options.most_starts, options.alpha),
        tolerance=options.tolerance,
        overrides=overrides,
        machine=here,
    )
    found = _measured(rebuilt, original, home, options, looking)
    return msgspec.structs.replace(found, other_machine=other, notes=notes)


def _measured(
    rebuilt: Rebuilt, original: Stored, home: Home, options: ReproduceOptions, looking: Looking
) -> Reproduction:
    outcome = bench(
        rebuilt.deployment,
        original.record.bench,
        home,
        BenchOptions(
            overrides=looking.overrides,
            reproduces=original.id,
            starts=looking.plan[-1].starts,
            is_enough=looking.is_enough,
            say=options.say,
        ),
    )
    directory = rebuilt.deployment.directory
    if outcome.stored is None:
        return Reproduction(answer=Answer.REFUSED, original=original, directory=directory, drift=outcome.drift)
    made = outcome.stored.record
    comparison = looking.compared(made, looking.at(made))
    answer = judge(comparison)
    if answer is Answer.NOT_COMPARABLE and not made.is_valid:
        # What was measured does not count: that tells nothing of the original.
        answer = Answer.INCONCLUSIVE
    return Reproduction(
        answer=answer,
        original=original,
        stored=outcome.stored,
        comparison=comparison,
        directory=directory,
        drift=outcome.drift,
    )


def _accepted_then(record: Record) -> list[str]:
    """What the original was measured with although its lock says otherwise; rebuilding gives what that says."""
    return [f"the record was measured with {name} not as locked, which was accepted" for name in accepted(record)]


def _expectations(text: str, home: Home, options: ReproduceOptions) -> Reproduction:
    """A manifest without a record: its own expectations are what is to be reproduced."""
    deployment = load_manifest(find_manifest(text))
    name = chosen(deployment, options.bench)
    if not deployment.manifest.bench[name].expect:
        raise UsageError(
            f"{deployment.shown} has no record yet, and [bench.{name}] expects nothing",
            hint=f"`pinner bench {deployment.shown} {name}` makes a record",
        )
    outcome = bench(deployment, name, home, BenchOptions(overrides=options.overrides, say=options.say))
    if outcome.stored is None:
        return Reproduction(answer=Answer.REFUSED, directory=deployment.directory, drift=outcome.drift)
    record = outcome.stored.record
    met = [verdict.is_met for verdict in record.verdicts]
    answer = Answer.INCONCLUSIVE
    if record.is_valid and False in met:
        answer = Answer.NOT_REPRODUCED
    elif record.is_valid and met and all(met):
        answer = Answer.REPRODUCED
    return Reproduction(
        answer=answer,
        stored=outcome.stored,
        directory=deployment.directory,
        verdicts=record.verdicts,
        drift=outcome.drift,
    )
