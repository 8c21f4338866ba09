"""A warm snapshot of 48,000 files against `git status` on as many; paired and interleaved, medians in ms.

uv run python benchmarks/warm_check.py [FILES] [ROUNDS]
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from pinner.host.digest import DigestMemory, take_snapshot

GIT = ("git", "-c", "user.name=bench", "-c", "user.email=bench@localhost", "-c", "gc.auto=0")


def build(root: Path, files: int) -> None:
    """A tree shaped like an environment: 15 files a directory, four directories deep."""
    for number in range(files):
        directory = root / "lib/python3.11/site-packages" / f"pkg{number // 300:03d}" / f"sub{number // 15 % 20}"
        if number % 15 == 0:
            directory.mkdir(parents=True, exist_ok=True)
        (directory / f"module_{number % 15:02d}.py").write_bytes(f"# {number}\n".encode() * 100)


def git_status(root: Path, environ: dict[str, str]) -> float:
    start = time.perf_counter()
    subprocess.run([*GIT, "status", "--porcelain"], cwd=root, env=environ, check=True, capture_output=True)
    return (time.perf_counter() - start) * 1000


def snapshot(root: Path, database: Path) -> float:
    """One warm snapshot as a new process pays for it: the database is opened anew."""
    start = time.perf_counter()
    memory = DigestMemory(database)
    found = take_snapshot(root, memory)
    took = (time.perf_counter() - start) * 1000
    memory.close()
    if found.read_anew:
        raise SystemExit(f"not warm: {found.how}")
    return took


def main(files: int = 48_000, rounds: int = 15) -> None:
    environ = {**os.environ, "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull}
    with tempfile.TemporaryDirectory() as name:
        here = Path(name)
        build(here / "env", files)
        build(here / "repository", files)
        for command in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "all"]):
            subprocess.run([*GIT, *command], cwd=here / "repository", env=environ, check=True)
        time.sleep(2.5)  # until both sides may trust what they have read
        take_snapshot(here / "env", DigestMemory(here / "digests.sqlite"))
        git_status(here / "repository", environ)
        pairs = [
            (snapshot(here / "env", here / "digests.sqlite"), git_status(here / "repository", environ))
            for _ in range(rounds)
        ]
    ours, theirs = (statistics.median(column) for column in zip(*pairs, strict=True))
    ratio = statistics.median(mine / git for mine, git in pairs)
    print(f"{files:,} files, {rounds} rounds, {os.cpu_count()} processors")
    print(f"warm snapshot {ours:.0f} ms, git status {theirs:.0f} ms, ratio {ratio:.2f} (at most 1.0)")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
