"""`pinner bench` on real servers: what is refused, what counts, what is kept, and that nothing is left running."""

from __future__ import annotations

import gzip
import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from pinner.deploy.running import all_runs
from pinner.host.home import Home
from tests import tiny
from tests.integration.benches import BENCH, deployment, locked, nothing_runs, record_of
from tests.integration.command import Pinner, differences
from tests.integration.engine_run import wait_for


def test_bench_measures_and_keeps_everything(pinner: Pinner, tmp_path: Path, state: Home) -> None:
    expect = "[bench.decode.expect]\noutput_throughput = { at-least = 1 }\naccept_length = { at-least = 2 }\n"
    bench = BENCH.replace("starts = 1", "starts = 2") + expect
    manifest = deployment(tmp_path / "d", bench, env='STUB = "accept=3"\nTOKEN = { secret = "MY_TOKEN" }')
    locked(pinner, manifest)
    os.environ["MY_TOKEN"] = "hush-hush"
    try:
        said = pinner.json("bench", manifest)
    finally:
        del os.environ["MY_TOKEN"]
    assert said.code == 0, said.err + said.out
    assert said.data["valid"] is True
    assert [one["is_met"] for one in said.data["verdicts"]] == [True, True]
    assert said.data["metrics"]["concurrency=3"]["accept_length"] == 3.0
    assert nothing_runs(state)

    record = record_of(said)
    assert len(record["starts"]) == 2 and len(record["measurements"]) == 4
    assert all(one["is_flushed"] and one["cached_share"] == 0.0 for one in record["measurements"])
    assert record["before"]["drift"] == record["after"]["drift"] == []
    assert record["starts"][0]["account"].get("api_key") is None
    assert record["machine"]["host"]["cpu-count"] == os.cpu_count()
    place = Path(said.data["record"]["path"])
    kept = {str(path.relative_to(place)) for path in place.rglob("*") if path.is_file()} - {"record.json"}
    assert kept == set(record["files"])
    assert {"deployment/tiny.toml", "deployment/tiny.lock", "logs/start-0.log.gz"} < kept
    samples = gzip.decompress((place / record["measurements"][0]["samples"]).read_bytes()).splitlines()
    assert len(samples) == 6 and json.loads(samples[0])["reply"]["output_tokens"] == 6
    assert b"fired up" in gzip.decompress((place / "logs/start-0.log.gz").read_bytes())
    for path in place.rglob("*.gz"):
        assert b"hush" not in gzip.decompress(path.read_bytes())
    assert b"hush" not in (place / "record.json").read_bytes()

    shown = pinner("records")
    assert shown.code == 0 and said.data["record"]["id"][:12] in shown.out
    text = pinner("bench", manifest, "decode", "--accept", "nothing", "--reason", "x")
    assert text.code == 3, "the variable is missing now"


