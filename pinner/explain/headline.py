"""The one line that a person needs: which number moved, and what moved it. Pure."""

from __future__ import annotations

import math

from pinner.explain.compare import Comparison, Metric, Word
from pinner.explain.diff import Diff
from pinner.model.bench import ACCEPT_LENGTH, STEP_TIMES
from pinner.model.facts import Fact

_LATENCIES = {"ttft": "TTFT", "tpot": "TPOT", "itl": "ITL", "e2el": "E2EL"}
_SHOWN = 60


def headline(comparison: Comparison | None, found: Diff) -> str:
    """`verify step 19 → 29 ms; source moved bba2fc4 → 3207427 by `pull` at …; suspects 0be30d4 …`.

    "" where no metric changed.
    """
    metric = telling(comparison) if comparison is not None else None
    if metric is None or metric.change is None:
        return ""
    certain = "" if metric.verdict in (Word.WORSE, Word.BETTER) else " (not certain yet)"
    return f"{moved(metric)}{certain}; {cause(found)}"


def telling(comparison: Comparison) -> Metric | None:
    """The metric that tells most of what happened: a step's time before what follows from it."""
    changed = [metric for metric in comparison.metrics if _has_changed(metric, comparison.tolerance)]
    return min(changed, key=_order, default=None)


def moved(metric: Metric) -> str:
    """`verify step 19 → 29 ms at concurrency=8`."""
    assert metric.change is not None
    before, after = figure(metric.change.before), figure(metric.change.after)
    unit = unit_of(metric.name)
    return f"{title(metric.name)} {before} → {after}{f' {unit}' if unit else ''} at {metric.load}"


def title(name: str) -> str:
    """A metric's name in words."""
    if name in STEP_TIMES:
        return name.removesuffix("_ms").replace("_", " ")
    first, *rest = name.removesuffix("_ms").split("_")
    return " ".join((_LATENCIES.get(first, first), *rest))


def unit_of(name: str) -> str:
    """The unit of a metric; "" for a plain number."""
    if name.endswith("_ms"):
        return "ms"
    if name == "request_throughput":
        return "req/s"
    return "tok/s" if name.endswith("_throughput") else ""


def figure(value: float) -> str:
    """A number with three digits that count."""
    if not math.isfinite(value):
        return "∞"
    whole = len(f"{abs(value):.0f}") if abs(value) >= 1 else 0
    text = f"{value:,.{max(0, 3 - whole)}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def cause(found: Diff) -> str:
    """What most likely moved it, in a few words."""
    first = found.likeliest
    if first is None:
        if found.unknown or found.notes:
            said = found.unknown[0].name if found.unknown else found.notes[0]
            return f"what moved it cannot be told: {said}"
        return "no pin differs: look at what is not pinned"
    item = first.difference
    more = len(found.found) - 1
    also = "" if not more else f" ({more} more {'difference' if more == 1 else 'differences'})"
    if item.name == "source.commit" and found.between is not None:
        return f"{found.between.sentence}{also}"
    return f"{item.aspect} {item.key} {_short(item.pinned)} → {_short(item.observed)}{also}"


def _has_changed(metric: Metric, tolerance: float) -> bool:
    if metric.change is None:
        return False
    return metric.verdict in (Word.WORSE, Word.BETTER) or (
        metric.verdict is Word.INCONCLUSIVE and abs(metric.change.change) > tolerance
    )


def _order(metric: Metric) -> tuple[bool, bool, int, float]:
    """What counts or explains it before the rest; certain before uncertain; then the largest change."""
    assert metric.change is not None
    kinds = (metric.name in STEP_TIMES, metric.name == ACCEPT_LENGTH, metric.counts, True)
    kind = kinds.index(True)
    size = abs(math.log1p(max(metric.change.change, -0.999)))
    return kind == len(kinds) - 1, metric.verdict is Word.INCONCLUSIVE, kind, -size


def _short(fact: Fact) -> str:
    text = str(fact)
    if text.startswith("sha256:"):
        return text[:19]
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 1]}…"
