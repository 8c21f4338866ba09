"""The probe of GPUs with the real pynvml: an engine that uses them, a run that loads them, and who else does."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pinner.host.home import Home
from pinner.host.memory import DigestMemory
from pinner.host.procfs import ProcessInfo, process
from pinner.model.expectations import FactPin
from pinner.model.facts import Class, Difference, Observation, Unknown
from pinner.model.hardware import HardwarePin
from pinner.model.lock import EnginePin, EnvironmentPin, Lock, PythonPin, ServePin, SourcePin, WeightsPin
from pinner.probes import hardware
from pinner.probes.base import LiveScene, Scene
from tests.nvml import stub
from tests.nvml.stub import Nvml

GPU_ENGINE = ("-m", "sglang.launch_server")
CPU_ENGINE = (*GPU_ENGINE, "--device", "cpu")


def scene(
    tmp_path: Path,
    *,
    argv: tuple[str, ...] = GPU_ENGINE,
    pin: HardwarePin | None = None,
    env: EnvironmentPin = EnvironmentPin(),  # noqa: B008  # frozen
) -> Scene:
    lock = Lock(
        version=1,
        requires_pinner="0.1.0",
        manifest="sha256:00",
        engine=EnginePin(kind="sglang", source=SourcePin(type="git"), argv=argv),
        python=PythonPin(version="3.11", patch_level="3.11.7"),
        model=WeightsPin(path="model", files=()),
        env=env,
        serve=ServePin(host="127.0.0.1", port=30000, start_timeout_s=1, generate_timeout_s=1, stop_timeout_s=1),
        hardware=pin,
    )
    return Scene(lock=lock, directory=tmp_path, home=Home(tmp_path), memory=DigestMemory(None), workspace=None)


def judge(at: Scene) -> tuple[tuple[Difference, ...], tuple[Difference, ...], tuple[str, ...]]:
    seen = hardware.observe(at)
    assert isinstance(seen, Observation)
    return (*hardware.compare(at.lock, seen), seen.notes)


def live(at: Scene, *processes: ProcessInfo, env: dict[str, str] | None = None) -> Observation | None:
    return hardware.observe_live(
        LiveScene(scene=at, processes=processes, argv=(), env=env or {}, environ=lambda _pid: None)
    )


def own() -> ProcessInfo:
    found = process(os.getpid())
    assert found is not None
    return found


def test_an_engine_that_uses_gpus_must_have_a_driver_that_works(nvml: Nvml, tmp_path: Path) -> None:
    """Without any demand: what is broken is unknown, what is absent is a note, what is well is silent."""
    nvml.machine([stub.gpu(0)])
    assert judge(scene(tmp_path)) == ((), (), ())
    nvml.machine([stub.gpu(0), stub.gpu(1, fail=stub.LOST)])
    nvml.known_to_the_module(0, 1)
    differences, unknown, _ = judge(scene(tmp_path))
    assert [item.key for item in unknown] == ["gpu.0000:42:00.0"] and not differences
    for code in (stub.MISMATCH, stub.NO_DRIVER, stub.NO_PERMISSION):
        nvml.machine([], **{"fail.nvmlInitWithFlags": code})
        differences, unknown, _ = judge(scene(tmp_path))
        assert [item.key for item in unknown] == ["nvml"] and not differences
    nvml.machine()
    assert judge(scene(tmp_path)) == ((), (), ("the engine uses GPUs, and there is none that it would see",))
    nvml.no_library()
    differences, unknown, notes = judge(scene(tmp_path))
    assert not differences and not unknown
    assert "libnvidia-ml.so.1 is not found" in notes[0]


def test_an_engine_on_the_cpu_is_not_asked_about_gpus(nvml: Nvml, tmp_path: Path) -> None:
    nvml.machine([], **{"hang.nvmlInitWithFlags": 1})
    assert hardware.observe(scene(tmp_path, argv=CPU_ENGINE)) is None
    assert live(scene(tmp_path, argv=CPU_ENGINE), own()) is None


def test_gpus_that_the_engine_does_not_see_are_not_judged(
    nvml: Nvml, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nvml.machine([stub.gpu(0), stub.gpu(1, fail=stub.LOST)])
    nvml.known_to_the_module(0, 1)
    assert judge(scene(tmp_path, env=EnvironmentPin(set={"CUDA_VISIBLE_DEVICES": "0"})))[:2] == ((), ())
    monkeypatch.setenv("MY_GPUS", "0")
    assert judge(scene(tmp_path, env=EnvironmentPin(site={"CUDA_VISIBLE_DEVICES": "MY_GPUS"})))[:2] == ((), ())
    # The lost one may be the card that is meant: it does not tell who it is.
    at = scene(tmp_path, env=EnvironmentPin(set={"CUDA_VISIBLE_DEVICES": stub.uuid(1)}))
    differences, unknown, _ = judge(at)
    assert not differences
    assert "does not tell its UUID" in str(unknown[0].observed)


def test_what_may_not_be_read_is_unknown_and_the_rest_is_read(nvml: Nvml, tmp_path: Path) -> None:
    nvml.machine([stub.gpu(0, **{"fail.nvmlDeviceGetVbiosVersion": stub.NO_PERMISSION})])
    pin = HardwarePin(gpu={"vbios": FactPin(value="1"), "ecc": FactPin(value=True)})
    differences, (item,), _ = judge(scene(tmp_path, pin=pin))
    assert not differences
    assert (item.key, item.observed) == ("gpu.0000:41:00.0.vbios", Unknown("no permission to read it"))


def test_notes_of_a_gpu_that_is_not_well(nvml: Nvml, tmp_path: Path) -> None:
    nvml.machine([stub.gpu(number, reasons=0x81, ecc_uncorrected=2) for number in range(2)])
    _, _, notes = judge(scene(tmp_path))
    assert notes == (
        "0000:41:00.0, 0000:42:00.0: slowed down by hw-power-brake",
        "0000:41:00.0, 0000:42:00.0: 2 memory errors that ECC could not correct",
    )


def test_h19_persistence_is_told_where_a_cap_will_be_lost(nvml: Nvml, tmp_path: Path) -> None:
    nvml.machine([stub.gpu(0, power_limit_mw=450000, persistence=0), stub.gpu(1, persistence=0)])
    _, _, notes = judge(scene(tmp_path))
    assert notes == (
        "0000:41:00.0: persistence mode is off: the power limit of 450 W (default 600 W) is lost when the driver "
        "unloads",
    )


LOADED = HardwarePin(
    gpu={
        "clock-sm-mhz": FactPin(value=2343, comparison=Class.WITHIN, tolerance=20),
        "power-watts": FactPin(value=231.0, comparison=Class.WITHIN, tolerance=8),
        "temperature-celsius": FactPin(value=37, comparison=Class.RECORD_ONLY),
    }
)


def test_clocks_and_power_are_judged_only_under_load(nvml: Nvml, tmp_path: Path) -> None:
    at = scene(tmp_path, pin=LOADED)
    nvml.machine([stub.gpu(0)])
    assert judge(at)[:2] == ((), ())
    seen = live(at, own())
    assert seen is not None
    assert hardware.compare(at.lock, seen) == ((), ())
    assert "idle; clock-sm-mhz, power-watts, temperature-celsius can be judged only under load" in seen.notes[0]
    nvml.machine([stub.gpu(0, **stub.AT_WORK), stub.gpu(1, **(stub.AT_WORK | {"clock-1": 1980}))])
    seen = live(at, own(), env={"CUDA_VISIBLE_DEVICES": "1"})
    assert seen is not None
    (item,), unknown = hardware.compare(at.lock, seen)
    assert (item.key, item.pinned, item.observed) == ("gpu.0000:42:00.0.clock-sm-mhz", 2343, 1980)
    assert item.note == "within 20 MHz would do"
    assert any("at work: P1, utilisation 97 %" in line for line in item.evidence)
    assert not unknown


def test_foreign_processes_are_named(nvml: Nvml, tmp_path: Path) -> None:
    gone = 2**22 - 3
    nvml.machine([stub.gpu(0, processes=f"{os.getpid()}:1073741824 {gone}:{2**64 - 1}"), stub.gpu(1)])
    found = hardware.foreign_on_visible(scene(tmp_path).lock, set())
    assert [(one.gpu, one.pid, one.memory_bytes) for one in found] == [
        ("0000:41:00.0", os.getpid(), 1073741824),
        ("0000:41:00.0", gone, None),
    ]
    assert found[0].command == own().title
    assert found[0].sentence.endswith("uses GPU 0000:41:00.0: 1.0 GiB")
    assert found[1].sentence.endswith(
        "(a process that is not visible from here) uses GPU 0000:41:00.0: memory not told"
    )
    hidden = scene(tmp_path, env=EnvironmentPin(set={"CUDA_VISIBLE_DEVICES": "1"}))
    assert hardware.foreign_on_visible(hidden.lock, set()) == []
    seen = live(scene(tmp_path), own())
    assert seen is not None
    assert seen.notes == (found[1].sentence,)


def test_in_another_pid_namespace_nobody_is_called_foreign(nvml: Nvml, tmp_path: Path) -> None:
    nvml.machine([stub.gpu(0, processes=f"{2**22 - 3}:1")])
    seen = live(scene(tmp_path), own())
    assert seen is not None
    assert seen.notes == ()
