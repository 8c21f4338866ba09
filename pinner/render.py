"""Results as text for people and as data for JSON.

Must not decide anything: it is given results and exit codes. It prints through terminal.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pinner.terminal import plain

if TYPE_CHECKING:
    from pinner.deploy.adopt import Adopted
    from pinner.deploy.launch import UpOutcome
    from pinner.deploy.resolve import LockOutcome
    from pinner.deploy.running import Status, Stopped
    from pinner.model.caches import Caches
    from pinner.model.facts import Difference, Drift
    from pinner.terminal import Output

# Beyond this many, a list of differences helps a program and no longer a person.
MOST_SHOWN = 40


def drift_data(drift: Drift) -> dict[str, Any]:
    """A drift for JSON: absent is null, unknown an object with its reason."""
    return {
        "drift": [difference_data(item) for item in drift.differences],
        "unknown": [difference_data(item) for item in drift.unknown],
        "accepted": [difference_data(item) for item in drift.accepted],
        "notes": list(drift.notes),
        "hints": list(drift.hints),
        "how": dict(drift.how),
    }


def difference_data(item: Difference) -> dict[str, Any]:
    """One difference for JSON."""
    return {
        "aspect": item.aspect,
        "key": item.key,
        "pinned": fact_data(item.pinned),
        "observed": fact_data(item.observed),
        "class": str(item.comparison),
        "evidence": list(item.evidence),
        "note": item.note,
    }


def fact_data(fact: Any) -> Any:
    """A fact for JSON."""
    from pinner.model.facts import Absent, Unknown  # noqa: PLC0415  # `--version` must not pay for msgspec

    if isinstance(fact, Absent):
        return None
    return {"unknown": fact.reason} if isinstance(fact, Unknown) else fact


def drift_text(output: Output, drift: Drift, *, deep: bool) -> None:
    """A drift for a person: grouped by aspect in the order of the probes, most telling first."""
    if drift.is_clean:
        how = "; ".join(f"{aspect} {text}" for aspect, text in drift.how.items())
        answer = "no drift, every byte read" if deep else "no drift"
        output.line(f"{output.green(answer)}{output.dim(f'  ({how})') if how else ''}")
    if drift.differences:
        output.line(f"{output.red('DRIFT')}  {_counted(drift.differences)}")
        _groups(output, drift.differences)
    if drift.unknown:
        count = len(drift.unknown)
        facts = "1 fact could" if count == 1 else f"{count} facts could"
        output.line(f"{output.yellow('UNKNOWN')}  {facts} not be told, which never counts as equal")
        _groups(output, drift.unknown)
    if drift.accepted:
        output.line(f"{output.yellow('ACCEPTED')}  {_counted(drift.accepted)}")
        _groups(output, drift.accepted)
    _notes(output, drift.notes)
    for hint in drift.hints:
        output.line(f"{output.dim('hint:')} {plain(hint)}")


def _notes(output: Output, notes: tuple[str, ...]) -> None:
    for note in notes[:MOST_SHOWN]:
        output.line(f"{output.dim('note:')} {plain(note)}")
    if len(notes) > MOST_SHOWN:
        output.line(f"{output.dim('note:')} … and {len(notes) - MOST_SHOWN} more")


def _counted(items: tuple[Difference, ...]) -> str:
    return "1 difference" if len(items) == 1 else f"{len(items)} differences"


def _groups(output: Output, items: tuple[Difference, ...]) -> None:
    for aspect in dict.fromkeys(item.aspect for item in items):
        group = [item for item in items if item.aspect == aspect]
        output.line(f"\n{output.bold(aspect)}")
        for item in group[:MOST_SHOWN]:
            output.line(f"  {plain(item.key)}: pinned {shown(item.pinned)}, observed {shown(item.observed)}")
            if item.note:
                output.line(f"    {plain(item.note)}")
            for evidence in map(plain, item.evidence[:MOST_SHOWN]):
                output.line(f"    {output.yellow(evidence) if evidence.endswith('suspect') else evidence}")
            if len(item.evidence) > MOST_SHOWN:
                output.line(f"    … and {len(item.evidence) - MOST_SHOWN} more lines; `--output json` has all")
        if len(group) > MOST_SHOWN:
            output.line(f"  … and {len(group) - MOST_SHOWN} more; `--output json` lists all")
    output.line()


def shown(fact: Any) -> str:
    """A fact in a line of text."""
    text = str(fact)
    if text.startswith("sha256:"):
        return text[:19] + "…"
    return repr(text) if text == "" or text != text.strip() else plain(text)


def lock_text(output: Output, outcome: LockOutcome) -> None:
    """What locking did, old before new."""
    for note in outcome.notes:
        output.note(note)
    for change in outcome.changes[:MOST_SHOWN]:
        output.line(f"  {plain(change)}")
    if len(outcome.changes) > MOST_SHOWN:
        output.line(f"  … and {len(outcome.changes) - MOST_SHOWN} more; `--output json` lists all")
    output.line(f"{'wrote' if outcome.changed else 'unchanged:'} {outcome.path}")


def lock_data(outcome: LockOutcome) -> dict[str, Any]:
    """The same for JSON."""
    return {
        "lock": str(outcome.path),
        "changed": outcome.changed,
        "changes": list(outcome.changes),
        "notes": list(outcome.notes),
    }


def adopted_text(output: Output, adopted: Adopted) -> None:
    """What was written, what was not captured, and the verdict."""
    for note in adopted.locked.notes:
        output.note(note)
    output.line(f"{output.green('adopted')}  pid {adopted.pid} ({adopted.kind})")
    output.line(f"  wrote {adopted.manifest}")
    output.line(f"  wrote {adopted.locked.path}")
    if adopted.patch is not None:
        output.line(
            f"  wrote {adopted.patch}: the checkout's edits, to make them again elsewhere; nothing reads it"
        )
    if adopted.missed:
        output.line(f"{output.yellow('NOT CAPTURED')}, or not certain; the manifest ends with the same list")
        for sentence in adopted.missed:
            output.line(f"  {plain(sentence)}")
    drift_text(output, adopted.drift, deep=False)


def adopted_data(adopted: Adopted) -> dict[str, Any]:
    """The same for JSON."""
    return {
        "pid": adopted.pid,
        "kind": adopted.kind,
        "run": adopted.run or None,
        "manifest": str(adopted.manifest),
        "patch": str(adopted.patch) if adopted.patch else None,
        "lock": lock_data(adopted.locked),
        "not_captured": list(adopted.missed),
        **drift_data(adopted.drift),
    }


def up_text(output: Output, outcome: UpOutcome) -> None:
    """A server that generates, or the reason why it was refused."""
    if outcome.locked is not None:
        lock_text(output, outcome.locked)
    if outcome.run is None:
        drift_text(output, outcome.drift, deep=False)
        why = (
            "the machine differs from the lock"
            if outcome.drift.differences
            else "not all that is pinned can be told"
        )
        output.note(f"{'it was stopped again' if outcome.started else 'nothing was started'}: {why}")
        first = (*outcome.drift.differences, *outcome.drift.unknown)[0]
        if outcome.left_up:
            output.note(f"{outcome.left_up} is still up; `pinner down {outcome.left_up}` stops it")
        output.note(f"a difference that is meant passes with: --accept '{first.name}' --reason TEXT")
        return
    if outcome.drift.accepted or outcome.drift.notes:
        for item in outcome.drift.accepted:
            output.line(
                f"{output.yellow('ACCEPTED')}  {plain(item.name)}: {plain(item.note.removeprefix('accepted: '))}"
            )
        _notes(output, outcome.drift.notes)
    state = "already up" if outcome.already else "up"
    tokens = "1 token" if outcome.tokens == 1 else f"{outcome.tokens} tokens"
    drift = "no other drift" if outcome.drift.accepted else "no drift"
    output.line(f"{output.green(state)}  {outcome.run.run}: {drift}, generated {tokens}")
    caches = outcome.run.caches
    # An engine that compiles nothing leaves them empty for ever.
    if caches is not None and not outcome.already and (caches.files or caches.made_by == outcome.run.run):
        output.line(output.dim(caches_text(caches)))
    output.line(f"{outcome.url}")


def up_data(outcome: UpOutcome) -> dict[str, Any]:
    """The same for JSON."""
    return {
        "url": outcome.url,
        "run": outcome.run.run if outcome.run else None,
        "already": outcome.already,
        "tokens": outcome.tokens,
        "caches": caches_data(outcome.run.caches) if outcome.run else None,
        "lock": lock_data(outcome.locked) if outcome.locked else None,
        **drift_data(outcome.drift),
    }


def caches_text(found: Caches) -> str:
    """The engine's caches at the launch."""
    if found.state == "cold":
        return "caches: cold, the first start from this lock here"
    from pinner.model.units import size_text  # noqa: PLC0415  # only `up` shows sizes

    files = "1 file" if found.files == 1 else f"{found.files:,} files"
    return f"caches: warm, {files}, {size_text(found.size_bytes)}, begun by {found.made_by or 'an unknown run'}"


