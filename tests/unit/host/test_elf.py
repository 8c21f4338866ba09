"""What a shared object says of itself, also where it is damaged."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import pytest

from pinner.host.elf import Elf, read_elf
from pinner.model.facts import Unknown
from tests import native


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    top = tmp_path_factory.mktemp("site")
    nccl = native.nccl(top / "nvidia/nccl/lib/libnccl.so.2", 22809)
    return native.torch(top / "torch/lib/libtorch_stub.so", nccl, is_old=False)


def test_a_library_says_what_decides_its_loading(library: Path) -> None:
    elf = read_elf(library)
    assert isinstance(elf, Elf)
    assert elf.needed[0] == "libnccl.so.2"
    assert (elf.runpath, elf.rpath) == (("$ORIGIN/../../nvidia/nccl/lib",), ())
    said = subprocess.run(["readelf", "-n", library], capture_output=True, text=True, check=True).stdout
    assert elf.build_id is not None
    assert f"Build ID: {elf.build_id}" in said
    nccl = read_elf(library.parents[2] / "nvidia/nccl/lib/libnccl.so.2")
    assert isinstance(nccl, Elf)
    assert nccl.soname == "libnccl.so.2"


def test_an_old_rpath_is_told_apart(library: Path, tmp_path: Path) -> None:
    nccl = library.parents[2] / "nvidia/nccl/lib/libnccl.so.2"
    elf = read_elf(native.torch(tmp_path / "libold.so", nccl, is_old=True))
    assert isinstance(elf, Elf)
    assert (elf.rpath, elf.runpath) == (("$ORIGIN/../../nvidia/nccl/lib",), ())


def test_a_program_names_its_linker() -> None:
    elf = read_elf(Path(sys.executable).resolve())
    assert isinstance(elf, Elf)
    assert elf.interpreter is not None
    assert Path(elf.interpreter).exists()


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "no ELF file"),
        (b"INPUT ( libnccl.so.2 )\n", "no ELF file"),
        (b"\x7fELF\x01\x01" + bytes(58), "not for a 64-bit"),
        (b"\x7fELF\x02\x01" + bytes(20), "damaged"),
        (b"\x7fELF\x02\x01" + b"\xff" * 58, "damaged"),
    ],
)
def test_what_is_no_library_is_unknown(tmp_path: Path, content: bytes, reason: str) -> None:
    path = tmp_path / "x.so"
    path.write_bytes(content)
    said = read_elf(path)
    assert isinstance(said, Unknown)
    assert reason in said.reason
    assert str(path) in said.reason


def test_missing_and_directory_are_unknown(tmp_path: Path) -> None:
    assert "no such file" in str(read_elf(tmp_path / "none.so"))
    assert "directory" in str(read_elf(tmp_path))


def test_no_damage_makes_it_fail(library: Path, tmp_path: Path) -> None:
    """Every length, and bytes turned over in the headers: an answer or a reason, never an exception."""
    whole = library.read_bytes()
    path = tmp_path / "damaged.so"
    chance = random.Random(7)
    for length in (*range(0, 1200, 7), len(whole) // 2):
        path.write_bytes(whole[:length])
        assert isinstance(read_elf(path), (Elf, Unknown))
    for _ in range(400):
        damaged = bytearray(whole)
        for _ in range(4):
            damaged[chance.randrange(64, 1600)] = chance.randrange(256)
        path.write_bytes(damaged)
        assert isinstance(read_elf(path), (Elf, Unknown))
