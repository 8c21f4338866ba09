"""The load generator against a server that does nothing, beside SGLang's own benchmark.

    uv run python benchmarks/client.py [--sglang PYTHON --tokenizer DIRECTORY] [--streams N] [--tokens N]

Flood: every stream is sent as fast as the server can write; tokens a second, and processor time of the client for
each token. Paced: 512 streams, 256 begun a second, whose first token comes after 51 ms and then one every 20 ms;
the server notes when it really wrote each, and the client's TTFT and ITL are held against that. With --sglang, the
interpreter of an environment that has SGLang, the same is asked of `sglang.bench_serving`, whose processor time is
the difference between a long and a short run, so that its start does not count.
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from itertools import pairwise
from pathlib import Path
from typing import ClassVar

from pinner.measure.client import Call, Target, closed_loop, open_loop
from pinner.measure.metrics import failures, metrics

HEAD = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
    b"Transfer-Encoding: chunked\r\nConnection: close\r\n\r\n"
)

# Of the paced streams: how many begin in a second, and how long each is. All 512 are under way for a while.
RATE = 256
PACED_TOKENS = 200


@functools.cache  # as SGLang streams by default: each event has all of the text so far
def event(number: int) -> bytes:
    meta = {"id": "0" * 32, "finish_reason": None, "prompt_tokens": 16, "completion_tokens": number}
    meta |= {"cached_tokens": 0, "spec_verify_ct": number, "e2e_latency": 0.0}
    data = b"data: " + json.dumps({"text": "word " * number, "meta_info": meta}).encode() + b"\n\n"
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


class Null(asyncio.Protocol):
    """Answers /generate with as many events as were asked for, paced or not."""

    pace: tuple[float, float] | None = None
    written: ClassVar[list[list[float]]] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        self.data = b""

    def data_received(self, data: bytes) -> None:
        self.data += data
        head, separator, body = self.data.partition(b"\r\n\r\n")
        if not separator:
            return
        lengths = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length")]
        if lengths and len(body) < int(lengths[0].split(b":")[1]):
            return
        self.data = b""
        if b"/generate " not in head.split(b"\r\n")[0]:
            self.plain(head)
        else:
            tokens = json.loads(body)["sampling_params"]["max_new_tokens"]
            self.task = asyncio.ensure_future(self.stream(tokens, time.perf_counter()))

    def plain(self, head: bytes) -> None:
        path = head.split(b" ")[1].decode()
        answer: object = {"data": [{"id": "null"}], "internal_states": [{}]}
        if path == "/written":
            answer, Null.written = Null.written, []
        if path.startswith("/pace"):
            first, gap = (float(part) for part in path.split("/")[2:])
            Null.pace = (first, gap) if gap else None
        data = json.dumps(answer).encode()
        told = f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
        self.transport.write(told.encode() + data)

    async def stream(self, tokens: int, asked: float) -> None:
        self.transport.write(HEAD)
        times = []
        for number in range(1, tokens + 1):
            if Null.pace is not None:
                due = asked + Null.pace[0] + (number - 1) * Null.pace[1]
                await asyncio.sleep(max(0.0, due - time.perf_counter()))
                times.append(time.perf_counter() - asked)
            elif number % 8 == 0:
                await asyncio.sleep(0)
            self.transport.write(event(number))
        self.transport.write(b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n")
        self.transport.close()
        if times:
            Null.written.append(times)


async def serve() -> None:
    server = await asyncio.get_running_loop().create_server(Null, "127.0.0.1", 0, backlog=4096)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


def ask(port: int, path: str) -> object:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=30) as answer:
        return json.load(answer)


def calls(count: int, tokens: int) -> list[Call]:
    body = json.dumps(
        {"input_ids": list(range(16)), "stream": True, "sampling_params": {"max_new_tokens": tokens}}
    ).encode()
    return [Call(body=body, wanted=tokens)] * count


def flood(port: int, streams: int, tokens: int) -> float:
    began = resource.getrusage(resource.RUSAGE_SELF)
    target = Target(host="127.0.0.1", port=port)
    result = closed_loop(target, calls(streams, tokens), streams=streams, timeout_s=120)
    ended = resource.getrusage(resource.RUSAGE_SELF)
    if failures(result):
        raise SystemExit(f"failures: {failures(result)}")
    cpu = ended.ru_utime + ended.ru_stime - began.ru_utime - began.ru_stime
    each = cpu / (streams * tokens) * 1e6
    print(
        f"pinner: {streams * tokens / result.duration_s:,.0f} tokens/s at {streams} streams, {each:.2f} µs a "
        f"token with decoding; lag at most {result.lag_ms[2]:.1f} ms"
    )
    return each


def paced(port: int) -> None:
    ask(port, "/pace/0.051/0.02")
    at = [number / RATE for number in range(512)]
    result = open_loop(Target(host="127.0.0.1", port=port), calls(512, PACED_TOKENS), at=at, timeout_s=120)
    if failures(result):
        raise SystemExit(f"failures: {failures(result)}")
    seen = metrics(result)
    report("pinner", seen, truth(port))


def truth(port: int) -> dict[str, float]:
    written = ask(port, "/written")
    assert isinstance(written, list)
    gaps = sorted(b - a for times in written for a, b in pairwise(times))
    return {
        "ttft_mean_ms": statistics.fmean(times[0] for times in written) * 1e3,
        "itl_mean_ms": statistics.fmean(gaps) * 1e3,
        "itl_p99_ms": gaps[int(len(gaps) * 0.99)] * 1e3,
    }


def report(who: str, seen: dict[str, float], true: dict[str, float]) -> None:
    parts = [
        f"{name} {seen[name]:.2f} (true {value:.2f}, off {seen[name] - value:+.2f})"
        for name, value in true.items()
    ]
    print(f"{who}, paced, 512 streams: {'; '.join(parts)}")


def bench_serving(
    python: str, tokenizer: str, port: int, tokens: int, streams: int, *more: str
) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as name:
        output = Path(name) / "out.jsonl"
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        line = [python, "-m", "sglang.bench_serving", "--backend", "sglang"]
        line += ["--host", "127.0.0.1", "--port", str(port)]
        line += ["--dataset-name", "random-ids", "--random-input-len", "16", "--random-output-len", str(tokens)]
        line += ["--random-range-ratio", "1.0", "--num-prompts", str(streams), "--max-concurrency", str(streams)]
        line += ["--model", tokenizer, "--tokenizer", tokenizer, "--seed", "1", "--output-file", str(output)]
        line += ["--warmup-requests", "0", "--disable-tqdm", *more]
        done = subprocess.run(line, check=False, capture_output=True, text=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        if done.returncode:
            raise SystemExit(done.stderr[-3000:])
        found = json.loads(output.read_text().splitlines()[-1])
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    told = {key: value for key, value in found.items() if isinstance(value, (int, float))}
    # Its names say the quantity first.
    own = {"ttft_mean_ms": "mean_ttft_ms", "itl_mean_ms": "mean_itl_ms", "itl_p99_ms": "p99_itl_ms"}
    return told | {name: told[theirs] for name, theirs in own.items()} | {"cpu": cpu}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sglang", help="a Python that has SGLang")
    parser.add_argument("--tokenizer", help="a directory with a tokenizer")
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=1000)
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.serve:
        asyncio.run(serve())
        return
    server = subprocess.Popen([sys.executable, __file__, "--serve"], stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        port = int(server.stdout.readline())
        own = flood(port, given.streams, given.tokens)
        if given.sglang:
            short, long = (
                bench_serving(given.sglang, given.tokenizer, port, tokens, given.streams)
                for tokens in (given.tokens, given.tokens * 4)
            )
            theirs = (long["cpu"] - short["cpu"]) / (given.streams * given.tokens * 3) * 1e6
            print(
                f"bench_serving: {long['output_throughput']:,.0f} tokens/s, {theirs:.2f} µs a token; "
                f"pinner's share {own / theirs:.2f}x (at most 0.2x)"
            )
        paced(port)
        if given.sglang:
            ask(port, "/written")
            seen = bench_serving(
                given.sglang, given.tokenizer, port, PACED_TOKENS, 512, "--request-rate", str(RATE)
            )
            report("bench_serving", seen, truth(port))
    finally:
        server.terminate()
        server.wait()


if __name__ == "__main__":
    main()
