"""What `pinner up` adds to starting the quickstart's engine by hand, until it has generated.

    uv run python benchmarks/up.py [ROUNDS]

By hand means: the same interpreter, arguments and environment, started directly and asked every few milliseconds.
pinner's side is the whole command, from the start of its own interpreter to its end, for a deployment that has
been up before and was stopped. Needs the package index once, for the engine's two packages.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path

from pinner.deploy.environment import argv_here, launch_environment
from pinner.deploy.load import load_manifest
from pinner.deploy.locks import load_lock
from pinner.deploy.workspace import find_workspace
from pinner.host.files import remove_tree
from pinner.host.home import Home
from tests import tiny

ROOT = Path(__file__).parent.parent


def make_deployment(top: Path) -> Path:
    """The committed quickstart on a port that is free."""
    leave = shutil.ignore_patterns("engine", "training", "history")
    shutil.copytree(ROOT / "deployments", top / "deployments", ignore=leave)
    manifest = top / "deployments" / "quickstart.toml"
    manifest.write_text(manifest.read_text().replace("30000", str(tiny.free_port())))
    return manifest


def pinner(*argv: object) -> float:
    began = time.perf_counter()
    line = [sys.executable, "-m", "pinner", *map(str, argv)]
    subprocess.run(line, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return time.perf_counter() - began


def by_hand(argv: tuple[str, ...], env: dict[str, str], url: str) -> float:
    body = json.dumps({"text": "The", "sampling_params": {"max_new_tokens": 4, "temperature": 0}}).encode()
    request = urllib.request.Request(f"{url}/generate", body, {"Content-Type": "application/json"})
    began = time.perf_counter()
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    engine = subprocess.Popen(argv, env=env, cwd="/", start_new_session=True, **quiet)
    while True:
        with contextlib.suppress(urllib.error.URLError, ConnectionError):
            with urllib.request.urlopen(request, timeout=10) as answer:
                assert json.load(answer)["meta_info"]["completion_tokens"] > 0
            break
        time.sleep(0.005)
    took = time.perf_counter() - began
    os.killpg(engine.pid, signal.SIGTERM)
    engine.wait()
    return took


def main(rounds: int = 11) -> None:
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    with tempfile.TemporaryDirectory(prefix="pinner-bench-") as name:
        manifest = make_deployment(Path(name))
        home = Home(Path(name) / "home")
        os.environ["PINNER_HOME"] = str(home.root)
        pinner("lock", manifest)
        first = pinner("up", manifest)
        pinner("down", manifest)
        print(f"first up, from nothing: {first:.1f} s")
        deployment = load_manifest(manifest)
        lock = load_lock(deployment)
        workspace = find_workspace(lock, deployment.directory, home)
        assert workspace is not None
        argv = argv_here(lock, workspace, deployment.directory)
        env = launch_environment(workspace, lock.env, os.environ, in_place=False)
        url = f"http://{lock.serve.host}:{lock.serve.port}"
        pairs, starts = [], []
        for _ in range(rounds):
            up = pinner("up", manifest)
            pinner("down", manifest)
            pairs.append((up, by_hand(argv, env, url)))
            starts.append(pinner("check", "--help"))
        remove_tree(home.root)
    ours, theirs = (statistics.median(column) for column in zip(*pairs, strict=True))
    added = statistics.median(one - two for one, two in pairs)
    print(f"up of a stopped deployment: {ours:.2f} s (target at most 3); by hand: {theirs:.2f} s")
    print(f"up adds {added:.2f} s (target at most 0.3), of which start {statistics.median(starts):.2f} s")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
