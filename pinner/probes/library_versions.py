"""The version that a library gives of itself.

Owns asking: a child process loads the library and calls the function that tells its version, since the name of a
file or package proves nothing and some libraries hold no text to search for. The child is the deployment's own
interpreter, isolated and with an empty environment; pinner itself never loads such a library. Only libraries that
a deployment loads, or would load, are asked. An answer is remembered while the file is the same.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterable
from pathlib import Path

from pinner.errors import CommandFailed, OperationFailed
from pinner.host import process
from pinner.host.digest import DigestMemory
from pinner.host.hashing import identity, is_settled
from pinner.host.tree import pack
from pinner.model.facts import Unknown

_KIND = "library-version"
_TIMEOUT_S = 30.0
# What people call the libraries that can be asked, by the start of their names; cuBLASLt before cuBLAS.
TITLES = {
    "libnccl.": "NCCL",
    "libcudart.": "CUDA runtime",
    "libcublasLt.": "cuBLASLt",
    "libcublas.": "cuBLAS",
    "libcudnn.": "cuDNN",
    "libnvrtc.": "NVRTC",
}

# Runs in the deployment's interpreter, whose version may be older than pinner's own.
_SCRIPT = """
import ctypes, sys
path, name = sys.argv[1:]
library = ctypes.CDLL(path)
one, two = ctypes.c_int(), ctypes.c_int()
if name == "libnccl.":
    failed = library.ncclGetVersion(ctypes.byref(one))
    code = one.value
    unit = 10000 if code >= 10000 else 1000
    parts = [code // unit, code % unit // 100, code % 100]
elif name == "libcudart.":
    failed = library.cudaRuntimeGetVersion(ctypes.byref(one))
    parts = [one.value // 1000, one.value % 1000 // 10]
elif name in ("libcublas.", "libcublasLt."):
    ask = getattr(library, name[3:-1] + "GetProperty")
    parts, failed = [], 0
    for which in range(3):
        failed = failed or ask(which, ctypes.byref(one))
        parts.append(one.value)
elif name == "libcudnn.":
    library.cudnnGetVersion.restype = ctypes.c_size_t
    code, failed = library.cudnnGetVersion(), 0
    unit = 10000 if code >= 90000 else 1000
    parts = [code // unit, code % unit // 100, code % 100]
else:
    failed = library.nvrtcVersion(ctypes.byref(one), ctypes.byref(two))
    parts = [one.value, two.value]
if failed:
    sys.exit("it answers with error %s" % failed)
sys.stdout.write(".".join(map(str, parts)))
"""
_VERSION = re.compile(r"\d+(\.\d+){1,2}")


def title(path: str) -> str | None:
    """What people call a library that can be asked for its version; None for all others."""
    kind = _kind(path)
    return None if kind is None else TITLES[kind]


def versions(paths: Iterable[str], python: Path, memory: DigestMemory) -> dict[str, str | Unknown]:
    """The version that each library gives of itself, by path; those that cannot be asked are left out."""
    found: dict[str, str | Unknown] = {}
    asked: dict[str, tuple[bytes | None, process.Started | Unknown]] = {}
    for path in dict.fromkeys(paths):
        kind = _kind(path)
        if kind is None:
            continue
        key = _key(path)
        remembered = memory.recall(_KIND, key) if key is not None else None
        if remembered is not None:
            found[path] = remembered.decode()
        else:
            asked[path] = (key, _ask(python, path, kind))
    new: dict[bytes, bytes] = {}
    for path, (key, started) in asked.items():
        said = found[path] = _answer(started)
        if key is not None and isinstance(said, str):
            new[key] = said.encode()
    memory.remember(_KIND, new)
    return found


def _kind(path: str) -> str | None:
    name = os.path.basename(path)  # noqa: PTH119  # a piece of text, not a place
    return next((start for start in TITLES if name.startswith(f"{start}so")), None)


def _key(path: str) -> bytes | None:
    """What a file is remembered by; None for one that may yet change without a trace."""
    try:
        seen = identity(os.stat(path))  # noqa: PTH116  # any name the file system has
    except OSError:
        return None
    return pack([seen]) if is_settled(seen, time.time_ns()) else None


def _ask(python: Path, path: str, kind: str) -> process.Started | Unknown:
    argv = [str(python), "-I", "-S", "-B", "-c", _SCRIPT, path, kind]
    try:
        return process.start(argv, env={"LANG": "C.UTF-8"}, cwd=Path("/"))
    except OperationFailed as error:
        return Unknown(error.message)


def _answer(started: process.Started | Unknown) -> str | Unknown:
    if isinstance(started, Unknown):
        return started
    try:
        done = process.collect(started, timeout_s=_TIMEOUT_S)
    except CommandFailed as error:
        return Unknown(error.stderr)
    said = done.stdout.decode(errors="replace")
    if done.code == 0 and _VERSION.fullmatch(said):
        return said
    lines = done.stderr.decode(errors="replace").strip().splitlines()
    return Unknown(lines[-1] if lines else f"it ended the program that asked it ({done.code})")