def test_the_engine_s_log_is_kept_without_secrets(
    pinner: Pinner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_TOKEN", "hush-hush")
    env = 'STUB = "tell"\nTOKEN = { secret = "MY_TOKEN" }'
    said = pinner.json("bench", locked(pinner, deployment(tmp_path / "d", env=env)))
    assert said.code == 0, said.err
    log = gzip.decompress((Path(said.data["record"]["path"]) / "logs/start-0.log.gz").read_bytes())
    assert b"secret is (hidden)" in log


def test_drift_refuses_before_anything_is_started(pinner: Pinner, tmp_path: Path, state: Home) -> None:
    manifest = locked(pinner, deployment(tmp_path / "d"))
    weights = tmp_path / "d" / "model" / "model.safetensors"
    tiny.safetensors(weights, 5)
    said = pinner.json("bench", manifest)
    assert said.code == 1
    assert list(differences(said)) == ["model.model.safetensors"]
    assert said.data["record"] is None
    assert all_runs(state) == []


def test_a_lock_is_needed_and_a_bench_must_be_there(pinner: Pinner, tmp_path: Path) -> None:
    manifest = deployment(tmp_path / "d")
    said = pinner("bench", manifest)
    assert said.code == 2 and "does not exist" in said.err
    locked(pinner, manifest)
    said = pinner("bench", manifest, "decod")
    assert said.code == 2 and "did you mean 'decode'?" in said.err
    plain = locked(pinner, tiny.deployment(tmp_path / "e"))
    said = pinner("bench", plain)
    assert said.code == 2 and "no [bench.NAME]" in said.err


def test_a_changed_expectation_leaves_the_lock_as_it_is(pinner: Pinner, tmp_path: Path) -> None:
    manifest = locked(pinner, deployment(tmp_path / "d"))
    manifest.write_text(manifest.read_text().replace("requests = 6", "requests = 5"))
    assert pinner("lock", manifest, "--check").code == 0
    assert pinner.json("bench", manifest).code == 0


def test_a_server_that_is_up_is_measured_only_when_asked(pinner: Pinner, tmp_path: Path, state: Home) -> None:
    manifest = locked(pinner, deployment(tmp_path / "d"))
    said = pinner("bench", manifest, "--attach")
    assert said.code == 3 and "is not up" in said.err
    assert pinner("up", manifest).code == 0
    said = pinner("bench", manifest)
    assert said.code == 3 and "--attach" in said.err
    said = pinner.json("bench", manifest, "--attach")
    assert said.code == 0, said.err
    assert any("which was up" in note for note in said.data["notes"])
    assert not nothing_runs(state), "it was up before, and stays"


def test_an_expectation_that_is_not_met_is_a_regression(pinner: Pinner, tmp_path: Path) -> None:
    bench = BENCH + "[bench.decode.expect]\noutput_throughput = { at-least = 1e9 }\n"
    said = pinner.json("bench", locked(pinner, deployment(tmp_path / "d", bench)))
    assert (said.code, said.json["status"]) == (1, "regression")
    assert said.data["valid"] is True
    assert said.data["verdicts"][0]["is_met"] is False


@pytest.mark.parametrize(
    ("trouble", "said"),
    [
        ("stream-error", '6 of 6 requests failed: 6 error in stream: after 1 tokens: {"message":"out of memory"}'),
        ("stream-short", "6 of 6 requests failed: 6 early stop: 1 tokens came where 6 were asked for"),
        ("stream-stall", "requests failed: "),
    ],
)
def test_streams_that_go_wrong_make_the_measurement_invalid(
    pinner: Pinner, tmp_path: Path, state: Home, trouble: str, said: str
) -> None:
    timeout = "timeout-s = 0.5" if trouble == "stream-stall" else "timeout-s = 20"
    bench = BENCH.replace("timeout-s = 20", timeout).replace("repeats = 2", "repeats = 1")
    # One request warms up.
    env = f'STUB = "{trouble};trouble-after=1"'
    got = pinner.json("bench", locked(pinner, deployment(tmp_path / "d", bench, env=env)))
    assert got.code == 2, got.err
    assert got.data["valid"] is False and said in got.data["invalid"][0]
    record = record_of(got)
    assert sum(record["measurements"][0]["failures"].values()) == 6, "the data are kept"
    assert record["measurements"][0]["metrics"] == {}
    assert nothing_runs(state)


def test_errors_that_are_allowed_are_counted_and_move_nothing(pinner: Pinner, tmp_path: Path) -> None:
    bench = BENCH.replace("repeats = 2", "repeats = 1\nallowed-errors = 3")
    env = 'STUB = "stream-error;trouble-after=4"'
    got = pinner.json("bench", locked(pinner, deployment(tmp_path / "d", bench, env=env)))
    assert got.code == 0, got.err
    one = record_of(got)["measurements"][0]
    assert one["failures"] == {"error in stream": 3}
    assert one["output_tokens"] == 18


def test_a_server_that_dies_under_load_leaves_a_record_that_does_not_count(
    pinner: Pinner, tmp_path: Path, state: Home
) -> None:
    env = 'STUB = "stream-die;trouble-after=4"'
    bench = BENCH.replace("starts = 1", "starts = 3")
    got = pinner.json("bench", locked(pinner, deployment(tmp_path / "d", bench, env=env)))
    assert got.code == 2, got.err
    assert any("ended while it was measured" in why for why in got.data["invalid"])
    assert len(record_of(got)["starts"]) == 1, "a server that dies is not tried again and again"
    assert nothing_runs(state)


def test_a_client_that_was_the_limit_does_not_count(pinner: Pinner, tmp_path: Path) -> None:
    bench = BENCH.replace("client-lag-ms = 10000", "client-lag-ms = 0.000001")
    said = pinner.json("bench", locked(pinner, deployment(tmp_path / "d", bench)))
    assert said.code == 2
    assert "the client was the limit" in said.data["invalid"][0]


def test_a_pull_in_the_middle_is_found_after_the_measuring(pinner: Pinner, tmp_path: Path) -> None:
    directory = tmp_path / "d"
    bench = BENCH.replace("starts = 1", "starts = 2").replace("repeats = 2", "repeats = 1")
    source = '{ path = "engine", commit = "good" }'
    manifest = deployment(directory, bench, source=source, env='STUB = "step=0.3"')
    locked(pinner, manifest)

    def pull() -> None:
        wait_for(lambda: any(one.name == "server.log" and b"first stream" in one.read_bytes() for one in logs()))
        tiny.commit(directory / "engine", {"pocket/extra.py": "x = 1\n"}, "Somebody pulls")

    def logs() -> list[Path]:
        return list((tmp_path / "pinner" / "runs").glob("*/server.log"))

    thread = threading.Thread(target=pull)
    thread.start()
    said = pinner.json("bench", manifest)
    thread.join()
    assert said.code == 2, said.err
    assert "source.commit" in said.data["invalid"][0]
    assert "source.commit" in differences(said)
    record = record_of(said)
    assert record["before"]["drift"] == [] and record["after"]["drift"]
    assert "the check after the measuring: source.commit" in record["starts"][0]["invalid"][0]
    assert len(record["starts"]) == 1 and record["measurements"][0]["metrics"], "its data are kept"


def test_an_interrupt_stops_the_server_and_leaves_no_record(pinner: Pinner, tmp_path: Path, state: Home) -> None:
    manifest = locked(pinner, deployment(tmp_path / "d", env='STUB = "step=2"'))
    bench = subprocess.Popen(
        [sys.executable, "-m", "pinner", "bench", str(manifest)], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    wait_for(lambda: any(b"first stream" in one.read_bytes() for one in state.runs.glob("*/server.log")), 30)
    bench.send_signal(signal.SIGINT)
    _, err = bench.communicate(timeout=30)
    assert bench.returncode == 130, err
    assert b"nothing half done" in err and b"Traceback" not in err
    assert nothing_runs(state)
    assert list(state.records.glob("tiny-*")) == []


def test_an_open_loop_and_a_sweep_of_loads(pinner: Pinner, tmp_path: Path) -> None:
    bench = BENCH + BENCH.replace("bench.decode", "bench.open").replace("concurrency = [3]", "rate = [20, 40]")
    manifest = locked(pinner, deployment(tmp_path / "d", bench.replace("[3]", "[1, 3]")))
    said = pinner.json("bench", manifest, "open")
    assert said.code == 0, said.err
    assert list(said.data["metrics"]) == ["rate=20", "rate=40"]
    said = pinner.json("bench", manifest, "decode")
    assert list(said.data["metrics"]) == ["concurrency=1", "concurrency=3"]
    many, few = (said.data["metrics"][f"concurrency={load}"]["output_throughput"] for load in (3, 1))
    assert many > few


def test_two_benches_do_not_disturb_each_other(pinner: Pinner, tmp_path: Path, state: Home) -> None:
    slow = locked(pinner, deployment(tmp_path / "d", env='STUB = "step=1"'))
    other = locked(pinner, deployment(tmp_path / "e"))
    first = subprocess.Popen([sys.executable, "-m", "pinner", "bench", str(slow)], stderr=subprocess.PIPE)
    wait_for(lambda: any(b"first stream" in one.read_bytes() for one in state.runs.glob("*/server.log")), 30)
    said = pinner("bench", other)
    first.send_signal(signal.SIGTERM)
    first.communicate(timeout=30)
    assert first.returncode == 130
    assert nothing_runs(state)
    assert said.code == 3
    assert "measuring on this machine" in said.err
