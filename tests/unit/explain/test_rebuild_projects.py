"""Projects of the user's own in a record: their source goes in, so that a rebuild needs nothing else."""

from __future__ import annotations

from pathlib import Path

import msgspec

from pinner.deploy.load import Deployment, load_manifest
from pinner.explain.rebuild import LocalPath, local_paths
from pinner.measure.record_pins import deployment_files
from pinner.model.lock import Lock, ProjectPin
from tests import tiny
from tests.unit.test_lockfile import lock as any_lock


def deployed(tmp_path: Path, path: str) -> tuple[Deployment, Lock]:
    manifest = tiny.deployment(tmp_path / "d")
    deployment = load_manifest(manifest)
    deployment.lock_path.write_text("")
    root = deployment.directory / path
    (root / "src").mkdir(parents=True)
    (root / "pyproject.toml").write_text("[project]\n")
    (root / "src/kernel.py").write_text("pass\n")
    made = any_lock()
    pin = ProjectPin(path=path, name="kernel", content="sha256:0")
    return deployment, msgspec.structs.replace(
        made, python=msgspec.structs.replace(made.python, projects=(pin,), pylock=None)
    )


def test_a_project_beside_the_manifest_is_held(tmp_path: Path) -> None:
    deployment, lock = deployed(tmp_path, "own/kernel")
    files = deployment_files(deployment, lock)
    assert {"deployment/own/kernel/pyproject.toml", "deployment/own/kernel/src/kernel.py"} <= files.keys()
    keys = [path.key for path in local_paths(lock, files)]
    assert "python.projects[0]" not in keys


def test_one_that_lies_elsewhere_or_has_programs_is_a_path_of_the_machine(tmp_path: Path) -> None:
    for path, mode in (("../kernel", 0o644), ("kernel", 0o755)):
        deployment, lock = deployed(tmp_path / path.replace("/", "-"), path)
        (deployment.directory / path / "src/kernel.py").chmod(mode)
        files = deployment_files(deployment, lock)
        assert not any("kernel" in name for name in files)
        assert LocalPath("python.projects[0]", path) in list(local_paths(lock, files))
