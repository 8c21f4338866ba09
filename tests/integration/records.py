"""Records for tests: a small one with every kind of file, and the pinner that keeps it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from pinner.host.home import Home
from pinner.measure.records import Stored, store
from pinner.measure.samples import packed
from pinner.model.record import FORMAT, READS_FORMAT, Load, Measurement, Record, Start

BEGAN = 1_796_000_000.0
LOCK = b'version = 1\nmanifest = "sha256:1"\n[engine]\nkind = "pocket"\nargv = ["-m", "x"]\n'


def measurement(start: int, repeat: int, throughput: float, **more: Any) -> Measurement:
    """One at concurrency 8."""
    return Measurement(
        start=start,
        repeat=repeat,
        load=Load(kind="concurrency", value=8.0),
        began=BEGAN + 10 * repeat,
        duration_s=9.0,
        metrics={"output_throughput": throughput, "accept_length": 2.5},
        requests=32,
        samples=f"samples/{start}-{repeat}.jsonl.gz",
        **more,
    )


def record(**more: Any) -> Record:
    """Two starts with two repeats each."""
    whole = Record(
        format=FORMAT,
        requires_pinner=READS_FORMAT,
        origin="pinner",
        deployment="tiny",
        bench="main",
        began=BEGAN,
        ended=BEGAN + 60,
        lock="sha256:1",
        measurements=tuple(measurement(start, repeat, 100.0 + start) for start in (0, 1) for repeat in (0, 1)),
        starts=tuple(Start(run=f"tiny-{start}", began=BEGAN) for start in (0, 1)),
    )
    return msgspec.structs.replace(whole, **more)


def files(**more: bytes | Path) -> Mapping[str, bytes | Path]:
    """What belongs to it."""
    samples = {f"samples/{start}-{repeat}.jsonl.gz": packed([{"t": 1}]) for start in (0, 1) for repeat in (0, 1)}
    return {"deployment/tiny.toml": b"version = 1\n", "deployment/tiny.lock": LOCK, **samples, **more}


def stored(home: Home, **more: Any) -> Stored:
    """A record in a home."""
    return store(record(**more), files(), home)
