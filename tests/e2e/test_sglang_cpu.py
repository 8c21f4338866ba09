"""The real SGLang with EAGLE-3 through every verb, and refused when something has moved."""

from __future__ import annotations

import json
import os
import shutil
import urllib.request
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from pinner.host import procfs
from tests.e2e.conftest import ROOT, Box
from tests.integration.command import differences

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

SHM = Path("/dev/shm")


def generate(url: str, text: str, tokens: int) -> dict[str, Any]:
    """The answer of /generate; SGLang demands that the request says what it is."""
    body = {"text": text, "sampling_params": {"max_new_tokens": tokens, "temperature": 0}}
    request = urllib.request.Request(
        f"{url}/generate", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        found: dict[str, Any] = json.load(answer)
        return found


def ours(box: Box) -> dict[int, tuple[str, ...]]:
    """Processes with the test's own PINNER_HOME in their arguments or environment, by PID."""

    def belongs(one: procfs.ProcessInfo) -> bool:
        environment = procfs.environ(one.pid)
        values = environment.values() if isinstance(environment, dict) else ()
        return any(str(box.home) in word for word in (*one.argv, *values)) and one.pid != os.getpid()

    return {one.pid: one.argv for one in procfs.processes() if belongs(one)}


def shared_memory(pids: Iterable[int]) -> set[str]:
    """Files of /dev/shm that these processes have mapped or open."""
    found = set()
    for pid in pids:
        lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
        links = [str(link.readlink()) for link in Path(f"/proc/{pid}/fd").iterdir() if link.is_symlink()]
        found |= {path for path in (*(line.split()[-1] for line in lines), *links) if path.startswith(f"{SHM}/")}
    return {path.removesuffix(" (deleted)") for path in found}


@contextmanager
def changed(path: Path, data: bytes) -> Iterator[None]:
    """A file with other bytes. It is replaced, not written: uv may have linked it to its cache."""
    before = path.read_bytes()
    for content in (data, before):
        beside = path.with_name(f".{path.name}.new")
        beside.write_bytes(content)
        shutil.copymode(path, beside)
        beside.replace(path)
        if content is data:
            try:
                yield
            except BaseException:
                path.write_bytes(before)
                raise


def test_the_committed_lock_is_what_lock_writes(box: Box) -> None:
    """Only the port is not the committed one."""
    committed = (ROOT / "deployments" / "pylock.sglang-cpu.toml").read_text()
    assert (box.deployments / "pylock.sglang-cpu.toml").read_text() == committed
    lock = (ROOT / "deployments" / "sglang-cpu.lock").read_text()
    here = box.manifest.with_suffix(".lock").read_text().replace(str(box.port), "30000")
    without_digest = [line for line in here.splitlines() if not line.startswith("manifest = ")]
    assert without_digest == [line for line in lock.splitlines() if not line.startswith("manifest = ")]


def test_from_nothing_to_tokens_and_back(box: Box) -> None:
    assert box("check", box.manifest).code == 0
    said = box.json("up", box.manifest)
    assert said.code == 0, said.out + said.err
    assert said.data["tokens"] >= 1
    url = said.data["url"]

    answer = generate(url, "The server", 40)
    assert str(answer["text"]).startswith(" stopped in the morning, and the keeper went to the north room")
    assert generate(url, "The server", 40)["output_ids"] == answer["output_ids"]
    assert answer["meta_info"]["spec_accept_length"] > 1.5, "the drafted tokens are not accepted"
    with urllib.request.urlopen(f"{url}/model_info", timeout=30) as reply:
        assert json.load(reply)["is_generation"] is True

    live = box.json("check", box.manifest)
    assert live.code == 0, live.out
    assert live.data["drift"] == live.data["unknown"] == []
    assert "4 processes" in live.data["how"]["environment"], "launcher, tracker, scheduler and detokenizer"
    assert box("status", box.manifest).code == 0

    everyone = ours(box)
    memory = shared_memory(everyone)
    assert len(everyone) == 5, "the supervisor and the four"
    assert box("down", box.manifest).code == 0
    assert ours(box) == {}
    # SGLang ends its processes by force and leaves a file behind, whoever starts it.
    assert any("sglang_loads_" in path for path in memory), memory
    assert [path for path in memory if Path(path).exists()] == []
    with pytest.raises(OSError, match="refused"):
        urllib.request.urlopen(f"{url}/health", timeout=5)


def test_one_byte_of_an_installed_file(box: Box) -> None:
    root = Path(box.needs("materialize", box.manifest)["workspace"])
    path = root / "env/lib/python3.11/site-packages/sglang/srt/managers/scheduler.py"
    data = bytearray(path.read_bytes())
    data[data.index(b"# ") + 2] ^= 1
    with changed(path, bytes(data)):
        said = box.json("up", box.manifest)
        assert said.code == 1, said.out
        ((key, found),) = differences(said).items()
        assert key == "python.lib/python3.11/site-packages/sglang/srt/managers/scheduler.py"
        assert found["pinned"] != found["observed"]
        assert "sglang 0.5.23: edited after installation" in found["note"]
        text = box("check", box.manifest)
        assert text.code == 1
        assert "DRIFT  1 difference" in text.out
        assert ours(box) == {}, "nothing may have been started"
    assert box("check", box.manifest).code == 0


def test_another_draft(box: Box) -> None:
    path = box.deployments / "quickstart" / "draft" / "model.safetensors"
    data = bytearray(path.read_bytes())
    data[-2:] = bytes(2)
    with changed(path, bytes(data)):
        said = box.json("up", box.manifest)
        assert said.code == 1, said.out
        ((key, found),) = differences(said).items()
        assert key == "draft.model.safetensors"
        assert found["note"] == "same size, other bytes"
        assert ours(box) == {}
    assert box("check", box.manifest).code == 0


def test_a_worker_that_changes_nccl_proto(box: Box) -> None:
    """Everything is as pinned at rest, and the code that is pinned changes a variable before it starts workers."""
    kernel = box.deployments / "sglang-cpu" / "meddling"
    shutil.copytree(box.deployments / "sglang-cpu" / "kernel", kernel)
    plugin = kernel / "src" / "sgl_kernel" / "plugin.py"
    plugin.write_text(f'{plugin.read_text()}\n    import os\n\n    os.environ["NCCL_PROTO"] = "LL"\n')
    manifest = box.deployments / "meddling.toml"
    manifest.write_text(box.manifest.read_text().replace("sglang-cpu/kernel", "sglang-cpu/meddling"))
    shutil.copy(box.deployments / "pylock.sglang-cpu.toml", box.deployments / "pylock.meddling.toml")
    box.needs("lock", manifest)
    box.needs("materialize", manifest)
    assert box("check", manifest).code == 0

    said = box.json("up", manifest)
    assert said.code == 1, said.out + said.err
    found = differences(said)
    assert found, said.out
    for key, item in found.items():
        assert key.startswith("environment."), key
        assert "NCCL_PROTO" in key
        assert (item["pinned"], item["observed"]) == ("Simple", "LL")
    assert any("sglang::scheduler" in f"{key} {item}" for key, item in found.items()), found
    assert "stopping it again" in said.err
    assert ours(box) == {}, "a server that differs must not run on"
    assert box("status", manifest).code == 3
