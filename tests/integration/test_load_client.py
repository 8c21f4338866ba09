"""The load generator against small real servers: faults by kind, limits, open and closed loops."""

from __future__ import annotations

import asyncio
import json
import resource
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pinner.measure.client import Call, Target, closed_loop, open_loop
from pinner.measure.metrics import failures, metrics

Handler = Callable[[dict[str, int], asyncio.StreamWriter], Awaitable[None]]


def event(tokens: int) -> bytes:
    data = b"data: " + json.dumps({"text": "x", "meta_info": {"completion_tokens": tokens}}).encode() + b"\n\n"
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


HEAD = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
END = b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n"


async def well(asked: dict[str, int], writer: asyncio.StreamWriter) -> None:
    writer.write(HEAD)
    for number in range(1, asked["tokens"] + 1):
        writer.write(event(number))
        await asyncio.sleep(asked.get("gap_ms", 0) / 1000)
    writer.write(END)


@contextmanager
def server(handler: Handler) -> Iterator[Target]:
    """A server in a thread of its own, on a free port."""
    loop = asyncio.new_event_loop()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = next(int(line.split()[1]) for line in head.split(b"\r\n") if line.startswith(b"Content-Length"))
        try:
            await handler(json.loads(await reader.readexactly(length)), writer)
            writer.close()
        except asyncio.CancelledError:
            writer.transport.abort()

    listening = loop.run_until_complete(asyncio.start_server(serve, "127.0.0.1", 0))
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        yield Target(host="127.0.0.1", port=listening.sockets[0].getsockname()[1])
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        listening.close()
        tasks = asyncio.all_tasks(loop)
        for task in tasks:
            task.cancel()
        if tasks:
            loop.run_until_complete(asyncio.wait(tasks))
        loop.run_until_complete(asyncio.sleep(0))
        loop.close()


def calls(*asked: dict[str, int]) -> list[Call]:
    return [Call(body=json.dumps(one).encode(), wanted=one["tokens"]) for one in asked]


def test_a_closed_loop_keeps_its_streams_and_no_more() -> None:
    now, most = 0, 0

    async def counted(asked: dict[str, int], writer: asyncio.StreamWriter) -> None:
        nonlocal now, most
        now += 1
        most = max(most, now)
        await well(asked, writer)
        now -= 1

    with server(counted) as target:
        result = closed_loop(target, calls(*[{"tokens": 3, "gap_ms": 5}] * 20), streams=4, timeout_s=30)
    assert failures(result) == {}
    assert (most, len(result.samples)) == (4, 20)
    assert metrics(result)["itl_mean_ms"] >= 4.9


def test_an_open_loop_counts_from_the_intended_time() -> None:
    with server(well) as target:
        result = open_loop(
            target, calls(*[{"tokens": 2, "gap_ms": 40}] * 4), at=[0, 0.02, 0.04, 0.1], timeout_s=30
        )
    assert [sample.intended for sample in result.samples] == [0, 0.02, 0.04, 0.1]
    assert all(sample.sent >= sample.intended for sample in result.samples)
    # The third was sent while the first was still under way.
    assert result.samples[2].sent < result.samples[0].ended


async def silent(_asked: dict[str, int], writer: asyncio.StreamWriter) -> None:
    await asyncio.sleep(30)


async def stalls(_asked: dict[str, int], writer: asyncio.StreamWriter) -> None:
    writer.write(HEAD + event(1))
    await asyncio.sleep(30)


async def breaks_off(_asked: dict[str, int], writer: asyncio.StreamWriter) -> None:
    writer.write(HEAD + event(1))
    writer.transport.abort()


async def stops_early(_asked: dict[str, int], writer: asyncio.StreamWriter) -> None:
    writer.write(HEAD + event(1) + END)


async def says_error(_asked: dict[str, int], writer: asyncio.StreamWriter) -> None:
    data = b'data: {"error": {"message": "out of memory"}}\n\n'
    writer.write(HEAD + event(1) + f"{len(data):x}\r\n".encode() + data + b"\r\n" + END)


@pytest.mark.parametrize(
    ("handler", "kind"),
    [
        (silent, "timeout"),
        (stalls, "timeout"),
        (stops_early, "early stop"),
        (says_error, "error in stream"),
    ],
)
def test_streams_that_go_wrong_are_counted_by_kind(handler: Handler, kind: str) -> None:
    with server(handler) as target:
        result = closed_loop(target, calls({"tokens": 2}, {"tokens": 2}), streams=2, timeout_s=0.3)
    assert failures(result) == {kind: 2}
    assert metrics(result) == {}


def test_a_connection_that_breaks_off_is_no_answer() -> None:
    with server(breaks_off) as target:
        result = closed_loop(target, calls({"tokens": 2}), streams=1, timeout_s=10)
    assert failures(result).keys() <= {"truncated", "no answer"}
    assert failures(result)


def test_nobody_listening_is_not_connected() -> None:
    with server(well) as target:
        pass
    result = closed_loop(target, calls({"tokens": 1}), streams=1, timeout_s=10)
    assert failures(result) == {"not connected": 1}


PROGRAM = """
import resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (int(sys.argv[2]), int(sys.argv[3])))
from pinner.errors import OperationFailed
from pinner.measure.client import Call, Target, closed_loop
from pinner.measure.metrics import failures
calls = [Call(body=b'{"tokens": 1, "gap_ms": 50}', wanted=1)] * 256
try:
    result = closed_loop(Target(host="127.0.0.1", port=int(sys.argv[1])), calls, streams=256, timeout_s=30)
except OperationFailed as error:
    print("refused:", error.message)
else:
    print(len(result.samples), failures(result))
"""


@pytest.mark.parametrize(
    ("hard", "said"),
    [
        (4096, "256 {}"),
        (64, "refused: this load needs 320 open files and the limit here is 64"),
    ],
)
def test_h20_a_soft_limit_of_files_is_raised_and_a_hard_one_refused(tmp_path: Path, hard: int, said: str) -> None:
    """Case H20: 256 streams under a limit of 64 files."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    with server(well) as target:
        line = [sys.executable, "-c", PROGRAM, str(target.port), "64", str(hard)]
        done = subprocess.run(line, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == said
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == before


def test_h20_running_out_of_files_all_the_same_is_the_client_s_limit(tmp_path: Path) -> None:
    """Case H20: somebody else took the files meanwhile."""
    program = PROGRAM.replace(
        "calls = [", "import pinner.measure.client as c; c.raise_file_limit = lambda _n: None\ncalls = ["
    )
    with server(well) as target:
        line = [sys.executable, "-c", program, str(target.port), "64", "4096"]
        done = subprocess.run(line, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert "'client limit'" in done.stdout
