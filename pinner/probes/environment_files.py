"""Files that decide what the engine's environment means: what variables name, and what every process reads.

Owns which files those are, and their digests: a variable pins a path, and a path pins no bytes. Libraries that are
preloaded or searched for, NCCL's configuration, topology and plugins, /etc/ld.so.preload. Must not judge what a
library does: that is pinner/probes/libraries.py.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from pinner.host import linker
from pinner.host.digest import DigestMemory, file_digests
from pinner.model.facts import ABSENT, Absent, Unknown

SEARCH = "LD_LIBRARY_PATH"
PRELOADS = ("LD_PRELOAD", "LD_AUDIT")
LINKER_VARIABLES = (SEARCH, *PRELOADS)

# Variables that name a file which is read; not those that NCCL writes (NCCL_DEBUG_FILE, NCCL_*_DUMP_FILE).
NAMES_A_FILE = (
    "NCCL_CONF_FILE",
    "NCCL_TOPO_FILE",
    "NCCL_GRAPH_FILE",
    "NCCL_TUNER_CONFIG_FILE",
    "SGLANG_NCCL_SO_PATH",
    "VLLM_NCCL_SO_PATH",
)
# Variables that name a plugin of NCCL, by a path or by a part of its name, and the name that is taken without one.
PLUGINS = {
    "NCCL_NET_PLUGIN": "libnccl-net",
    "NCCL_TUNER_PLUGIN": "libnccl-tuner",
    "NCCL_PROFILER_PLUGIN": "libnccl-profiler",
    "NCCL_ENV_PLUGIN": "libnccl-env",
    "NCCL_GIN_PLUGIN": "libnccl-gin",
}
# Libraries that decide speed or results.
_FAMILY = (
    r"lib(nccl|cudart|cublas|cudnn|cufft|curand|cusolver|cusparse|nvrtc|nvJitLink|nvshmem|cupti|cufile"
    r"|torch|c10|flashinfer|mscclpp|gomp|iomp5|openblas|mkl_)[^/]*\.so[^/]*"
    r"|(common_ops|sgl_kernel|sglang_kernel|flashinfer|deep_gemm|flash_attn)[^/]*\.so"
)
# The driver's own, which belong to the machine; a container finds them wherever its runtime has put them.
_DRIVER = r"lib(cuda|cudadebugger|nvcuvid|nvoptix|nvidia-[^/]*)\.so[^/]*"
NCCL_CONF = "nccl.conf"
_NONE = frozenset({"", "none", "STATIC_PLUGIN"})


def digests(why: Iterable[str], memory: DigestMemory, *, deep: bool = False) -> dict[str, str | Absent | Unknown]:
    """Path to digest of every file that `leads` has found."""
    paths = list(why)
    found = file_digests([Path(path) for path in paths], memory, deep=deep)
    told: dict[str, str | Absent | Unknown] = {}
    for path, digest in zip(paths, found, strict=True):
        if isinstance(digest, Unknown):
            told[path] = digest if Path(path).exists() else ABSENT
        else:
            told[path] = digest.sha256
    return told


def leads(variables: Mapping[str, str], etc: Path, *, with_nccl: bool) -> dict[str, str]:
    """Path to the reason why the engine reads it, for a person; also of files that are named and missing.

    `with_nccl`: the engine loads NCCL, which reads files of the machine that nobody names. An engine on CPUs does
    not, and what a box has there for others is no business of its lock.
    """
    found: dict[str, str] = {}
    for path, why in _all(variables, etc, with_nccl=with_nccl):
        found.setdefault(path, why)
    return found


def settings(path: Path) -> dict[str, str]:
    """The variables that a configuration file of NCCL sets; of a name that is there twice the first counts."""
    try:
        lines = path.read_text(errors="replace").splitlines()
    except OSError:
        return {}
    found: dict[str, str] = {}
    for line in lines:
        name, equals, value = line.partition("=")
        if equals and name.strip().isidentifier():
            found.setdefault(name.strip(), value.strip())
    return found


def _all(variables: Mapping[str, str], etc: Path, *, with_nccl: bool) -> Iterator[tuple[str, str]]:
    conf = etc / NCCL_CONF if with_nccl else Path("/nonexistent")
    told = dict(variables)
    # NCCL takes what is not set yet from the file that NCCL_CONF_FILE names, then from the machine's.
    for file in (Path(variables.get("NCCL_CONF_FILE") or "/nonexistent"), conf):
        told = {**settings(file), **told}
    if _is_there(conf):
        yield str(conf), "NCCL takes variables from it"
    for name in NAMES_A_FILE:
        if told.get(name):
            yield str(Path("/") / told[name]), f"{name} names it"
    for name in PRELOADS:
        for item in linker.preloads(variables.get(name, "")):
            yield from _library(item, name, variables, etc)
    preload = etc / "ld.so.preload"
    if _is_there(preload):
        yield str(preload), "every program loads what it lists"
        for item in linker.preloads(_without_comments(preload)):
            yield from _library(item, str(preload), variables, etc)
    for directory in linker.search_path(variables.get(SEARCH, "")):
        for path in family_files(directory):
            yield str(path), f"{SEARCH} leads to it"
    yield from _plugins(told, variables, etc, with_nccl=with_nccl)


def is_family(name: str) -> bool:
    """Whether a file is, by its name, one of the libraries that decide speed or results."""
    return re.fullmatch(_FAMILY, name) is not None


def is_driver(name: str) -> bool:
    """Whether a file is, by its name, one of the driver's."""
    return re.fullmatch(_DRIVER, name) is not None


def family_files(directory: Path) -> list[Path]:
    """The libraries of the families in one directory of a search path, also those for newer CPUs."""
    found: list[Path] = []
    for place in linker.candidates(directory):
        try:
            found += sorted(path for path in place.iterdir() if is_family(path.name) and path.is_file())
        except OSError:
            continue
    return found


def _plugins(
    told: Mapping[str, str], variables: Mapping[str, str], etc: Path, *, with_nccl: bool
) -> Iterator[tuple[str, str]]:
    """The plugins that NCCL would find; it looks for some though nobody names them."""
    directories = [*linker.search_path(variables.get(SEARCH, "")), *map(Path, linker.system_directories(etc))]
    for name, stem in PLUGINS.items():
        given = told.get(name)
        if given in _NONE or (given is None and not with_nccl):
            continue
        if given and "/" in given:
            yield str(Path("/") / given), f"{name} names it"
            continue
        files = [f"{stem}.so"] if not given else [given, f"lib{given}.so", f"{stem}-{given}.so"]
        why = f"{name} names it" if given else f"NCCL loads it as {name} where it finds it"
        for file in dict.fromkeys(files):
            place = next((directory / file for directory in directories if (directory / file).is_file()), None)
            if place is not None:
                yield str(place), why


def _library(item: str, name: str, variables: Mapping[str, str], etc: Path) -> Iterator[tuple[str, str]]:
    if "/" in item:
        yield str(Path("/") / item), f"{name} names it"
        return
    directories = [*linker.search_path(variables.get(SEARCH, "")), *map(Path, linker.system_directories(etc))]
    for directory in directories:
        if (directory / item).is_file():
            yield str(directory / item), f"{name} names it as {item}"
            return


def _without_comments(path: Path) -> str:
    try:
        return "\n".join(line.partition("#")[0] for line in path.read_text(errors="replace").splitlines())
    except OSError:
        return ""


def _is_there(path: Path) -> bool:
    """Whether it holds anything; a file that cannot be read counts."""
    try:
        return path.stat().st_size > 0
    except OSError:
        return path.is_symlink()
