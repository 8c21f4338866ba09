"""Starts and ends the engine that ships, for tests: one process on a free port, its log in a file."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

QUICKSTART = Path(__file__).parents[2] / "deployments" / "quickstart"
EAGLE3 = [
    "--speculative-algorithm", "EAGLE3", "--speculative-draft-model-path", "draft",
    "--speculative-num-steps", "3",
]  # fmt: skip


class Server:
    """One engine process on a free port. It is ended by its process id, and its workers are waited for."""

    def __init__(self, log: Path, *arguments: str, wait: bool = True, **variables: str) -> None:
        self.log_path = log
        command = [
            sys.executable,
            "-m",
            "pocket.launch_server",
            "--model-path",
            "model",
            "--port",
            "0",
            *arguments,
        ]
        environment = {k: v for k, v in os.environ.items() if not k.startswith(("NCCL_", "POCKET_", "SPT_"))}
        environment |= {"PYTHONPATH": str(QUICKSTART / "engine"), **variables}
        with log.open("wb") as stream:
            self.process = subprocess.Popen(command, cwd=QUICKSTART, env=environment, stdout=stream, stderr=stream)
        self.port = 0
        if wait:
            self.wait_for("fired up and ready to roll!")
            self.port = int(re.search(r"running on http://[^:]*:(\d+)", self.log())[1])  # type: ignore[index]

    def log(self) -> str:
        return self.log_path.read_text(encoding="utf-8")

    def wait_for(self, text: str, seconds: float = 30) -> None:
        deadline = time.monotonic() + seconds
        while text not in self.log():
            assert self.process.poll() is None and time.monotonic() < deadline, self.log()
            time.sleep(0.01)

    def request(self, method: str, path: str, data: Any = None, timeout: float = 60) -> tuple[int, Any]:
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)) as connection:
            body = data if isinstance(data, str | None) else json.dumps(data)
            connection.request(method, path, body)
            answer = connection.getresponse()
            text = answer.read().decode()
            is_json = (answer.headers["Content-Type"] or "").startswith("application/json")
            return answer.status, json.loads(text) if is_json else text

    def generate(self, text: Any, **params: Any) -> Any:
        sampling = {"temperature": 0, "max_new_tokens": 16, "ignore_eos": True} | params
        status, answer = self.request("POST", "/generate", {"text": text, "sampling_params": sampling})
        assert status == 200, answer
        return answer

    def stream(self, path: str, data: Any) -> list[Any]:
        """The events of a stream, checked to end with [DONE]."""
        status, text = self.request("POST", path, data | {"stream": True})
        assert status == 200
        events = [line.removeprefix("data: ") for line in text.split("\n\n") if line]
        assert events[-1] == "[DONE]"
        return [json.loads(event) for event in events[:-1]]

    def state(self) -> dict[str, Any]:
        return self.request("GET", "/server_info")[1]["internal_states"][0]

    def workers(self) -> dict[str, int]:
        """Title and pid of each worker."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        titles = {Path(f"/proc/{pid}/cmdline").read_bytes().strip(b"\0").decode(): int(pid) for pid in children}
        return {title: pid for title, pid in titles.items() if title.startswith("pocket::")}

    def stop(self) -> int:
        self.process.terminate()
        try:
            return self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return self.process.wait(10)


def alive(pid: int) -> bool:
    with contextlib.suppress(FileNotFoundError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def wait_gone(*pids: int) -> None:
    deadline = time.monotonic() + 5
    while any(alive(pid) for pid in pids):
        assert time.monotonic() < deadline, f"still alive: {[p for p in pids if alive(p)]}"
        time.sleep(0.01)


@contextlib.contextmanager
def running(log: Path, *arguments: str, **options: Any) -> Iterator[Server]:
    server = Server(log, *arguments, **options)
    try:
        yield server
    finally:
        server.stop()
