"""Shared objects for tests, compiled from a few lines of C with the system's compiler."""

from __future__ import annotations

import subprocess
from pathlib import Path

NCCL = "int ncclGetVersion(int *version) { *version = %d; return 0; }\n"
TORCH = "int ncclGetVersion(int *); int torch_nccl(void) { int v = 0; ncclGetVersion(&v); return v; }\n"


def compile_library(path: Path, source: str, *options: str) -> Path:
    """A shared object at `path`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    text = path.with_suffix(".c")
    text.write_text(source)
    command = ["cc", "-shared", "-fPIC", "-Wl,--build-id=sha1", "-o", str(path), str(text), *options]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    text.unlink()
    return path


def nccl(path: Path, version: int) -> Path:
    """A libnccl.so.2 that tells a version, such as 22809."""
    return compile_library(path, NCCL % version, "-Wl,-soname,libnccl.so.2")


def torch(path: Path, needed: Path, *, is_old: bool) -> Path:
    """A library of torch/lib that needs `needed` of nvidia/nccl/lib: by the old RPATH, or by RUNPATH."""
    tags = "--disable-new-dtags" if is_old else "--enable-new-dtags"
    return compile_library(path, TORCH, str(needed), f"-Wl,{tags},-rpath,$ORIGIN/../../nvidia/nccl/lib")
