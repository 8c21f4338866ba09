"""A machine with GPUs that are not there: a stub of libnvidia-ml.so.1 for the real pynvml to load.

The library is compiled from nvml_stub.c, and says what a scenario file says.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

SOURCE = Path(__file__).with_name("nvml_stub.c")
DRIVER = "590.48.01"
NOT_SUPPORTED, NO_PERMISSION, NO_DRIVER, NO_FUNCTION, LOST, MISMATCH = 3, 4, 9, 13, 15, 18
IDLE = 1

Value = str | int

# An idle GPU: its link has trained down.
GPU: dict[str, Value] = {
    "name": "NVIDIA RTX PRO 6000 Blackwell Server Edition",
    "vbios": "98.02.52.00.02",
    "serial": "1650000000000",
    "memory": 102641958912,
    "pcie-generation": 1,
    "pcie-generation-max": 5,
    "pcie-width": 16,
    "pcie-width-max": 16,
    "power-limit-mw": 600000,
    "power-enforced-mw": 600000,
    "power-default-mw": 600000,
    "power-mw": 31000,
    "clock-1": 180,
    "clock-2": 405,
    "clock-max-1": 2430,
    "clock-max-2": 12481,
    "temperature-0": 31,
    "pstate": 8,
    "utilisation": 0,
    "reasons": IDLE,
    "ecc": 1,
    "ecc-uncorrected": 0,
    "mig": 0,
    "persistence": 1,
    "compute-mode": 0,
    "virtualization": 0,
}
AT_WORK: dict[str, Value] = {
    "pcie-generation": 5,
    "power-mw": 231000,
    "clock-1": 2340,
    "temperature-0": 37,
    "pstate": 1,
    "utilisation": 97,
    "reasons": 0,
}


def uuid(number: int) -> str:
    """The UUID of the stub's GPU of that number."""
    return f"GPU-{number:08x}-1111-2222-3333-444444444444"


def gpu(number: int, **fields: Value | None) -> dict[str, Value]:
    """A GPU at bus id 0000:<0x41 + number>:00.0; underscores stand for dashes, None leaves a field out."""
    own: dict[str, Value | None] = {**GPU, "uuid": uuid(number), "bus": f"00000000:{0x41 + number:02X}:00.0"}
    own.update({name.replace("_", "-"): value for name, value in fields.items()})
    return {name: value for name, value in own.items() if value is not None}


class Nvml:
    """The stub as this process's children see it; each `machine` replaces what was there."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, libraries: Path, directory: Path) -> None:
        self._monkeypatch = monkeypatch
        self._libraries = libraries
        self._scenario = directory / "nvml.ini"
        self.proc = directory / "proc-driver-nvidia"
        self.proc.mkdir()
        monkeypatch.setattr("pinner.host.gpus.PROC", self.proc)
        monkeypatch.setenv("PINNER_NVML_SCENARIO", str(self._scenario))
        self.library()

    def machine(self, gpus: Sequence[Mapping[str, Value]] = (), **system: Value) -> None:
        """GPUs in NVML's order. `system` has the driver's own fields, and failures as {"fail.FUNCTION": code}."""
        own = {"driver": DRIVER, "nvml": f"13.{DRIVER}", "cuda": 13010, "count": len(gpus), **system}
        sections = {"system": own, **{f"gpu {at}": one for at, one in enumerate(gpus)}}
        lines = []
        for title, fields in sections.items():
            lines += [f"[{title}]", *(f"{name} = {value}" for name, value in fields.items())]
        self._scenario.write_text("\n".join(lines) + "\n")

    def library(self, *, without: Sequence[str] = ()) -> None:
        """Use the library, or one that lacks these functions."""
        self._monkeypatch.setenv("LD_LIBRARY_PATH", str(build(self._libraries, without)))

    def no_library(self) -> None:
        """No NVML at all."""
        self._monkeypatch.delenv("LD_LIBRARY_PATH", raising=False)

    def kernel_module(self, version: str) -> None:
        """The loaded kernel module, as /proc tells."""
        text = f"NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  {version}  Release Build  (root@host)\n"
        (self.proc / "version").write_text(f"{text}GCC version:  gcc version 12.2.0\n")

    def known_to_the_module(self, *numbers: int) -> None:
        """GPUs that the kernel module lists, lost ones too."""
        for number in numbers:
            (self.proc / "gpus" / f"0000:{0x41 + number:02x}:00.0").mkdir(parents=True)


def build(libraries: Path, without: Sequence[str] = ()) -> Path:
    """A directory with the library, compiled once per set of functions left out."""
    place = libraries / ("-".join(sorted(without)) or "whole")
    name = f"libnvidia-ml.so.{DRIVER}"
    if not (place / "libnvidia-ml.so.1").exists():
        place.mkdir(parents=True, exist_ok=True)
        script = place / "exports"
        hidden = " ".join(f"{function};" for function in without)
        script.write_text("{ global: nvml*; local: " + hidden + " };\n" if hidden else "{ global: nvml*; };\n")
        made = place / f"{name}.{os.getpid()}"
        command = ["cc", "-O1", "-shared", "-fPIC", "-Wall", f"-Wl,--version-script={script}", "-o", str(made)]
        subprocess.run([*command, str(SOURCE)], check=True)
        made.rename(place / name)
        (place / "libnvidia-ml.so.1").symlink_to(name)
    return place


@pytest.fixture(scope="session")
def nvml_libraries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the libraries are compiled to."""
    return tmp_path_factory.mktemp("nvml")


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch, nvml_libraries: Path, tmp_path: Path) -> Nvml:
    """NVML as the stub has it; a machine without a GPU at first."""
    stub = Nvml(monkeypatch, nvml_libraries, tmp_path)
    stub.machine()
    return stub
