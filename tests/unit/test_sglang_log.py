"""SGLang's log lines, as three versions print them."""

from __future__ import annotations

import datetime

import pytest

from pinner.engines.sglang_log import accept_rate, accept_rate_from_older, batch, nccl_version, notes, summary

# Printed by 0.5.23 on a CPU.
CPU = """\
[2026-11-30 11:40:53] Prefill batch, #new-seq: 7, #new-token: 7, #cached-token: 35, token usage: 0.00, #running-req: 1, #queue-req: 0, #pending-token: 0, cpu graph: False, input throughput (token/s): 361.52
[2026-11-30 11:40:54] Decode batch, #running-req: 8, #token: 877, token usage: 0.11, cpu graph: False, gen throughput (token/s): 708.17, #queue-req: 0
[2026-11-30 11:54:41] Decode batch, #running-req: 1, #token: 39, token usage: 0.00, accept len: 1.77, accept rate: 0.26, cpu graph: False, gen throughput (token/s): 58.52, #queue-req: 0
[2026-11-30 11:59:23 TP0] Decode batch, #running-req: 1, #token: 22, token usage: 0.01, accept len: 1.65, accept rate: 0.22, cpu graph: False, gen throughput (token/s): 4.28, #queue-req: 0
""".splitlines()  # noqa: E501  # as printed
STAMP = "[2026-11-30 11:40:53 DP0 PP1 ATTN_CP0 MOE_DP0 TP3 EP0] "
C_PREFILL = "Prefill batch, #new-seq: 1, #new-token: 7, #cached-token: 0, token usage: 0.00, #running-req: 0, #queue-req: 0, #pending-token: 0, cuda graph: True, input throughput (token/s): 1.00"  # noqa: E501
B_PREFILL = "Prefill batch, #new-seq: 1, #new-token: 7, #cached-token: 0, token usage: 0.00, #running-req: 0, #queue-req: 0, input throughput (token/s): 1.00, cuda graph: False"  # noqa: E501
A_PREFILL = "Prefill batch. #new-seq: 1, #new-token: 7, #cached-token: 0, token usage: 0.00, #running-req: 0, #queue-req: 0"  # noqa: E501
C_DECODE = "Decode batch, #running-req: 1, #token: 108, token usage: 0.00, accept len: 2.17, accept rate: 0.54, cuda graph: True, gen throughput (token/s): 178.86, #queue-req: 0"  # noqa: E501
A_DECODE = "Decode batch. #running-req: 1, #token: 108, token usage: 0.00, accept len: 2.17, gen throughput (token/s): 178.86, #queue-req: 0"  # noqa: E501
HYBRID = "Decode batch [12], #running-req: 2, #full token: 10, full token usage: 0.00, #swa token: 5, swa token usage: 0.00, gen throughput (token/s): 9.50, #queue-req: 1"  # noqa: E501


@pytest.mark.parametrize("line", [C_DECODE, A_DECODE])
def test_decode_lines_of_every_version(line: str) -> None:
    found = batch(STAMP + line)
    assert found is not None
    assert (found.phase, found.running, found.queued, found.tokens) == ("decode", 1, 0, 108)
    assert (found.accept_len, found.gen_throughput) == (2.17, 178.86)
    assert found.accept_rate == (0.54 if line is C_DECODE else None)
    assert found.time == datetime.datetime(2026, 11, 30, 11, 40, 53)
    assert found.ranks == {"DP": 0, "PP": 1, "ATTN_CP": 0, "MOE_DP": 0, "TP": 3, "EP": 0}


@pytest.mark.parametrize("line", [C_PREFILL, B_PREFILL, A_PREFILL])
def test_prefill_lines_of_every_version(line: str) -> None:
    found = batch(STAMP + line)
    assert found is not None
    assert (found.phase, found.running, found.queued, found.tokens) == ("prefill", 0, 0, 7)
    assert found.input_throughput == (None if line is A_PREFILL else 1.0)
    assert found.gen_throughput is None


def test_lines_as_a_cpu_prints_them() -> None:
    found = [batch(line) for line in CPU]
    assert [one and (one.phase, one.gen_throughput) for one in found] == [
        ("prefill", None),
        ("decode", 708.17),
        ("decode", 58.52),
        ("decode", 4.28),
    ]
    assert [one and one.ranks for one in found] == [{}, {}, {}, {"TP": 0}]


def test_an_iteration_and_a_hybrid_models_usage() -> None:
    found = batch("[2026-11-30 11:40:53] " + HYBRID)
    assert found is not None
    assert (found.iteration, found.running, found.queued, found.gen_throughput) == (12, 2, 1, 9.5)
    assert found.tokens is None, "it has two kinds"


def test_other_lines_are_no_batch() -> None:
    for line in ("", "The server is fired up and ready to roll!", "Decode batch", "[2026-11-30 11:40:53] INFO"):
        assert batch(line) is None


def test_the_accept_rates_two_definitions() -> None:
    """The printed ones of 0.5.23, to its two digits; the older one is another number for the same run."""
    for line, drafts in ((CPU[2], 4), (CPU[3], 4)):
        found = batch(line)
        assert found is not None
        assert found.accept_len is not None
        assert accept_rate(found.accept_len, drafts) == pytest.approx(found.accept_rate, abs=0.006)
    assert accept_rate(1.0, 1) is None, "nothing is proposed"
    # 0.5.9's line has 2.17 and 0.54 with 4 draft tokens: that is 2.17 / 4.
    assert accept_rate_from_older(2.17 / 4, 4) == pytest.approx((2.17 - 1) / 3)


def test_summary_takes_the_last_decode_line() -> None:
    assert summary(CPU) == "accept length 1.65, 4 tok/s at 11:59:23"
    assert summary(CPU[:2]) == "708 tok/s at 11:40:54"
    assert summary(CPU[:1]) == ""
    assert summary([]) == ""


def test_what_a_start_tells_that_costs_speed() -> None:
    lines = [
        "[2026-11-30 11:40:53 TP0] Using default MoE kernel config. Performance might be sub-optimal! Config file",
        "[2026-11-30 11:40:53 TP1] Using default MoE kernel config. Performance might be sub-optimal! Config file",
        "Max running requests is reset to 48 for speculative decoding. You can override this by",
        "Attention backend not specified. Use fa3 backend by default.",
        "sglang is using nccl==2.27.5",
    ]
    said = notes(lines)
    assert len(said) == 3
    assert "MoE" in said[0]
    assert "48" in said[1]
    assert "attention-backend fa3" in said[2]
    assert nccl_version(lines) == "2.27.5"
    assert notes(CPU) == ()
    assert nccl_version(CPU) is None


def test_a_line_with_a_time_that_is_none_is_no_batch() -> None:
    assert batch("[2026-99-30 11:40:54] Decode batch, #running-req: 8, gen throughput (token/s): 708.17") is None
