"""Expectations of a machine: bare and long form, defaults, and what is refused."""

from __future__ import annotations

import pytest

from pinner.model.expectations import Expected, FactPin, FactSpec, Given, expected_problems, pin_expected
from pinner.model.facts import Class

SPECS = {
    "power-limit-watts": FactSpec(float, "power limit", Class.WITHIN, 1.0),
    "count": FactSpec(int, "GPUs", Class.AT_LEAST),
    "driver": FactSpec(str, "driver"),
    "mig": FactSpec(bool, "MIG"),
}


@pytest.mark.parametrize(
    ("key", "given", "pin"),
    [
        ("power-limit-watts", 370, FactPin(value=370, comparison=Class.WITHIN, tolerance=1.0)),
        ("count", 8, FactPin(value=8, comparison=Class.AT_LEAST)),
        ("count", Expected(value=8, comparison=Class.EXACT), FactPin(value=8)),
        ("count", Expected(value=8, tolerance=2), FactPin(value=8, comparison=Class.WITHIN, tolerance=2)),
        (
            "power-limit-watts",
            Expected(value=370, tolerance=20),
            FactPin(value=370, comparison=Class.WITHIN, tolerance=20),
        ),
        ("driver", Expected(comparison=Class.RECORD_ONLY), None),
    ],
)
def test_a_manifest_overrides_the_class_of_a_fact(key: str, given: Given, pin: FactPin | None) -> None:
    assert expected_problems("hardware", SPECS, {key: given}) == []
    assert pin_expected(SPECS[key], given) == pin


@pytest.mark.parametrize(
    ("key", "given", "said"),
    [
        ("power-limit-wats", 370, "did you mean `power-limit-watts`?"),
        ("count", "8", "a whole number, not '8'"),
        ("count", True, "a whole number, not True"),
        ("mig", 1, "true or false, not 1"),
        ("power-limit-watts", float("nan"), "finite"),
        ("driver", Expected(value="590", comparison=Class.AT_LEAST), "needs a number"),
        ("driver", Expected(comparison=Class.EXACT), "has no `value`"),
        ("count", Expected(value=8, comparison=Class.WITHIN), "needs a `tolerance`"),
        ("count", Expected(value=8, comparison=Class.EXACT, tolerance=1), 'not with "exact"'),
        ("count", Expected(value=8, tolerance=-1), "not negative"),
        ("driver", Expected(value="590", tolerance=1), "needs a number"),
    ],
)
def test_what_cannot_be_compared_is_refused(key: str, given: Given, said: str) -> None:
    ((path, sentence),) = expected_problems("hardware", SPECS, {key: given})
    assert path == f"hardware.{key}"
    assert said in sentence
