"""The quickstart's bench: decoding with the draft, held against decoding without it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests import tiny
from tests.integration.benches import record_of
from tests.integration.command import Pinner

ROOT = Path(__file__).parent.parent.parent


@pytest.mark.timeout(240)
def test_the_gain_over_the_baseline_is_a_metric(pinner: Pinner, tmp_path: Path) -> None:
    target = tmp_path / "deployments"
    shutil.copytree(ROOT / "deployments", target, ignore=shutil.ignore_patterns("engine", "training", "history"))
    manifest = target / "quickstart.toml"
    text = manifest.read_text().replace("port = 30000", f"port = {tiny.free_port()}")
    for old, new in (
        ("requests = 12", "requests = 4"),
        ("starts = 5", "starts = 1"),
        ("starts = 2", "starts = 1"),
    ):
        text = text.replace(old, new)
    # How busy the machine of a test is must decide nothing.
    text = text.replace("warmup = 2", "warmup = 1\nclient-lag-ms = 10000")
    text = text.replace("[bench.decode.expect]", "[bench.decode.expect]\nspeedup = { at-least = 0.01 }")
    manifest.write_text(text)
    assert pinner("lock", manifest).code == 0
    said = pinner.json("bench", manifest, "decode")
    assert said.code == 0, said.err
    metrics = said.data["metrics"]["concurrency=1"]
    assert metrics["accept_length"] > 1.8
    assert metrics["speedup"] > 0
    assert 0 < metrics["verify_step_ms"] < metrics["e2el_mean_ms"]
    assert "draft_step_ms" in metrics

    record = record_of(said)
    baseline = json.loads((Path(said.data["baseline"]["path"]) / "record.json").read_text())
    assert record["baseline"] == said.data["baseline"]["id"]
    assert (baseline["bench"], baseline["workload"]["speculation"]) == ("plain", False)
    assert record["workload_digest"] == baseline["workload_digest"], "the same load"
    assert "accept_length" not in baseline["measurements"][0]["metrics"]
    assert record["starts"][0]["account"]["speculative_algorithm"] == "EAGLE3"
    assert baseline["starts"][0]["account"]["speculative_algorithm"] is None
    assert record["starts"][0]["engine_version"]
