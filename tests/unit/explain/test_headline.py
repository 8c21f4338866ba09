"""The one line: which number moved, and what moved it."""

from __future__ import annotations

import pytest

from pinner.explain.commits import Between
from pinner.explain.compare import compare
from pinner.explain.diff import Diff
from pinner.explain.headline import figure, headline, title
from pinner.explain.likelihood import ranked
from pinner.host.git import Move
from pinner.host.history import CommitInfo
from pinner.model.facts import ABSENT, Difference, Unknown
from tests.records import measured, record

OLD, NEW, SUSPECT = "bba2fc4" + "0" * 33, "3207427" + "0" * 33, "0be30d4" + "0" * 33
BETWEEN = Between(
    old=OLD,
    new=NEW,
    moves=(Move(OLD, NEW, "Sam <sam@example.com>", "2026-11-30T09:12:31+00:00", "pull: Fast-forward"),),
    suspects=(CommitInfo(SUSPECT, "2026-11-29T10:00:00+00:00", "Kim", "Fuse the all-reduce of MoE layers"),),
)
COMMIT = Difference(aspect="source", key="commit", pinned=OLD, observed=NEW)
PROTO = Difference(aspect="environment", key="NCCL_PROTO", pinned="Simple", observed=ABSENT)


def found(*differences: Difference, **fields: object) -> Diff:
    return Diff(before="A", after="B", found=ranked(differences), **fields)  # type: ignore[arg-type]


def slower(starts: int = 3) -> object:
    good = {"output_throughput": [94.0, 95.0, 93.0], "verify_step_ms": [19.0, 19.1, 18.9]}
    bad = {"output_throughput": [60.0, 61.0, 59.0], "verify_step_ms": [29.0, 29.1, 28.9]}
    sides = [record(measured({name: values[:starts] for name, values in one.items()})) for one in (good, bad)]
    return compare(*sides)


def test_the_incident_in_one_line() -> None:
    assert headline(slower(), found(PROTO, COMMIT, between=BETWEEN)) == (  # type: ignore[arg-type]
        "verify step 19 → 29 ms at concurrency=8; source moved bba2fc4000 → 3207427000 by `pull: Fast-forward` at "
        "2026-11-30T09:12:31+00:00 by Sam <sam@example.com>; suspect 0be30d4000 Fuse the all-reduce of MoE layers "
        "(1 more difference)"
    )


def test_one_start_each_is_told_as_not_certain() -> None:
    said = headline(slower(starts=1), found(PROTO))  # type: ignore[arg-type]
    assert said == (
        "verify step 19 → 29 ms at concurrency=8 (not certain yet); environment NCCL_PROTO Simple → absent"
    )


def test_nothing_changed_says_nothing() -> None:
    same = record(measured({"output_throughput": [94.0, 94.1, 93.9]}))
    assert headline(compare(same, same), found(COMMIT)) == ""
    assert headline(None, found(COMMIT)) == ""


def test_no_pin_differs_and_pins_unknown_are_two_things() -> None:
    assert headline(slower(), found()).endswith("; no pin differs: look at what is not pinned")  # type: ignore[arg-type]
    unread = Difference(aspect="python", key="packages", pinned="x", observed=Unknown("gone"))
    said = headline(slower(), found(unknown=(unread,)))  # type: ignore[arg-type]
    assert said.endswith("; what moved it cannot be told: python.packages")
    foreign = headline(slower(), found(notes=("record 1 is foreign: it has no pins",)))  # type: ignore[arg-type]
    assert foreign.endswith("; what moved it cannot be told: record 1 is foreign: it has no pins")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (19.04, "19"),
        (94.13, "94.1"),
        (3.104, "3.1"),
        (1.0, "1"),
        (45012.3, "45,012"),
        (0.0512, "0.051"),
        (99.96, "100"),
    ],
)
def test_figures(value: float, text: str) -> None:
    assert figure(value) == text


def test_titles() -> None:
    assert [
        title(name) for name in ("verify_step_ms", "ttft_median_ms", "output_throughput", "accept_length")
    ] == [
        "verify step",
        "TTFT median",
        "output throughput",
        "accept length",
    ]
