"""Facts of a machine that a manifest expects and a lock pins: a value, and how it is compared.

Owns the bare and the long form of an expectation and the rules for both. Must not know which facts there are:
pinner/model/hardware.py and pinner/model/hostfacts.py list them.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping

import msgspec

from pinner.model.facts import Class, Expectation
from pinner.model.sections import Part, Section

Value = bool | int | float | str

# What a lock holds of a fact that the machine does not have: its own word, never 0.
UNSUPPORTED = "unsupported"


class Expected(Section, frozen=True, kw_only=True):
    """The long form in a manifest: `{ value = 600, class = "within", tolerance = 5 }`.

    Without `class` the fact's own class counts; `tolerance` is absolute, in the unit of the fact.
    """

    value: Value | None = None
    comparison: Class | None = msgspec.field(default=None, name="class")
    tolerance: float | None = None


Given = Value | Expected


class FactPin(Part, frozen=True, kw_only=True):
    """A pinned fact and how it is compared; `tolerance` only for "within".

    `captured`: not from the manifest, but from the machine on which `lock --capture` was called.
    """

    value: Value
    comparison: Class = msgspec.field(default=Class.EXACT, name="class")
    tolerance: float | None = None
    captured: bool = False

    @property
    def expectation(self) -> Expectation:
        return Expectation(self.comparison, self.tolerance or 0.0)


class FactSpec(msgspec.Struct, frozen=True):
    """What is known of one kind of fact: its type, how it is compared unless a manifest says otherwise.

    `words` are values besides those of its type, such as "unlimited".
    """

    kind: type[bool] | type[int] | type[float] | type[str]
    about: str
    comparison: Class = Class.EXACT
    tolerance: float = 0.0
    words: tuple[str, ...] = ()


def pin_expected(spec: FactSpec, given: Given) -> FactPin | None:
    """The pin of an expectation; None where it names no value (record-only without one pins nothing)."""
    if not isinstance(given, Expected):
        given = Expected(value=given)
    if given.value is None:
        return None
    comparison = given.comparison or (Class.WITHIN if given.tolerance is not None else spec.comparison)
    # A person writes 600 where a machine says 600.0.
    value = float(given.value) if spec.kind is float and isinstance(given.value, int) else given.value
    return FactPin(value=value, comparison=comparison, tolerance=_tolerance(spec, comparison, given.tolerance))


def _tolerance(spec: FactSpec, comparison: Class, given: float | None) -> float | None:
    if comparison is not Class.WITHIN:
        return None
    return spec.tolerance if given is None else given


def expected_problems(
    section: str, specs: Mapping[str, FactSpec], given: Mapping[str, Given]
) -> list[tuple[str, str]]:
    """Everything wrong with a section's facts, as (key path, sentence)."""
    found = []
    for key, one in given.items():
        spec = specs.get(key)
        if spec is None:
            near = difflib.get_close_matches(key.replace("_", "-"), specs, n=1, cutoff=0.5)
            more = f"did you mean `{near[0]}`?" if near else f"known here: {', '.join(specs)}"
            found.append((f"{section}.{key}", f"unknown key; {more}"))
            continue
        found += [(f"{section}.{key}", sentence) for sentence in _problems(spec, one)]
    return found


def _problems(spec: FactSpec, given: Given) -> list[str]:
    value = given.value if isinstance(given, Expected) else given
    problems = []
    if value is not None and not _fits(spec.kind, value) and value not in spec.words:
        words = "".join(f' or "{word}"' for word in spec.words)
        problems.append(f"must be {_WORDS[spec.kind]}{words}, not {value!r}")
    if isinstance(value, float) and not math.isfinite(value):
        problems.append("must be a finite number")
    if not isinstance(given, Expected):
        return problems
    is_number = spec.kind in (int, float)
    if value is None and given.comparison is not Class.RECORD_ONLY:
        problems.append('has no `value`; only class = "record-only" can do without')
    if given.comparison in (Class.AT_LEAST, Class.WITHIN) and not is_number:
        problems.append(f'class = "{given.comparison}" needs a number, and this fact is {_WORDS[spec.kind]}')
    if given.tolerance is not None and not (math.isfinite(given.tolerance) and given.tolerance >= 0):
        problems.append("`tolerance` must be a number that is not negative")
    elif given.tolerance is not None and given.comparison not in (None, Class.WITHIN):
        problems.append(f'`tolerance` goes with class = "within", not with "{given.comparison}"')
    elif given.tolerance is not None and not is_number:
        problems.append("`tolerance` needs a number")
    elif given.comparison is Class.WITHIN and given.tolerance is None and spec.tolerance == 0.0:
        problems.append('class = "within" needs a `tolerance`')
    return problems


_WORDS: dict[type, str] = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}


def _fits(kind: type, value: Value) -> bool:
    if isinstance(value, bool) or kind is bool:
        return isinstance(value, bool) and kind is bool
    return isinstance(value, (int, float)) if kind is float else isinstance(value, kind)
