"""A warm check of a whole deployment as people have them, against `git status` on as many files.

    uv run python benchmarks/full_check.py [ROUNDS]

50,000 files of a built environment, an engine tree of 6,000 files, a model of 64 sparse shards of 10 GB with
valid headers and their index, and 8 GPUs of the stub NVML, all captured in the lock. Nobody reads 640 GB of zeros
for this: the memory of digests is told made-up digests of the shards before they are locked. Whole processes,
interleaved, medians in ms.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from environment import make_deployment, pinner
from warm_check import GIT, build, git_status, milliseconds

from pinner.host.digest import DigestMemory
from pinner.host.file_digests import remember_digest
from pinner.host.files import remove_tree
from tests.nvml import stub
from tests.tiny import GIT_ENV

SHARDS, SHARD_BYTES = 64, 10_000_000_000
ENGINE_FILES = 6_000
PACKAGES, MODULES = 83, 300  # each module is two files: its byte code, too


def shards(model: Path, memory: DigestMemory) -> None:
    """64 files of 10 GB that hold nothing but a header each, and the index that names them."""
    index = {}
    for number in range(1, SHARDS + 1):
        path = model / f"model-{number:05d}-of-{SHARDS:05d}.safetensors"
        layers, size = 128, SHARD_BYTES // 128
        tensors = {
            f"model.layers.{number}.experts.{at}.weight": {
                "dtype": "U8",
                "shape": [size],
                "data_offsets": [at * size, (at + 1) * size],
            }
            for at in range(layers)
        }
        header = json.dumps(tensors).encode()
        with path.open("wb") as file:
            file.write(len(header).to_bytes(8, "little") + header)
            file.truncate(8 + len(header) + layers * size)
        index |= dict.fromkeys(tensors, path.name)
        remember_digest(path, f"sha256:{number:064x}", memory)
    (model / "model.safetensors").unlink()
    (model / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))


def engine_files(repository: Path) -> None:
    """As many more files in the engine's commit."""
    for number in range(ENGINE_FILES):
        directory = repository / "pocket" / f"part{number // 100:02d}"
        directory.mkdir(exist_ok=True)
        (directory / f"m{number:04d}.py").write_text(f"# {number}\n" * 40)
    for command in (["add", "-A"], ["commit", "-qm", "more"], ["tag", "-f", "good"]):
        subprocess.run(["git", *command], cwd=repository, env=GIT_ENV, check=True, stdout=subprocess.DEVNULL)


def gpus(top: Path) -> dict[str, str]:
    """Variables with which pynvml finds 8 GPUs."""
    scenario = top / "nvml.ini"
    lines = ["[system]", f"driver = {stub.DRIVER}", f"nvml = 13.{stub.DRIVER}", "cuda = 13010", "count = 8"]
    for number in range(8):
        lines += [f"[gpu {number}]", *(f"{name} = {value}" for name, value in stub.gpu(number).items())]
    scenario.write_text("\n".join(lines) + "\n")
    return {"PINNER_NVML_SCENARIO": str(scenario), "LD_LIBRARY_PATH": str(stub.build(top / "nvml"))}


def main(rounds: int = 11) -> None:
    with tempfile.TemporaryDirectory(prefix="pinner-bench-") as name:
        top = Path(name)
        manifest = make_deployment(top, PACKAGES, MODULES)
        engine_files(top / "deployment/engine")
        os.environ |= {"PINNER_HOME": str(top / "home"), "PINNER_FIND_LINKS": str(top / "wheels"), **gpus(top)}
        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
        memory = DigestMemory(top / "home/digests.sqlite")
        shards(top / "deployment/model", memory)
        memory.close()
        pinner("lock", "--capture", manifest)
        pinner("materialize", manifest)
        total = sum(len(files) for _, _, files in os.walk(top / "home/workspaces"))
        build(top / "repository", total)
        environ = {**os.environ, "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull}
        for command in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "all"]):
            subprocess.run([*GIT, *command], cwd=top / "repository", env=environ, check=True)
        time.sleep(2.5)  # until both sides may trust what they have read
        pinner("check", manifest)
        git_status(top / "repository", environ)
        found = [
            (milliseconds("check", manifest), milliseconds("--help"), git_status(top / "repository", environ))
            for _ in range(rounds)
        ]
        remove_tree(top / "home")
    check, start, git = (statistics.median(column) for column in zip(*found, strict=True))
    whole, beyond = (
        statistics.median(ratios)
        for ratios in zip(*((one / theirs, (one - own) / theirs) for one, own, theirs in found), strict=True)
    )
    print(f"{total:,} files, {SHARDS} shards of 10 GB, 8 GPUs; {rounds} rounds")
    print(f"pinner check {check:.0f} ms, of which its own start {start:.0f} ms; git status {git:.0f} ms")
    print(f"ratio {whole:.2f}, without the start {beyond:.2f}")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
