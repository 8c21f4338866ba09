"""What a server says of its arguments: three versions' answers, compared with what was pinned, keys left out."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest

from pinner.engines.sglang_account import reported
from pinner.engines.sglang_api import account, public
from pinner.host.http import Answer, Http, HttpFailed
from pinner.probes.arguments import by_flag

# As 0.5.23 answered, started with the arguments of its launch_command and SGLANG_EXPOSE_OWN_ENV_VARS=1; shortened.
C = json.loads((Path(__file__).parent.parent / "goldens" / "sglang-0.5.23-server_info.json").read_text())
# The shapes of 0.5.9 and 0.4.6.
B: dict[str, Any] = {
    "model_path": "/models/target",
    "tp_size": 8,
    "mem_fraction_static": 0.85,
    "speculative_algorithm": "EAGLE",
    "speculative_token_map": None,
    "cuda_graph_bs": [1, 2, 4],
    "api_key": "hush-user",
    "ssl_keyfile_password": "hush-file",
    "internal_states": [{"last_gen_throughput": 90.1, "memory_usage": {"graph": 1.5}, "api_key": "hush-user"}],
    "version": "0.5.9",
}
A: dict[str, Any] = {
    "model_path": "/models/target",
    "tp_size": 8,
    "enable_metrics": False,
    "last_gen_throughput": 90.1,
    "max_total_num_tokens": 1000,
    "api_key": "hush-user",
    "version": "0.4.6",
}


class Server(Http):
    """Answers from a table of paths."""

    def __init__(self, answers: dict[str, Answer]) -> None:
        self.answers = answers

    def get(self, url: str, *, timeout_s: float) -> Answer:  # noqa: ARG002  # as the real one
        path = url.removeprefix("http://server")
        if path not in self.answers:
            raise HttpFailed("refused")
        return self.answers[path]


def test_a_real_servers_account_agrees_with_the_arguments_that_it_was_started_with() -> None:
    flags = by_flag(tuple(shlex.split(C["launch_command"])))
    assert flags.pop("entry-point") == "true"
    keys = {flags.pop("--api-key"), flags.pop("--admin-api-key")}
    assert keys == {"hush-user", "hush-admin"}
    said = {flag: reported(flag, value, public(C)) for flag, value in flags.items()}
    assert said == flags
    assert flags["--speculative-algorithm"] == "eagle3", "given in lower case, reported in upper"


@pytest.mark.parametrize("info", [A, B, C])
def test_no_key_leaves_the_account(info: dict[str, Any]) -> None:
    assert "hush" in json.dumps(info)
    assert "hush" not in json.dumps(public(info))


@pytest.mark.parametrize(
    ("flag", "pinned", "expected"),
    [
        ("--tp-size", "8", "8"),
        ("--tp-size", "4", "8"),
        ("--tensor-parallel-size", "4", "8"),
        ("--mem-fraction-static", "0.850", "0.850"),
        ("--mem-fraction-static", "0.9", "0.85"),
        ("--cuda-graph-bs", "1 2 4", "1 2 4"),
        ("--cuda-graph-bs", "1 2 8", "1 2 4"),
        ("--speculative-algorithm", "NEXTN", "NEXTN"),
        ("--speculative-algorithm", "EAGLE3", "EAGLE"),
        ("--speculative-token-map", "map.pt", None),
        ("--model-path", "/models/Target", "/models/target"),
        ("--not-reported", "1", None),
    ],
)
def test_values_of_every_shape(flag: str, pinned: str, expected: str | None) -> None:
    assert reported(flag, pinned, public(B)) == expected


def test_flags_and_their_negation() -> None:
    assert reported("--enable-metrics", "true", public(A)) == "false"
    assert reported("--no-enable-metrics", "true", public(A)) == "true"
    assert reported("--no-enable-metrics", "true", {"enable_metrics": True}) == "false"


def test_json_may_have_more_than_was_asked_for() -> None:
    said = {"cuda_graph_config": {"decode": {"backend": "full", "max_bs": 32}, "prefill": {"backend": "disabled"}}}
    asked = '{"decode": {"backend": "full"}}'
    assert reported("--cuda-graph-config", asked, said) == asked
    other = reported("--cuda-graph-config", '{"decode": {"backend": "disabled"}}', said)
    assert other is not None
    assert "full" in other


def test_the_older_endpoint_is_asked_where_the_newer_one_is_not_there() -> None:
    server = Server({"/server_info": Answer(404, {}), "/get_server_info": Answer(200, A)})
    assert account(server, "http://server")["tp_size"] == 8
    server = Server({"/server_info": Answer(200, C)})
    assert account(server, "http://server")["tp_size"] == C["tp_size"]
    assert (
        account(Server({"/server_info": Answer(401, {}), "/get_server_info": Answer(401, {})}), "http://server")
        == {}
    )
