"""What a benchmark keeps of the GPUs, and which states of theirs make it count for nothing. NVML is a stub."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from tests import tiny
from tests.integration.benches import BENCH, record_of
from tests.integration.command import Pinner, Said
from tests.nvml import stub
from tests.nvml.stub import Nvml

BUS = "0000:41:00.0"


def bench(pinner: Pinner, directory: Path) -> Said:
    one = BENCH.replace("repeats = 2", "repeats = 1") + "[hardware.gpu]\npcie-width = 16\n"
    manifest = tiny.deployment(directory, more=one)
    said = pinner("lock", manifest)
    assert said.code == 0, said.err
    return pinner.json("bench", manifest)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"reasons": 0x80}, f"GPU {BUS} was slowed down by hw-power-brake in"),
        ({"reasons": 0x20}, f"GPU {BUS} was slowed down by sw-thermal in"),
        ({"pcie-generation": 1}, f"GPU {BUS}: PCIe generation 1 under load, and the link can do 5"),
    ],
)
def test_a_gpu_that_is_held_down_makes_the_measurement_invalid(
    pinner: Pinner, nvml: Nvml, tmp_path: Path, fields: dict[str, Any], said: str
) -> None:
    nvml.machine([stub.gpu(0, **(stub.AT_WORK | fields))])
    found = bench(pinner, tmp_path / "d")
    assert found.code == 2, found.err
    assert said in found.data["invalid"][0]
    assert record_of(found)["measurements"][0]["metrics"], "its data are kept"


def test_h19_caps_and_samples_of_the_gpus_are_kept(pinner: Pinner, nvml: Nvml, tmp_path: Path) -> None:
    """Case H19: a result under a cap says so, in watts."""
    capped = stub.AT_WORK | {"power-limit-mw": 230000, "power-enforced-mw": 230000, "reasons": 0x4}
    nvml.machine([stub.gpu(0, **capped)])
    found = bench(pinner, tmp_path / "d")
    assert found.code == 0, found.err
    seen = record_of(found)["machine"]["hardware"]
    assert seen[f"gpu.{BUS}.power-limit-watts"] == 230.0
    assert seen[f"gpu.{BUS}.power-limit-default-watts"] == 600.0
    assert (seen["driver"], seen["count"]) == (stub.DRIVER, 1)
    path = Path(found.data["record"]["path"]) / "telemetry/start-0.jsonl.gz"
    lines = [json.loads(line) for line in gzip.decompress(path.read_bytes()).splitlines()]
    gpus = [one for line in lines for one in line.get("gpus", [])]
    assert gpus and gpus[0]["power-watts"] == 231.0 and gpus[0]["clock-sm-mhz"] == 2340
    assert gpus[0]["bus-id"] == BUS
    assert [line["at"] for line in lines] == sorted(line["at"] for line in lines)
