"""Libraries: which ones the launched process would load, and which ones the living processes have loaded.

Owns the aspect "libraries". Nothing of it is in the lock: the environment's packages are pinned by content, so
what is expected is the library that they ship. Where variables lead to libraries elsewhere,
probes/libraries_at_rest.py asks the dynamic linker what it would take; probes/libraries_live.py reads processes.
"""

from __future__ import annotations

from pinner.model.facts import Observation, compare_facts
from pinner.model.lock import Lock
from pinner.probes.base import Findings, Judgement, LiveScene, RunningServer, Scene, Wish
from pinner.probes.environment_files import LINKER_VARIABLES

NAME = "libraries"


def pin(_wish: Wish) -> None:
    """Nothing: packages are pinned by content, and what variables lead to by `env.files`."""


def observe(scene: Scene) -> Observation | None:
    """What the linker would load for the environment's libraries, where a variable of the lock can change that.

    None without such a variable: the engine's environment is closed, so that the packages' own paths decide.
    PyTorch opens libtorch_global_deps.so first, and by it all that CUDA needs; where that fails it opens the
    packages' libraries by absolute path, which no variable changes. Which library asks first cannot be told at
    rest, so one that would get a foreign library is a difference; the living process shows what came of it.
    """
    pins = scene.lock.env
    found = Findings()
    for name in LINKER_VARIABLES:
        given = pins.site.get(name) or pins.secret.get(name)
        if given:
            found.notes.append(
                f"{name} is taken from {given} at launch: only a living process shows what it leads to"
            )
    variables = {name: pins.set[name] for name in LINKER_VARIABLES if pins.set.get(name)}
    if variables and scene.workspace is not None:
        from pinner.probes import libraries_at_rest  # noqa: PLC0415  # few deployments set such a variable

        libraries_at_rest.look(scene, scene.workspace, variables, found)
    return found.observation(NAME)


def observe_live(live: LiveScene) -> Observation | None:
    """What each process has mapped."""
    if live.scene.workspace is None:
        return None
    from pinner.probes import libraries_live  # noqa: PLC0415  # a check of what does not run needs none of it

    return libraries_live.look(live, live.scene.workspace).observation(NAME)


def compare(_lock: Lock, observation: Observation) -> Judgement:
    """Pure. What is expected stands in the observation's sealed side."""
    return compare_facts({}, observation)


def capture(_server: RunningServer) -> None:
    """None: `adopt` pins packages by content, and what variables lead to with the environment."""
