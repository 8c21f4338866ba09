"""`reproduce` with real servers: the same machine, a clean home, a place where something is gone."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from pinner.host.home import Home
from pinner.measure.carry import read_file
from pinner.measure.find_records import find_record
from pinner.measure.records import Stored
from tests import tiny
from tests.integration.benches import deployment, locked, nothing_runs
from tests.integration.command import Pinner
from tests.integration.repeating import BENCH, ENV, TOLERANCE, boasting


@pytest.mark.timeout(240)
def test_the_same_machine_reproduces_its_record(
    pinner: Pinner, repeatable: tuple[Path, Stored], state: Home
) -> None:
    _, original = repeatable
    said = pinner.json("reproduce", original.short, *TOLERANCE)
    assert (said.code, said.data["verdict"], said.json["status"]) == (0, "reproduced", "reproduced"), said.out
    made = find_record(said.data["record"]["id"], state)
    assert made.record.reproduces == original.id
    assert said.data["reproduces"] == original.id
    assert len(made.record.starts) in (2, 4, 8)
    accepted = next(one for one in said.data["metrics"] if one["metric"] == "accept_length")
    assert (accepted["verdict"], accepted["low"], accepted["high"]) == ("equivalent", 0.0, 0.0)
    directory = Path(said.data["directory"])
    assert (directory / "tiny.lock").read_bytes() == read_file(original, original.record.lock_file)
    assert (directory / "model").is_symlink()
    assert nothing_runs(state)
    # A manifest means its own newest record, not the repetition's.
    assert pinner.json("compare", original.short, made.short, *TOLERANCE).data["diff"]["differences"] == []


@pytest.mark.timeout(240)
def test_a_result_that_was_never_true_is_not_reproduced(
    pinner: Pinner, repeatable: tuple[Path, Stored], state: Home
) -> None:
    boast = boasting(repeatable[1], state, 1e5)
    said = pinner.json("reproduce", boast.short)
    assert (said.code, said.data["verdict"], said.data["comparison"]) == (1, "not-reproduced", "worse"), (
        said.out + said.err
    )
    text = pinner("reproduce", boast.short, "--starts-max", "2").out
    assert text.startswith(f"NOT REPRODUCED  record {boast.short}")


@pytest.mark.timeout(240)
def test_a_record_carried_into_a_clean_home_is_reproduced_there(
    pinner: Pinner, repeatable: tuple[Path, Stored], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest, original = repeatable
    assert pinner("records", "export", original.short, tmp_path / "one.tar").code == 0
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    shutil.move(manifest.parent / "model", elsewhere / "weights")
    shutil.move(manifest.parent / "engine", elsewhere / "code")
    shutil.rmtree(manifest.parent)
    shutil.rmtree(tmp_path / "pinner")
    monkeypatch.setenv("PINNER_HOME", str(tmp_path / "clean"))
    assert pinner("records", "import", tmp_path / "one.tar").code == 0

    said = pinner("reproduce", original.short)
    assert said.code == 3
    assert f"model.path: {manifest.parent}/model is not on this machine" in said.err
    assert f"engine.source.git: {manifest.parent}/engine is not on this machine" in said.err
    assert "--place model.path=PATH" in said.err
    assert not (tmp_path / "clean" / "reproductions").exists(), "nothing half done"
    assert pinner("reproduce", original.short, "--place", "draft.path=/x").code == 2
    assert pinner("reproduce", original.short, "--place", "model.path").code == 2

    places = ("--place", f"model.path={elsewhere}/weights", "--place", f"engine.source.git={elsewhere}/code")
    said = pinner.json("reproduce", original.short, *places, *TOLERANCE, "--directory", tmp_path / "again")
    assert (said.code, said.data["verdict"]) == (0, "reproduced"), said.err
    assert said.data["directory"] == str(tmp_path / "again")
    occupied = pinner("reproduce", original.short, *places, "--directory", tmp_path / "again")
    assert (occupied.code, "not empty" in occupied.err) == (2, True)


@pytest.mark.timeout(240)
def test_what_was_changed_since_is_drift_and_nothing_is_measured(
    pinner: Pinner, repeatable: tuple[Path, Stored]
) -> None:
    manifest, original = repeatable
    tiny.safetensors(manifest.parent / "model" / "model.safetensors", values=5)
    said = pinner.json("reproduce", original.short)
    assert (said.code, said.data["verdict"]) == (1, "drift")
    assert said.data["record"] is None
    assert [one["key"] for one in said.data["drift"]] == ["model.safetensors"]


@pytest.mark.timeout(240)
@pytest.mark.parametrize(("least", "code", "verdict"), [(2.5, 0, "reproduced"), (9, 1, "not-reproduced")])
def test_a_manifest_without_a_record_stands_for_its_expectations(
    pinner: Pinner, tmp_path: Path, least: float, code: int, verdict: str
) -> None:
    expect = f"[bench.decode.expect]\naccept_length = {{ at-least = {least} }}\n"
    manifest = locked(pinner, deployment(tmp_path / "d", BENCH + expect, env=ENV))
    said = pinner.json("reproduce", manifest)
    assert (said.code, said.data["verdict"]) == (code, verdict), said.err
    assert said.data["verdicts"][0]["observed"] == 3.0
    assert pinner("reproduce", manifest.with_name("none.toml")).code == 2


def test_a_manifest_that_expects_nothing_has_nothing_to_reproduce(pinner: Pinner, tmp_path: Path) -> None:
    manifest = locked(pinner, deployment(tmp_path / "d", BENCH, env=ENV))
    said = pinner("reproduce", manifest)
    assert said.code == 2
    assert "has no record yet, and [bench.decode] expects nothing" in said.err


@pytest.mark.timeout(240)
def test_a_checkout_that_was_pulled_since_still_gives_what_was_measured(
    pinner: Pinner, tmp_path: Path, state: Home
) -> None:
    """The incident: what was measured is in the checkout's repository, wherever HEAD has gone."""
    place = tmp_path / "d" / "engine"
    manifest = deployment(tmp_path / "d", BENCH, env=ENV, source='{ path = "engine", commit = "main" }')
    said = pinner.json("bench", locked(pinner, manifest))
    assert said.code == 0, said.err
    head = tiny.commit(place, {"pocket/launch_server.py": "raise SystemExit('broken')"}, "Break it")
    assert pinner("check", manifest).code == 1
    again = pinner.json("reproduce", said.data["record"]["id"], *TOLERANCE)
    assert (again.code, again.data["verdict"]) == (0, "reproduced"), again.err
    assert any(f"has moved to {head[:10]}" in note for note in again.data["notes"])
    assert tiny.git(place, "rev-parse", "HEAD") == head
    assert tiny.git(place, "status", "--porcelain") == ""
    both = pinner.json("diff", said.data["record"]["id"], again.data["record"]["id"])
    assert {(one["group"], one["key"]) for one in both.data["differences"]} == {
        ("other", key) for key in ("type", "path", "url")
    }


@pytest.mark.timeout(240)
def test_an_environment_and_a_checkout_in_place(pinner: Pinner, tmp_path: Path) -> None:
    """Both are linked from where they were; after a pull nothing can stand in for what the environment imports."""
    source, place = '{ path = "engine", commit = "main" }', tmp_path / "d"
    manifest = deployment(place, BENCH, env=ENV, source=source, python='path = "venv"')
    manifest.write_text(manifest.read_text().replace('version = "3.11"\n', ""))
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(place / "venv")], check=True)
    site = next((place / "venv" / "lib").iterdir()) / "site-packages"
    (site / "engine.pth").write_text(f"{place / 'engine'}\n")
    said = pinner.json("bench", locked(pinner, manifest))
    assert said.code == 0, said.err
    again = pinner.json("reproduce", said.data["record"]["id"], *TOLERANCE)
    assert (again.code, again.data["verdict"]) == (0, "reproduced"), again.err
    tiny.commit(place / "engine", {"pocket/launch_server.py": "raise SystemExit('broken')"}, "Break it")
    moved = pinner.json("reproduce", said.data["record"]["id"])
    assert (moved.code, moved.data["verdict"]) == (1, "drift")
    assert "commit" in [one["key"] for one in moved.data["drift"]]
