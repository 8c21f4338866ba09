"""Cases H08, H19 and H20: a past result whose source is gone, whose machine was another, that never counted."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from pinner.host.home import Home
from pinner.measure.records import Stored, store
from tests.integration.command import Pinner
from tests.integration.hub import FakeHub
from tests.integration.repeating import BENCH, ENV, TOLERANCE, altered
from tests.integration.test_cases_hub import MODEL, Site
from tests.integration.test_cases_weights import safetensors
from tests.records import changed


@pytest.mark.timeout(240)
def test_h08_a_repository_that_is_gone_is_taken_from_the_mirror_or_named(
    pinner: Pinner, repeatable: tuple[Path, Stored], state: Home
) -> None:
    manifest, original = repeatable
    shutil.rmtree(manifest.parent / "engine")
    said = pinner.json("reproduce", original.short, *TOLERANCE)
    assert (said.code, said.data["verdict"]) == (0, "reproduced"), said.err
    assert any("pinner's mirror of it has the commit" in note for note in said.data["notes"])
    shutil.rmtree(state.mirrors)
    said = pinner("reproduce", original.short)
    assert said.code == 3
    assert "engine.source.git" in said.err and "is not on this machine" in said.err


@pytest.mark.timeout(240)
def test_h08_a_revision_that_the_hub_no_longer_has_is_never_replaced(
    pinner: Pinner, tmp_path: Path, hub: FakeHub, state: Home
) -> None:
    site = Site(tmp_path, hub, pinner)
    first = hub.push("org/m", MODEL)
    site.manifest.write_text(f"{site.manifest.read_text()}{BENCH}".replace("[env]", f"[env]\n{ENV}"))
    assert pinner("lock", site.manifest).code == 0
    said = pinner.json("bench", site.manifest)
    assert said.code == 0, said.err
    record = said.data["record"]["id"]
    hub.push("org/m", {**MODEL, "model.safetensors": safetensors(value=3.0)})
    hub.gone.add(first)
    shutil.rmtree(state.models)
    here = pinner.json("reproduce", record, *TOLERANCE)
    assert (here.code, here.data["verdict"]) == (0, "reproduced"), here.err
    shutil.rmtree(state.models)
    shutil.rmtree(site.cache)
    said = pinner("reproduce", record)
    assert said.code == 3
    assert f"revision {first} no longer offered by org/m" in said.err


def test_h20_what_proves_nothing_is_not_repeated(
    pinner: Pinner, repeatable: tuple[Path, Stored], state: Home, tmp_path: Path
) -> None:
    limited = altered(repeatable[1], state, invalid=("client limit: too many open files",))
    said = pinner("reproduce", limited.short)
    assert said.code == 2
    assert "is invalid and proves nothing: client limit" in said.err
    foreign = store(changed(repeatable[1].record, origin="foreign", source="old.log", files={}), {}, state)
    said = pinner("reproduce", foreign.short)
    assert said.code == 2
    assert "it is foreign (old.log) and has no pins" in said.err
    assert pinner("reproduce", repeatable[1].short, "--starts-max", "1").code == 2


@pytest.mark.timeout(240)
def test_h19_another_machine_is_said_before_anything_is_measured(
    pinner: Pinner, repeatable: tuple[Path, Stored], state: Home
) -> None:
    machine = {
        **repeatable[1].record.machine,
        "host": {**repeatable[1].record.machine["host"], "cpu-model": "Z80"},
    }
    other = altered(repeatable[1], state, machine=machine)
    said = pinner.json("reproduce", other.short)
    assert (said.code, said.data["verdict"], said.data["record"]) == (2, "not-comparable", None)
    assert [one["key"] for one in said.data["other_machine"]] == ["cpu-model"]
    assert said.data["not_comparable"][0]["key"] == "host.cpu-model"
    accepted = ("--accept", "host.cpu-model", "--reason", "to see", "--starts-max", "2")
    said = pinner.json("reproduce", other.short, *TOLERANCE, *accepted)
    assert said.code in (0, 3), said.out
    assert said.data["record"] is not None
    assert said.data["accepted"] == [{"key": "host.cpu-model", "reason": "to see"}]
