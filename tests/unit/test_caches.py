"""What a cache depends on, where it lies, and what a launch finds in it."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import msgspec

from pinner.deploy import caches as making
from pinner.deploy.running import Run, write_run
from pinner.host.home import Home
from pinner.model.caches import Caches
from pinner.model.facts import Difference
from pinner.model.lock import EnvironmentPin, FilePin, Lock, WeightsPin
from pinner.probes import caches
from pinner.probes.base import Scene, Workspace
from tests.unit.test_live_probes import scene

GPUS = "proc/driver/nvidia/gpus/0000:41:00.0/information"


def workspace(tmp_path: Path, name: str = "w1") -> Workspace:
    root = tmp_path / "workspaces" / name
    root.mkdir(parents=True, exist_ok=True)
    return Workspace(
        root=root, tree=None, checkout=None, env=root / "env", python=root / "env/bin/python", seal=root / "seal"
    )


def sglang(tmp_path: Path, **changes: object) -> Lock:
    lock = scene(tmp_path).lock
    argv = ("-m", "sglang.launch_server", "--port", "30000", "--tp-size", "8")
    engine = msgspec.structs.replace(lock.engine, kind="sglang", argv=argv)
    return msgspec.structs.replace(lock, **{"engine": engine, **changes})


def run(name: str, place: str | None = None, home: Home | None = None) -> Run:
    found = Caches(path=place, state="warm") if place else None
    one = Run(
        run=name,
        deployment="d",
        name="d",
        manifest="d.toml",
        lock="sha256:1",
        kind="sglang",
        url="http://127.0.0.1:1",
        argv=(),
        variables=(),
        caches=found,
    )
    if home is not None:
        write_run(home, one)
    return one


def key(tmp_path: Path, lock: Lock, *, name: str = "w1", root: Path = Path("/nonexistent")) -> str:
    place = workspace(tmp_path, name)
    return caches.directory(place, caches.inputs(lock, place, root=root)).name


def gpu(root: Path, model: str, driver: str) -> Path:
    path = root / GPUS
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"Model: \t\t {model}\n")
    version = f"NVRM version: NVIDIA UNIX x86_64 Kernel Module  {driver}  Mon\n"
    (root / "proc/driver/nvidia/version").write_text(version)
    return root


def test_h13_the_key_holds_all_that_the_engines_own_keys_leave_out(tmp_path: Path) -> None:
    """Case H13; FlashInfer's autotune key omits GPU model, driver, draft and the engine's commit."""
    lock = sglang(tmp_path)
    one = key(tmp_path, lock)
    weights = WeightsPin(path="model", files=(FilePin(path="a", size=1, sha256="sha256:1"),))
    others = {
        "another workspace": key(tmp_path, lock, name="w2"),
        "another model": key(tmp_path, sglang(tmp_path, model=weights)),
        "another argument": key(
            tmp_path,
            sglang(tmp_path, engine=msgspec.structs.replace(lock.engine, argv=(*lock.engine.argv, "--x"))),
        ),
        "a variable": key(tmp_path, sglang(tmp_path, env=EnvironmentPin(set={"SGLANG_X": "1"}))),
        "a GPU": key(tmp_path, lock, root=gpu(tmp_path / "a", "NVIDIA H200", "590.48.01")),
        "another GPU": key(tmp_path, lock, root=gpu(tmp_path / "b", "NVIDIA A100", "590.48.01")),
        "another driver": key(tmp_path, lock, root=gpu(tmp_path / "c", "NVIDIA H200", "580.1.1")),
    }
    assert len({one, *others.values()}) == 1 + len(others), others


def test_what_compiles_nothing_keeps_a_cache_warm(tmp_path: Path) -> None:
    lock = sglang(tmp_path)
    moved = tuple(word.replace("30000", "31000") for word in lock.engine.argv)
    other_port = sglang(tmp_path, engine=msgspec.structs.replace(lock.engine, argv=moved))
    other_proto = sglang(tmp_path, env=EnvironmentPin(set={"NCCL_PROTO": "LL"}))
    assert key(tmp_path, lock) == key(tmp_path, other_port) == key(tmp_path, other_proto)


def test_accepted_code_has_a_cache_of_its_own(tmp_path: Path) -> None:
    place, lock = workspace(tmp_path), sglang(tmp_path)
    edited = Difference(aspect="source", key="a.py", pinned="1", observed="2")
    limit = Difference(aspect="host", key="open-files", pinned=1, observed=2)
    plain = caches.inputs(lock, place)
    assert caches.inputs(lock, place, (limit,)) == plain
    assert caches.inputs(lock, place, (edited,)) != plain


def test_sglangs_caches_all_lie_below_the_key(tmp_path: Path) -> None:
    told = caches.variables(sglang(tmp_path), tmp_path / "c")
    assert {"TRITON_CACHE_DIR", "SGLANG_CACHE_DIR", "FLASHINFER_WORKSPACE_BASE", "XDG_CACHE_HOME"} <= told.keys()
    assert all(value.startswith(f"{tmp_path}/c/") for value in told.values())


def observed(tmp_path: Path, lock: Lock) -> tuple[list[str], tuple[str, ...], str]:
    one: Scene = msgspec.structs.replace(scene(tmp_path), lock=lock, workspace=workspace(tmp_path))
    found = caches.observe(one)
    assert found is not None
    differences, unknown = caches.compare(lock, found)
    assert not unknown
    return [item.key for item in differences], found.notes, found.how


def test_a_cache_is_cold_then_warm_and_says_who_began_it(tmp_path: Path) -> None:
    home, place, lock = Home(tmp_path), workspace(tmp_path), sglang(tmp_path)
    assert observed(tmp_path, lock) == ([], (), "cold")
    first = making.prepare(lock, place, run("first"), home)
    assert (first.state, first.files, first.made_by) == ("cold", 0, "first")
    triton = Path(first.path) / "triton"
    triton.mkdir()
    (triton / "kernel.cubin").write_bytes(b"x" * 10000)
    second = making.prepare(lock, place, run("second"), home)
    assert (second.path, second.state, second.files, second.made_by) == (first.path, "warm", 1, "first")
    assert second.size_bytes >= 10000
    keys, _, how = observed(tmp_path, lock)
    assert keys == [] and "begun by first" in how
    assert [path.name for path in (place.root / "caches").iterdir()] == [Path(first.path).name]


def test_a_cache_that_was_carried_here_is_drift(tmp_path: Path) -> None:
    home, place, lock = Home(tmp_path), workspace(tmp_path), sglang(tmp_path)
    other = making.prepare(sglang(tmp_path, env=EnvironmentPin(set={"A": "1"})), place, run("other"), home)
    own = caches.directory(place, caches.inputs(lock, place))
    Path(other.path).rename(own)
    assert observed(tmp_path, lock)[0] == ["origin"]
    (own / caches.MADE).write_text("{")
    assert observed(tmp_path, lock)[0] == ["origin"]
    (own / caches.MADE).unlink()
    assert observed(tmp_path, lock)[0] == ["origin"]


def test_a_cache_that_the_manifest_places_is_the_users(tmp_path: Path) -> None:
    lock = sglang(tmp_path, env=EnvironmentPin(set={"TRITON_CACHE_DIR": "/mine"}))
    _, notes, _ = observed(tmp_path, lock)
    assert notes == ("cache of yours, not keyed by pinner and not checked: TRITON_CACHE_DIR",)


def test_only_dead_locks_are_cleared(tmp_path: Path) -> None:
    home, place, lock = Home(tmp_path), workspace(tmp_path), sglang(tmp_path)
    cache = Path(making.prepare(lock, place, run("first"), home).path)
    texts = {
        "torch-extensions/lock": "",
        "flashinfer/a.lock": "4194305\n",
        "flashinfer/mine.lock": f"{os.getpid()}",
        "flashinfer/held.lock": "",
        "rust/Cargo.lock": "version = 4\n[[package]]\nname = 'x'\nversion = '1'\n",
        "triton/block": "",
    }
    for name, text in texts.items():
        (cache / name).parent.mkdir(exist_ok=True)
        (cache / name).write_text(text)
    with (cache / "flashinfer/held.lock").open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        found = making.prepare(lock, place, run("second"), home)
    assert sorted(found.cleared) == ["flashinfer/a.lock", "torch-extensions/lock"]
    assert found.files == 2, "locks are no kernels"
    left = {str(path.relative_to(cache)) for path in cache.rglob("*") if path.is_file()}
    assert left == {"made.json", *texts} - {"flashinfer/a.lock", "torch-extensions/lock"}
    assert "flashinfer/a.lock" in making.notes(found)[0]
