"""What a person reads of a benchmark: a line for each load, why something does not count, verdicts, the record."""

from __future__ import annotations

import io
from pathlib import Path

from pinner.measure.bench import BenchOutcome
from pinner.measure.records import Stored
from pinner.model.facts import Difference, Drift
from pinner.model.record import FORMAT, READS_FORMAT, Load, Measurement, Record, Start, Verdict
from pinner.render_bench import bench_text
from pinner.terminal import Output

LOAD = Load(kind="concurrency", value=8.0)


def shown(outcome: BenchOutcome) -> str:
    out = io.StringIO()
    bench_text(Output("bench", as_json=False, out=out, err=out), outcome)
    return out.getvalue()


def stored(*measurements: Measurement, verdicts: tuple[Verdict, ...] = ()) -> BenchOutcome:
    record = Record(
        format=FORMAT,
        requires_pinner=READS_FORMAT,
        origin="pinner",
        deployment="kimi",
        bench="decode",
        began=0.0,
        ended=1.0,
        measurements=measurements,
        starts=(Start(run="a", began=0.0), Start(run="b", began=0.0)),
        verdicts=verdicts,
    )
    return BenchOutcome(stored=Stored(id="ab" * 32, path=Path("/r/kimi"), record=record), drift=Drift())


def one(start: int, invalid: tuple[str, ...] = (), repeat: int = 0, **metrics: float) -> Measurement:
    return Measurement(
        start=start,
        repeat=repeat,
        load=LOAD,
        began=0.0,
        duration_s=1.0,
        metrics=metrics,
        requests=4,
        invalid=invalid,
    )


def test_a_line_for_each_load_with_the_interval_over_starts() -> None:
    met = Verdict(metric="accept_length", load=LOAD.name, expected="at least 2.5", observed=1.0, is_met=False)
    unknown = Verdict(metric="speedup", load=LOAD.name, expected="at least 1.1", observed=None, is_met=None)
    text = shown(
        stored(
            one(0, output_throughput=90.0, accept_length=1.0),
            one(1, output_throughput=98.0, accept_length=1.0),
            verdicts=(met, unknown),
        )
    )
    # Student's t with one degree of freedom: 12.7 times the standard error of 4.
    assert "concurrency=8   94.0 ± 50.8" in text
    assert "NOT MET  accept_length at concurrency=8: expected at least 2.5, measured 1" in text
    assert "UNKNOWN  speedup at concurrency=8: expected at least 1.1, and it could not be told" in text
    assert "record  abababababab  /r/kimi" in text


def test_what_does_not_count_is_said_with_its_place_and_cut_short() -> None:
    bad = [one(number % 2, ("4 of 4 requests failed: 4 timeout",), repeat=number) for number in range(40)]
    text = shown(stored(*bad))
    assert "does not count  start 1, concurrency=8, repeat 1: 4 of 4 requests failed: 4 timeout" in text
    assert "more; `--output json` lists all" in text
    assert len(text.splitlines()) < 15


def test_a_refusal_says_that_nothing_was_measured() -> None:
    drift = Drift(differences=(Difference(aspect="source", key="commit", pinned="a", observed="b"),))
    text = shown(BenchOutcome(stored=None, drift=drift))
    assert "nothing was measured" in text and "--accept 'source.commit' --reason TEXT" in text
