"""Cases H15 to H19: GPUs as the real pynvml tells of them, through the command line."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from pinner.cli import main
from pinner.host import nvml as reader
from tests import tiny
from tests.integration.command import Pinner, Said, differences, unknowns
from tests.nvml import stub
from tests.nvml.stub import Nvml

BUS = "0000:41:00.0"
EXPECTED = "[hardware.gpu]\npcie-generation = 5\npcie-width = 16"


class Box:
    """A deployment that is built, on a machine with the stub's GPUs."""

    def __init__(self, pinner: Pinner, machine: Nvml, manifest: Path) -> None:
        self.pinner, self.nvml, self.manifest = pinner, machine, manifest
        self.plain = manifest.read_text()

    def expect(self, sections: str, *, env: str = "") -> None:
        """Lock the deployment with these sections and variables."""
        text = self.plain.replace("[env]\n", f"[env]\n{env}\n")
        self.manifest.write_text(f"{text}\n{sections}\n")
        said = self.pinner("lock", self.manifest)
        assert said.code == 0, said.err

    def capture(self) -> Said:
        said = self.pinner("lock", self.manifest, "--capture")
        assert said.code == 0, said.err
        return said

    def check(self) -> Said:
        return self.pinner.json("check", self.manifest)

    @property
    def lock(self) -> dict[str, Any]:
        return tomllib.loads(self.manifest.with_suffix(".lock").read_text())


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a deployment that is locked and built, and the PINNER_HOME that it was built in."""
    place = tmp_path_factory.mktemp("box")
    manifest = tiny.deployment(place / "d")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PINNER_HOME", str(place / "home"))
        for verb in ("lock", "materialize"):
            assert main([verb, str(manifest)]) == 0
    return place


@pytest.fixture
def box(pinner: Pinner, nvml: Nvml, built: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Box:
    shutil.copytree(built, tmp_path / "box", symlinks=True)
    monkeypatch.setenv("PINNER_HOME", str(built / "home"))
    return Box(pinner, nvml, tmp_path / "box/d/tiny.toml")


def of_gpu(said: Said, bus: str = BUS) -> dict[str, tuple[Any, Any]]:
    """(pinned, observed) by fact, of what has drifted on one GPU."""
    prefix = f"hardware.gpu.{bus}."
    found = differences(said).items()
    return {
        name.removeprefix(prefix): (item["pinned"], item["observed"])
        for name, item in found
        if name.startswith(prefix)
    }


# H15 ---------------------------------------------------------------------------------------------------------


def test_h15_an_idle_link_is_no_drift(box: Box) -> None:
    box.nvml.machine([stub.gpu(0)])
    box.expect(EXPECTED)
    said = box.check()
    assert (said.code, said.data["drift"], said.data["unknown"]) == (0, [], [])
    assert any(
        BUS in note and "idle; current PCIe generation 1 is not conclusive, the link can do 5" in note
        for note in said.data["notes"]
    )


@pytest.mark.parametrize(
    ("fields", "drift"),
    [
        ({"pcie_generation_max": 3}, {"pcie-generation": (5, 3)}),
        ({"pcie_width": 8}, {"pcie-width": (16, 8)}),
        ({"pcie_width": 8, "pcie_width_max": 8}, {"pcie-width": (16, 8)}),
    ],
)
def test_h15_a_slower_slot_is_drift_also_when_idle(
    box: Box, fields: dict[str, int], drift: dict[str, tuple[int, int]]
) -> None:
    box.nvml.machine([stub.gpu(0, **fields)])
    box.expect(EXPECTED)
    said = box.check()
    assert (said.code, of_gpu(said)) == (1, drift)
    (item,) = said.data["drift"]
    assert item["class"] == "at-least"
    assert any("idle: P8, utilisation 0 %" in line for line in item["evidence"])


def test_h15_a_link_that_stays_slow_at_work_is_drift(box: Box) -> None:
    box.nvml.machine([stub.gpu(0, **(stub.AT_WORK | {"pcie-generation": 1}))])
    box.expect(EXPECTED)
    assert of_gpu(box.check()) == {"pcie-generation": (5, 1)}
    box.nvml.machine([stub.gpu(0, **stub.AT_WORK)])
    assert box.check().code == 0


# H16 ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sections", ["[hardware]\ncount = 2", "[hardware.gpu]\nname = 'X'\necc = true"])
def test_h16_a_driver_that_was_updated_under_its_module(box: Box, sections: str) -> None:
    box.expect(sections)
    box.nvml.machine([stub.gpu(0)], **{"fail.nvmlInitWithFlags": 18, "fail.nvmlInit_v2": 18})
    box.nvml.kernel_module("520.61.05")
    (box.manifest.parent / "model/model.safetensors").write_bytes(b"edited")
    said = box.check()
    assert said.code == 1, "what else has drifted is found all the same"
    assert list(differences(said)) == ["model.model.safetensors"]
    (item,) = said.data["unknown"]
    words = item["observed"]["unknown"]
    assert f"driver library / kernel module mismatch: the library is {stub.DRIVER}" in words
    assert "the loaded kernel module 520.61.05" in words
    assert "reboot, or reload the module" in words
    assert "no GPU" not in said.out and "0 GPUs" not in said.out
    assert said.data["how"].keys() >= {"source", "python"}
    (box.manifest.parent / "model/model.safetensors").unlink()
    tiny.safetensors(box.manifest.parent / "model/model.safetensors")
    assert box.check().code == 3
    assert "mismatch" in box.pinner("check", box.manifest).out


def test_h16_every_failure_of_nvml_has_its_own_words(box: Box) -> None:
    box.expect("[hardware]\ncount = 1")
    words = set()
    for code, part in ((9, "is not loaded"), (4, "no permission"), (15, "is lost"), (999, "code 999")):
        box.nvml.machine([stub.gpu(0)], **{"fail.nvmlInitWithFlags": code})
        said = box.check()
        assert said.code == 3
        text = unknowns(said)["hardware.nvml"]["observed"]["unknown"]
        assert part in text and "no GPU" not in text
        words.add(text)
    box.nvml.machine([stub.gpu(0)], **{"crash.nvmlInitWithFlags": 1})
    assert "ended the process that asked it (signal 6)" in str(unknowns(box.check()))
    assert len(words) == 4


def test_h16_a_driver_that_hangs_holds_nobody(box: Box, monkeypatch: pytest.MonkeyPatch) -> None:
    box.expect("[hardware]\ncount = 1")
    monkeypatch.setattr("pinner.host.gpus.DEADLINE_S", 0.3)
    box.nvml.machine([stub.gpu(0)], **{"hang.nvmlDeviceGetUUID": 1})
    said = box.check()
    assert said.code == 3
    assert "NVML did not answer within 0.3 s" in str(unknowns(said)["hardware.nvml"]["observed"])


def test_a_lost_gpu_is_named_and_the_others_are_read(box: Box) -> None:
    box.nvml.machine([stub.gpu(number) for number in range(3)])
    box.expect("[hardware]\ncount = 3\n[hardware.gpu]\npower-limit-watts = 600")
    box.capture()
    assert box.check().code == 0
    box.nvml.machine([stub.gpu(0), stub.gpu(1, fail=stub.LOST), stub.gpu(2, power_limit_mw=300000)])
    said = box.check()
    assert [item["key"] for item in said.data["drift"]] == ["gpu.0000:43:00.0.power-limit-watts"]
    assert list(unknowns(said)) == ["hardware.gpu.index-1"], "nothing tells its bus id"
    box.nvml.known_to_the_module(0, 1, 2)
    said = box.check()
    assert of_gpu(said, "0000:43:00.0") == {"power-limit-watts": (600.0, 300.0)}
    assert len(said.data["drift"]) == 1
    assert list(unknowns(said)) == ["hardware.gpu.0000:42:00.0"]
    assert "lost" in str(said.data["unknown"][0]["observed"])
    refused = box.pinner("lock", box.manifest, "--capture")
    assert (refused.code, "0000:42:00.0: the GPU is lost" in refused.err) == (3, True)


# H17 ---------------------------------------------------------------------------------------------------------

UNIFIED = dict.fromkeys(
    (
        "memory",
        "power_limit_mw",
        "power_enforced_mw",
        "power_default_mw",
        "pcie_generation",
        "pcie_generation_max",
        "pcie_width",
        "pcie_width_max",
    )
)


def test_h17_what_a_unified_memory_gpu_does_not_tell(box: Box) -> None:
    box.nvml.machine([stub.gpu(0, name="NVIDIA GB10", **UNIFIED)])
    box.expect("[hardware.gpu]\nname = 'NVIDIA GB10'")
    assert box.check().code == 0, "a manifest that is silent about it"
    box.expect("[hardware.gpu]\nmemory-total-bytes = 0\npower-limit-watts = 140\npcie-generation = 5")
    said = box.check()
    assert (said.code, said.data["drift"]) == (3, [])
    found = {name: item["observed"]["unknown"] for name, item in unknowns(said).items()}
    assert found.keys() == {
        f"hardware.gpu.{BUS}.{key}" for key in ("memory-total-bytes", "power-limit-watts", "pcie-generation")
    }
    assert all(words.startswith("unsupported") for words in found.values())
    assert "unified memory" in found[f"hardware.gpu.{BUS}.memory-total-bytes"]


def test_h17_a_capture_holds_unsupported_and_not_zero(box: Box) -> None:
    fields = {**UNIFIED, "memory": 0}
    box.nvml.machine([stub.gpu(0, **fields)])
    box.capture()
    facts = box.lock["hardware"]["captured"]["gpus"][stub.uuid(0)]["facts"]
    for key in ("memory-total-bytes", "power-limit-watts", "pcie-generation", "pcie-width", "nvlinks"):
        assert facts[key] == {"value": "unsupported"}
    assert box.check().code == 0
    box.nvml.machine([stub.gpu(0)])
    assert of_gpu(box.check())["power-limit-watts"] == ("unsupported", 600.0)


def test_h17_a_driver_without_a_function_says_so(box: Box) -> None:
    box.nvml.machine([stub.gpu(0)])
    box.nvml.library(without=["nvmlDeviceGetMigMode", "nvmlDeviceGetCurrentClocksEventReasons"])
    box.expect("[hardware.gpu]\nmig = false\nslowdown = 'none'")
    said = box.check()
    assert list(unknowns(said)) == [f"hardware.gpu.{BUS}.mig"], "the older function tells the slowdown"
    assert "the NVML of this driver has no function" in str(said.data["unknown"][0]["observed"])
    box.expect("")
    box.capture()
    assert box.lock["hardware"]["captured"]["gpus"][stub.uuid(0)]["facts"]["mig"]["value"] == "not in this driver"
    assert box.check().code == 0


def test_h17_without_nvml_everything_else_is_checked(box: Box) -> None:
    box.nvml.no_library()
    assert box.check().code == 0, "nothing is demanded"
    box.expect("[hardware]\ncount = 8\ndriver = '590.48.01'\n[hardware.gpu]\necc = true\nmig = false")
    (box.manifest.parent / "model/config.json").write_text("{}")
    said = box.check()
    assert list(unknowns(said)) == ["hardware.nvml"], "one line, not one for each fact"
    assert "libnvidia-ml.so.1 is not found" in str(said.data["unknown"][0]["observed"])
    assert list(differences(said)) == ["model.config.json"]
    assert box.pinner("lock", box.manifest, "--check").code == 0
    assert "no GPU is captured" in box.capture().err
    assert "captured" not in box.lock["hardware"]


# H18 ---------------------------------------------------------------------------------------------------------

OTHER = {"name": "NVIDIA H200", "memory": 150754820096, "vbios": "96.00.BC.00.01"}


def mixed() -> list[dict[str, stub.Value]]:
    """Two models: H200 at 0000:41 and 0000:43, RTX PRO 6000 at 0000:42 and 0000:44."""
    return [stub.gpu(number, **(OTHER if number % 2 == 0 else {})) for number in range(4)]


def test_h18_another_order_of_indexes_is_no_drift(box: Box) -> None:
    box.nvml.machine(mixed(), **{"cuda": 13010})
    said = box.capture()
    assert "captured 4 GPUs (NVIDIA H200, NVIDIA RTX PRO 6000 Blackwell Server Edition)" in said.err
    box.nvml.machine([mixed()[at] for at in (3, 0, 2, 1)])
    said = box.check()
    assert (said.code, said.data["notes"]) == (0, box.check().data["notes"])
    assert not any("another card" in note for note in said.data["notes"])


@pytest.mark.parametrize(
    "value",
    [
        "0,2",
        f"{stub.uuid(0)},{stub.uuid(2)}",
        "GPU-00000000-1111,GPU-00000002",
    ],
)
def test_h18_only_the_visible_gpus_are_looked_at(box: Box, value: str) -> None:
    """Indexes count by bus id, as CUDA_DEVICE_ORDER = PCI_BUS_ID makes CUDA do, whatever NVML's order is."""
    box.nvml.machine([mixed()[at] for at in (1, 0, 3, 2)])
    expected = "[hardware]\ncount = 2\n[hardware.gpu]\nname = 'NVIDIA H200'"
    box.expect(expected, env=f"CUDA_VISIBLE_DEVICES = '{value}'")
    said = box.check()
    assert (said.code, said.data["how"]["hardware"]) == (0, "2 GPUs")
    box.expect(expected, env="CUDA_VISIBLE_DEVICES = '0,1'")
    assert list(differences(box.check())) == ["hardware.gpu.0000:42:00.0.name"]


