"""Everything that differs between two sides, the likeliest cause of a changed speed first.

Owns gathering it: pins, packages, what a server said of itself, the machine, the commits between. Must not judge
whether anything became slower: compare.py does.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from pinner.deploy.live import check_all
from pinner.deploy.load import find_manifest, load_manifest
from pinner.errors import UsageError
from pinner.explain import account, machine, pins
from pinner.explain.commits import Between, between
from pinner.explain.likelihood import Rank, Ranked, ranked
from pinner.explain.sides import NOW, Side, manifest_of, side
from pinner.host.home import Home
from pinner.model.facts import ABSENT, Difference, Unknown


class Diff(msgspec.Struct, frozen=True, kw_only=True):
    """How two sides differ, ranked. `unknown` could not be told and does not count as the same."""

    before: str
    after: str
    found: tuple[Ranked, ...] = ()
    unknown: tuple[Difference, ...] = ()
    notes: tuple[str, ...] = ()
    between: Between | None = None

    @property
    def likeliest(self) -> Ranked | None:
        """The first that says what runs, not where it lies."""
        return self.found[0] if self.found and self.found[0].rank is not Rank.OTHER else None


def diff(before: str, after: str, home: Home) -> Diff:
    """The difference between two things that a command line names. `now` is the machine as it is."""
    if before == NOW and after == NOW:
        raise UsageError("`now` and `now` are the same", hint="name a record, a manifest or a lock beside it")
    if NOW in (before, after):
        one = side(after if before == NOW else before, home)
        noted = () if after == NOW else ("shown as pinned, then as it is now",)
        return against_now(one, home, noted)
    return of_sides(side(before, home), side(after, home), home)


def of_sides(a: Side, b: Side, home: Home) -> Diff:
    """B against A."""
    notes = [*a.notes, *b.notes]
    found: list[Difference] = []
    told = between(a, b, home)
    if a.lock is not None and b.lock is not None:
        found += [item for item in pins.differences(a.lock, b.lock) if not _is_commit(item, told)]
        found += _packages(a, b)
        if told is not None:
            found.append(_commit(a, b, told))
    found += _accepted(a, b)
    found += account.differences(a, b)
    if a.record is not None and b.record is not None:
        found += machine.differences(a.record.machine, b.record.machine)
    unknown = [item for item in found if isinstance(item.pinned, Unknown) or isinstance(item.observed, Unknown)]
    return Diff(
        before=a.title,
        after=b.title,
        found=_with_same_tree_last(ranked(item for item in found if item not in unknown), told),
        unknown=tuple(unknown),
        notes=tuple(notes),
        between=told,
    )


def against_now(one: Side, home: Home, notes: Iterable[str] = ()) -> Diff:
    """A lock, or the lock of a record, against the machine: what `check` finds, in the order of likelihood."""
    if one.lock is None:
        raise UsageError(f"{one.title} has no pins to hold the machine against")
    deployment = load_manifest(find_manifest(manifest_of(one)))
    drift = check_all(deployment, one.lock, home, deep=False, overrides=())
    return Diff(
        before=one.title,
        after=NOW,
        found=ranked(drift.differences),
        unknown=drift.unknown,
        notes=(*one.notes, *notes, *drift.notes, *drift.hints),
    )


def _is_commit(item: Difference, told: Between | None) -> bool:
    return item.aspect == "source" and (item.key == "commit" or (item.key == "tree" and told is not None))


def _commit(a: Side, b: Side, told: Between) -> Difference:
    note = ""
    if told.same_tree:
        note = "both commits have the same files: only their history differs"
    for which, one in (("A", a), ("B", b)):
        if "source.commit" in one.accepted:
            note = f"in {which} it was accepted that this is not the pinned commit"
    return Difference(
        aspect="source", key="commit", pinned=told.old, observed=told.new, evidence=told.lines, note=note
    )


def _with_same_tree_last(found: tuple[Ranked, ...], told: Between | None) -> tuple[Ranked, ...]:
    if told is None or not told.same_tree:
        return found
    moved = [
        msgspec.structs.replace(item, rank=Rank.OTHER) if item.difference.name == "source.commit" else item
        for item in found
    ]
    return tuple(sorted(moved, key=lambda item: item.rank))


def _packages(a: Side, b: Side) -> list[Difference]:
    digests = [one.lock.python.pylock for one in (a, b) if one.lock is not None]
    if None in digests or digests[0] == digests[1]:
        return []
    if isinstance(a.packages, Mapping) and isinstance(b.packages, Mapping):
        return pins.package_differences(a.packages, b.packages)
    pinned, observed = (
        digest if isinstance(one.packages, Mapping) else one.packages or Unknown("its pylock was not read")
        for one, digest in zip((a, b), digests, strict=True)
    )
    return [Difference(aspect="python", key="packages", pinned=pinned, observed=observed)]


def _accepted(a: Side, b: Side) -> list[Difference]:
    """What one of two records was measured with although its lock says otherwise."""
    found = []
    for name in dict.fromkeys((*a.accepted, *b.accepted)):
        was, now = a.accepted.get(name), b.accepted.get(name)
        known = was or now
        if known is None or name == "source.commit" or (was and now and was.observed == now.observed):
            continue
        found.append(
            Difference(
                aspect=known.aspect,
                key=known.key,
                pinned=was.observed if was else now.pinned if now else ABSENT,
                observed=now.observed if now else was.pinned if was else ABSENT,
                evidence=known.evidence,
                note=f"in {'both, differently' if was and now else 'A' if was else 'B'}, {known.note}",
            )
        )
    return found
