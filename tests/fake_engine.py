"""A stand-in for an engine: starts children that try to escape in every known way, then waits.

`fake_engine.py TAG OUT [KIND ...]` writes to OUT, when all is up, the environment as it really is and one PID
for each KIND. TAG stands in the arguments of every process, so that a test finds those with no environment.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path


def sleep_as(tag: str, note: Path, env: dict[str, str]) -> None:
    """Become a sleeper that first notes its PID; the note is whole when it appears."""
    code = (
        "import os,sys,time; p=sys.argv[2]; f=open(p+'.new','w'); f.write(str(os.getpid())); f.close();"
        "os.rename(p+'.new',p); time.sleep(600)"
    )
    os.execve(sys.executable, [sys.executable, "-I", "-S", "-c", code, tag, str(note)], env)


def escape(kind: str, tag: str, note: Path) -> None:
    """Start one child of the given kind."""
    if os.fork():
        return
    env = {} if kind == "cleared" else dict(os.environ)
    if kind in ("setsid", "daemon", "cleared"):
        os.setsid()
    if kind in ("daemon", "cleared") and os.fork():
        os._exit(0)
    if kind == "stubborn":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if kind == "hopper":
        hop(note)
    sleep_as(tag, note, env)


def hop(note: Path) -> None:
    """Fork and exit without end: no PID lives longer than a few milliseconds."""
    beside = note.with_suffix(".new")
    beside.write_text(str(os.getpid()))
    beside.rename(note)
    while True:
        if os.fork():
            os._exit(0)
        os.setsid()


def main() -> None:
    """Start the children, wait for their notes, write the answer, wait to be ended."""
    tag, out, *kinds = sys.argv[1:]
    if "ignore-term" in kinds:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    escapes = [kind for kind in kinds if kind not in ("ignore-term", "exit-7")]
    notes = {kind: Path(f"{out}.{kind}") for kind in escapes}
    for kind, note in notes.items():
        escape(kind, tag, note)
    while not all(note.exists() for note in notes.values()):
        time.sleep(0.005)
    raw = Path("/proc/self/environ").read_bytes()
    answer = {
        "pid": os.getpid(),
        "cwd": str(Path.cwd()),
        "environ": raw.hex(),
        "pids": {kind: int(note.read_text()) for kind, note in notes.items()},
        "fds": sorted(int(name.name) for name in Path("/proc/self/fd").iterdir()),
        "blocked": next(
            line.split()[1]
            for line in Path("/proc/self/status").read_text().splitlines()
            if line.startswith("SigBlk")
        ),
    }
    Path(f"{out}.new").write_text(json.dumps(answer))
    Path(f"{out}.new").rename(out)
    print("ready", flush=True)
    if "exit-7" in kinds:
        sys.exit(7)
    while True:
        time.sleep(600)


if __name__ == "__main__":
    main()
