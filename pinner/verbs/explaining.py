"""The commands that explain: compare, diff, reproduce.

Must not decide anything: pinner/explain does.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from pinner import render_explain
from pinner.command import overrides
from pinner.errors import ExitCode, RecordError, UsageError
from pinner.host.home import home
from pinner.measure.statistics import LEAST_STARTS
from pinner.terminal import Output
from pinner.verbs.pins import Accepted


def compare(
    out: Output, before: str, after: str, *, tolerance: float, alpha: float, accepted: Accepted
) -> ExitCode:
    """B against A: a verdict with intervals, then what differs as its explanation."""
    from pinner.explain import compare as comparing
    from pinner.explain.diff import of_sides
    from pinner.explain.headline import headline
    from pinner.explain.sides import of_record
    from pinner.measure.find_records import find_record

    _refuse_no_share(tolerance, alpha)
    state = home()
    a, b = (find_record(text, state) for text in (before, after))
    comparison = comparing.compare(
        a.record, b.record, tolerance=tolerance, alpha=alpha, overrides=overrides(*accepted)
    )
    found = of_sides(of_record(a), of_record(b), state)
    first = headline(comparison, found)
    render_explain.comparison_text(out, comparison, (a.name, b.name))
    out.line()
    render_explain.diff_text(out, found, first)
    used = {override.key for override in comparison.comparability.accepted}
    for key in accepted[0]:
        if key not in used:
            out.note(f"--accept {key} matched nothing that stands against the comparison")
    code = comparing.exit_code(comparison.verdict)
    data = {
        "before": {"id": a.id, "name": a.name},
        "after": {"id": b.id, "name": b.name},
        **render_explain.comparison_data(comparison),
        "diff": render_explain.diff_data(found, first),
    }
    reasons = [one.sentence for one in comparison.comparability.obstacles]
    errors = [RecordError(f"the records cannot be compared: {'; '.join(reasons)}")] if reasons else []
    out.envelope(code, data, errors, status=comparison.verdict.value)
    return code


def diff(out: Output, before: str, after: str) -> ExitCode:
    """What differs between two sides, the likeliest cause first."""
    from pinner.explain import compare as comparing
    from pinner.explain.diff import diff as differ
    from pinner.explain.diff import of_sides
    from pinner.explain.headline import headline
    from pinner.explain.sides import NOW, side

    state = home()
    first = ""
    if NOW in (before, after):
        found = differ(before, after, state)
    else:
        a, b = side(before, state), side(after, state)
        found = of_sides(a, b, state)
        if a.record is not None and b.record is not None:
            first = headline(comparing.compare(a.record, b.record), found)
    render_explain.diff_text(out, found, first)
    code = ExitCode.DIFFERENT if found.found else ExitCode.FAILED if found.unknown else ExitCode.OK
    status = {ExitCode.DIFFERENT: "different", ExitCode.FAILED: "unknown"}.get(code, "")
    out.envelope(code, render_explain.diff_data(found, first), status=status)
    return code


def reproduce(out: Output, which: str, asked: Asked) -> ExitCode:
    """Rebuild a past result from its record, measure it again, judge."""
    from pinner.explain import reproduce as reproducing

    _refuse_no_share(asked.tolerance, asked.alpha)
    if asked.most_starts < LEAST_STARTS:
        raise UsageError(f"--starts-max {asked.most_starts}: fewer than {LEAST_STARTS} starts tell nothing")
    options = reproducing.ReproduceOptions(
        most_starts=asked.most_starts,
        tolerance=asked.tolerance,
        alpha=asked.alpha,
        directory=asked.directory,
        places=_places(asked.places),
        bench=asked.bench,
        overrides=overrides(*asked.accepted),
        say=out.say,
    )
    found = reproducing.reproduce(which, home(), options)
    render_explain.reproduction_text(out, found)
    code = reproducing.exit_code(found)
    out.envelope(code, render_explain.reproduction_data(found), status=found.answer.value)
    return code


class Asked(NamedTuple):
    """The options of `reproduce` as they stand on the command line."""

    tolerance: float
    alpha: float
    most_starts: int
    directory: Path | None
    places: list[str]
    bench: str | None
    accepted: Accepted


def _places(given: list[str]) -> dict[str, Path]:
    found = {}
    for text in given:
        key, separator, path = text.partition("=")
        if not separator or not key or not path:
            raise UsageError(
                f"--place {text}: must be KEY=PATH", hint="for example --place model.path=/data/model"
            )
        found[key] = Path(path)
    return found


def _refuse_no_share(tolerance: float, alpha: float) -> None:
    if not 0 <= tolerance < 1:
        raise UsageError(f"--tolerance {tolerance:g} is no share of the value", hint="0.02 is 2 %")
    if not 0 < alpha < 1:
        raise UsageError(f"--alpha {alpha:g} is no probability", hint="0.05 is 1 false alarm in 20")
