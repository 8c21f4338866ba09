"""The engine that ships: its speculation and its HTTP surface."""

from __future__ import annotations

import json
import re
import socket
import threading
import time
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest

from tests.integration.pocket_server import EAGLE3, Server, running

PROMPTS = [
    "The server", "The capital of", "In winter the", "A ship with", "What the engineer found", "Anna",
    "<|user|>What is fog?<|assistant|>", "The harbour was", "Zürich and 漢字", "It needs a new", "x = 1;", "",
]  # fmt: skip


@pytest.fixture(scope="module")
def eagle(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    options = ["--enable-metrics", "--decode-log-interval", "4", "--random-seed", "1"]
    with running(tmp_path_factory.mktemp("eagle") / "log", *EAGLE3, *options) as server:
        yield server


@pytest.fixture(scope="module")
def baseline(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running(tmp_path_factory.mktemp("baseline") / "log", "--random-seed", "1") as server:
        yield server


# Speculation


def test_greedy_output_is_the_same_with_and_without_speculation(eagle: Server, baseline: Server) -> None:
    with_draft = eagle.generate(PROMPTS, max_new_tokens=150)
    without = baseline.generate(PROMPTS, max_new_tokens=150)
    assert [o["output_ids"] for o in with_draft] == [o["output_ids"] for o in without]
    # Alone in its batch, too.
    assert eagle.generate(PROMPTS[0], max_new_tokens=150)["output_ids"] == without[0]["output_ids"]
    steps = sum(o["meta_info"]["spec_verify_ct"] for o in with_draft)
    assert 12 * 150 / steps > 1.5


def test_sampled_output_is_the_same_with_and_without_speculation(eagle: Server, baseline: Server) -> None:
    params = {"temperature": 0.9, "top_p": 0.9, "sampling_seed": 7, "max_new_tokens": 60}
    assert eagle.generate(PROMPTS[:4], **params)[2]["text"] == baseline.generate(PROMPTS[:4], **params)[2]["text"]
    other = eagle.generate(PROMPTS[0], **params | {"sampling_seed": 8})["text"]
    assert other != eagle.generate(PROMPTS[0], **params)["text"]


@pytest.mark.slow
def test_greedy_output_is_the_same_over_many_tokens(eagle: Server, baseline: Server) -> None:
    words = [
        "The",
        "server",
        "harbour",
        "Anna",
        "in",
        "winter",
        "cable",
        "ship",
        "of",
        "France",
        "wind",
        "lamp",
    ]
    prompts = [f"{a} {b} {c}" for a in words for b in words[:6] for c in words[6:]]
    for start in range(0, len(prompts), 48):
        part = prompts[start : start + 48]
        with_draft = eagle.generate(part, max_new_tokens=200)
        without = baseline.generate(part, max_new_tokens=200)
        assert [o["output_ids"] for o in with_draft] == [o["output_ids"] for o in without]


def test_the_text_is_legible(eagle: Server) -> None:
    text = eagle.generate("The capital of France", max_new_tokens=40)["text"]
    assert text.startswith(" is Paris.")
    assert re.fullmatch(r"[A-Za-z ,.']+", text)


def test_acceptance_is_reported_everywhere_and_agrees(eagle: Server) -> None:
    eagle.request("POST", "/flush_cache")
    before = eagle.state()
    meta = eagle.generate("The old crane", max_new_tokens=101)["meta_info"]
    after = eagle.state()
    steps = after["spec_verify_calls_total"] - before["spec_verify_calls_total"]
    assert steps == meta["spec_verify_ct"]
    assert meta["spec_accept_length"] == pytest.approx(101 / steps)
    assert meta["spec_num_proposed_drafts"] == 3 * steps
    histogram = meta["spec_correct_drafts_histogram"]
    assert sum(n * count for n, count in enumerate(histogram)) == meta["spec_num_correct_drafts"]
    # Four positions a step: what the last step left and the three drafts.
    prompt = meta["prompt_tokens"]
    assert after["target_positions_computed"] - before["target_positions_computed"] == prompt + 4 * steps
    assert 1.5 < after["avg_spec_accept_length"] <= 4
    assert "avg_spec_accept_length" not in before, "a flush forgets it until the next log interval"
    line = re.findall(r"accept len: (\d\.\d\d), accept rate: (\d\.\d\d), cuda graph: False", eagle.log())[-1]
    assert float(line[1]) == pytest.approx((float(line[0]) - 1) / 3, abs=0.01)


def test_the_prefix_cache_counts_what_it_saved(eagle: Server) -> None:
    text = "The ferry from Bergen carries copper and seven passengers."
    eagle.request("POST", "/flush_cache")
    first = eagle.generate(text)
    second = eagle.generate(text)
    prompt = first["meta_info"]["prompt_tokens"]
    assert (first["meta_info"]["cached_tokens"], second["meta_info"]["cached_tokens"]) == (0, prompt - 1)
    assert first["output_ids"] == second["output_ids"]
    longer = eagle.generate(text + " The wind was")
    assert longer["meta_info"]["cached_tokens"] >= prompt - 1
    assert eagle.request("GET", "/flush_cache")[0] == 200
    assert eagle.generate(text)["meta_info"]["cached_tokens"] == 0


# The HTTP surface


def test_generate_streams_cumulative_text(eagle: Server) -> None:
    params = {"temperature": 0, "max_new_tokens": 24, "ignore_eos": True}
    events = eagle.stream("/generate", {"text": "The turbine", "sampling_params": params})
    whole = eagle.generate("The turbine", max_new_tokens=24)
    assert events[-1]["text"] == whole["text"]
    assert all(b["text"].startswith(a["text"]) for a, b in pairwise(events))
    assert len(events) < 24, "speculation gives several tokens at once"
    meta = events[-1]["meta_info"]
    assert meta["finish_reason"] == {"type": "length", "length": 24} and meta["e2e_latency"] > 0
    assert events[0]["meta_info"]["finish_reason"] is None and events[0]["meta_info"]["id"] == meta["id"]


def test_token_ids_stop_strings_and_end_of_text(eagle: Server) -> None:
    by_text = eagle.generate("The clock")
    params = {"temperature": 0, "max_new_tokens": 16, "ignore_eos": True}
    ids = [0, *by_text["output_ids"]]
    status, answer = eagle.request("POST", "/generate", {"input_ids": ids, "sampling_params": params})
    assert status == 200 and answer["meta_info"]["prompt_tokens"] == 17
    stopped = eagle.generate("The capital of France", stop=["aris", "zzz"])
    assert stopped["text"] == " is P" and stopped["meta_info"]["finish_reason"]["matched"] == "aris"
    ended = eagle.generate("<|user|>What is fog?<|assistant|>", ignore_eos=False, max_new_tokens=200)
    assert ended["text"] == "Fog is a cloud that lies on the ground."
    assert ended["meta_info"]["finish_reason"] == {"type": "stop", "matched": 1}


def test_openai_routes(eagle: Server) -> None:
    messages = [{"role": "user", "content": "What is fog?"}]
    status, chat = eagle.request("POST", "/v1/chat/completions", {"messages": messages, "temperature": 0})
    assert status == 200
    assert chat["choices"][0]["message"]["content"] == "Fog is a cloud that lies on the ground."
    usage = chat["usage"]
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    options = {"messages": messages, "temperature": 0, "stream_options": {"include_usage": True}}
    *chunks, last = eagle.stream("/v1/chat/completions", options)
    assert (
        "".join(c["choices"][0]["delta"].get("content", "") for c in chunks)
        == "Fog is a cloud that lies on the ground."
    )
    assert chunks[-1]["choices"][0]["finish_reason"] == "stop"
    assert last["choices"] == [] and last["usage"]["completion_tokens"] == usage["completion_tokens"]
    _, both = eagle.request("POST", "/v1/completions", {"prompt": ["The", "A"], "max_tokens": 5, "temperature": 0})
    assert [c["index"] for c in both["choices"]] == [0, 1] and both["usage"]["completion_tokens"] == 10
    assert eagle.request("GET", "/v1/models")[1]["data"][0]["id"] == "model"


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/generate", "{"),
        ("/generate", "[]"),
        ("/generate", {}),
        ("/generate", {"text": "a", "input_ids": [1]}),
        ("/generate", {"text": 5}),
        ("/generate", {"input_ids": [99999]}),
        ("/generate", {"input_ids": [1] * 2000}),
        ("/generate", {"text": "a", "sampling_params": {"max_new_tokens": "5"}}),
        ("/generate", {"text": "a", "sampling_params": {"temperature": -1}}),
        ("/generate", {"text": "a", "sampling_params": {"no_such": 1}}),
        ("/v1/completions", {"prompt": None}),
        ("/v1/completions", {"prompt": "a", "max_tokens": 0}),
        ("/v1/chat/completions", {"messages": []}),
        ("/v1/chat/completions", {"messages": [{"role": "nobody", "content": "a"}]}),
    ],
)
def test_malformed_requests_are_400(eagle: Server, path: str, body: Any) -> None:
    status, answer = eagle.request("POST", path, body)
    assert status == 400 and (answer.get("message") or answer["error"]["message"])


def test_information_routes(eagle: Server) -> None:
    for path in ("/health", "/health_generate"):
        assert eagle.request("GET", path)[0] == 200
    _, info = eagle.request("GET", "/server_info")
    assert info == eagle.request("GET", "/get_server_info")[1] | {"internal_states": info["internal_states"]}
    expected = {
        "speculative_algorithm": "EAGLE3",
        "speculative_eagle_topk": 1,
        "speculative_num_draft_tokens": 4,
    }
    assert expected.items() <= info.items() and info["max_running_requests"] == 48 and info["random_seed"] == 1
    assert "--speculative-num-steps 3" in info["launch_command"] and info["version"]
    assert info["internal_states"][0]["step_time_dict"]["verify_ms"] > 0
    model = eagle.request("GET", "/get_model_info")[1]
    assert model["architectures"] == ["LlamaForCausalLM"] and model["is_generation"] is True
    assert eagle.request("GET", "/nothing")[0] == 404 and eagle.request("POST", "/health")[0] == 405
    assert "server_args=ServerArgs(model_path='model'" in eagle.log()
    assert re.search(
        r"^\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\] Prefill batch, #new-seq: 1, #new-token: ", eagle.log(), re.M
    )


def test_metrics_count_and_are_opt_in(eagle: Server, baseline: Server) -> None:
    def values() -> dict[str, float]:
        text = eagle.request("GET", "/metrics")[1]
        return {name: float(value) for name, value in re.findall(r"^([\w:]+)\{[^}]*\} (\S+)$", text, re.M)}

    before = values()
    eagle.generate("The radio mast", max_new_tokens=50)
    after = values()
    assert after["sglang:generation_tokens_total"] - before["sglang:generation_tokens_total"] >= 50
    assert after["sglang:spec_verify_calls_total"] > before["sglang:spec_verify_calls_total"]
    assert after["sglang:gen_throughput"] > 0 and after["sglang:num_running_reqs"] == 0
    assert 1.5 < after["sglang:spec_accept_length"] <= 4
    assert after["sglang:e2e_request_latency_seconds_count"] > 0
    assert baseline.request("GET", "/metrics")[0] == 404


def test_many_streams_at_once_and_a_client_that_leaves(eagle: Server) -> None:
    lengths: list[int] = []
    params = {"temperature": 0, "max_new_tokens": 20, "ignore_eos": True}

    def one(number: int) -> None:
        events = eagle.stream("/generate", {"text": f"Ship {number}", "sampling_params": params})
        lengths.append(events[-1]["meta_info"]["completion_tokens"])

    threads = [threading.Thread(target=one, args=(n,)) for n in range(64)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert lengths == [20] * 64
    body = json.dumps({"text": "A", "stream": True, "sampling_params": params | {"max_new_tokens": 1000}})
    with socket.create_connection(("127.0.0.1", eagle.port)) as client:
        client.sendall(f"POST /generate HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode())
        received = b""
        while b"data: {" not in received:
            received += client.recv(4096)
        assert eagle.request("POST", "/flush_cache")[0] == 400, "busy"
    deadline = time.monotonic() + 5
    while eagle.state()["num_running_reqs"]:
        assert time.monotonic() < deadline, "the request of a client that left runs on"
        time.sleep(0.01)
