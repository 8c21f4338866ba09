"""From lock to workspace: the engine's tree, the Python environment, compiled byte code.

Owns the order of building: beside, verified, renamed, marker last. A kill at any point leaves nothing that a
later call takes for finished. Must not resolve anything: every byte is pinned by the lock.
"""

from __future__ import annotations

import os
import shutil
import stat
import tomllib
from collections.abc import Callable
from pathlib import Path

import msgspec

from pinner.deploy.arguments import ensure_arguments
from pinner.deploy.check import BUILT_ASPECTS, built_part, check, look, scene_for, with_workspace
from pinner.deploy.load import Deployment
from pinner.deploy.resolve_python import uv_for
from pinner.deploy.running import all_runs, run_directory
from pinner.deploy.tomlfile import bytes_digest
from pinner.deploy.views import Views, make_views
from pinner.deploy.workspace import LAYOUT, Seal, find_workspace, inputs, is_in_place, read_seal, workspace_paths
from pinner.errors import Busy, CommandFailed, LockError, OperationFailed
from pinner.host import bytecode, runs
from pinner.host.digest import DigestMemory
from pinner.host.files import exclusive, make_read_only, read_bytes, remove_tree, write_atomic
from pinner.host.home import Home
from pinner.host.interpreter import Question
from pinner.host.project import copy_project
from pinner.host.uv import Uv, site_index
from pinner.model import pylock as pylock_format
from pinner.model.facts import Drift, Unknown
from pinner.model.lock import Lock, ProjectPin
from pinner.probes import PROBES, python_env, source
from pinner.probes.base import Workspace

Say = Callable[[str], None]


class Materialized(msgspec.Struct, frozen=True):
    """A finished workspace; `built` if it was not there.

    `drift` is the check that this call made after building, None where it did not see all that is there now.
    """

    workspace: Workspace
    built: bool
    drift: Drift | None
    views: Views = Views({}, ())


def materialize(
    deployment: Deployment, lock: Lock, home: Home, *, rebuild: bool = False, say: Say = lambda _line: None
) -> Materialized:
    """Build the workspace of a lock, or find it, have its engine accept the arguments, and fetch its models.

    `rebuild` makes it anew, whatever is there. Raises OperationFailed, Busy if a server runs from it, and
    ManifestError where the engine does not take its arguments; the workspace is kept then.
    """
    result = _find_or_build(deployment, lock, home, rebuild, say)
    seen = result.drift
    is_verified = seen is not None and not any(
        item.aspect in BUILT_ASPECTS for item in (*seen.differences, *seen.unknown)
    )
    ensure_arguments(deployment, lock, result.workspace, home, is_verified=is_verified, say=say)
    # The models last: what is wrong with the rest is told before hours of download.
    views = make_views(lock, home, DigestMemory(home.digests), rebuild=rebuild, say=say)
    return Materialized(result.workspace, result.built, None if views.made else result.drift, views)


def _find_or_build(deployment: Deployment, lock: Lock, home: Home, rebuild: bool, say: Say) -> Materialized:
    """Two callers at once build it once."""
    found = None if rebuild else find_workspace(lock, deployment.directory, home)
    if found is not None:
        return Materialized(found, built=False, drift=None)
    workspace = workspace_paths(lock, deployment.directory, home)
    guard = home.workspaces / f".{workspace.root.name}.lock"
    waiting = "building the same workspace"
    with exclusive(guard, what=waiting, on_wait=lambda: say(f"waiting for another pinner that is {waiting}")):
        if not rebuild and read_seal(workspace) is not None:
            return Materialized(workspace, built=False, drift=None)
        _refuse_in_use(workspace, home)
        try:
            drift = _build_anew_if_damaged(deployment, lock, home, workspace, say)
        except OSError as error:
            raise OperationFailed(f"cannot build {workspace.root}: {error.strerror} ({error.filename})") from None
    return Materialized(workspace, built=True, drift=drift)


def _build_anew_if_damaged(
    deployment: Deployment, lock: Lock, home: Home, workspace: Workspace, say: Say
) -> Drift:
    try:
        return _build(deployment, lock, home, workspace, say)
    except python_env.Damaged:
        # A file of uv's cache has been edited through a hard link: fetch the packages anew, once.
        say("a cached package is damaged; fetching it again")
        Uv(home).forget_cache()
        return _build(deployment, lock, home, workspace, say)


