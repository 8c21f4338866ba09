"""Old evidence becomes records: SGLang's log lines and bench_serving's results."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pinner.errors import RecordError
from pinner.measure.foreign_bench import from_bench
from pinner.measure.foreign_log import from_log
from pinner.measure.samples import unpacked
from pinner.model.record import Load, Record

B_ARGUMENTS = (
    "[2026-11-23 09:00:00] server_args=ServerArgs(model_path='/srv/kimi', tp_size=8, api_key='sk-hush', "
    "speculative_algorithm='EAGLE3', cuda_graph_bs=[1, 2], load_format=<LoadFormat.AUTO: 'auto'>, revision=None)"
)
C_ARGUMENTS = (
    "[2026-11-30 09:00:00] server_args={'model_path': '/srv/kimi', 'tp_size': 8, 'admin_api_key': 'sk-hush', "
    "'decode_log_interval': 40, 'proxy': 'http://ada:sk-hush@proxy:80', 'speculative_algorithm': 'EAGLE3'}"
)
PREFILL = (
    "Prefill batch, #new-seq: 1, #new-token: 7, #cached-token: 0, token usage: 0.00, #running-req: {running}, "
    "#queue-req: 0, #pending-token: 0, cuda graph: True, input throughput (token/s): 1.00"
)


def decode(second: int, throughput: float, running: int = 1, length: float | None = 1.79, rank: str = "") -> str:
    accepted = "" if length is None else f"accept len: {length}, accept rate: 0.54, "
    return (
        f"[2026-11-30 10:00:{second:02}{rank}] Decode batch, #running-req: {running}, #token: 108, "
        f"token usage: 0.00, {accepted}cuda graph: True, gen throughput (token/s): {throughput}, #queue-req: 0"
    )


def prefill(second: int, running: int = 0) -> str:
    return f"[2026-11-30 10:00:{second:02}] {PREFILL.format(running=running)}"


def log(*lines: str) -> tuple[Record, dict[str, bytes]]:
    return from_log(lines, deployment="kimi")


def metrics(record: Record) -> dict[str, dict[str, float]]:
    return {one.load.name: one.metrics for one in record.measurements}


def test_the_incidents_step_is_told_from_the_throughput() -> None:
    """94 tok/s at an accept length of 1.79 is a step of 19 ms, 60 tok/s one of 30."""
    for throughput, step_ms in ((94.0, 19.04), (60.0, 29.83)):
        record, _ = log(C_ARGUMENTS, prefill(0), decode(1, 5.0), decode(2, throughput), decode(3, throughput))
        assert metrics(record) == {
            "concurrency=1": {
                "output_throughput": pytest.approx(throughput),
                "accept_length": 1.79,
                "verify_step_ms": pytest.approx(step_ms, abs=0.01),
            }
        }


def test_slow_lines_last_longer() -> None:
    """40 steps at 10 tok/s and 40 at 90: 80 tokens in 4.44 s, not 50 tok/s. The three metrics agree."""
    record, _ = log(decode(1, 10.0, length=1.0), decode(5, 10.0, length=1.0), decode(6, 90.0, length=1.0))
    found = metrics(record)["concurrency=1"]
    assert found["output_throughput"] == pytest.approx(18.0)
    assert found["verify_step_ms"] == pytest.approx(1e3 * found["accept_length"] / 18.0)


def test_the_step_of_several_requests_is_one_step() -> None:
    record, _ = log(decode(1, 10.0, 8), decode(2, 400.0, 8, 2.0))
    assert metrics(record)["concurrency=8"]["verify_step_ms"] == pytest.approx(40.0)


@pytest.mark.parametrize(
    "before",
    [
        (),
        (decode(1, 90.0), prefill(2)),
        # Without prefill lines only the clock tells: 40 steps at 90 tok/s take 0.8 s.
        (decode(1, 90.0),),
    ],
    ids=["first", "prefill of an idle engine", "late"],
)
def test_a_line_after_idle_time_is_left_out(before: tuple[str, ...]) -> None:
    record, files = log(*before, decode(30, 3.0), decode(31, 90.0), decode(32, 92.0))
    assert metrics(record)["concurrency=1"]["output_throughput"] == pytest.approx(90.99, abs=0.01)
    rows = unpacked(files["samples/start-0.jsonl.gz"])
    assert [row["interval"] for row in rows][-3:] == ["after idle", "steady", "steady"]
    assert rows[-3]["gen_throughput"] == 3.0, "it is kept among the samples"


def test_lines_with_a_prefill_or_another_number_of_requests_count_only_where_there_are_no_others() -> None:
    record, _ = log(
        decode(1, 9.0), decode(2, 90.0), prefill(2, running=1), decode(3, 150.0, 2), decode(4, 170.0, 2)
    )
    assert metrics(record)["concurrency=2"]["output_throughput"] == pytest.approx(170.0)
    record, _ = log(decode(1, 9.0), decode(2, 90.0), prefill(2, running=1), decode(3, 150.0, 2))
    assert metrics(record)["concurrency=2"] == {
        "output_throughput": pytest.approx(150.0),
        "accept_length": 1.79,
    }, "no step time"


def test_a_prefill_that_leaves_the_number_as_it_was_is_in_the_interval_too() -> None:
    """One request ended and another began: the line's time is not decoding alone."""
    record, _ = log(decode(1, 9.0), decode(2, 90.0), prefill(2, running=1), decode(3, 60.0), decode(4, 90.0))
    assert metrics(record)["concurrency=1"]["output_throughput"] == pytest.approx(90.0)


