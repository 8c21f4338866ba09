"""The engine that ships, as processes: arguments, ranks, environment, ends, and faults on request."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.pocket_server import EAGLE3, Server, running, wait_gone

needs_proc = pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="reads /proc")


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running(tmp_path_factory.mktemp("plain") / "log") as server:
        yield server


@pytest.mark.parametrize(
    "arguments",
    [
        ["--speculative-algorithm", "EAGLE", "--speculative-draft-model-path", "draft"],
        ["--speculative-algorithm", "EAGLE3"],
        ["--speculative-draft-model-path", "draft"],
        [*EAGLE3, "--speculative-eagle-topk", "4"],
        ["--context-len", "128"],
    ],
)
def test_wrong_arguments_exit_2(tmp_path: Path, arguments: list[str]) -> None:
    server = Server(tmp_path / "log", *arguments, wait=False)
    assert server.process.wait(20) == 2
    assert "error:" in server.log()


@needs_proc
def test_ranks_titles_environment_and_the_death_of_a_worker(tmp_path: Path, plain: Server) -> None:
    variables = {"SPT_NOENV": "1", "NCCL_NVLS_ENABLE": "1", "CUDA_DEVICE_MAX_CONNECTIONS": "4"}
    with running(tmp_path / "log", *EAGLE3, "--tp-size", "2", **variables) as server:
        workers = server.workers()
        assert set(workers) == {"pocket::scheduler_TP0", "pocket::scheduler_TP1", "pocket::detokenizer"}
        raw = Path(f"/proc/{workers['pocket::scheduler_TP1']}/environ").read_text().split("\0")
        environment = dict(item.split("=", 1) for item in raw if item)
        assert environment["NCCL_CUMEM_ENABLE"] == "0" and environment["NCCL_NVLS_ENABLE"] == "1"
        assert environment["CUDA_DEVICE_MAX_CONNECTIONS"] == "8" and "POCKET_RUN_ID" in environment
        expected = plain.generate("The server", max_new_tokens=40)["output_ids"]
        assert server.generate("The server", max_new_tokens=40)["output_ids"] == expected
        os.kill(workers["pocket::scheduler_TP1"], signal.SIGKILL)
        assert server.process.wait(10) == 1
        assert "pocket::scheduler_TP1 (pid" in server.log() and "ended with signal 9" in server.log()
        wait_gone(*workers.values())


@needs_proc
def test_without_spt_noenv_the_title_blanks_the_environment(plain: Server) -> None:
    pid = plain.workers()["pocket::scheduler"]
    assert not Path(f"/proc/{pid}/environ").read_bytes().strip(b"\0")


@needs_proc
def test_sigterm_and_sigkill_leave_nothing_behind(tmp_path: Path) -> None:
    with running(tmp_path / "log", *EAGLE3) as server:
        workers = server.workers()
        begin = time.monotonic()
        assert server.stop() == 0
        assert time.monotonic() - begin < 5
        wait_gone(*workers.values())
    with running(tmp_path / "killed") as server:
        workers = server.workers()
        server.process.kill()
        server.process.wait(10)
        wait_gone(*workers.values())


def test_a_busy_port_is_an_error(tmp_path: Path) -> None:
    with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as taken:
        server = Server(tmp_path / "log", "--port", str(taken.getsockname()[1]), wait=False)
        assert server.process.wait(20) == 1
        assert "cannot serve on 127.0.0.1:" in server.log()


# Faults


def test_faults_hang_without_health_generate_and_ignoring_sigterm(tmp_path: Path) -> None:
    with running(tmp_path / "log", POCKET_FAULT="hang,no-health-generate,ignore-term") as server:
        assert server.request("GET", "/health")[0] == 200
        assert server.request("GET", "/health_generate")[0] == 404
        with pytest.raises(TimeoutError):
            server.request("POST", "/generate", {"text": "a"}, timeout=0.5)
        server.process.terminate()
        with pytest.raises(subprocess.TimeoutExpired):
            server.process.wait(0.5)
        server.process.kill()


def test_faults_early_stop_stream_error_and_slow_start(tmp_path: Path) -> None:
    begin = time.monotonic()
    with running(tmp_path / "log", POCKET_FAULT="early-stop:6,stream-error,slow-start:0.5") as server:
        assert time.monotonic() - begin > 0.5
        answer = server.generate("The server", max_new_tokens=50)
        assert answer["meta_info"]["completion_tokens"] == 6
        assert answer["meta_info"]["finish_reason"]["type"] == "stop"
        events = server.stream("/generate", {"text": "The", "sampling_params": {"temperature": 0}})
        assert len(events) == 4 and "error" in events[-1]


def test_fault_crash_while_loading(tmp_path: Path) -> None:
    server = Server(tmp_path / "log", wait=False, POCKET_FAULT="crash-loading")
    assert server.process.wait(20) == 1
    assert "crashed while loading" in server.log() and "pocket::scheduler (pid" in server.log()


@needs_proc
@pytest.mark.parametrize("variant", ["detach", "detach:clean"])
def test_faults_detach_and_overwrite(tmp_path: Path, variant: str) -> None:
    fault = f"{variant},overwrite:NCCL_NVLS_ENABLE=0"
    variables = {"SPT_NOENV": "1", "NCCL_NVLS_ENABLE": "1", "POCKET_FAULT": fault}
    left = 0
    try:
        with running(tmp_path / "log", **variables) as server:
            left = int(re.search(r"left pid (\d+) behind", server.log())[1])  # type: ignore[index]
            worker = server.workers()["pocket::scheduler"]
            assert b"NCCL_NVLS_ENABLE=0\0" in Path(f"/proc/{worker}/environ").read_bytes()
            assert b"NCCL_NVLS_ENABLE=1\0" in Path(f"/proc/{server.process.pid}/environ").read_bytes()
            server.stop()
            wait_gone(worker)
            deadline = time.monotonic() + 5
            while not Path(f"/proc/{left}/cmdline").read_bytes().startswith(b"pocket::scheduler"):
                assert time.monotonic() < deadline, "it never took its title"
                time.sleep(0.01)
            assert os.getsid(left) != os.getsid(0)
            marked = b"POCKET_FAULT" in Path(f"/proc/{left}/environ").read_bytes()
            assert marked is (variant == "detach")
    finally:
        if left:
            os.kill(left, signal.SIGKILL)


def test_an_unknown_fault_is_refused(tmp_path: Path) -> None:
    server = Server(tmp_path / "log", wait=False, POCKET_FAULT="sleepy")
    assert server.process.wait(20) == 2
    assert "unknown fault 'sleepy'" in server.log()
