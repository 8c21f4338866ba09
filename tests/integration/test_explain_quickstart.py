"""The quickstart measured at the good commit and at the bad one: compared, explained, reproduced."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from tests import tiny
from tests.integration.command import Pinner

ROOT = Path(__file__).parent.parent.parent
BENCH = """
[bench.decode]
dataset = "quickstart/prompts.jsonl"
output-tokens = 96
requests = 8
concurrency = [1]
warmup = 1
repeats = 1
starts = 2
# The machine that tests may be busy, which a benchmark is to refuse and this test is not about.
client-lag-ms = 10000
"""


def two_records(pinner: Pinner, place: Path, *, starts: int) -> list[str]:
    """The ids of a record at the good commit and of one at the bad commit."""
    shutil.copytree(ROOT / "deployments", place, ignore=shutil.ignore_patterns("engine", "training", "history"))
    good, bad = place / "quickstart.toml", place / "later.toml"
    text = re.sub(r"(?ms)^# `pinner bench.*\Z", "", good.read_text())
    text = text.replace("30000", str(tiny.free_port())) + BENCH.replace("starts = 2", f"starts = {starts}")
    assert text.count("[bench.") == 1
    good.write_text(text)
    bad.write_text(text.replace('commit = "v0.3.0"', 'commit = "main"'))
    ids = []
    for manifest in (good, bad):
        assert pinner("lock", manifest).code == 0
        said = pinner.json("bench", manifest)
        assert said.code == 0, said.err
        ids.append(said.data["record"]["id"])
    return ids


@pytest.mark.timeout(240)
def test_the_quickstart_explained_and_reproduced(pinner: Pinner, tmp_path: Path) -> None:
    """What does not depend on how busy the machine is."""
    ids = two_records(pinner, tmp_path / "deployments", starts=2)
    compared = pinner.json("compare", *ids)
    assert compared.code in (0, 1, 3)
    metrics = {one["metric"]: one for one in compared.data["metrics"]}
    assert metrics["accept_length"]["verdict"] == "equivalent", "the same draft, the same prompts"
    assert {"output_throughput", "verify_step_ms"} <= metrics.keys()
    explained = pinner.json("diff", *ids)
    assert explained.code == 1
    (commit,) = explained.data["differences"]
    assert (commit["group"], commit["key"]) == ("source", "commit")
    assert any("Fix stale cache rows after a rejected draft  ← suspect" in line for line in commit["evidence"])
    assert len(explained.data["suspects"]) == 2

    again = pinner.json("reproduce", ids[0], "--tolerance", "0.9", "--starts-max", "4")
    assert again.code in (0, 3), again.out
    assert again.data["reproduces"] == ids[0]
    metrics = {one["metric"]: one for one in again.data["metrics"]}
    assert (metrics["accept_length"]["low"], metrics["accept_length"]["high"]) == (0.0, 0.0)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_incident_is_worse_and_explained_in_one_line(pinner: Pinner, tmp_path: Path) -> None:
    """Five starts find it also on a machine that has other work."""
    ids = two_records(pinner, tmp_path / "deployments", starts=5)
    compared = pinner.json("compare", *ids)
    assert (compared.code, compared.data["verdict"]) == (1, "worse"), compared.out
    throughput = next(one for one in compared.data["metrics"] if one["metric"] == "output_throughput")
    assert throughput["high"] < 0
    headline = compared.data["diff"]["headline"]
    assert headline.startswith("verify step ")
    assert "; source moved f573e84a28 → e0fcb3edd1; suspects " in headline
    assert pinner.json("reproduce", ids[0], "--tolerance", "0.5").data["verdict"] == "reproduced"