def test_without_speculation_there_is_no_accept_length_and_no_step() -> None:
    record, _ = log(decode(1, 90.0, length=None), decode(2, 90.0, length=None))
    assert metrics(record) == {"concurrency=1": {"output_throughput": 90.0}}


def test_a_log_of_idle_lines_alone_tells_no_speed() -> None:
    record, _ = log(decode(1, 3.0), prefill(9), decode(10, 3.0))
    assert (record.measurements, record.is_valid) == ((), False)
    assert any("no speed" in note for note in record.notes)


def test_every_start_in_a_log_is_a_start_of_the_record() -> None:
    ready = "[2026-11-30 09:01:30] The server is fired up and ready to roll!"
    record, files = log(
        C_ARGUMENTS, ready, decode(1, 9.0), decode(2, 90.0), C_ARGUMENTS, decode(3, 9.0), decode(4, 60.0)
    )
    assert [(one.start, one.metrics["output_throughput"]) for one in record.measurements] == [(0, 90.0), (1, 60.0)]
    assert [start.ready_s for start in record.starts] == [90.0, None]
    assert sorted(files) == ["samples/start-0.jsonl.gz", "samples/start-1.jsonl.gz"]
    assert record.ended - record.began == 3604.0


@pytest.mark.parametrize("line", [B_ARGUMENTS, C_ARGUMENTS, B_ARGUMENTS.replace("<LoadFormat.AUTO: 'auto'>", "1")])
def test_arguments_of_every_version_come_without_secrets(line: str) -> None:
    record, files = log(line, decode(1, 9.0))
    assert record.arguments["model_path"] == "/srv/kimi"
    assert record.arguments["tp_size"] == 8
    assert record.arguments["speculative_algorithm"] == "EAGLE3"
    assert "hush" not in repr(record) + repr(files)


def test_ranks_are_kept_apart() -> None:
    """Each line follows one of its own scheduler."""
    lines = (decode(1, 9.0, rank=" DP0"), decode(1, 9.0, rank=" DP1"), decode(2, 90.0, rank=" DP0"))
    record, _ = log(*lines)
    assert metrics(record)["concurrency=1"]["output_throughput"] == pytest.approx(90.0)
    assert any("2 schedulers" in note for note in record.notes)


