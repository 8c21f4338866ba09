"""Streams as they come: whole, split anywhere, broken off, with errors under status 200."""

from __future__ import annotations

import json

import pytest

from pinner.measure.client import Result, Sample
from pinner.measure.metrics import cached_share, failures, metrics
from pinner.measure.stream import Failure, Piece, Reply, decode

HEAD = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


def event(tokens: int, **meta: object) -> bytes:
    told = {"prompt_tokens": 16, "completion_tokens": tokens, "cached_tokens": 4, "spec_verify_ct": 2, **meta}
    return (
        b"data: " + json.dumps({"text": 'it says "completion_tokens": 99', "meta_info": told}).encode() + b"\n\n"
    )


def chunk(data: bytes) -> bytes:
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


def stream(*events: bytes, end: bytes = b"0\r\n\r\n") -> list[bytes]:
    return [HEAD, *map(chunk, events), end]


DONE = b"data: [DONE]\n\n"
WHOLE = stream(event(1), event(3), event(4), DONE)


def pieces(data: list[bytes]) -> list[Piece]:
    return [(float(at), one) for at, one in enumerate(data)]


def test_verifications_follow_from_the_accept_length_where_only_that_is_told() -> None:
    def calls(**meta: object) -> int | None:
        return decode(pieces(stream(event(64, **meta), DONE)), wanted=64).verify_calls

    assert calls(spec_verify_ct=None, spec_accept_length=3.2) == 20
    assert calls(spec_verify_ct=21, spec_accept_length=3.2) == 21
    assert calls(spec_verify_ct=None) is None
    assert calls(spec_verify_ct=None, spec_accept_length=0.0) is None


def test_a_whole_answer_has_its_times_and_counts() -> None:
    reply = decode(pieces(WHOLE), wanted=4)
    assert reply == Reply(
        arrivals=((1.0, 1), (2.0, 3), (3.0, 4)), output_tokens=4, input_tokens=16, cached_tokens=4, verify_calls=2
    )


@pytest.mark.parametrize("size", [1, 2, 7, 50, 10_000])
def test_however_it_is_cut_it_says_the_same(size: int) -> None:
    raw = b"".join(WHOLE)
    cut = pieces([raw[at : at + size] for at in range(0, len(raw), size)])
    reply = decode(cut, wanted=4)
    assert (reply.failure, reply.output_tokens, [count for _, count in reply.arrivals]) == (None, 4, [1, 3, 4])
    # An event has come when its last byte has.
    ends = [len(HEAD) + sum(len(one) for one in WHOLE[1 : number + 2]) - 2 for number in range(3)]
    assert [at for at, _ in reply.arrivals] == [float(-(-end // size) - 1) for end in ends]


def test_events_that_share_a_chunk_or_are_torn_by_one() -> None:
    data = event(1) + event(2) + DONE
    torn = [HEAD, chunk(data[:70]), chunk(data[70:]), b"0\r\n\r\n"]
    for cut in (stream(data), torn):
        assert [count for _, count in decode(pieces(cut), wanted=2).arrivals] == [1, 2]


@pytest.mark.parametrize(
    ("data", "kind", "said"),
    [
        ([], "no answer", "closed before"),
        ([b"SSH-2.0-x\r\n\r\n"], "no answer", "not HTTP"),
        ([b'HTTP/1.1 503 Busy\r\n\r\n{"error": "queue full"}'], "status 503", "queue full"),
        (stream(), "empty stream", "no token"),
        (stream(DONE), "empty stream", "no token"),
        (
            stream(event(1), b'data: {"error": {"message": "out of memory"}}\n\n', DONE),
            "error in stream",
            "memory",
        ),
        (stream(b'data: {"what": 1}\n\n', DONE), "unknown event", "what"),
        (stream(event(1), event(2), DONE), "early stop", "2 tokens came where 4"),
        (stream(event(1), event(4)), "truncated", "after 4 tokens"),
        (stream(event(1), event(2), end=b""), "truncated", "after 2 tokens"),
        ([HEAD, chunk(event(1)), b"1f4\r\ndata: {"], "truncated", "after 1 tokens"),
    ],
)
def test_what_is_no_answer_is_a_failure_of_its_kind(data: list[bytes], kind: str, said: str) -> None:
    failure = decode(pieces(data), wanted=4).failure
    assert failure is not None
    assert (failure.kind, said in failure.detail) == (kind, True), failure


def sample(arrivals: tuple[tuple[float, int], ...], *, intended: float = 0.0, **more: object) -> Sample:
    reply = Reply(arrivals=arrivals, output_tokens=arrivals[-1][1], input_tokens=10, **more)  # type: ignore[arg-type]
    return Sample(intended=intended, sent=intended, ended=arrivals[-1][0] + 0.01, reply=reply)


def result(*samples: Sample) -> Result:
    return Result(samples=samples, began=0.0, duration_s=2.0, lag_ms=(0, 0, 0), cpu_share=0.0)


def test_the_metrics_are_the_field_s() -> None:
    seen = result(
        sample(((0.1, 1), (0.2, 3), (0.3, 4)), verify_calls=2, cached_tokens=5),
        sample(((1.0, 1), (1.4, 3)), intended=0.5, verify_calls=1, cached_tokens=0),
    )
    found = metrics(seen)
    assert found["output_throughput"] == 7 / 2
    assert found["request_throughput"] == 1.0
    assert found["input_throughput"] == 10.0
    assert found["ttft_mean_ms"] == pytest.approx(300)  # 100, and 500 from the intended time
    assert found["tpot_mean_ms"] == pytest.approx((200 / 3 + 400 / 2) / 2)
    assert found["itl_mean_ms"] == pytest.approx((50 + 50 + 100 + 200 + 200) / 5)
    assert found["e2el_median_ms"] == pytest.approx((310 + 910) / 2)
    assert found["accept_length"] == pytest.approx(7 / 3)
    assert cached_share(seen) == pytest.approx(5 / 20)


def test_failures_are_part_of_no_metric() -> None:
    good = sample(((0.1, 1), (0.2, 2)))
    bad = Sample(intended=0.0, sent=0.0, ended=9.0, reply=Reply(failure=Failure("timeout")))
    assert failures(result(good, bad, bad)) == {"timeout": 2}
    assert metrics(result(good, bad)) == metrics(result(good))
    assert metrics(result(bad)) == {}
    assert "accept_length" not in metrics(result(good))
