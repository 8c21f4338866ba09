"""Asking an engine, before any launch, whether it takes the arguments that the lock pins.

Owns running the question of engines/argument_question.py and remembering its answer beside the workspace's marker.
Must not ask an environment that has not been verified: answering runs its code.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

import msgspec

from pinner.deploy.check import BUILT_ASPECTS, look, scene_for
from pinner.deploy.environment import argv_here, fixed_variables, working_directory
from pinner.deploy.load import Deployment
from pinner.deploy.tomlfile import data_digest
from pinner.deploy.workspace import is_in_place
from pinner.engines import engine_for
from pinner.engines.argument_question import Answer, UnknownFlag
from pinner.errors import CommandFailed, ManifestError, OperationFailed
from pinner.host import process
from pinner.host.files import write_atomic
from pinner.host.home import Home
from pinner.model.lock import Lock
from pinner.model.manifest import OWNED_ARGS
from pinner.probes import PROBES
from pinner.probes.base import Workspace

Say = Callable[[str], None]

# Importing torch from a cold disk takes its time.
_TIMEOUT_S = 600.0
_LAST_LINES = 8
_NO_ANSWER = "the engine does not say whether it takes its arguments"
# Without the driver no engine for GPUs can be imported, and there its arguments may still be right.
_DRIVER_LIBRARIES = ("libcuda.so", "libnvidia-ml.so")


class _Question(msgspec.Struct, frozen=True):
    """All that decides the answer, but for the workspace's own bytes. No value that is passed through is in it."""

    program: str
    argv: tuple[str, ...]
    env: dict[str, str]
    variables: tuple[str, ...]


def ensure_arguments(
    deployment: Deployment, lock: Lock, workspace: Workspace, home: Home, *, is_verified: bool, say: Say
) -> None:
    """Ask once for each argument list. Raises ManifestError for one that the engine does not take.

    `is_verified`: this call has just looked at every byte of it. What cannot be asked is told and not remembered.
    """
    question = _question(lock, workspace, deployment.directory, home)
    digest = data_digest(msgspec.to_builtins(question)).removeprefix("sha256:")
    remembered = workspace.root / f"arguments-{digest[:24]}.json"
    if remembered.exists():
        return
    if not is_verified and not _is_as_locked(deployment, lock, home):
        say("the engine was not asked for its arguments: what would answer is not what the lock says")
        return
    say("asking the engine whether it takes its arguments")
    answer = _ask(question, workspace)
    untold = _refusal(answer, deployment)
    if untold is not None:
        say(f"the engine was not asked for its arguments: {untold}")
    if answer.import_error:
        # It may be told later: a driver can be installed.
        return
    for flag, about in answer.deprecated.items():
        say(f"engine.args.{flag.removeprefix('--')}: {about}")
    if answer.variables:
        say(f"nothing in this engine reads {', '.join(answer.variables)}")
    write_atomic(remembered, msgspec.json.encode(answer))


def _question(lock: Lock, workspace: Workspace, directory: Path, home: Home) -> _Question:
    # The interpreter, `-m` and the module come before the flags.
    argv = argv_here(lock, workspace, directory, home)[3:]
    env = {**fixed_variables(workspace, in_place=is_in_place(lock)), **lock.env.set, "CUDA_VISIBLE_DEVICES": ""}
    program = engine_for(lock.engine.kind).ARGUMENT_QUESTION
    return _Question(program, argv, env, tuple(sorted(lock.env.set)))


def _is_as_locked(deployment: Deployment, lock: Lock, home: Home) -> bool:
    return look(scene_for(deployment, lock, home), {name: PROBES[name] for name in BUILT_ASPECTS}).is_clean


def _ask(question: _Question, workspace: Workspace) -> Answer:
    """Run the question as the engine will be started, but without GPUs and with a home that is thrown away."""
    given = msgspec.json.encode({"argv": question.argv, "variables": question.variables})
    with tempfile.TemporaryDirectory(prefix="pinner-ask-") as scratch:
        env = {**question.env, "HOME": scratch, "TMPDIR": scratch}
        argv = (str(workspace.python), "-c", question.program)
        try:
            done = process.run(
                argv, env=env, cwd=working_directory(), input=given, timeout_s=_TIMEOUT_S, check=False
            )
        except CommandFailed as error:
            raise OperationFailed(f"{_NO_ANSWER}: {error.stderr}") from None
    said = process.redact(done.stderr.decode(errors="replace").strip(), env)
    last = "\n".join(f"  | {line}" for line in said.splitlines()[-_LAST_LINES:])
    try:
        answer = msgspec.json.decode(done.stdout, type=Answer)
    except msgspec.MsgspecError:
        raise OperationFailed(f"{_NO_ANSWER} (exit code {done.code}); its last lines:\n{last}") from None
    if answer.import_error and not any(library in answer.import_error for library in _DRIVER_LIBRARIES):
        raise OperationFailed(
            f"the engine cannot be imported: {answer.import_error}{f'{chr(10)}{last}' if last else ''}",
            hint="python.requirements and python.extras say what is installed with it",
        )
    return answer


def _refusal(answer: Answer, deployment: Deployment) -> str | None:
    """Why no verdict can be had, for a person. Raises ManifestError where the verdict is no."""
    if answer.import_error or answer.no_parser:
        return answer.import_error or answer.no_parser
    wrong = [*map(_unknown, answer.unknown), *(f"the engine says: {problem}" for problem in answer.problems)]
    if not wrong:
        return None
    whose = f" {answer.version}" if answer.version else ""
    lines = "\n  ".join(wrong)
    raise ManifestError(
        f"{deployment.path}: the engine{whose} does not take these arguments:\n  {lines}",
        hint=f"mend [engine.args], then `pinner lock {deployment.shown}`",
    )


def _unknown(unknown: UnknownFlag) -> str:
    name = unknown.flag.removeprefix("--")
    if len(unknown.begins) == 1:
        full = unknown.begins[0].removeprefix("--")
        return f"engine.args.{name}: is only the beginning of {OWNED_ARGS.get(full, full)}; write it in full"
    if unknown.begins:
        return f"engine.args.{name}: is the beginning of several flags: {_listed(unknown.begins)}"
    near = f"; did you mean {_listed(unknown.near)}?" if unknown.near else ""
    return f"engine.args.{name}: this engine has no such flag{near}"


def _listed(flags: tuple[str, ...]) -> str:
    return ", ".join(flag.removeprefix("--") for flag in flags)
