"""The commands that explain: compare, diff, reproduce.

Must not decide anything: pinner/explain does.
"""

from __future__ import annotations

from pinner import render_explain
from pinner.command import overrides
from pinner.errors import ExitCode, RecordError, UsageError
from pinner.host.home import home
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


def _refuse_no_share(tolerance: float, alpha: float) -> None:
    if not 0 <= tolerance < 1:
        raise UsageError(f"--tolerance {tolerance:g} is no share of the value", hint="0.02 is 2 %")
    if not 0 < alpha < 1:
        raise UsageError(f"--alpha {alpha:g} is no probability", hint="0.05 is 1 false alarm in 20")