@pytest.mark.parametrize("text", ["", "hello", "[2026-99-30 10:00:00] Decode batch, #running-req: 1, x: 1"])
def test_what_is_no_log_is_refused(text: str) -> None:
    with pytest.raises(RecordError, match="no batch"):
        log(text)


def result(**more: Any) -> str:
    row: dict[str, Any] = {
        "tag": None,
        "backend": "sglang",
        "dataset_name": "random-ids",
        "request_rate": float("inf"),
        "max_concurrency": 8,
        "random_input_len": 64,
        "random_output_len": 32,
        "server_info": {
            "model_path": "/srv/kimi",
            "api_key": "sk-hush",
            "launch_command": "sglang serve --api-key sk-hush",
            "random_seed": 7,
            "version": "0.5.23",
            "internal_states": [{"last_gen_throughput": 1.0}],
        },
        "duration": 10.0,
        "completed": 40,
        "total_input_tokens": 2560,
        "total_output_tokens": 1280,
        "request_throughput": 4.0,
        "output_throughput": 128.0,
        "mean_ttft_ms": 21.5,
        "p99_e2e_latency_ms": 900.0,
        "std_itl_ms": 1.0,
        "median_tpot_ms": 0.0,
        "accept_length": 2.5,
        "generated_texts": ["a secret of mine"],
    }
    return json.dumps(row | more)


def bench(*lines: str) -> tuple[Record, dict[str, bytes]]:
    return from_bench(lines, deployment="kimi", ended=1000.0)


def test_a_result_becomes_a_measurement() -> None:
    record, files = bench(result())
    (one,) = record.measurements
    assert one.metrics == {
        "request_throughput": 4.0,
        "output_throughput": 128.0,
        "ttft_mean_ms": 21.5,
        "e2el_p99_ms": 900.0,
        "accept_length": 2.5,
    }
    assert (one.load, one.requests, one.output_tokens) == (Load(kind="concurrency", value=8.0), 40, 1280)
    assert (record.began, record.ended, record.starts[0].engine_version) == (990.0, 1000.0, "0.5.23")
    assert record.load_arguments["dataset_name"] == "random-ids"
    assert record.arguments == {"model_path": "/srv/kimi", "random_seed": 7}
    kept = repr(record) + repr(unpacked(files["samples/results.jsonl.gz"]))
    assert "hush" not in kept
    assert "secret of mine" not in kept


def test_lines_of_one_server_are_repeats_and_those_of_another_a_start() -> None:
    other = json.loads(result())["server_info"] | {"random_seed": 8}
    record, _ = bench(result(), result(), result(max_concurrency=1), result(server_info=other))
    assert [(one.start, one.repeat, one.load.value) for one in record.measurements] == [
        (0, 0, 8.0),
        (0, 1, 8.0),
        (0, 0, 1.0),
        (1, 0, 8.0),
    ]
    assert "max_concurrency" not in record.load_arguments, "it differs"


def test_loads_of_every_kind() -> None:
    rate = bench(result(request_rate=2.5, max_concurrency=None))[0].measurements[0].load
    assert rate == Load(kind="rate", value=2.5)
    at_once = bench(result(max_concurrency=None))[0].measurements[0].load
    assert at_once == Load(kind="concurrency", value=40.0)


def test_what_failed_or_cannot_be_told_is_no_metric() -> None:
    record, _ = bench(result(errors=["", "timed out"], output_throughput=float("nan"), accept_length=None))
    (one,) = record.measurements
    assert (one.failures, one.invalid, record.is_valid) == ({"error": 1}, ("1 requests failed",), False)
    assert "output_throughput" not in one.metrics
    assert "accept_length" not in one.metrics
    assert bench(result(completed=0))[0].is_valid is False
    assert bench(result(server_info=None))[0].starts[0].account == {}


@pytest.mark.parametrize("text", ["", "{", "[]", '{"a": 1}'])
def test_what_is_no_result_is_refused(text: str) -> None:
    with pytest.raises(RecordError):
        bench(text)
