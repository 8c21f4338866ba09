"""The environment of a running server, as a manifest would say it.

Owns which variables of a process are wishes: those that change what is computed or how fast. Secrets are named,
never shown. What is dropped on purpose is told.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from pinner.engines import engine_for
from pinner.model.manifest import CODE_VARIABLES, GPU_ORDER, RESERVED_VARIABLES, SECRET_VARIABLE, VARIABLE
from pinner.probes.arguments_capture import is_text
from pinner.probes.base import Captured, RunningServer

_SECTION = "env"
# Besides the engine's own families: what loads libraries, steers Python, allocates memory or binds threads.
_FAMILIES = (
    "LD_",
    "GLIBC_",
    "MALLOC_",
    "PYTHON",
    "KMP_",
    "GOMP_",
    "UCX_",
    "HF_",
    "HUGGINGFACE_",
    "TRANSFORMERS_",
    "TOKENIZERS_",
    "SAFETENSORS_",
    "NVIDIA_",
    "VLLM_",
)
# What pinner gives the engine itself: as it is ("" for any value), or with this value only.
_OWN = {
    "PYTHONDONTWRITEBYTECODE": "",
    "PYTHONUNBUFFERED": "",
    "SPT_NOENV": "",
    "HF_HUB_OFFLINE": "",
    "TRANSFORMERS_OFFLINE": "",
    "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
}
# Places of the Hub's files: weights are local paths by the time the engine starts.
_HUB = frozenset({"HF_HOME", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_ENDPOINT", "HF_TOKEN_PATH"})
# What every shell, session or terminal sets.
_COMMON = re.compile(
    r"(_|PWD|OLDPWD|SHLVL|SHELL|TERM|COLORTERM|USER|LOGNAME|HOME|PATH|LANG|LANGUAGE|TZ|MAIL|EDITOR|PAGER|DISPLAY|"
    r"HOSTNAME|HOSTTYPE|TMPDIR|VIRTUAL_ENV.*|LESS.*|LS_COLORS|LC_.*|SSH_.*|XDG_.*|DBUS_.*|TMUX.*|STY|WINDOW|"
    r"PS1|BASH.*|SYSTEMD_.*|INVOCATION_ID|JOURNAL_STREAM|CONDA_.*|UV_.*|PIP_.*|GIT_.*|PINNER_.*|SUDO_.*|DEBIAN_.*)\Z"
)
_CREDENTIALS = re.compile(r"://[^/\s@]+@")
_STANDARD_PATH = ("/usr/local/bin", "/usr/bin", "/bin", "/usr/local/sbin", "/usr/sbin", "/sbin")


def capture(server: RunningServer) -> Captured:
    """`env`, with what of the environment is not carried over."""
    captured = Captured()
    engine = engine_for(server.kind)
    families = (*engine.FAMILIES, *_FAMILIES)
    caches = sorted(name for name in server.env if name in engine.CACHES)
    no_python = any(option in ("-I", "-E") for option in server.entry.options)
    others = []
    for name, value in sorted(server.env.items()):
        if name in caches or name in _HUB or _is_own(name, value):
            continue
        if name in CODE_VARIABLES:
            if not no_python and not _is_covered(server, name, value):
                captured.missed.append(f"{name}={value} is not carried over: it brings in code that nothing pins")
        elif not name.startswith(families):
            others.append(name)
        elif not (name.startswith("PYTHON") and no_python):
            _add(captured, name, value)
    if caches:
        captured.missed.append(f"{_listed(caches)}: caches lie in the workspace, and begin cold")
    _tell_rest(captured, server, others)
    return captured


def _is_own(name: str, value: str) -> bool:
    # The other order of GPUs cannot be asked for, and is told.
    return name in RESERVED_VARIABLES or name == GPU_ORDER or _OWN.get(name) in (value, "")


def _is_covered(server: RunningServer, name: str, value: str) -> bool:
    """Whether a variable only leads to the engine's own source, which has `import-path` instead."""
    package = engine_for(server.kind).PACKAGE
    places = [server.place(entry) for entry in value.split(":") if entry]
    return name == "PYTHONPATH" and all((place / package).is_dir() or not place.exists() for place in places)


def _add(captured: Captured, name: str, value: str) -> None:
    if VARIABLE.match(name) is None:
        captured.missed.append(f"the variable {name!r}: no name that a manifest can hold")
    elif value and (SECRET_VARIABLE.search(name) or _CREDENTIALS.search(value)):
        if name.startswith("PYTHON"):
            captured.missed.append(f"{name}: holds a secret, and steers the interpreter; it is left out")
            return
        captured.add(_SECTION, name, {"secret": name}, "")
    elif not is_text(value):
        captured.missed.append(f"{name}: its value is no text that a manifest can hold; it is left out")
    else:
        captured.add(_SECTION, name, value, "")


def _tell_rest(captured: Captured, server: RunningServer, others: Iterable[str]) -> None:
    hub = sorted(name for name in server.env if name in _HUB)
    if hub:
        captured.missed.append(
            f"{_listed(hub)}: places of the Hub's files, which the shell that runs pinner must name"
        )
    home = server.env.get("HOME", "")
    if home and (own := server.place(home) / ".nccl.conf").is_file():
        captured.missed.append(
            f"NCCL takes variables from {own}, and `up` has a home of its own: put its lines into [env]"
        )
    rest = [name for name in others if _COMMON.match(name) is None]
    if rest:
        captured.missed.append(
            f"not carried over, since they are of no family that is known to matter: {_listed(rest)}; "
            "what the engine needs of them belongs into [env]"
        )
    path = [
        entry
        for entry in server.env.get("PATH", "").split(":")
        if entry and entry not in _STANDARD_PATH and entry != str(server.python.parent)
    ]
    if path:
        captured.missed.append(
            f"PATH: `up` has the environment's bin, {', '.join(_STANDARD_PATH[:3])}, and not {_listed(path)} "
            "(compilers that kernels are built with at run time are searched there)"
        )
    if server.env.get("CUDA_VISIBLE_DEVICES") and server.env.get(GPU_ORDER) != _OWN[GPU_ORDER]:
        captured.missed.append(
            "CUDA_DEVICE_ORDER is not PCI_BUS_ID, so that CUDA_VISIBLE_DEVICES counts the fastest first; `up` "
            "counts by bus id: with GPUs of several kinds these may be others"
        )


def _listed(names: Iterable[str]) -> str:
    return ", ".join(names)
