"""Cases H12, H20 and H24: what makes a benchmark lie without an error."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from pinner.deploy.running import all_runs
from pinner.host.home import Home
from tests.integration.benches import BENCH, deployment, locked, record_of
from tests.integration.command import Pinner


def test_h12_an_accept_length_of_one_fails_though_the_throughput_passes(pinner: Pinner, tmp_path: Path) -> None:
    """Case H12: a draft that does not fit accepts nothing, and no error says so."""
    bench = BENCH + (
        "[bench.decode.expect]\noutput_throughput = { at-least = 1 }\naccept_length = { at-least = 2.5 }\n"
    )
    manifest = locked(pinner, deployment(tmp_path / "d", bench, env='STUB = "accept=1"'))
    said = pinner.json("bench", manifest)
    assert said.code == 1
    met = {one["metric"]: (one["observed"], one["is_met"]) for one in said.data["verdicts"]}
    assert met["accept_length"] == (1.0, False)
    assert met["output_throughput"][1] is True
    silent = locked(pinner, deployment(tmp_path / "e", bench))
    said = pinner.json("bench", silent)
    assert (said.code, said.json["status"]) == (3, "unknown"), "what no engine tells is not equal to anything"


def test_h24_the_cache_is_empty_before_each_measurement(pinner: Pinner, tmp_path: Path) -> None:
    """Case H24: a dataset of six prompts is the same six prompts each time."""
    directory = tmp_path / "d"
    bench = BENCH + 'dataset = "prompts.jsonl"\n'
    manifest = deployment(directory, bench)
    rows = "".join(json.dumps({"prompt": f"the number {number} of six"}) + "\n" for number in range(6))
    (directory / "prompts.jsonl").write_text(rows)
    said = pinner.json("bench", locked(pinner, manifest))
    assert said.code == 0, said.err
    record = record_of(said)
    assert [(one["is_flushed"], one["cached_share"]) for one in record["measurements"]] == [(True, 0.0)] * 2
    assert (Path(said.data["record"]["path"]) / "deployment/prompts.jsonl").read_text() == rows

    manifest.write_text(manifest.read_text().replace("warmup = 1", 'warmup = 1\ncache = "warm"'))
    said = pinner.json("bench", manifest)
    assert said.code == 0, said.err
    warm = record_of(said)
    assert [one["cached_share"] for one in warm["measurements"]] == [1.0, 1.0]
    assert warm["workload"]["cache"] == "warm"
    assert (
        warm["measurements"][0]["metrics"]["ttft_median_ms"]
        < record["measurements"][0]["metrics"]["ttft_median_ms"]
    )

    (directory / "prompts.jsonl").write_text(rows.replace("six", "6"))
    said = pinner("bench", manifest)
    assert said.code == 2 and "prompts.jsonl has changed since" in said.err
    assert pinner("lock", manifest, "--check").code == 1
    assert pinner("check", manifest).code == 0, "what is served has not changed"


def test_h24_a_cache_that_cannot_be_emptied_is_said_and_does_not_count(pinner: Pinner, tmp_path: Path) -> None:
    """Case H24: with prompts of its own each measurement is cold all the same; with a dataset it is not."""
    env = 'STUB = "no-flush"'
    said = pinner.json("bench", locked(pinner, deployment(tmp_path / "d", env=env)))
    assert said.code == 0, said.err
    assert any("/flush_cache answers 404" in note for note in said.data["notes"])
    assert [one["is_flushed"] for one in record_of(said)["measurements"]] == [False, False]

    manifest = deployment(tmp_path / "e", BENCH + 'dataset = "prompts.jsonl"\n', env=env)
    (tmp_path / "e" / "prompts.jsonl").write_text('{"prompt": "only this"}\n')
    said = pinner.json("bench", locked(pinner, manifest))
    assert said.code == 2
    assert "came from a cache that could not be emptied" in said.data["invalid"][0]


def test_h20_too_few_files_are_refused_before_a_server_is_started(
    pinner: Pinner, tmp_path: Path, state: Home
) -> None:
    """Case H20: the load needs more connections than this process may ever have."""
    bench = BENCH.replace("concurrency = [3]", "concurrency = [5000]").replace("requests = 6", "requests = 5000")
    manifest = locked(pinner, deployment(tmp_path / "d", bench))
    program = (
        "import resource, sys; resource.setrlimit(resource.RLIMIT_NOFILE, (256, 1024));"
        "from pinner.cli import main; sys.exit(main(['bench', sys.argv[1]]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(manifest)], capture_output=True, text=True, check=False, env=os.environ
    )
    assert done.returncode == 3, done.stderr
    assert "this load needs 5,064 open files and the limit here is 1,024" in done.stderr
    assert all_runs(state) == []
