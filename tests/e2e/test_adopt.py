"""The real SGLang adopted: the manifest's check is clean, and its own `up` serves identical tokens."""

from __future__ import annotations

import json
import subprocess
import time
import tomllib
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests import tiny
from tests.e2e.conftest import Box

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]

PROMPTS = ("The server", "A lamp in the north room", "one two three")
START_S = 300


def tokens(url: str) -> list[list[int]]:
    """Greedy tokens for each prompt."""
    found = []
    for prompt in PROMPTS:
        body = {"text": prompt, "sampling_params": {"max_new_tokens": 48, "temperature": 0, "ignore_eos": True}}
        request = urllib.request.Request(
            f"{url}/generate", json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=120) as answer:
            found.append(json.load(answer)["output_ids"])
    return found


def drift_free(data: dict[str, Any]) -> bool:
    return data["drift"] == data["unknown"] == []


def lock_of(path: Path) -> dict[str, Any]:
    return tomllib.loads(path.read_text())


@contextmanager
def by_hand(box: Box, log: Path) -> Iterator[tuple[int, str]]:
    """The same server as a person starts it: in a directory, short names of flags, a shell's environment."""
    lock = lock_of(box.manifest.with_suffix(".lock"))
    env = Path(box.needs("materialize", box.manifest)["workspace"]) / "env"
    port = tiny.free_port()
    words = [str(port) if word == str(box.port) else word for word in lock["engine"]["argv"]]
    text = " ".join(words).replace("{model}", "quickstart/model").replace("{draft}", "quickstart/draft")
    text = text.replace("--speculative-algorithm", "--speculative-algo")
    variables = {
        **lock["env"]["set"],
        "PATH": f"{env}/bin:/usr/bin:/bin",
        "HOME": str(log.parent),
        "HF_HUB_OFFLINE": "1",
        "HF_TOKEN": "hf_of_nobody",
        "NCCL_PROTO": "Simple",
    }
    with log.open("wb") as stream:
        process = subprocess.Popen(
            ["python", *text.split()],
            executable=str(env / "bin/python"),
            cwd=box.deployments,
            env=variables,
            stdout=stream,
            stderr=stream,
        )
    try:
        deadline = time.monotonic() + START_S
        while "fired up and ready to roll" not in log.read_text(errors="replace"):
            assert process.poll() is None and time.monotonic() < deadline, log.read_text(errors="replace")[-3000:]
            time.sleep(0.5)
        yield process.pid, f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(60)


def test_a_server_started_by_hand(box: Box, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    with by_hand(box, tmp_path / "server.log") as (pid, url):
        before = tokens(url)
        data = box.needs("adopt", url, "--directory", out, "--name", "saved")
        assert data["pid"] == pid
        assert drift_free(data)
        worker = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[-1]
        assert box.needs("adopt", worker, "--directory", out, "--name", "again")["pid"] == pid
        assert lock_of(out / "again.lock") == lock_of(out / "saved.lock")
        assert tokens(url) == before, "adopting must not change what runs"
    text = (out / "saved.toml").read_text()
    assert "hf_of_nobody" not in text + (out / "saved.lock").read_text()
    manifest = tomllib.loads(text)
    assert manifest["engine"]["source"] == {"package": "sglang", "version": "0.5.23"}
    assert manifest["draft"]["algorithm"] == "EAGLE3"
    assert manifest["env"]["HF_TOKEN"] == {"secret": "HF_TOKEN"}
    assert drift_free(box.needs("check", out / "saved.toml"))


def test_a_server_that_pinner_brought_up(box: Box, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    up = box.needs("up", box.manifest)
    before = tokens(up["url"])
    data = box.needs("adopt", up["url"], "--directory", out, "--name", "again")
    assert data["run"] == up["run"]
    assert drift_free(data)
    box.needs("down", box.manifest)
    assert drift_free(box.needs("check", out / "again.toml"))
    again = box.needs("up", out / "again.toml")
    assert tokens(again["url"]) == before
    box.needs("down", out / "again.toml")
    assert {path.name for path in out.iterdir()} == {"again.toml", "again.lock"}