def verified(deployment: Deployment, lock: Lock, home: Home) -> Drift:
    """What differs, or cannot be told, in a workspace that was there; by the probes of `check`."""
    scene = scene_for(deployment, lock, home)
    # Not the weights: nobody waits for them to be read who only wants to know what was built.
    return built_part(lock, look(scene, {name: PROBES[name] for name in BUILT_ASPECTS}))


def _refuse_in_use(workspace: Workspace, home: Home) -> None:
    for run in all_runs(home):
        if run.workspace == str(workspace.root) and runs.is_alive(run_directory(home, run.run)):
            raise Busy(f"{run.run} runs from {workspace.root}", hint=f"`pinner down {run.run}` first")


def _build(deployment: Deployment, lock: Lock, home: Home, workspace: Workspace, say: Say) -> Drift:
    stage = workspace_paths(
        lock, deployment.directory, home, root=home.workspaces / f".stage-{workspace.root.name}"
    )
    # What an earlier call left behind when it was killed: nothing in it can be trusted.
    remove_tree(stage.root)
    remove_tree(workspace.root)
    try:
        stage.root.mkdir(parents=True)
        (stage.root / "home").mkdir(mode=0o700)
        if stage.tree is not None:
            say(f"checking out {(lock.engine.source.commit or '')[:12]}")
            patches = [deployment.directory / patch.file for patch in lock.engine.patches]
            source.export(lock.engine.source, patches, home, stage.tree, directory=deployment.directory, say=say)
            make_read_only(stage.tree)
        full_version = lock.python.patch_level
        if lock.python.path is None:
            full_version = _build_environment(deployment, lock, home, stage, say)
        stage.root.rename(workspace.root)
        say("compiling byte code")
        _compile(lock, workspace)
        return _seal(deployment, lock, home, workspace, full_version)
    except BaseException:
        # An interrupt leaves nothing half built either; a kill is what the marker is for.
        remove_tree(stage.root)
        if read_seal(workspace) is None:
            remove_tree(workspace.root)
        raise


def _build_environment(deployment: Deployment, lock: Lock, home: Home, stage: Workspace, say: Say) -> str:
    """Install what the pylock names, then the engine; returns the interpreter's full version."""
    python = lock.python
    text = read_bytes(deployment.pylock_path, what="pylock")
    if bytes_digest(text) != python.pylock:
        # Relocked while this call waited for another one: the workspace would not hold what its name says.
        raise LockError(f"{deployment.pylock_path} has changed since the lock was read", hint="run it again")
    uv = uv_for(deployment, home)
    interpreter, full_version = uv.find_python(python.version)
    if full_version != python.patch_level:
        say(f"the lock was made with Python {python.patch_level}; here it is {full_version}")
    data = tomllib.loads(text.decode())
    requirements = stage.root / "pylock.toml"
    if site_index(home).is_set or pylock_format.needs_site(data):
        requirements = stage.root / "requirements.txt"
        text = pylock_format.hashed_requirements(data).encode()
    requirements.write_bytes(text)
    say(f"installing {len(data.get('packages', []))} packages for Python {full_version}")
    uv.create_environment(stage.env, python=str(interpreter))
    uv.sync(stage.env, requirements, exclude_newer=python.exclude_newer)
    _install_engine(lock, uv, interpreter, stage, say)
    for project in python.projects:
        _install_project(deployment, project, uv, (interpreter, python.exclude_newer), stage, say)
    return full_version


def _install_engine(lock: Lock, uv: Uv, interpreter: Path, stage: Workspace, say: Say) -> None:
    """Build and add the engine of a git source; make a checkout in place importable by a path entry.

    It is built by the interpreter that the environment was made with: nothing of the environment has been verified
    yet, so nothing of it may run.
    """
    pin = lock.engine.source
    if stage.checkout is not None:
        entry = stage.checkout / pin.subdirectory
        (python_env.site_packages(stage.env) / "pinner-engine.pth").write_text(f"{entry}\n")
    if stage.tree is None:
        return
    project = stage.tree / pin.subdirectory
    if not (project / "pyproject.toml").is_file() and not (project / "setup.py").is_file():
        where = pin.subdirectory or "its root"
        raise OperationFailed(
            f"the engine at {(pin.commit or '')[:12]} cannot be installed: no pyproject.toml in {where}",
            hint="engine.source.subdirectory names the directory of the project",
        )
    say("building the engine")
    # Build backends write into the source tree, which must stay as it was checked out.
    copy = stage.root / "build"
    wheels = stage.root / "wheels"
    shutil.copytree(stage.tree, copy, symlinks=True)
    _make_writable(copy)
    wheels.mkdir()
    try:
        wheel = uv.build_wheel(
            copy / pin.subdirectory,
            wheels,
            python=str(interpreter),
            exclude_newer=lock.python.exclude_newer,
            version=f"0+g{(pin.commit or '')[:12]}",
        )
        uv.install_wheel(stage.env, wheel)
    except CommandFailed as error:
        raise OperationFailed(f"the engine could not be built:\n{error.stderr.strip()}") from None
    remove_tree(copy)
    remove_tree(wheels)


