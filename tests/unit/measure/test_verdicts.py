"""Expectations: what is met, what is not, and what cannot be told; the code that follows."""

from __future__ import annotations

from typing import Any

import pytest

from pinner.errors import ExitCode
from pinner.measure.verdicts import exit_code, is_met, verdicts, with_speedup, words
from pinner.model.bench import Bench, Expect
from pinner.model.record import FORMAT, READS_FORMAT, Load, Measurement, Record, Start

LOAD = Load(kind="concurrency", value=1.0)


def one(start: int, repeat: int = 0, invalid: tuple[str, ...] = (), **metrics: float) -> Measurement:
    return Measurement(
        start=start,
        repeat=repeat,
        load=LOAD,
        began=0.0,
        duration_s=1.0,
        metrics=metrics,
        requests=1,
        invalid=invalid,
    )


def record(bench: Bench, *measurements: Measurement, starts: int = 2, **keys: Any) -> Record:
    found = Record(
        format=FORMAT,
        requires_pinner=READS_FORMAT,
        origin="pinner",
        deployment="d",
        bench="b",
        began=0.0,
        ended=1.0,
        measurements=measurements,
        starts=tuple(Start(run=f"r{number}", began=0.0) for number in range(starts)),
        **keys,
    )
    return Record(
        **{name: getattr(found, name) for name in found.__struct_fields__}
        | {"verdicts": verdicts(bench, found.counting())}
    )


@pytest.mark.parametrize(
    ("expect", "observed", "met"),
    [
        (Expect(at_least=2.0), 2.0, True),
        (Expect(at_least=2.0), 1.99, False),
        (Expect(at_most=2.0), 2.01, False),
        (Expect(at_least=1.0, at_most=2.0), 1.5, True),
        (Expect(value=94.0, tolerance=0.03), 91.2, True),
        (Expect(value=94.0, tolerance=0.03), 91.1, False),
        (Expect(value=94.0, tolerance=0.03), 97.0, False),
    ],
)
def test_an_expectation(expect: Expect, observed: float, met: bool) -> None:
    assert is_met(expect, observed) is met


def test_words() -> None:
    assert words(Expect(value=94.0, tolerance=0.03)) == "94 ± 3 %"
    assert words(Expect(at_least=2.5, at_most=4.0)) == "at least 2.5, at most 4"


def test_starts_count_alike_however_many_repeats_they_have() -> None:
    bench = Bench(expect={"output_throughput": Expect(at_least=50.0)})
    measured = [one(0, repeat, output_throughput=100.0) for repeat in range(3)] + [one(1, output_throughput=10.0)]
    assert verdicts(bench, measured)[0].observed == 55.0


def test_h12_a_metric_that_one_measurement_lacks_cannot_be_told() -> None:
    bench = Bench(expect={"accept_length": Expect(at_least=2.0)})
    assert verdicts(bench, [one(0, accept_length=3.0), one(1)])[0].is_met is None
    assert verdicts(bench, [])[0].is_met is None


def test_codes() -> None:
    bench = Bench(expect={"accept_length": Expect(at_least=2.0)})
    assert exit_code(record(bench, one(0, accept_length=3.0), one(1, accept_length=3.0))) is ExitCode.OK
    assert exit_code(record(bench, one(0, accept_length=1.0), one(1, accept_length=1.0))) is ExitCode.DIFFERENT
    assert exit_code(record(bench, one(0), one(1))) is ExitCode.FAILED
    bad = one(1, invalid=("3 of 4 requests failed",), accept_length=1.0)
    assert exit_code(record(bench, one(0, accept_length=3.0), bad)) is ExitCode.INVALID
    assert exit_code(record(bench)) is ExitCode.INVALID
    assert exit_code(record(bench, one(0, accept_length=3.0), invalid=("drift",))) is ExitCode.INVALID


def test_what_does_not_count_moves_no_verdict() -> None:
    bench = Bench(expect={"accept_length": Expect(at_least=2.0)})
    bad = one(1, invalid=("throttled",), accept_length=1.0)
    assert record(bench, one(0, accept_length=3.0), bad).verdicts[0].observed == 3.0


def test_the_speedup_is_relative_to_the_baseline_s_mean_over_starts() -> None:
    base = [one(0, output_throughput=40.0), one(1, output_throughput=60.0)]
    own = with_speedup([one(0, output_throughput=75.0), one(1)], base)
    assert own[0].metrics["speedup"] == 1.5
    assert "speedup" not in own[1].metrics
    assert "speedup" not in with_speedup([one(0, output_throughput=75.0)], [])[0].metrics
