"""What a record tells of the machine that it was measured on, and how two such differ. Pure.

Owns the reading of a record's `machine`. Which differences forbid a comparison is for comparable.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pinner.model.facts import ABSENT, Difference, Fact, Unknown
from pinner.model.hardware import GPU_FACTS, UNDER_LOAD

Machine = Mapping[str, Mapping[str, Any]]

HARDWARE = "hardware"
HOST = "host"
_GPU = "gpu."
# What changes from minute to minute, or follows from what else runs.
_FLEETING = UNDER_LOAD | {"memory-available-bytes", "shm-free-bytes", "slowdown", "nvml"}
# The driver tells milliwatts, and people write watts.
_WITHIN = {"power-limit-watts": 1.0}


def fact_of(value: Any) -> Fact:
    """A value of a record's JSON as the fact that it was; both spellings of one that could not be told."""
    if value is None:
        return ABSENT
    if not isinstance(value, dict):
        return value
    if value.keys() == {"unknown"}:
        return Unknown(str(value["unknown"]))
    kind = value.get("type")
    return ABSENT if kind == "absent" else Unknown(str(value.get("reason"))) if kind == "unknown" else value


def by_gpu(machine: Machine) -> dict[str, dict[str, Any]]:
    """Facts of each GPU by its name, which holds dots itself (0000:41:00.0)."""
    found: dict[str, dict[str, Any]] = {}
    for key, value in machine.get(HARDWARE, {}).items():
        if key.startswith(_GPU):
            title, _, fact = key.removeprefix(_GPU).rpartition(".")
            if title and fact in GPU_FACTS:
                found.setdefault(title, {})[fact] = fact_of(value)
    return found


def of_all_gpus(machine: Machine, fact: str) -> list[Any]:
    """The values that the GPUs have, in an order that does not depend on which GPU has which."""
    values = [facts[fact] for facts in by_gpu(machine).values() if fact in facts]
    return sorted(values, key=lambda value: (value, "") if isinstance(value, (int, float)) else (0, str(value)))


def is_same(fact: str, before: Any, after: Any) -> bool:
    """Whether two values of a fact are the same for all that matters. What could not be told is not."""
    if isinstance(before, Unknown) or isinstance(after, Unknown):
        return False
    near = _WITHIN.get(fact)
    if near is not None and isinstance(before, (int, float)) and isinstance(after, (int, float)):
        return abs(after - before) <= near
    return type(before) is type(after) and bool(before == after)


def are_same(fact: str, before: list[Any], after: list[Any]) -> bool:
    """The same for the values of all GPUs."""
    return len(before) == len(after) and all(is_same(fact, *pair) for pair in zip(before, after, strict=True))


def summary(values: list[Any]) -> str:
    """`8 × 700`, or what there is of each."""
    words = [f"{value:g}" if isinstance(value, float) else str(value) for value in values]
    return ", ".join(f"{words.count(word)} × {word}" for word in dict.fromkeys(words))


def differences(before: Machine, after: Machine) -> list[Difference]:
    """How two machines differ, in what both records tell. GPUs of the same bus ids are compared one by one."""
    found = _gpus(before, after)
    for aspect in (HARDWARE, HOST):
        a, b = before.get(aspect, {}), after.get(aspect, {})
        if not a or not b:
            continue
        for key in sorted(a.keys() | b.keys()):
            if key.startswith(_GPU) or key in _FLEETING:
                continue
            was, now = fact_of(a.get(key)), fact_of(b.get(key))
            if _differs(key, was, now):
                found.append(_difference(aspect, key, was, now))
    return found


def _gpus(before: Machine, after: Machine) -> list[Difference]:
    a, b = by_gpu(before), by_gpu(after)
    if not a or not b:
        return []
    facts = [fact for fact in GPU_FACTS if fact not in _FLEETING]
    if a.keys() == b.keys():
        return [
            _difference(HARDWARE, f"{_GPU}{title}.{fact}", a[title].get(fact, ABSENT), b[title].get(fact, ABSENT))
            for title in a
            for fact in facts
            if _differs(fact, a[title].get(fact, ABSENT), b[title].get(fact, ABSENT))
        ]
    found = []
    for fact in facts:
        was, now = of_all_gpus(before, fact), of_all_gpus(after, fact)
        if not are_same(fact, was, now):
            found.append(_difference(HARDWARE, fact, summary(was) or ABSENT, summary(now) or ABSENT))
    return found


def _differs(fact: str, was: Fact, now: Fact) -> bool:
    both_unknown = isinstance(was, Unknown) and isinstance(now, Unknown)
    return not both_unknown and not is_same(fact, was, now)


def _difference(aspect: str, key: str, was: Fact, now: Fact) -> Difference:
    return Difference(aspect=aspect, key=key, pinned=was, observed=now)