def test_h18_a_value_that_cuda_cuts_short_is_drift(box: Box) -> None:
    box.nvml.machine(mixed())
    box.expect("[hardware]\ncount = 6", env="CUDA_VISIBLE_DEVICES = '0,1,2,3,4,5'")
    said = box.check()
    assert differences(said).keys() == {"hardware.CUDA_VISIBLE_DEVICES", "hardware.count"}
    item = differences(said)["hardware.CUDA_VISIBLE_DEVICES"]
    assert item["observed"] == "4 GPUs"
    assert "4 names no GPU here: CUDA stops there" in item["note"]
    box.manifest.write_text(box.plain.replace("[env]\n", "[env]\nCUDA_VISIBLE_DEVICES = '0;1'\n"))
    refused = box.pinner("lock", box.manifest)
    assert (refused.code, "neither an index nor a UUID" in refused.err) == (2, True)


def test_h18_a_swapped_card_is_a_note_unless_the_cards_are_pinned(box: Box) -> None:
    box.nvml.machine([stub.gpu(0), stub.gpu(1)])
    box.capture()
    swapped = [stub.gpu(0), stub.gpu(1, uuid=stub.uuid(9))]
    box.nvml.machine(swapped)
    said = box.check()
    assert said.code == 0
    assert any(f"another card, {stub.uuid(9)} in place of {stub.uuid(1)}" in note for note in said.data["notes"])
    box.expect(f"[hardware]\nuuids = ['{stub.uuid(0)}', '{stub.uuid(1)}']")
    found = differences(box.check())
    assert {name: (item["pinned"], item["observed"]) for name, item in found.items()} == {
        f"hardware.gpu.{stub.uuid(1)}": ("present", None),
        f"hardware.gpu.{stub.uuid(9)}": (None, "at 0000:42:00.0"),
    }
    box.nvml.machine([stub.gpu(0), stub.gpu(1)])
    assert box.check().code == 0


