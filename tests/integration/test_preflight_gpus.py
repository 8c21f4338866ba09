"""The pre-flight of `up`: who else computes on the GPUs, as the real pynvml tells."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest

from pinner.deploy.preflight import Ready, preflight
from pinner.errors import LaunchFailed
from pinner.model.facts import Override
from pinner.model.lock import EnvironmentPin
from tests.integration.test_gpus import CPU_ENGINE, scene
from tests.nvml import stub
from tests.nvml.stub import Nvml
from tests.unit.test_preflight import at_least, machine


def test_others_on_the_gpus_are_refused_or_accepted(nvml: Nvml, tmp_path: Path) -> None:
    nvml.machine([stub.gpu(0), stub.gpu(1, processes=f"{os.getpid()}:1073741824")])
    place = machine(tmp_path)

    def look(*overrides: Override, **changes: object) -> Ready:
        at = scene(tmp_path, **changes)  # type: ignore[arg-type]
        lock = msgspec.structs.replace(at.lock, host={"shm-free-bytes": at_least(0)})
        at = msgspec.structs.replace(at, lock=lock)
        return preflight(at, overrides, place)

    with pytest.raises(LaunchFailed) as refused:
        look()
    assert f"GPU in use: pid {os.getpid()}" in refused.value.message
    assert "0000:42:00.0: 1.0 GiB" in refused.value.message
    assert "--accept hardware.processes" in (refused.value.hint or "")
    accepted = look(Override("hardware.processes", "MPS")).accepted
    assert [item.name for item in accepted] == ["hardware.processes"]
    look(argv=CPU_ENGINE)
    look(env=EnvironmentPin(set={"CUDA_VISIBLE_DEVICES": "0"}))
