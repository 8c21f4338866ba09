"""Servers that somebody started by hand, for tests of `adopt`."""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
import time
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tests import tiny
from tests.integration.pocket_server import QUICKSTART, alive, wait_gone

ARGUMENTS = ("--random-seed", "7", "--enable-metrics")
EAGLE3 = (
    "--speculative-algorithm", "EAGLE3", "--speculative-draft-model-path", "draft", "--speculative-num-steps", "3",
)  # fmt: skip


def checkout(path: Path) -> str:
    """The engine's repository; returns its commit."""
    shutil.copytree(QUICKSTART / "engine", path, ignore=shutil.ignore_patterns("__pycache__"))
    tiny.git(path, "init", "--quiet")
    tiny.git(path, "add", "--all")
    tiny.git(path, "commit", "--quiet", "--message", "Start")
    return tiny.git(path, "rev-parse", "HEAD")


def models(directory: Path) -> None:
    """Target and draft as `model` and `draft` in a directory."""
    for name in ("model", "draft"):
        shutil.copytree(QUICKSTART / name, directory / name)


class ByHand:
    """A server started as a person does, in a directory, with a shell's environment."""

    def __init__(self, python: Path, directory: Path, words: Sequence[str], **variables: str) -> None:
        self.port = tiny.free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.log = directory / f"server-{self.port}.log"
        env = {
            "PATH": f"{python.parent}:/usr/bin:/bin",
            "HOME": str(directory / "home"),
            "TERM": "dumb",
            **variables,
        }
        argv = [str(python), *words, "--port", str(self.port)]
        with self.log.open("wb") as stream:
            self.process = subprocess.Popen(argv, cwd=directory, env=env, stdout=stream, stderr=stream)

    @property
    def pid(self) -> int:
        return self.process.pid

    def wait(self) -> None:
        deadline = time.monotonic() + 60
        while "ready to roll" not in self.log.read_text():
            assert self.process.poll() is None and time.monotonic() < deadline, self.log.read_text()
            time.sleep(0.02)

    def workers(self) -> dict[str, int]:
        """Title and pid of each child."""
        children = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()
        return {Path(f"/proc/{pid}/cmdline").read_bytes().strip(b"\0").decode(): int(pid) for pid in children}

    def stop(self) -> None:
        pids = [self.pid, *self.workers().values()] if alive(self.pid) else []
        self.process.terminate()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        wait_gone(*pids)


@contextlib.contextmanager
def by_hand(python: Path, directory: Path, *words: str, **variables: str) -> Iterator[ByHand]:
    server = ByHand(python, directory, words, **variables)
    try:
        server.wait()
        yield server
    finally:
        if server.process.poll() is None:
            server.stop()


def generate(url: str, prompt: str = "The server", tokens: int = 24) -> dict[str, Any]:
    """Greedy text and tokens."""
    body = {"text": prompt, "sampling_params": {"temperature": 0, "max_new_tokens": tokens, "ignore_eos": True}}
    request = urllib.request.Request(f"{url}/generate", json.dumps(body).encode())
    with urllib.request.urlopen(request, timeout=60) as answer:
        found: dict[str, Any] = json.load(answer)
    return {"text": found["text"], "output_ids": found.get("output_ids")}


def written(directory: Path) -> list[str]:
    """The files that lie in a directory."""
    return sorted(entry.name for entry in directory.iterdir() if entry.is_file())