# H19 ---------------------------------------------------------------------------------------------------------


def capped() -> list[dict[str, stub.Value]]:
    fields = {"power_limit_mw": 230000, "power_enforced_mw": 230000, "persistence": 0}
    return [stub.gpu(0, power_default_mw=370000, **fields), stub.gpu(1, power_default_mw=420000, **fields)]


def test_h19_a_power_cap_left_over_is_drift_in_watts(box: Box) -> None:
    box.nvml.machine(capped())
    box.expect(
        f'[hardware.gpus."{stub.uuid(0)}"]\npower-limit-watts = 370\n'
        '[hardware.gpus."00000000:42:00.0"]\npower-limit-watts = 420\n'
    )
    said = box.check()
    assert said.code == 1
    assert of_gpu(said) == {"power-limit-watts": (370.0, 230.0)}
    assert of_gpu(said, "0000:42:00.0") == {"power-limit-watts": (420.0, 230.0)}
    first = said.data["drift"][0]
    assert first["class"] == "within" and "within 1 W" in first["note"]
    assert "set 230 W, enforced 230 W, default 370 W; persistence mode off" in first["evidence"]
    assert any(
        "persistence mode is off: the power limit of 230 W (default 370 W)" in n for n in said.data["notes"]
    )
    text = box.pinner("check", box.manifest).out
    assert "pinned 370.0, observed 230.0" in text and "230000" not in text


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"power_limit_mw": 369900, "power_enforced_mw": 369900}, 0),
        ({"power_limit_mw": 368900, "power_enforced_mw": 368900}, 1),
        ({"power_limit_mw": 370000, "power_enforced_mw": 230000}, 1),
    ],
)
def test_h19_the_tolerance_and_the_limit_that_is_enforced(box: Box, fields: dict[str, int], code: int) -> None:
    box.nvml.machine([stub.gpu(0, **fields)])
    box.expect("[hardware.gpu]\npower-limit-watts = 370")
    assert box.check().code == code


