"""A warm check of 48,000 files against `git status` on as many; paired and interleaved, medians in ms.

    uv run python benchmarks/warm_check.py [FILES] [ROUNDS]

First the snapshot alone; then `pinner check` as a process, less what `pinner check --help` takes, on a deployment
whose environment pinner has built: half of its files are modules, half their byte code.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from environment import make_deployment, pinner

from pinner.host.digest import DigestMemory, take_snapshot
from pinner.host.files import remove_tree

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
        print(f"{files:,} files, {rounds} rounds, {os.cpu_count()} processors")
        show("warm snapshot", pairs)
        show("pinner check beyond start-up", end_to_end(here, files, rounds, environ))


def end_to_end(here: Path, files: int, rounds: int, environ: dict[str, str]) -> list[tuple[float, float]]:
    """(`check` less start-up, `git status`) for a deployment with about as many files."""
    modules = 300
    manifest = make_deployment(here, max(1, files // (2 * modules)), modules)
    os.environ |= {"PINNER_HOME": str(here / "home"), "PINNER_FIND_LINKS": str(here / "wheels")}
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    pinner("lock", manifest)
    pinner("materialize", manifest)
    time.sleep(2.5)
    pinner("check", manifest)
    found = []
    for _ in range(rounds):
        start, check = milliseconds("check", "--help"), milliseconds("check", manifest)
        found.append((check - start, git_status(here / "repository", environ)))
    remove_tree(here / "home")
    return found


def milliseconds(*argv: object) -> float:
    began = time.perf_counter()
    pinner(*argv)
    return (time.perf_counter() - began) * 1000


def show(title: str, pairs: list[tuple[float, float]]) -> None:
    ours, theirs = (statistics.median(column) for column in zip(*pairs, strict=True))
    ratio = statistics.median(mine / git for mine, git in pairs)
    print(f"{title} {ours:.0f} ms, git status {theirs:.0f} ms, ratio {ratio:.2f} (at most 1.0)")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
