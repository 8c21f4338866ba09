"""When a repetition is enough, and what its comparison means."""

from __future__ import annotations

import pytest

from pinner.explain.compare import compare
from pinner.explain.rebuild import LocalPath, climbs, local_paths
from pinner.explain.reproduce import Answer, Looking, judge
from pinner.measure.statistics import looks
from pinner.model.lock import PythonPin
from tests.records import GPUS, engine, lock, measured, record, throughput

ORIGINAL = record(measured({"output_throughput": [94.0, 95.0, 93.0], "accept_length": [3.1, 3.0, 3.2]}))


def repeated(*values: float, accept: list[float] | None = None) -> dict[str, list[float]]:
    return {"output_throughput": list(values), "accept_length": accept or [3.1, 3.0, 3.2][: len(values)]}


@pytest.mark.parametrize(
    ("again", "tolerance", "answer"),
    [
        (repeated(94.5, 94.0, 93.5), 0.05, Answer.REPRODUCED),
        (repeated(130.0, 131.0, 129.0), 0.05, Answer.REPRODUCED),
        (repeated(60.0, 61.0, 59.0), 0.05, Answer.NOT_REPRODUCED),
        (repeated(60.0, 61.0, 59.0), 0.5, Answer.REPRODUCED),
        (repeated(94.5, 110.0, 80.0), 0.05, Answer.INCONCLUSIVE),
        (repeated(94.5, 94.0, 93.5, accept=[1.0, 1.0, 1.0]), 0.05, Answer.NOT_REPRODUCED),
    ],
)
def test_answers(again: dict[str, list[float]], tolerance: float, answer: Answer) -> None:
    assert judge(compare(ORIGINAL, record(measured(again)), tolerance=tolerance)) is answer


def looking(most: int = 8) -> Looking:
    return Looking(original=ORIGINAL, plan=looks(most), tolerance=0.05, overrides=(), machine={"hardware": GPUS})


def test_it_stops_at_the_first_look_that_settles_it() -> None:
    slow = measured(repeated(60.0, 61.0, 59.0))
    asked = [looking().is_enough([one for one in slow if one.start < starts]) for starts in (1, 2, 3)]
    assert asked == [False, True, False], "one start is no look, two settle it, three is no look"


def test_it_goes_on_while_nothing_is_certain() -> None:
    wild = measured({"output_throughput": [94.0, 60.0], "accept_length": [3.1, 3.0]})
    assert not looking().is_enough(wild)


def test_a_repetition_is_judged_by_the_last_look_it_reached() -> None:
    assert looking().at(throughput(*[94.0] * 5)).starts == 4
    assert looking().at(throughput(94.0)).starts == 2
    assert looking(6).at(throughput(*[94.0] * 6)).starts == 6


@pytest.mark.parametrize(
    ("text", "up"), [("model", 0), ("a/../b", 0), ("../model", 1), ("a/../../b", 1), ("../../x/../y", 2)]
)
def test_how_far_a_path_climbs(text: str, up: int) -> None:
    assert climbs(text) == up


def test_what_a_lock_expects_on_the_machine() -> None:
    assert list(local_paths(lock())) == [LocalPath("model.path", "model")]
    here = engine()
    bundle = type(here)(
        kind=here.kind,
        argv=here.argv,
        source=type(here.source)(**{**_fields(here.source), "url": "engine.bundle"}),
    )
    found = local_paths(
        lock(engine=bundle, python=PythonPin(version="3.11", patch_level="3.11.7", path="/srv/venv"))
    )
    assert [(one.key, one.text, one.is_absolute) for one in found] == [
        ("model.path", "model", False),
        ("engine.source.git", "engine.bundle", False),
        ("python.path", "/srv/venv", True),
    ]


def _fields(source: object) -> dict[str, object]:
    return {name: getattr(source, name) for name in type(source).__struct_fields__}  # type: ignore[attr-defined]
