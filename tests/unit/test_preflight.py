"""The pre-flight of `up` on machines that look like what is written here."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest

from pinner.deploy.preflight import GIB, MIB, preflight
from pinner.errors import LaunchFailed
from pinner.host.machine import Place
from pinner.model.expectations import FactPin
from pinner.model.facts import Class
from pinner.model.lock import DraftPin, FilePin, WeightsPin
from pinner.probes.base import Scene
from tests.unit.host.test_machine import LIMITS, V2, tree
from tests.unit.test_live_probes import scene


def machine(tmp_path: Path, *, soft: str = "100000", hard: str = "100000", memory: int = 64 * GIB) -> Place:
    files = {
        "proc/self/limits": LIMITS.format(soft=soft, hard=hard),
        "proc/meminfo": f"MemAvailable: {memory // 1024} kB\n",
        "proc/self/cgroup": "0::/\n",
        "proc/self/mountinfo": V2,
        "sys/fs/cgroup/memory.max": "max\n",
    }
    (tmp_path / "root/dev/shm").mkdir(parents=True, exist_ok=True)
    return Place(tree(tmp_path / "root", files))


def looked_at(tmp_path: Path, kind: str, *argv: str, **host: FactPin) -> Scene:
    one = scene(tmp_path)
    engine = msgspec.structs.replace(one.lock.engine, kind=kind, argv=("-m", f"{kind}.launch_server", *argv))
    pins = {key.replace("_", "-"): pin for key, pin in host.items()}
    lock = msgspec.structs.replace(one.lock, engine=engine, host=pins)
    return msgspec.structs.replace(one, lock=lock)


def at_least(value: int) -> FactPin:
    return FactPin(value=value, comparison=Class.AT_LEAST)


def refusal(scene_: Scene, place: Place) -> str:
    with pytest.raises(LaunchFailed) as caught:
        preflight(scene_, place=place)
    return caught.value.message


def free(place: Place) -> int:
    told = os.statvfs(place.shm)
    return told.f_bavail * told.f_frsize


def test_a_machine_that_has_enough(tmp_path: Path) -> None:
    place = machine(tmp_path)
    ready = preflight(looked_at(tmp_path, "pocket"), place=place)
    assert ready.open_files is None
    assert not [note for note in ready.notes if "shm" in note]


def test_everything_that_is_too_little_is_told_at_once(tmp_path: Path) -> None:
    place = machine(tmp_path, soft="1024", hard="2048", memory=10 * MIB)
    demanding = looked_at(
        tmp_path, "sglang", shm_free_bytes=at_least(1 << 60), memory_available_bytes=at_least(GIB)
    )
    message = refusal(demanding, place)
    assert "1048576.0 TiB needed" in message
    assert "memory: 10.0 MiB available, 1.0 GiB needed" in message
    assert "open files: 2048 allowed (the hard limit), 4096 needed" in message


def test_without_shared_memory(tmp_path: Path) -> None:
    place = machine(tmp_path)
    place.shm.rmdir()
    assert f"{place.shm.name}: there is none, 1.0 GiB needed" in refusal(looked_at(tmp_path, "sglang"), place)


@pytest.mark.parametrize(
    ("kind", "argv", "is_refused"),
    [
        ("sglang", (), True),
        ("sglang", ("--device", "cpu"), False),
        ("sglang", ("--device", "cpu", "--tp-size", "2"), True),
        ("pocket", ("--tp-size", "4"), True),
        ("pocket", ("--tp-size", "1"), False),
    ],
)
def test_ranks_need_more_open_files(tmp_path: Path, kind: str, argv: tuple[str, ...], is_refused: bool) -> None:
    place = machine(tmp_path, soft="256", hard="1024")
    if is_refused:
        assert "open files" in refusal(looked_at(tmp_path, kind, *argv), place)
    else:
        assert preflight(looked_at(tmp_path, kind, *argv), place=place).open_files == 1024


def test_a_soft_limit_is_raised_as_far_as_it_goes(tmp_path: Path) -> None:
    for soft, hard, given in (("1024", "524288", 65535), ("1024", "unlimited", 65535), ("70000", "524288", None)):
        place = machine(tmp_path, soft=soft, hard=hard)
        assert preflight(looked_at(tmp_path, "pocket"), place=place).open_files == given


def test_a_server_without_a_gpu_needs_memory_for_its_weights(tmp_path: Path) -> None:
    place = machine(tmp_path, memory=100 * GIB)
    shards = (FilePin(path="a", size=80 * GIB, sha256="sha256:1"),)
    draft = DraftPin(path="d", files=(FilePin(path="b", size=21 * GIB, sha256="sha256:2"),), algorithm="EAGLE3")
    for argv, is_refused in ((("--device", "cpu"), True), ((), False)):
        one = looked_at(tmp_path, "sglang", *argv)
        lock = msgspec.structs.replace(one.lock, model=WeightsPin(path="m", files=shards), draft=draft)
        one = msgspec.structs.replace(one, lock=lock)
        if is_refused:
            assert "memory: 100.0 GiB available, 101.0 GiB needed for the weights alone" in refusal(one, place)
        else:
            preflight(one, place=place)


def test_a_group_with_less_memory_than_the_machine_counts(tmp_path: Path) -> None:
    place = machine(tmp_path)
    group = {"sys/fs/cgroup/memory.max": f"{GIB}\n", "sys/fs/cgroup/memory.current": "0\n"}
    tree(place.root, group)
    message = refusal(looked_at(tmp_path, "pocket", memory_available_bytes=at_least(2 * GIB)), place)
    assert "memory: 1.0 GiB available, 2.0 GiB needed" in message


def test_what_cannot_be_read_refuses_nothing_that_nobody_demanded(tmp_path: Path) -> None:
    place = machine(tmp_path)
    (place.root / "proc/meminfo").write_text("nothing\n")
    (place.root / "proc/self/limits").write_text("nothing\n")
    preflight(looked_at(tmp_path, "sglang"), place=place)
    message = refusal(looked_at(tmp_path, "sglang", memory_available_bytes=at_least(GIB)), place)
    assert "memory-available-bytes: unknown (the kernel does not tell MemAvailable), 1.0 GiB needed" in message
