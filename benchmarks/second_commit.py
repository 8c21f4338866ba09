"""What a second commit of a known repository costs, against `git worktree add`.

    uv run python benchmarks/second_commit.py [--files N] [--rounds N]

Both start from a bare repository that holds the commit. pinner's side is all of what `materialize` does for
the tree: is the content present, export with its checks, and the comparison of tree ids; git's is one
command. Pairs are interleaved, so that a noisy neighbour disturbs both. Prints medians in ms and the ratio;
the aim is at most 1.10.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

from pinner.host import mirror

ENV = {
    "PATH": os.environ["PATH"],
    "HOME": "/nonexistent",
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": "/dev/null",
    **{f"GIT_{who}_{what}": "bench" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")},
}


def git(*args: str, cwd: Path) -> str:
    # A collection in the background would race with the clone and disturb the times.
    argv = ["git", "-c", "gc.auto=0", *args]
    done = subprocess.run(argv, cwd=cwd, env=ENV, check=True, capture_output=True, text=True)
    return done.stdout.strip()


def make_repository(path: Path, files: int) -> list[str]:
    """A repository of `files` source-like files with two commits, a tenth of the files changed between."""
    rng = random.Random(7)
    path.mkdir()
    git("init", "-q", "-b", "main", ".", cwd=path)
    names = [path / f"pkg{at % 40}" / f"sub{at % 7}" / f"m{at}.py" for at in range(files)]
    for name in names:
        name.parent.mkdir(parents=True, exist_ok=True)
        name.write_text("".join(f"x{rng.random()} = {rng.random()}\n" for _ in range(rng.randint(20, 400))))
    commits = []
    for number in range(2):
        for name in names[:: 10 if number else files]:
            name.write_text(name.read_text() + f"y = {number}\n")
        git("add", "-A", cwd=path)
        git("commit", "-q", "-m", f"commit {number}", cwd=path)
        commits.append(git("rev-parse", "HEAD", cwd=path))
    return commits


def timed(action: object, *args: object) -> float:
    start = time.perf_counter()
    action(*args)  # type: ignore[operator]
    return (time.perf_counter() - start) * 1000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--files", type=int, default=6000)
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="pinner-bench-") as name:
        top = Path(name)
        origin = top / "origin"
        commits = make_repository(origin, options.files)
        mine = mirror.ensure(top / "mirrors", str(origin))
        bare = top / "bare.git"
        git("clone", "-q", "--bare", str(origin), str(bare), cwd=top)

        def ours(commit: str, to: Path) -> None:
            mine.make_present(commit)
            exported = mine.export(commit, to)
            assert exported.files == options.files

        def theirs(commit: str, to: Path) -> None:
            git("worktree", "add", "--detach", str(to), commit, cwd=bare)

        pinner_ms, git_ms = [], []
        for number in range(options.rounds + 1):
            commit = commits[number % 2]
            pair = [(ours, top / "a", pinner_ms), (theirs, top / "b", git_ms)]
            for action, to, times in pair if number % 4 < 2 else reversed(pair):
                taken = timed(action, commit, to)
                if number:  # the first round warms the page cache
                    times.append(taken)
                shutil.rmtree(to)
            git("worktree", "prune", cwd=bare)
    ratio = statistics.median(one / other for one, other in zip(pinner_ms, git_ms, strict=True))
    print(f"pinner export      {statistics.median(pinner_ms):7.0f} ms")
    print(f"git worktree add   {statistics.median(git_ms):7.0f} ms")
    print(f"ratio of pairs     {ratio:7.2f}   ({options.rounds} pairs, {options.files} files)")


if __name__ == "__main__":
    main()
