"""What a benchmark asks of SGLang's surface: emptying the cache, step times, an argument list without a draft."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

from pinner.engines import pocket, sglang_api, sglang_log
from pinner.engines.base import StepTime
from pinner.host.http import Answer, Http, HttpFailed
from pinner.measure.bench_serving import arguments
from pinner.model.bench import Bench
from pinner.model.record import Load


class Server(Http):
    """Answers in turn; the last one again and again."""

    def __init__(self, *answers: Answer | HttpFailed) -> None:
        self.answers = list(answers)
        self.asked: list[str] = []

    def _next(self, url: str) -> Answer:
        self.asked.append(url)
        found = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(found, HttpFailed):
            raise found
        return found

    def get(self, url: str, *, timeout_s: float) -> Answer:  # noqa: ARG002  # as the real one
        return self._next(url)

    def post(self, url: str, body: Mapping[str, Any], *, timeout_s: float) -> Answer:  # noqa: ARG002
        return self._next(url)


def test_a_busy_server_is_asked_again_to_empty_its_cache() -> None:
    server = Server(Answer(400, None), Answer(200, None))
    assert sglang_api.flush(server, "http://server") is None
    assert server.asked == ["http://server/flush_cache"] * 2


def test_a_server_that_has_no_such_path_is_not() -> None:
    server = Server(Answer(404, None))
    assert sglang_api.flush(server, "http://server") == "/flush_cache answers 404"
    assert len(server.asked) == 1
    assert sglang_api.flush(Server(HttpFailed("refused")), "http://server") == "/flush_cache: refused"


def test_step_times_as_sglang_and_as_the_small_engine_keep_them() -> None:
    of_sglang = {"version": "0.5.23", "internal_states": [{"step_time_dict": {"1": [0.019, 0.021], "8": [0.03]}}]}
    state = sglang_api.state(Server(Answer(200, of_sglang)), "http://server")
    assert state.version == "0.5.23"
    assert state.steps["verify_step_ms"].count == 3
    assert abs(state.steps["verify_step_ms"].total_ms - 70.0) < 1e-9
    inner = {"step_time_dict": {"verify_ms": 2.0, "draft_ms": 1.0, "prefill_ms": 9.0}, "decode_steps_total": 10}
    state = pocket.state(Server(Answer(200, {"internal_states": [inner]})), "http://server")
    assert state.steps == {"verify_step_ms": StepTime(10, 20.0), "draft_step_ms": StepTime(10, 10.0)}
    assert sglang_api.state(Server(Answer(200, {"internal_states": [{}]})), "http://server").steps == {}
    assert sglang_api.state(Server(Answer(404, None)), "http://server").version is None


def test_the_draft_s_flags_and_their_values_are_left_out() -> None:
    argv = (
        "-m", "sglang.launch_server", "--model-path", "{model}", "--speculative-algorithm", "EAGLE3",
        "--speculative-draft-model-path", "{draft}", "--speculative-num-steps=3", "--tp-size", "8",
        "--speculative-adaptive", "--enable-metrics",
    )  # fmt: skip
    expected = ("-m", "sglang.launch_server", "--model-path", "{model}", "--tp-size", "8", "--enable-metrics")
    assert sglang_api.without_draft(argv) == expected


LINE = (
    "[2026-11-30 11:54:4{second}] Decode batch, #running-req: 2, #token: 39, token usage: 0.00, accept len: 1.50, "
    "accept rate: 0.26, cpu graph: False, gen throughput (token/s): {speed}, #queue-req: 0"
)


def test_a_log_tells_the_step_but_for_the_line_that_began_before() -> None:
    lines = [LINE.format(second=at, speed=speed) for at, speed in enumerate((1.0, 100.0, 100.0, 300.0))]
    assert sglang_log.step_ms(lines) == 30.0
    assert sglang_log.step_ms(lines[:1]) is None
    assert sglang_log.step_ms([line.replace("accept len: 1.50, ", "") for line in lines]) is None


def test_the_command_line_of_the_other_driver_leaves_nothing_to_its_defaults() -> None:
    bench = Bench(input_tokens=100, output_tokens=50, requests=20, warmup=3, driver_args={"tokenize-prompt": True})
    argv = arguments(
        bench, Load(kind="concurrency", value=8.0), "http://127.0.0.1:30000", seed=7, output=Path("/t/out.jsonl")
    )
    flags = dict(pairwise(argv))
    assert argv[:2] == ("-m", "sglang.bench_serving")
    assert {
        "--seed": "7", "--random-range-ratio": "1.0", "--num-prompts": "20", "--max-concurrency": "8",
        "--random-input-len": "100", "--random-output-len": "50", "--warmup-requests": "3", "--port": "30000",
        "--host": "127.0.0.1", "--output-file": "/t/out.jsonl", "--dataset-name": "random-ids",
    }.items() <= flags.items()  # fmt: skip
    assert "--tokenize-prompt" in argv and "--disable-ignore-eos" not in argv
    rate = arguments(bench, Load(kind="rate", value=2.5), "http://[::1]:1", seed=7, output=Path("o"))
    assert rate[rate.index("--request-rate") + 1] == "2.5" and "--max-concurrency" not in rate
