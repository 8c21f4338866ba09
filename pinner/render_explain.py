"""Comparisons, differences and reproductions as text for people and as data for JSON.

Must not decide anything, like render.py.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from pinner.explain.headline import figure, title, unit_of
from pinner.explain.likelihood import REASONS
from pinner.model.bench import STEP_TIMES
from pinner.render import MOST_SHOWN, difference_data, drift_data, drift_text, fact_data, shown
from pinner.terminal import plain

if TYPE_CHECKING:
    from pinner.explain.compare import Comparison, Metric
    from pinner.explain.diff import Diff
    from pinner.explain.likelihood import Ranked
    from pinner.explain.reproduce import Reproduction
    from pinner.terminal import Output

# Of metrics that do not count, a person needs those that moved most.
MOST_OTHERS = 6


def comparison_text(output: Output, comparison: Comparison, names: tuple[str, str]) -> None:
    """The verdict first, then what it stands on."""
    _verdict(output, comparison, names)
    _stands_on(output, comparison)
    if comparison.verdict.value == "inconclusive":
        more = comparison.more_starts
        count = "more than 200" if more is None else f"{more} more"
        start = "start" if more == 1 else "starts"
        output.line(
            f"{output.dim('hint:')} {count} {start} on each side would settle it, if they go on as they are"
        )


def _verdict(output: Output, comparison: Comparison, names: tuple[str, str]) -> None:
    paint = {"worse": output.red, "not-comparable": output.red, "better": output.green, "equivalent": output.green}
    word = comparison.verdict.value.replace("-", " ").upper()
    output.line(f"{paint.get(comparison.verdict.value, output.yellow)(word)}  A {names[0]} → B {names[1]}")


def _stands_on(output: Output, comparison: Comparison, *, is_repetition: bool = False) -> None:
    for obstacle in comparison.comparability.obstacles:
        accept = f"  (--accept {obstacle.key} --reason TEXT compares all the same)" if obstacle.key else ""
        output.line(f"  {plain(obstacle.sentence)}{output.dim(accept)}")
    for override in comparison.comparability.accepted:
        output.line(f"  {output.yellow('accepted')} {plain(override.key)}: {plain(override.reason)}")
    for sentence in comparison.comparability.unknown:
        output.line(f"  {output.yellow('unknown')} {plain(sentence)}")
    if comparison.metrics:
        output.line()
        _table(output, comparison, is_repetition=is_repetition)
    for note in comparison.comparability.notes:
        output.line(f"{output.dim('note:')} {plain(note)}")


def _table(output: Output, comparison: Comparison, *, is_repetition: bool) -> None:
    others = [metric for metric in comparison.metrics if not metric.counts and metric.change is not None]
    others.sort(key=lambda metric: (metric.name not in STEP_TIMES, -_size(metric)))
    shown_others = others[:MOST_OTHERS]
    header = ("load", "metric", "A", "B", "change", "interval", "detectable", "verdict")
    rows = [_row(metric) for metric in (*comparison.counted, *shown_others)]
    if is_repetition:
        # A repetition has only to be no worse: being better, or a wide interval upwards, is no matter.
        words = [metric.is_no_worse(comparison.tolerance) for metric in comparison.counted]
        rows[: len(words)] = [
            (*row[:-1], "no worse") if fine else row for row, fine in zip(rows, words, strict=False)
        ]
    widths = [max(len(row[at]) for row in (header, *rows)) for at in range(len(header))]
    output.line(output.dim(_aligned(header, widths)))
    for metric, row in zip((*comparison.counted, *shown_others), rows, strict=True):
        paint = (
            output.red if metric.verdict == "worse" and metric.counts else output.dim if not metric.counts else str
        )
        output.line(paint(_aligned(row, widths)))
    left = len(others) - len(shown_others)
    more = f"; {left} more in `--output json`" if left else ""
    counted = "1 metric counts" if len(comparison.counted) == 1 else f"{len(comparison.counted)} metrics count"
    output.line()
    output.line(
        output.dim(
            f"{counted}, the others (in brackets) are only shown{more}. {_confidence(comparison)} "
            f"A change of {comparison.tolerance:.0%} is tolerated. Detectable: what they show 4 times in 5."
        )
    )


def _size(metric: Metric) -> float:
    return abs(math.log1p(max(-0.999, metric.change.change))) if metric.change is not None else 0.0


def _confidence(comparison: Comparison) -> str:
    whole = f"{1 - comparison.alpha:.2%}".replace(".00%", "%")
    if comparison.shares == 1:
        return f"Intervals hold with {whole}."
    each = f"{1 - comparison.alpha / comparison.shares:.2%}"
    return f"All intervals that count hold together with {whole}: each with {each} (Bonferroni)."


def _row(metric: Metric) -> tuple[str, ...]:
    name = title(metric.name) if metric.counts else f"({title(metric.name)})"
    unit = unit_of(metric.name)
    starts = f"{metric.starts[0]} and {metric.starts[1]} starts"
    change = metric.change
    if change is None:
        return (metric.load, name, "", "", "", starts, "", f"{metric.verdict}: {plain(metric.reason)}")
    detectable = _percent(change.smallest).lstrip("+") if math.isfinite(change.smallest) else "—"
    interval = (
        "unbounded" if not math.isfinite(change.high) else f"{_percent(change.low)} … {_percent(change.high)}"
    )
    words = metric.verdict.value
    if metric.reason:
        words += f": {plain(metric.reason)}"
    before, after = (f"{figure(value)}{f' {unit}' if unit else ''}" for value in (change.before, change.after))
    return (metric.load, name, before, after, _percent(change.change), interval, detectable, words)


def _percent(share: float) -> str:
    return f"{share:+.1%}".replace("-", "−")


def _aligned(row: tuple[str, ...], widths: list[int]) -> str:
    return "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()


def comparison_data(comparison: Comparison) -> dict[str, Any]:
    """The same for JSON; an unbounded end of an interval is null."""
    return {
        "verdict": comparison.verdict.value,
        "metrics": [_metric_data(metric) for metric in comparison.metrics],
        "tolerance": comparison.tolerance,
        "alpha": comparison.alpha,
        "alpha_shares": comparison.shares,
        "more_starts": comparison.more_starts,
        "not_comparable": [
            {"key": one.key or None, "reason": one.sentence} for one in comparison.comparability.obstacles
        ],
        "unknown": list(comparison.comparability.unknown),
        "accepted": [{"key": one.key, "reason": one.reason} for one in comparison.comparability.accepted],
        "notes": list(comparison.comparability.notes),
    }


def _metric_data(metric: Metric) -> dict[str, Any]:
    change = metric.change
    numbers: dict[str, Any] = dict.fromkeys(
        ("before", "after", "change", "low", "high", "smallest", "more_starts")
    )
    if change is not None:
        numbers = {name: _finite(getattr(change, name)) for name in numbers}
    return {
        "load": metric.load,
        "metric": metric.name,
        "counts": metric.counts,
        "verdict": metric.verdict.value,
        "reason": metric.reason,
        "starts": list(metric.starts),
        "alpha": metric.alpha,
        **numbers,
    }


def _finite(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else value


def diff_text(output: Output, diff: Diff, first_line: str = "") -> None:
    """What differs, by rank; `first_line` is the one that a person needs."""
    if first_line:
        output.line(output.bold(plain(first_line)))
    if not diff.found and not diff.unknown:
        output.line(f"{output.green('no difference')}  {plain(diff.before)} and {plain(diff.after)}")
    else:
        count = "1 difference" if len(diff.found) == 1 else f"{len(diff.found)} differences"
        output.line(
            f"{output.red('DIFFERENT') if diff.found else output.yellow('UNKNOWN')}  {count}, "
            f"the likeliest cause first: {plain(diff.before)} → {plain(diff.after)}"
        )
    for rank in dict.fromkeys(item.rank for item in diff.found):
        name, why = REASONS[rank]
        output.line(f"\n{output.bold(f'{rank.value} {name}')}  {output.dim(why)}")
        _group(output, [item for item in diff.found if item.rank is rank])
    if diff.unknown:
        output.line(f"\n{output.yellow('unknown')}")
        for item in diff.unknown[:MOST_SHOWN]:
            output.line(f"  {plain(item.name)}: {shown(item.pinned)} → {shown(item.observed)}")
    if diff.found or diff.unknown:
        output.line()
    for note in diff.notes[:MOST_SHOWN]:
        output.line(f"{output.dim('note:')} {plain(note)}")


def _group(output: Output, items: list[Ranked]) -> None:
    for ranked in items[:MOST_SHOWN]:
        item = ranked.difference
        key = item.key if item.aspect in REASONS[ranked.rank][0] else f"{item.aspect} {item.key}"
        output.line(f"  {plain(key)}: {shown(item.pinned)} → {shown(item.observed)}")
        if item.note:
            output.line(f"    {plain(item.note)}")
        for evidence in map(plain, item.evidence[:MOST_SHOWN]):
            output.line(f"    {output.yellow(evidence) if evidence.endswith('suspect') else evidence}")
    if len(items) > MOST_SHOWN:
        output.line(f"  … and {len(items) - MOST_SHOWN} more; `--output json` lists all")


def diff_data(diff: Diff, first_line: str = "") -> dict[str, Any]:
    """The same for JSON."""
    return {
        "before": diff.before,
        "after": diff.after,
        "headline": first_line or None,
        "differences": [_ranked_data(item) for item in diff.found],
        "unknown": [
            {
                "aspect": item.aspect,
                "key": item.key,
                "pinned": fact_data(item.pinned),
                "observed": fact_data(item.observed),
            }
            for item in diff.unknown
        ],
        "suspects": [one.sha for one in diff.between.suspects] if diff.between else [],
        "notes": list(diff.notes),
    }


def _ranked_data(ranked: Ranked) -> dict[str, Any]:
    item = ranked.difference
    return {
        "rank": ranked.rank.value,
        "group": REASONS[ranked.rank][0],
        "aspect": item.aspect,
        "key": item.key,
        "pinned": fact_data(item.pinned),
        "observed": fact_data(item.observed),
        "evidence": list(item.evidence),
        "note": item.note,
    }


def reproduction_text(output: Output, found: Reproduction) -> None:
    """The answer first, then what it stands on."""
    good, bad = ("reproduced",), ("not-reproduced", "drift")
    paint = output.green if found.answer in good else output.red if found.answer in bad else output.yellow
    original = f"record {found.original.short}" if found.original else "the manifest's expectations"
    output.line(f"{paint(found.answer.value.replace('-', ' ').upper())}  {original}")
    if found.answer == "drift":
        output.line("nothing was measured: what was rebuilt differs from its lock")
        drift_text(output, found.drift, deep=False)
    if found.comparison is not None:
        here = found.stored.name if found.stored else "this machine"
        output.line(output.dim(f"A {found.original.name if found.original else ''} → B {here}"))
        _stands_on(output, found.comparison, is_repetition=True)
    for verdict in found.verdicts:
        met = {True: "met", False: "not met", None: "could not be told"}[verdict.is_met]
        seen = "" if verdict.observed is None else f"{figure(verdict.observed)}, "
        output.line(f"  {verdict.metric} at {verdict.load}: {seen}expected {plain(verdict.expected)}: {met}")
    for item in found.other_machine[:MOST_SHOWN]:
        output.line(
            f"  {output.yellow('other machine')} {plain(item.name)}: {shown(item.pinned)} → {shown(item.observed)}"
        )
    for reason in found.stored.record.invalid if found.stored else ():
        output.line(f"  {output.yellow('invalid')} {plain(reason)}")
    for note in found.notes:
        output.line(f"{output.dim('note:')} {plain(note)}")
    if found.answer == "inconclusive" and found.stored is not None:
        output.line(
            f"{output.dim('hint:')} --starts-max makes more starts, a larger --tolerance asks for less; "
            "the starts of the record itself bound what can be told"
        )
    if found.stored is not None:
        output.line(f"{output.dim('record:')} {found.stored.path}")


def reproduction_data(found: Reproduction) -> dict[str, Any]:
    """The same for JSON."""
    data = comparison_data(found.comparison) if found.comparison else {"metrics": []}
    return {
        **data,
        "verdict": found.answer.value,
        "comparison": found.comparison.verdict.value if found.comparison else None,
        "reproduces": found.original.id if found.original else None,
        "record": {"id": found.stored.id, "path": str(found.stored.path)} if found.stored else None,
        "directory": str(found.directory) if found.directory else None,
        "other_machine": [difference_data(item) for item in found.other_machine],
        "verdicts": [
            {
                "metric": one.metric,
                "load": one.load,
                "expected": one.expected,
                "observed": one.observed,
                "met": one.is_met,
            }
            for one in found.verdicts
        ],
        "notes": [*data.get("notes", []), *found.notes],
        **({} if found.drift.is_clean else drift_data(found.drift)),
    }