def test_h19_a_cap_is_accepted_by_name(box: Box) -> None:
    box.nvml.machine(capped()[:1])
    box.expect("[hardware.gpu]\npower-limit-watts = { value = 370, tolerance = 5 }")
    key = f"hardware.gpu.{BUS}.power-limit-watts"
    said = box.pinner.json("check", box.manifest, "--accept", key, "--reason", "summer")
    assert (said.code, said.data["accepted"][0]["key"]) == (0, key.removeprefix("hardware."))


def test_h19_nothing_is_launched_under_another_cap_and_no_cap_is_changed(box: Box) -> None:
    """The stub has no function that sets anything: a call of one would show as a failure of NVML."""
    box.nvml.machine(capped()[:1])
    box.expect("[hardware.gpu]\npower-limit-watts = 370")
    said = box.pinner.json("up", box.manifest)
    assert (said.code, said.data["url"]) == (1, None)
    assert list(differences(said)) == [f"hardware.gpu.{BUS}.power-limit-watts"]
    assert "nvmlDeviceSet" not in Path(reader.__file__).read_text()


# Capture -----------------------------------------------------------------------------------------------------


def test_a_captured_machine_is_clean_and_stays_pinned(box: Box) -> None:
    box.nvml.machine([stub.gpu(number, **{f"link-{number + 1}": 10}) for number in range(8)])
    box.capture()
    text = box.manifest.with_suffix(".lock").read_text()
    assert "\nmig = {value = false}\n" in text
    assert '\npower-limit-watts = {value = 600.0, class = "within", tolerance = 1.0}\n' in text
    assert box.check().code == 0
    assert box.pinner("lock", box.manifest, "--check").code == 0
    box.nvml.machine([stub.gpu(number, **stub.AT_WORK, **{f"link-{number + 1}": 10}) for number in range(8)])
    assert box.check().code == 0, "what changes by the second is not captured"
    box.capture()
    assert box.manifest.with_suffix(".lock").read_text() == text, "nor does it change the lock"
    box.nvml.machine([stub.gpu(number, ecc=number % 2) for number in range(7)], driver="595.10")
    box.pinner("lock", box.manifest)
    assert box.manifest.with_suffix(".lock").read_text() == text, "only --capture captures"
    drift = differences(box.check())
    assert drift["hardware.driver"]["observed"] == "595.10"
    assert (drift["hardware.count"]["pinned"], drift["hardware.count"]["observed"]) == (8, 7)
    assert drift["hardware.gpu.0000:48:00.0"]["observed"] is None
    assert drift["hardware.gpu.0000:41:00.0.link-to.0000:42:00.0"]["observed"] == "SYS"
    assert len([name for name in drift if name.endswith(".ecc")]) == 4