def _install_project(
    deployment: Deployment,
    project: ProjectPin,
    uv: Uv,
    how: tuple[Path, str | None],
    stage: Workspace,
    say: Say,
) -> None:
    """Build and add a project of the user's own, from a copy that holds exactly what the lock pins."""
    say(f"building {project.path}")
    copy, wheels = stage.root / "build", stage.root / "wheels"
    if copy_project(deployment.directory / project.path, copy) != project.content:
        raise LockError(f"{project.path} has changed since the lock was read", hint="run it again")
    wheels.mkdir()
    interpreter, exclude_newer = how
    version = f"0+d{project.content.removeprefix('sha256:')[:12]}"
    try:
        wheel = uv.build_wheel(copy, wheels, python=str(interpreter), exclude_newer=exclude_newer, version=version)
        uv.install_wheel(stage.env, wheel)
    except CommandFailed as error:
        raise OperationFailed(f"{project.path} could not be built:\n{error.stderr.strip()}") from None
    remove_tree(copy)
    remove_tree(wheels)


def _make_writable(root: Path) -> None:
    """Give the owner write permission everywhere: a backend may rewrite a file that the repository holds."""
    for directory, _, names in os.walk(root):
        Path(directory).chmod(0o755)
        for name in names:
            path = Path(directory, name)
            if not path.is_symlink():
                path.chmod(path.stat().st_mode | stat.S_IWUSR)


def _compile(lock: Lock, workspace: Workspace) -> None:
    """Compile everything the engine can import, so that nothing is ever compiled at run time.

    In the workspace's own environment the byte code is not checked again by the interpreter (pinner does), next to
    code in place its source is.
    """
    if not is_in_place(lock):
        bytecode.compile_trees(workspace.python, [workspace.env / "lib"], checked=False)
        return
    targets = _site_packages(lock, workspace)
    if workspace.checkout is not None:
        targets.append(workspace.checkout / lock.engine.source.subdirectory)
    bytecode.compile_trees(workspace.python, targets, checked=True, prefix=workspace.root / "bytecode")


def _site_packages(lock: Lock, workspace: Workspace) -> list[Path]:
    """Where packages are installed; only its interpreter knows that of an environment in place."""
    if lock.python.path is None:
        return [python_env.site_packages(workspace.env)]
    answer = Question(workspace.python, workspace.env).answer()
    if isinstance(answer, Unknown):
        raise OperationFailed(f"the environment {workspace.env} cannot be asked: {answer.reason}")
    return [Path(place) for place in answer.places]


def _seal(deployment: Deployment, lock: Lock, home: Home, workspace: Workspace, full_version: str) -> Drift:
    """Take the digests of what was built, look at it with the probes of `check`, and put the marker last."""
    scene = scene_for(deployment, lock, home)
    env = python_env.seal(workspace.env, scene.memory) if lock.python.path is None else None
    bytecode = workspace.root / "bytecode"
    base = None
    if lock.python.path is None:
        base = python_env.seal_base(workspace, scene.memory, byte_code=not is_in_place(lock))
    seal = Seal(
        layout=LAYOUT,
        inputs=inputs(lock, deployment.directory),
        python=full_version,
        env=env,
        base=base,
        bytecode=python_env.seal(bytecode, scene.memory) if bytecode.is_dir() else None,
    )
    text = msgspec.json.format(msgspec.json.encode(seal, order="deterministic"))
    pending = workspace.root / "seal.pending"
    write_atomic(pending, text)
    looked_at = with_workspace(scene, msgspec.structs.replace(workspace, seal=pending))
    drift = check(looked_at)
    built = built_part(lock, drift)
    wrong = (*built.differences, *built.unknown)
    if wrong:
        lines = "\n  ".join(f"{item.name}: pinned {item.pinned}, built {item.observed}" for item in wrong[:20])
        raise OperationFailed(f"what was built is not what the lock says:\n  {lines}")
    pending.rename(workspace.seal)
    return drift
