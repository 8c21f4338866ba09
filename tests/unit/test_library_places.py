"""Where a library that a process has mapped may come from."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from pinner.host.digest import DigestMemory
from pinner.host.home import Home
from pinner.model.lock import EnvironmentPin, PythonPin
from pinner.probes.base import Scene, Workspace
from pinner.probes.environment_files import is_family
from pinner.probes.library_places import LIBRARY, Place, Places
from pinner.probes.library_versions import title
from tests.integration.environments import MINOR, lock_of


@pytest.fixture
def places(tmp_path: Path) -> Places:
    root = tmp_path / "work"
    (root / "env/bin").mkdir(parents=True)
    (root / "env/pyvenv.cfg").write_text("")
    base = tmp_path / "base/bin/python"
    base.parent.mkdir(parents=True)
    base.write_text("")
    (root / "env/bin/python").symlink_to(base)
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/ld.so.conf").write_text(f"# directories\n{tmp_path}/cuda/lib64\n")
    lock = lock_of(PythonPin(version=MINOR, patch_level="3.0.0", pylock="sha256:0"))
    lock = msgspec.structs.replace(lock, env=EnvironmentPin(files={f"{tmp_path}/opt/libextra.so": "sha256:0"}))
    workspace = Workspace(
        root=root,
        tree=root / "tree",
        checkout=None,
        env=root / "env",
        python=root / "env/bin/python",
        seal=root / "s",
    )
    scene = Scene(
        lock=lock,
        directory=tmp_path,
        home=Home(tmp_path / "home"),
        memory=DigestMemory(None),
        workspace=workspace,
        etc=tmp_path / "etc",
    )
    return Places(
        scene,
        workspace,
        {
            "TRITON_CACHE_DIR": f"{tmp_path}/fast/triton",
            "CUTE_DSL_CACHE_DIR": f"{tmp_path}/cute",
            "TMPDIR": f"{tmp_path}/opt",
        },
    )


@pytest.mark.parametrize(
    ("path", "place"),
    [
        ("TOP/work/env/lib/python3.11/site-packages/torch/lib/libtorch.so", Place.ENVIRONMENT),
        ("TOP/work/tree/sgl-kernel/build/common_ops.so", Place.ENVIRONMENT),
        ("TOP/work/home/.cache/flashinfer/x.so", Place.MADE),
        ("TOP/fast/triton/abc/launcher.so", Place.MADE),
        ("TOP/cute/x.so", Place.MADE),
        ("/tmp/torchinductor_pinner/ab/cab.so", Place.MADE),
        ("TOP/opt/libextra.so", Place.LISTED),
        ("TOP/opt/libother.so", Place.OUTSIDE),
        ("TOP/base/lib/libpython3.11.so.1.0", Place.BASE),
        ("TOP/base/lib/python3.11/lib-dynload/_ctypes.so", Place.BASE),
        ("TOP/base/lib/python3.11/site-packages/torch/lib/libtorch.so", Place.OUTSIDE),
        ("TOP/cuda/lib64/libcudart.so.12", Place.SYSTEM),
        ("/usr/lib/x86_64-linux-gnu/libc.so.6", Place.SYSTEM),
        ("/nix/store/0abc-glibc/lib/libc.so.6", Place.SYSTEM),
        ("/usr/library/libc.so.6", Place.OUTSIDE),
    ],
)
def test_a_path_is_sorted_into_its_place(places: Places, tmp_path: Path, path: str, place: Place) -> None:
    assert places.place(path.replace("TOP", str(tmp_path))) is place


@pytest.mark.parametrize("name", ["libnccl.so.2", "libcudart.so.12", "libtorch_cuda.so", "common_ops.abi3.so"])
def test_libraries_of_the_families_are_known_by_name(name: str) -> None:
    assert is_family(name)
    assert LIBRARY.fullmatch(name)


@pytest.mark.parametrize("name", ["libc.so.6", "libcuda.so.1", "libnccl.txt", "libpython3.11.so.1.0"])
def test_others_are_not(name: str) -> None:
    assert not is_family(name)


def test_one_version_function_a_library() -> None:
    assert [title(f"/x/{name}") for name in ("libcublas.so.12", "libcublasLt.so.12", "libnccl-net.so")] == [
        "cuBLAS",
        "cuBLASLt",
        None,
    ]