def test_a_manifest_wins_over_what_was_captured(box: Box) -> None:
    box.nvml.machine([stub.gpu(0)])
    box.expect("[hardware]\ndriver = { class = 'record-only' }\n[hardware.gpu]\npower-limit-watts = 300")
    box.capture()
    assert of_gpu(box.check()) == {"power-limit-watts": (300.0, 600.0)}
    edited = box.manifest.with_suffix(".lock").read_text().replace("value = 300.0", "value = 600.0")
    box.manifest.with_suffix(".lock").write_text(edited)
    said = box.pinner("lock", box.manifest, "--check")
    assert (said.code, "hardware" in said.out) == (1, True)


def test_mig_and_vgpu_have_their_own_words(box: Box) -> None:
    parts = {"mig": 1, "mig_count": 7, "mig_uuid_0": "MIG-aaaa0000-1111", "mig_uuid_1": "MIG-bbbb0000-1111"}
    box.nvml.machine([stub.gpu(0), stub.gpu(1, **parts), stub.gpu(2, virtualization=2, power_limit_mw=None)])
    box.expect(
        "[hardware]\ncount = 2\n[hardware.gpu]\nmig = true", env="CUDA_VISIBLE_DEVICES = 'MIG-bbbb,GPU-00000002'"
    )
    said = box.check()
    assert list(differences(said)) == ["hardware.gpu.0000:43:00.0.mig"], "a MIG device means its GPU"
    assert "0000:42:00.0: MIG is on, with 2 devices; what is told here is of the whole GPU" in str(
        said.data["notes"]
    )
    assert "0000:43:00.0: a vGPU: link, power and clocks belong to the host" in str(said.data["notes"])


def test_nothing_is_asked_where_nothing_is_demanded(box: Box, tmp_path: Path) -> None:
    """A check that needs no GPU must not pay for NVML."""
    box.nvml.machine([], **{"hang.nvmlInitWithFlags": 1})
    assert box.check().code == 0
    code = "import sys; from pinner.cli import main; main(sys.argv[1:]); assert 'pynvml' not in sys.modules"
    done = subprocess.run(
        [sys.executable, "-c", code, "check", str(box.manifest)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
