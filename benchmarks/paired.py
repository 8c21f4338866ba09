"""Two ways of doing the same, timed in turn: A B A B …, so that a busy machine slows both.

Used by the scripts beside it. Prints the median of each and the median of the ratios, pair by pair.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence

Action = Callable[[], object]


def paired(
    title: str,
    ours: Action,
    theirs: Action,
    *,
    runs: int = 15,
    limit: float | None = None,
    before: Action = lambda: None,
) -> float:
    """Time both `runs` times after one warm-up each, print the figures, and return the ratio ours/theirs.

    `before` is done before each, and not timed.
    """
    for action in (before, ours, before, theirs):
        action()
    pairs = [(_seconds(ours, before), _seconds(theirs, before)) for _ in range(runs)]
    mine = statistics.median(a for a, _ in pairs)
    other = statistics.median(b for _, b in pairs)
    ratio = statistics.median(a / b for a, b in pairs)
    target = f" (target at most {limit:g}x)" if limit is not None else ""
    print(f"{title}: {mine * 1000:.0f} ms against {other * 1000:.0f} ms, ratio {ratio:.2f}x{target}")
    return ratio


def command(argv: Sequence[str], *, env: Mapping[str, str] | None = None, cwd: str | None = None) -> Action:
    """A command as an action; it must succeed. Python may keep byte code, as it does for a user."""
    env = {name: value for name, value in (env or os.environ).items() if name != "PYTHONDONTWRITEBYTECODE"}

    def run() -> None:
        subprocess.run(argv, env=env, cwd=cwd, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    return run


def _seconds(action: Action, before: Action) -> float:
    before()
    began = time.perf_counter()
    action()
    return time.perf_counter() - began
