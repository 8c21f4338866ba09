"""Comparing pinned with observed facts."""

from __future__ import annotations

import pytest

from pinner.model.facts import (
    ABSENT,
    Class,
    Difference,
    Drift,
    Expectation,
    Observation,
    Override,
    Unknown,
    accept,
    compare_facts,
    is_equal,
)

EXACT = Expectation()


@pytest.mark.parametrize("other", [0, "", None, False, ABSENT, Unknown("no permission"), Unknown("other")])
def test_unknown_equals_nothing(other: object) -> None:
    assert not is_equal(Unknown("no permission"), other, EXACT)
    assert not is_equal(other, Unknown("no permission"), EXACT)


def test_values_of_other_types_differ() -> None:
    assert not is_equal(1, True, EXACT)
    assert not is_equal("1", 1, EXACT)
    assert is_equal("1", "1", EXACT)


def test_classes() -> None:
    assert is_equal(5, 6, Expectation(Class.AT_LEAST))
    assert not is_equal(5, 4, Expectation(Class.AT_LEAST))
    assert is_equal(370.0, 369.9, Expectation(Class.WITHIN, 0.5))
    assert not is_equal(370.0, 230.0, Expectation(Class.WITHIN, 0.5))
    assert is_equal("a", "b", Expectation(Class.RECORD_ONLY))


def test_every_difference_is_reported_and_unknown_is_apart() -> None:
    seen = Observation(
        aspect="x",
        facts={"same": 1, "other": 2, "extra": 3, "unread": Unknown("why")},
        evidence={"other": ("because",)},
    )
    differences, unknown = compare_facts({"same": 1, "other": 1, "gone": 1, "unread": 1}, seen)
    assert [item.key for item in differences] == ["extra", "gone", "other"]
    assert [item.key for item in unknown] == ["unread"]
    assert differences[0].pinned == ABSENT
    assert differences[1].observed == ABSENT
    assert differences[2].evidence == ("because",)


def test_accepting_moves_by_full_name_only() -> None:
    items = tuple(Difference(aspect="x", key=key, pinned=1, observed=2) for key in ("a", "b"))
    drift = accept(Drift(differences=items), (Override("x.a", "tried"), Override("b", "no")))
    assert [item.name for item in drift.differences] == ["x.b"]
    assert [item.name for item in drift.accepted] == ["x.a"]
    assert "tried" in drift.accepted[0].note
    assert not drift.is_clean
