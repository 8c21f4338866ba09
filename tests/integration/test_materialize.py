"""Building workspaces: shared, verified, finished or not there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import tiny
from tests.integration.command import Pinner
from tests.integration.index import index, make_wheel


def locked(pinner: Pinner, manifest: Path) -> Path:
    said = pinner("lock", manifest)
    assert said.code == 0, said.err
    return manifest


def workspaces(tmp_path: Path) -> list[Path]:
    return sorted(path.parent for path in (tmp_path / "pinner" / "workspaces").glob("*/seal.json"))


def test_a_workspace_holds_the_commit_and_nothing_of_git(pinner: Pinner, tmp_path: Path) -> None:
    manifest = locked(pinner, tiny.deployment(tmp_path / "d"))
    said = pinner.json("materialize", manifest)
    assert said.code == 0, said.err
    root = Path(said.data["workspace"])
    assert said.data["built"] is True
    assert (root / "tree" / "pocket" / "launch_server.py").read_text() == tiny.SERVER
    assert not (root / "tree" / ".git").exists()
    assert not (root / "tree" / "pocket" / "launch_server.py").stat().st_mode & 0o222
    compiled = list((root / "env").rglob("pocket/__pycache__/*.pyc"))
    assert len(compiled) == 2
    assert str(root).encode() in compiled[0].read_bytes(), "byte code names the place where it runs"
    again = pinner.json("materialize", manifest)
    assert (again.code, again.data["workspace"], again.data["built"]) == (0, str(root), False)
    assert json.loads((root / "seal.json").read_text())["layout"] == 2


def test_manifests_that_agree_share_a_workspace(pinner: Pinner, tmp_path: Path) -> None:
    first = locked(pinner, tiny.deployment(tmp_path / "d"))
    second = first.with_name("second.toml")
    second.write_text(first.read_text().replace('"Simple"', '"LL"').replace("tp-size = 1", "tp-size = 2"))
    locked(pinner, second)
    assert pinner.json("materialize", first).data["built"] is True
    assert pinner.json("materialize", second).data["built"] is False
    assert len(workspaces(tmp_path)) == 1


def test_patches_are_applied_and_pinned(pinner: Pinner, tmp_path: Path) -> None:
    manifest = tiny.deployment(tmp_path / "d")
    engine = manifest.parent / "engine"
    (engine / "pocket" / "__init__.py").write_text("PATCHED = True\n")
    patch = tiny.git(engine, "diff") + "\n"
    tiny.git(engine, "checkout", "--quiet", ".")
    (manifest.parent / "fix.patch").write_text(patch)
    manifest.write_text(
        manifest.read_text().replace('kind = "pocket"', 'kind = "pocket"\npatches = ["fix.patch"]')
    )
    locked(pinner, manifest)
    said = pinner.json("materialize", manifest)
    assert said.code == 0, said.err
    assert (Path(said.data["workspace"]) / "tree/pocket/__init__.py").read_text() == "PATCHED = True\n"
    assert pinner("check", manifest).code == 0
    (manifest.parent / "fix.patch").write_text(patch.replace("True", "False"))
    stale = pinner("check", manifest)
    assert stale.code == 2
    assert "fix.patch has changed" in stale.err


def test_two_at_once_build_it_once(pinner: Pinner, tmp_path: Path) -> None:
    manifest = locked(pinner, tiny.deployment(tmp_path / "d"))
    command = [sys.executable, "-m", "pinner", "materialize", str(manifest), "--output", "json"]
    both = [
        subprocess.Popen(command, env=dict(os.environ), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        for _ in range(2)
    ]
    answers = [json.loads(process.communicate(timeout=60)[0]) for process in both]
    assert [process.returncode for process in both] == [0, 0]
    assert sorted(answer["data"]["built"] for answer in answers) == [False, True]
    assert len(workspaces(tmp_path)) == 1


def test_an_engine_that_cannot_be_built_leaves_nothing(pinner: Pinner, tmp_path: Path) -> None:
    manifest = tiny.deployment(tmp_path / "d")
    broken = tiny.PYPROJECT.replace('module-root = ""', 'module-root = "nowhere"')
    tiny.commit(manifest.parent / "engine", {"pyproject.toml": broken}, "Move the sources")
    manifest.write_text(manifest.read_text().replace('commit = "good"', 'commit = "main"'))
    locked(pinner, manifest)
    said = pinner("materialize", manifest)
    assert said.code == 3
    assert "could not be built" in said.err
    assert workspaces(tmp_path) == []
    left = [path.name for path in (tmp_path / "pinner" / "workspaces").iterdir() if path.is_dir()]
    assert left == []
    assert pinner("check", manifest).code == 3


def test_a_source_without_a_project_says_where_it_looked(pinner: Pinner, tmp_path: Path) -> None:
    manifest = tiny.deployment(tmp_path / "d")
    tiny.git(manifest.parent / "engine", "rm", "--quiet", "pyproject.toml")
    tiny.git(manifest.parent / "engine", "commit", "--quiet", "--message", "Drop the project")
    manifest.write_text(manifest.read_text().replace('commit = "good"', 'commit = "main"'))
    said = pinner("lock", manifest)
    assert said.code == 2
    assert "engine.source.subdirectory: the top of the repository holds no project" in said.err


def test_h13_a_package_edited_in_the_cache_does_not_enter_a_workspace(pinner: Pinner, tmp_path: Path) -> None:
    """A file edited in one workspace is edited in the cache too: they are hard links."""
    wheels = tmp_path / "wheels"
    make_wheel(wheels, "tinylib", "0.1.0", {"tinylib/__init__.py": "VALUE = 1\n"})
    with index(wheels) as (address, _):
        python = f'requirements = ["tinylib"]\nindexes = ["{address}"]'
        first = locked(pinner, tiny.deployment(tmp_path / "d", python=python))
        root = Path(pinner.json("materialize", first).data["workspace"])
        (edited,) = (root / "env").rglob("tinylib/__init__.py")
        mode = edited.stat().st_mode
        edited.chmod(mode | 0o200)
        with edited.open("r+") as stream:
            stream.write("VALUE = 2\n")
        assert pinner("check", first).code == 1
        tiny.commit(first.parent / "engine", {"pocket/extra.py": ""}, "Add a module")
        second = first.with_name("second.toml")
        second.write_text(first.read_text().replace('commit = "good"', 'commit = "main"'))
        locked(pinner, second)
        said = pinner.json("materialize", second)
        assert said.code == 0, said.err
        (fresh,) = (Path(said.data["workspace"]) / "env").rglob("tinylib/__init__.py")
        assert fresh.read_text() == "VALUE = 1\n"


@pytest.mark.parametrize("missing", ["seal.json", "env", "tree"])
def test_a_workspace_that_lost_a_part(pinner: Pinner, tmp_path: Path, missing: str) -> None:
    manifest = locked(pinner, tiny.deployment(tmp_path / "d"))
    root = Path(pinner.json("materialize", manifest).data["workspace"])
    target = root / missing
    subprocess.run(["chmod", "-R", "u+w", str(root)], check=True)
    subprocess.run(["rm", "-rf", str(target)], check=True)
    said = pinner.json("check", manifest)
    assert said.code == (3 if missing == "seal.json" else 1), said.out
    if missing == "seal.json":
        assert pinner.json("materialize", manifest).data["built"] is True
        assert pinner("check", manifest).code == 0


def test_nothing_is_asked_of_the_network_when_it_is_there(pinner: Pinner, tmp_path: Path) -> None:
    wheels = tmp_path / "wheels"
    make_wheel(wheels, "tinylib", "0.1.0", {"tinylib/__init__.py": "VALUE = 1\n"})
    with index(wheels) as (address, asked):
        python = f'requirements = ["tinylib"]\nindexes = ["{address}"]'
        manifest = locked(pinner, tiny.deployment(tmp_path / "d", python=python))
        assert pinner("materialize", manifest).code == 0
        asked.clear()
        assert pinner("materialize", manifest).code == 0
        assert pinner("check", manifest).code == 0
        assert pinner("check", manifest, "--deep").code == 0
        assert asked == []
