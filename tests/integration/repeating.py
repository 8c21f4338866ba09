"""What the tests of `pinner reproduce` repeat: a deployment of the stub engine, measured once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pinner.host.home import Home
from pinner.measure.carry import read_file
from pinner.measure.find_records import find_record
from pinner.measure.records import Stored, store
from pinner.model.record import Record
from tests.integration.benches import deployment, locked
from tests.integration.command import Pinner
from tests.records import changed

# Slow steps: beside them the load of the machine is nothing.
ENV = 'STUB = "accept=3;step=0.05"'
BENCH = """
[bench.decode]
requests = 4
input-tokens = 16
output-tokens = 12
concurrency = [4]
warmup = 1
repeats = 1
starts = 3
timeout-s = 20
client-lag-ms = 10000
"""
# What a busy machine may do to a run of a second.
TOLERANCE = ("--tolerance", "0.9")


@pytest.fixture
def repeatable(pinner: Pinner, tmp_path: Path, state: Home) -> tuple[Path, Stored]:
    """A deployment and its record."""
    manifest = locked(pinner, deployment(tmp_path / "d", BENCH, env=ENV))
    said = pinner.json("bench", manifest)
    assert said.code == 0, said.err
    return manifest, find_record(said.data["record"]["id"], state)


def altered(stored: Stored, home: Home, **fields: Any) -> Stored:
    """The same record with other contents, as another one."""
    record: Record = changed(stored.record, **fields)
    files = {name: read_file(stored, name) for name in record.files}
    return store(record, files, home)


def boasting(stored: Stored, home: Home, throughput: float) -> Stored:
    """A record that claims a throughput without any noise."""
    measurements = tuple(
        changed(one, metrics={**one.metrics, "output_throughput": throughput})
        for one in stored.record.measurements
    )
    return altered(stored, home, measurements=measurements)
