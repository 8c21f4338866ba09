"""Facts, observations and drift, and the pure comparison of pinned with observed.

Owns the three values a fact can have (a value, absent, unknown) and the comparison classes.
Must not look at the machine: probes observe, this module only judges.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

import msgspec


class Absent(msgspec.Struct, frozen=True, tag="absent"):
    """The fact was looked for and is not there."""

    def __str__(self) -> str:
        return "absent"


class Unknown(msgspec.Struct, frozen=True, tag="unknown"):
    """The fact could not be read. Never equal to anything, never zero."""

    reason: str

    def __str__(self) -> str:
        return f"unknown ({self.reason})"


ABSENT = Absent()

# A plain value is whatever JSON can hold; lists are compared in order.
Fact = Any
Facts = Mapping[str, Fact]


class Class(StrEnum):
    """How a pinned fact is compared with the observed one."""

    EXACT = "exact"
    AT_LEAST = "at-least"
    WITHIN = "within"
    RECORD_ONLY = "record-only"


class Expectation(msgspec.Struct, frozen=True):
    """How to compare one key; `tolerance` is absolute, in the unit of the fact, for `within`."""

    comparison: Class = Class.EXACT
    tolerance: float = 0.0


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """One way in which the machine differs from the lock.

    `key` is unique within the aspect; `aspect.key` is what `--accept` takes. `evidence` holds lines
    for a person: when, by whom, which commits. `note` is a sentence that says more than the two values.
    """

    aspect: str
    key: str
    pinned: Fact
    observed: Fact
    comparison: Class = msgspec.field(default=Class.EXACT, name="class")
    evidence: tuple[str, ...] = ()
    note: str = ""

    @property
    def name(self) -> str:
        return f"{self.aspect}.{self.key}"


class Observation(msgspec.Struct, frozen=True, kw_only=True):
    """What one probe saw.

    `facts` by key. `sealed` are pinned values that the lock holds only as one digest and the workspace in
    detail (each file of an environment): they extend the pinned side, and `expectations` say how they are compared
    where that is not exactly. `evidence` and `notes_by_key` say more about a key if it differs. `notes` are worth
    telling though nothing drifted. `how` says how sure a clean answer is, such as "1,204 files by remembered
    digest".
    """

    aspect: str
    facts: dict[str, Fact]
    sealed: dict[str, Fact] = {}
    evidence: dict[str, tuple[str, ...]] = {}
    notes_by_key: dict[str, str] = {}
    notes: tuple[str, ...] = ()
    how: str = ""
    expectations: dict[str, Expectation] = {}


class Override(msgspec.Struct, frozen=True):
    """A difference that the user accepts by name and with a reason."""

    key: str
    reason: str


class Drift(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of a check: what differs, what could not be told, what was accepted; hints say what to do."""

    differences: tuple[Difference, ...] = ()
    unknown: tuple[Difference, ...] = ()
    accepted: tuple[Difference, ...] = ()
    notes: tuple[str, ...] = ()
    hints: tuple[str, ...] = ()
    how: dict[str, str] = {}

    @property
    def is_clean(self) -> bool:
        return not self.differences and not self.unknown


def is_equal(pinned: Fact, observed: Fact, expectation: Expectation) -> bool:
    """Whether an observed value satisfies a pinned one. Unknown satisfies nothing."""
    if isinstance(pinned, Unknown) or isinstance(observed, Unknown):
        return False
    if expectation.comparison is Class.RECORD_ONLY:
        return True
    if expectation.comparison is Class.EXACT or not _is_number(pinned) or not _is_number(observed):
        return type(pinned) is type(observed) and bool(pinned == observed)
    if expectation.comparison is Class.AT_LEAST:
        return bool(observed >= pinned)
    return bool(abs(observed - pinned) <= expectation.tolerance)


def _is_number(value: Fact) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def compare_facts(
    pinned: Facts, observation: Observation, expectations: Mapping[str, Expectation] | None = None
) -> tuple[tuple[Difference, ...], tuple[Difference, ...]]:
    """Compare every key of either side; returns (differences, unknown), each in key order.

    A key observed and not pinned is a difference (pinned absent): the world is closed. A probe that wants to
    tell something without judging it uses `notes`.
    """
    expectations = {**observation.expectations, **(expectations or {})}
    both = {**pinned, **observation.sealed}
    differences: list[Difference] = []
    unknown: list[Difference] = []
    for key in sorted(both.keys() | observation.facts.keys()):
        expectation = expectations.get(key, Expectation())
        want, seen = both.get(key, ABSENT), observation.facts.get(key, ABSENT)
        if expectation.comparison is Class.RECORD_ONLY or is_equal(want, seen, expectation):
            continue
        difference = Difference(
            aspect=observation.aspect,
            key=key,
            pinned=want,
            observed=seen,
            comparison=expectation.comparison,
            evidence=observation.evidence.get(key, ()),
            note=observation.notes_by_key.get(key, ""),
        )
        (unknown if isinstance(seen, Unknown) or isinstance(want, Unknown) else differences).append(difference)
    return tuple(differences), tuple(unknown)


def accept(drift: Drift, overrides: tuple[Override, ...]) -> Drift:
    """Move the differences that `overrides` name to `accepted`, each with the reason in its note.

    Unknowns can be accepted too: the user then answers for what pinner could not tell. An override that names
    nothing stays without effect.
    """
    reasons = {override.key: override.reason for override in overrides}

    def split(items: tuple[Difference, ...]) -> tuple[list[Difference], list[Difference]]:
        kept = [item for item in items if item.name not in reasons]
        moved = [
            msgspec.structs.replace(item, note=f"accepted: {reasons[item.name]}")
            for item in items
            if item.name in reasons
        ]
        return kept, moved

    differences, moved_differences = split(drift.differences)
    unknown, moved_unknown = split(drift.unknown)
    accepted = (*drift.accepted, *moved_differences, *moved_unknown)
    return msgspec.structs.replace(
        drift, differences=tuple(differences), unknown=tuple(unknown), accepted=accepted
    )


def unmatched(drift: Drift, overrides: tuple[Override, ...]) -> tuple[str, ...]:
    """Keys of overrides that accepted nothing: misspelt, or no longer needed."""
    accepted = {item.name for item in drift.accepted}
    return tuple(override.key for override in overrides if override.key not in accepted)
