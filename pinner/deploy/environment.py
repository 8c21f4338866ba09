"""How the engine is started: its environment, built from nothing, and its argument list.

Owns the variables that pinner adds on purpose. Must not start anything.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from pinner.errors import OperationFailed
from pinner.host.home import Home
from pinner.model.lock import DRAFT_PLACEHOLDER, MODEL_PLACEHOLDER, EnvironmentPin, Lock
from pinner.probes.base import Workspace
from pinner.probes.target import weights_directory

# Variables of the caller that people expect to reach the engine, and that never do.
NEVER_PASSED = ("PYTHONPATH", "LD_PRELOAD", "LD_LIBRARY_PATH", "PYTHONHOME", "PYTHONSTARTUP")

_NONE: Mapping[str, str] = MappingProxyType({})


def fixed_variables(workspace: Workspace, *, in_place: bool, caches: Mapping[str, str] = _NONE) -> dict[str, str]:
    """What every engine gets besides the lock's variables; `caches` are those that place its caches.

    `in_place`: some of its code lies in a checkout or environment that is not pinner's, so byte code is kept in
    the workspace and never read from, or written to, the directories of the user.
    """
    home = workspace.root / "home"
    env = {
        "PATH": f"{workspace.python.parent}:/usr/local/bin:/usr/bin:/bin",
        "HOME": str(home),
        "USER": "pinner",
        "LOGNAME": "pinner",
        "LANG": "C.UTF-8",
        # `python -m` puts the working directory first on the import path; this stops it.
        "PYTHONSAFEPATH": "1",
        "PYTHONNOUSERSITE": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONUNBUFFERED": "1",
        # Without it setproctitle blanks /proc/PID/environ of the workers, and nobody can check them.
        "SPT_NOENV": "1",
        # Weights are local paths: no loader may ask the Hub, nor drift to another revision.
        "HF_HUB_OFFLINE": "1",
        # NVML's order, so that indexes mean the same card to the engine and to pinner.
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
    }
    if workspace.import_path is not None:
        env["PYTHONPATH"] = str(workspace.import_path)
    if in_place:
        env["PYTHONPYCACHEPREFIX"] = str(workspace.root / "bytecode")
    return {**env, **caches}


def launch_environment(
    workspace: Workspace,
    pin: EnvironmentPin,
    caller: Mapping[str, str],
    *,
    in_place: bool,
    caches: Mapping[str, str] = _NONE,
) -> dict[str, str]:
    """The exact environment of the engine's main process. A variable of the lock goes before one of pinner's.

    Raises OperationFailed naming every variable that the lock takes from the caller and the caller lacks.
    """
    missing = [
        f"{given} (for {name})" for name, given in {**pin.secret, **pin.site}.items() if given not in caller
    ]
    if missing:
        raise OperationFailed(
            f"the lock takes these variables from your environment, where they are not set: {', '.join(missing)}",
            hint="set them in the shell that runs pinner; their values are passed on and never stored",
        )
    passed = {name: caller[given] for name, given in {**pin.secret, **pin.site}.items()}
    return {**fixed_variables(workspace, in_place=in_place, caches=caches), **pin.set, **passed}


def not_passed_on(families: tuple[str, ...], pin: EnvironmentPin, caller: Mapping[str, str]) -> list[str]:
    """Names of the caller's variables that would change the engine if they reached it; they do not."""
    listed = (
        pin.set.keys() | pin.secret.keys() | pin.site.keys() | set(pin.secret.values()) | set(pin.site.values())
    )
    return sorted(
        name for name in caller if (name.startswith(families) or name in NEVER_PASSED) and name not in listed
    )


def without_secrets(text: str, pin: EnvironmentPin, env: Mapping[str, str]) -> str:
    """Text without the values that the engine's environment has for what the lock names as secret."""
    for name in pin.secret:
        if env.get(name):
            text = text.replace(env[name], "(hidden)")
    return text


def working_directory() -> Path:
    """Where every engine starts: a place with nothing in it that could be imported or read by accident."""
    return Path("/")


def argv_here(lock: Lock, workspace: Workspace, directory: Path, home: Home) -> tuple[str, ...]:
    """The interpreter and the locked argument list with the paths of this machine."""
    places = {MODEL_PLACEHOLDER: str(weights_directory(directory, home, lock.model).resolve())}
    if lock.draft is not None:
        places[DRAFT_PLACEHOLDER] = str(weights_directory(directory, home, lock.draft).resolve())
    return (str(workspace.python), *(places.get(argument, argument) for argument in lock.engine.argv))
