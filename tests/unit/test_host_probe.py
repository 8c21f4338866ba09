"""The aspect `host`: what a manifest expects, what was captured, and how it is compared."""

from __future__ import annotations

import os
import resource
from pathlib import Path

import msgspec
import pytest

from pinner.host.home import Home
from pinner.host.memory import DigestMemory
from pinner.model import hostfacts
from pinner.model.expectations import Expected, FactPin, expected_problems
from pinner.model.facts import ABSENT, Class, Fact, Observation, Unknown
from pinner.model.hostfacts import HOST_FACTS
from pinner.model.manifest import Engine, Manifest, Model, Python, Source
from pinner.probes import host
from pinner.probes.base import LiveScene, Wish
from tests.unit.test_live_probes import process, scene


def judge(tmp_path: Path, pins: dict[str, FactPin], seen: dict[str, Fact]) -> tuple[list[str], list[str]]:
    lock = msgspec.structs.replace(scene(tmp_path).lock, host=pins)
    differences, unknown = host.compare(lock, Observation(aspect="host", facts=seen))
    return [item.key for item in differences], [item.key for item in unknown]


def wish(tmp_path: Path, expected: dict[str, object], **changes: object) -> Wish:
    manifest = Manifest(
        version=1,
        engine=Engine(kind="pocket", source=Source(path=".", commit="main")),
        python=Python(version="3.11"),
        model=Model(path="model"),
        host=expected,  # type: ignore[arg-type]
    )
    given = {"manifest": manifest, "directory": tmp_path, "home": Home(tmp_path), "memory": DigestMemory(None)}
    return Wish(**(given | changes))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("key", "pinned", "seen", "is_met"),
    [
        ("cpu-count", 64, 128, True),
        ("cpu-count", 64, 32, False),
        ("cpu-model", "AMD EPYC 9554", "AMD EPYC 9554", True),
        ("cpu-model", "AMD EPYC 9554", "AMD EPYC 9354", False),
        ("cpu-governor", "performance", "mixed: performance (1), powersave (1)", False),
        ("cpu-governor", "performance", ABSENT, False),
        ("cgroup-cpus", 8, "unlimited", True),
        ("cgroup-cpus", "unlimited", 8.0, False),
        ("cgroup-cpus", "unlimited", "unlimited", True),
        ("cgroup-cpus", 8, 7.5, False),
        ("open-files", 65535, "unlimited", True),
        ("kernel", "6.8.0", "6.8.1", False),
        ("hypervisor", False, True, False),
        ("numa-balancing", 0, 1, False),
    ],
)
def test_what_a_manifest_expects(tmp_path: Path, key: str, pinned: object, seen: object, is_met: bool) -> None:
    pins = host.pin(wish(tmp_path, {key: pinned}))
    assert judge(tmp_path, pins, {key: seen}) == ([] if is_met else [key], [])


def test_unknown_is_never_met(tmp_path: Path) -> None:
    pins = host.pin(wish(tmp_path, {"cgroup-memory-bytes": 1}))
    assert judge(tmp_path, pins, {"cgroup-memory-bytes": Unknown("not mounted")}) == ([], ["cgroup-memory-bytes"])


def test_a_lock_that_demands_nothing_reads_nothing(tmp_path: Path) -> None:
    one = scene(tmp_path)
    assert host.observe(one) is None
    only = {"kernel": FactPin(value="6", comparison=Class.RECORD_ONLY), "shm-free-bytes": FactPin(value=1)}
    recorded = msgspec.structs.replace(one.lock, host=only)
    assert host.observe(msgspec.structs.replace(one, lock=recorded)) is None


def test_a_name_that_this_pinner_does_not_know_is_unknown(tmp_path: Path) -> None:
    one = scene(tmp_path)
    lock = msgspec.structs.replace(one.lock, host={"moon-phase": FactPin(value="full")})
    observation = host.observe(msgspec.structs.replace(one, lock=lock))
    assert observation is not None
    _, unknown = host.compare(lock, observation)
    assert [item.key for item in unknown] == ["moon-phase"]


def test_capture_pins_the_machine_and_stays_until_the_next_one(tmp_path: Path) -> None:
    first = host.pin(wish(tmp_path, {"cpu-count": 1}, capture=True))
    assert first["cpu-count"] == FactPin(value=1, comparison=Class.AT_LEAST), "the manifest's word counts"
    assert first["memory-total-bytes"].captured
    assert first["memory-total-bytes"].value % 2**30 == 0  # type: ignore[operator]
    assert first["kernel"].comparison is Class.RECORD_ONLY
    assert not hostfacts.BEFORE_LAUNCH & first.keys(), "two captures would differ"
    assert all(not isinstance(one.value, Unknown) for one in first.values())
    previous = msgspec.structs.replace(scene(tmp_path).lock, host=first)
    second = host.pin(wish(tmp_path, {}, previous=previous))
    assert second == {key: one for key, one in first.items() if one.captured}
    lock = msgspec.structs.replace(previous, host=first)
    observation = host.observe(msgspec.structs.replace(scene(tmp_path), lock=lock))
    assert observation is not None
    assert host.compare(lock, observation) == ((), ()), "the machine is as it was captured"


def test_a_fact_can_be_recorded_only(tmp_path: Path) -> None:
    asked = Expected(comparison=Class.RECORD_ONLY)
    assert expected_problems("host", HOST_FACTS, {"cpu-model": asked}) == []
    assert host.pin(wish(tmp_path, {"cpu-model": asked})) == {}
    captured = host.pin(wish(tmp_path, {"cpu-model": asked}, capture=True))
    assert captured["cpu-model"].comparison is Class.RECORD_ONLY


def test_wrong_expectations_name_the_key() -> None:
    wrong = {"cpu-cuont": 3, "cgroup-cpus": "all", "cpu-count": "unlimited"}
    problems = dict(expected_problems("host", HOST_FACTS, wrong))
    assert problems["host.cpu-cuont"] == "unknown key; did you mean `cpu-count`?"
    assert problems["host.cgroup-cpus"] == "must be a number or \"unlimited\", not 'all'"
    assert "whole number" in problems["host.cpu-count"]
    assert expected_problems("host", HOST_FACTS, {"cgroup-cpus": "unlimited"}) == []


def test_the_engines_own_limits_count_once_it_runs(tmp_path: Path) -> None:
    one = scene(tmp_path)
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    pins = {
        "open-files": FactPin(value=soft + 1, comparison=Class.AT_LEAST),
        "cpu-model": FactPin(value="none such"),
    }
    lock = msgspec.structs.replace(one.lock, host=pins)
    live = LiveScene(
        scene=msgspec.structs.replace(one, lock=lock),
        processes=[process(os.getpid(), "python -m pocket")],
        argv=(),
        env={},
        environ=lambda _pid: {},
    )
    observation = host.observe_live(live)
    assert observation is not None
    differences, unknown = host.compare(lock, observation)
    assert [(item.key, item.observed) for item in differences] == [("open-files", soft)]
    assert "python -m pocket" in differences[0].evidence[0]
    assert not unknown


def test_before_a_launch_the_manifest_decides_what_is_needed() -> None:
    assert hostfacts.needed_bytes({}, "shm-free-bytes", 7) == 7
    said = FactPin(value=3, comparison=Class.AT_LEAST)
    assert hostfacts.needed_bytes({"shm-free-bytes": said}, "shm-free-bytes", 7) == 3
    recorded = FactPin(value=3, comparison=Class.RECORD_ONLY)
    assert hostfacts.needed_bytes({"shm-free-bytes": recorded}, "shm-free-bytes", 7) == 0