def caches_data(found: Caches | None) -> dict[str, Any] | None:
    """The same for JSON."""
    if found is None:
        return None
    return {name: getattr(found, name) for name in found.__struct_fields__}


def status_text(output: Output, statuses: list[Status]) -> None:
    """Runs as a table, newest first."""
    if not statuses:
        output.line("no runs")
        return
    rows = [
        (
            status.run.run,
            status.state,
            status.run.url,
            "" if status.uptime_s is None else _duration(status.uptime_s),
            plain(status.detail),
        )
        for status in statuses
    ]
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    for status, row in zip(statuses, rows, strict=True):
        cells = "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=False))
        paint = output.green if status.is_serving else output.dim if status.state == "exited" else output.yellow
        output.line(f"{paint(cells)}  {row[4]}".rstrip())
        for override in status.run.overrides:
            output.line(f"  {output.yellow('accepted')} {plain(override.key)}: {plain(override.reason)}")


def status_data(statuses: list[Status]) -> dict[str, Any]:
    """The same for JSON."""
    return {
        "runs": [
            {
                "run": status.run.run,
                "name": status.run.name,
                "manifest": status.run.manifest,
                "state": status.state,
                "url": status.run.url,
                "pid": status.pid,
                "uptime_s": status.uptime_s,
                "generates": status.generates,
                "detail": status.detail,
                "overrides": [{"key": item.key, "reason": item.reason} for item in status.run.overrides],
            }
            for status in statuses
        ]
    }


def _duration(seconds: float) -> str:
    whole = int(seconds)
    days, hours, minutes = whole // 86400, whole // 3600 % 24, whole // 60 % 60
    if days:
        return f"{days} d {hours} h"
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {whole % 60} s" if minutes else f"{whole} s"


def stopped_text(output: Output, stopped: Stopped) -> None:
    """How a stop ended."""
    if stopped.survivors:
        output.line(f"{output.red('not stopped')}  {stopped.run}; still alive: {', '.join(stopped.survivors)}")
    elif stopped.already:
        output.line(f"nothing to do{f': {stopped.run} is down' if stopped.run else ': it never ran here'}")
    else:
        how = "; it had to be killed" if stopped.forced else ""
        output.line(f"{output.green('down')}  {stopped.run}{how}")


def stopped_data(stopped: Stopped) -> dict[str, Any]:
    """The same for JSON."""
    return {
        "run": stopped.run,
        "already": stopped.already,
        "forced": stopped.forced,
        "survivors": list(stopped.survivors),
    }
