"""What the README and the incident's replay promise, word for word where that can be."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
import urllib.request
from pathlib import Path

import pytest

from pinner.deploy.load import load_manifest
from pinner.deploy.locks import load_lock
from pinner.deploy.resolve import is_current
from tests import tiny
from tests.integration.command import Pinner, differences, nothing_left

ROOT = Path(__file__).parent.parent.parent


def generate(url: str, text: str, tokens: int = 30) -> dict[str, object]:
    body = {"text": text, "sampling_params": {"max_new_tokens": tokens, "temperature": 0}}
    request = urllib.request.Request(f"{url}/generate", json.dumps(body).encode())
    with urllib.request.urlopen(request, timeout=30) as answer:
        found: dict[str, object] = json.load(answer)
        return found


@pytest.fixture
def quickstart(tmp_path: Path) -> Path:
    """The committed deployment on a port of its own."""
    target = tmp_path / "deployments"
    shutil.copytree(ROOT / "deployments", target, ignore=shutil.ignore_patterns("engine", "training", "history"))
    for path in (target / "quickstart.toml", target / "quickstart.lock"):
        path.write_text(path.read_text().replace("30000", str(tiny.free_port())))
    return target / "quickstart.toml"


def test_the_committed_lock_is_current() -> None:
    deployment = load_manifest(ROOT / "deployments" / "quickstart.toml")
    assert is_current(deployment) is None
    lock = load_lock(deployment)
    pylock = tomllib.loads(deployment.pylock_path.read_text())
    for package in pylock["packages"]:
        wheels = " ".join(wheel["name"] for wheel in package["wheels"])
        assert re.search(r"any\.whl|linux_\d+_\d+_x86_64|manylinux\d*_x86_64", wheels)
        assert re.search(r"any\.whl|linux_\d+_\d+_aarch64|manylinux\d*_aarch64", wheels)
    assert lock.engine.source.wish == "v0.3.0"


def test_the_committed_lock_of_the_real_sglang_is_current_and_names_no_site() -> None:
    deployment = load_manifest(ROOT / "deployments" / "sglang-cpu.toml")
    assert is_current(deployment) is None
    wheels = [
        wheel
        for package in tomllib.loads(deployment.pylock_path.read_text())["packages"]
        for wheel in package["wheels"]
    ]
    elsewhere = [
        wheel for wheel in wheels if not wheel.get("url", "").startswith("https://files.pythonhosted.org/")
    ]
    # Where it was locked its public page could not be reached: its hash is all that is needed to find it there.
    assert [wheel["path"] for wheel in elsewhere] == ["torch-2.13.0+cpu-cp311-cp311-manylinux_2_28_x86_64.whl"]
    assert all(wheel["hashes"]["sha256"] for wheel in wheels)


@pytest.mark.timeout(240)
def test_the_quickstart_serves_legible_text_and_refuses_drift(pinner: Pinner, quickstart: Path) -> None:
    # The port is not the committed one, so neither is the lock.
    assert pinner("lock", quickstart).code == 0
    said = pinner.json("up", quickstart)
    assert said.code == 0, said.err
    answer = generate(said.data["url"], "The server")
    assert re.fullmatch(r"[A-Za-z ,.']{40,}", str(answer["text"])), answer["text"]
    meta = answer["meta_info"]
    assert isinstance(meta, dict)
    assert meta["spec_accept_length"] > 1.5
    assert pinner("check", quickstart).code == 0
    assert pinner("check", quickstart, "--deep").code == 0
    assert pinner("down", quickstart).code == 0

    weights = quickstart.parent / "quickstart" / "draft" / "model.safetensors"
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(data)
    refused = pinner.json("up", quickstart)
    assert refused.code == 1
    assert list(differences(refused)) == ["draft.model.safetensors"]


@pytest.mark.timeout(240)
def test_the_incident_word_for_word(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every command of docs/incident.md, in a directory like a clone; only the port and `uv run` differ."""
    clone = tmp_path / "clone"
    clone.mkdir()
    shutil.copytree(ROOT / "deployments", clone / "deployments")
    text = (ROOT / "docs" / "incident.md").read_text().replace("30001", str(tiny.free_port()))
    steps = re.findall(r"```bash\n(.*?)```", text, re.DOTALL)
    assert len(steps) == 6
    env = {**os.environ, "GIT_COMMITTER_NAME": "Sam Rivera", "GIT_COMMITTER_EMAIL": "sam@example.com"}
    said = []
    with nothing_left():
        for step in steps:
            command = step.replace("uv run pinner", f"{sys.executable} -m pinner").replace(
                " || true", "; echo rc=$?"
            )
            done = subprocess.run(
                ["bash", "-euc" if "rc=" not in command else "-uc", command],
                cwd=clone,
                env=env,
                capture_output=True,
                text=True,
                check=False,
            )
            assert done.returncode == 0, f"{step}\n{done.stdout}\n{done.stderr}"
            said.append(done.stdout)
    assert "spec_accept_length" in said[2]
    refusal = said[4]
    assert refusal.endswith("rc=1\n")
    assert "by `pull --quiet: Fast-forward`" in refusal
    assert "by Sam Rivera <sam@example.com>" in refusal
    assert "7 commits came in, 2 of them on a hot path" in refusal
    assert re.search(r"Fix stale cache rows after a rejected draft +← suspect", refusal)
    assert "no drift" in said[5]
    printed = re.search(r"```text\n(.*?)\n```", text, re.DOTALL)
    assert printed is not None

    def without_time(lines: str) -> list[str]:
        return [re.sub(r"at \d{4}-\S+", "at …", line).rstrip() for line in lines.strip().splitlines()]

    assert without_time(printed[1]) == without_time(refusal.removesuffix("rc=1\n"))
