"""What takes the place of a requirement, what is left out, more files, and projects of one's own."""

from __future__ import annotations

import os
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from pinner.host.project import copy_project, project_digest
from tests import tiny
from tests.integration.command import Pinner
from tests.integration.index import index, make_wheel

PROJECT = """\
[project]
name = "kernel"
version = "9.0"
requires-python = ">=3.11"
dependencies = ["small"]
[build-system]
requires = ["uv_build>=0.13.9,<0.14"]
build-backend = "uv_build"
[tool.uv.build-backend]
module-root = ""
"""


@pytest.fixture
def wheels(tmp_path: Path) -> Path:
    """`big` asks for a `kernel` that nobody can install and for an old `small`."""
    folder = tmp_path / "wheels"
    make_wheel(folder, "big", "1.0", {"big/__init__.py": ""}, ["kernel==1.0", "small==0.1.0"])
    make_wheel(folder, "kernel", "1.0", {"kernel/__init__.py": "WHOSE = 'theirs'\n"}, ["no-such-package"])
    for version in ("0.1.0", "0.2.0"):
        make_wheel(folder, "small", version, {"small/__init__.py": f"VERSION = '{version}'\n"})
    return folder


@pytest.fixture
def address(wheels: Path) -> Iterator[str]:
    with index(wheels) as (url, _):
        yield url


def deployment(tmp_path: Path, address: str, *lines: str) -> Path:
    python = "\n".join(['requirements = ["big"]', f'indexes = ["{address}"]', *lines])
    return tiny.deployment(tmp_path / "d", python=python)


def project(manifest: Path) -> Path:
    root = manifest.parent / "mine"
    (root / "kernel").mkdir(parents=True)
    (root / "pyproject.toml").write_text(PROJECT)
    (root / "kernel" / "__init__.py").write_text("WHOSE = 'mine'\n")
    return root


def packages(manifest: Path) -> dict[str, str]:
    data = tomllib.loads((manifest.parent / f"pylock.{manifest.stem}.toml").read_text())
    return {package["name"]: package["version"] for package in data["packages"]}


def test_overrides_and_excludes(pinner: Pinner, tmp_path: Path, address: str) -> None:
    manifest = deployment(tmp_path, address, 'overrides = ["small==0.2.0"]', 'excludes = ["kernel"]')
    said = pinner("lock", manifest)
    assert said.code == 0, said.err
    assert packages(manifest) == {"big": "1.0", "small": "0.2.0"}
    plain = deployment(tmp_path, address)
    assert pinner("lock", plain).code == 2, "without them it cannot be resolved"


def test_a_project_of_ones_own_takes_the_place_of_a_package(pinner: Pinner, tmp_path: Path, address: str) -> None:
    manifest = deployment(tmp_path, address, 'projects = ["mine"]')
    root = project(manifest)
    said = pinner("lock", manifest)
    assert said.code == 0, said.err
    assert packages(manifest) == {"big": "1.0", "small": "0.1.0"}
    first = manifest.with_suffix(".lock").read_bytes()
    lock = tomllib.loads(first.decode())
    assert lock["python"]["projects"] == [{"path": "mine", "name": "kernel", "content": project_digest(root)}]
    made = pinner.json("materialize", manifest)
    assert made.code == 0, made.err
    python = Path(made.data["workspace"]) / "env/bin/python"
    code = "import kernel, importlib.metadata as m; print(kernel.WHOSE, m.version('kernel'))"
    assert subprocess.check_output([python, "-I", "-c", code], text=True) == "mine 9.0\n"
    assert pinner("check", manifest).code == 0

    # What builds and editors leave behind is no source.
    for leftover in (
        "build/lib/kernel/__init__.py",
        "kernel/__pycache__/x.pyc",
        ".venv/x",
        "kernel.egg-info/PKG-INFO",
    ):
        (root / leftover).parent.mkdir(parents=True, exist_ok=True)
        (root / leftover).write_text("leftover")
    assert pinner("check", manifest).code == 0

    (root / "kernel" / "__init__.py").write_text("WHOSE = 'edited'\n")
    stale = pinner("up", manifest)
    assert stale.code == 2
    assert "the project mine has changed since" in stale.err
    assert pinner("lock", manifest, "--check").code == 1
    assert pinner("lock", manifest).code == 0
    again = pinner.json("materialize", manifest)
    assert again.data["workspace"] != made.data["workspace"], "another project is another workspace"


@pytest.mark.parametrize(
    ("break_it", "words"),
    [
        (lambda root: (root / "pyproject.toml").unlink(), "cannot read"),
        (lambda root: (root / "pyproject.toml").write_text("["), "not valid TOML"),
        (lambda root: (root / "pyproject.toml").write_text("[project]\n"), "names no project"),
        (lambda root: (root / "link").symlink_to("/etc/passwd"), "is a symlink"),
        (lambda root: os.mkfifo(root / "pipe"), "is no regular file"),
    ],
)
def test_what_is_no_project_is_refused(
    pinner: Pinner, tmp_path: Path, address: str, break_it: object, words: str
) -> None:
    manifest = deployment(tmp_path, address, 'projects = ["mine"]')
    break_it(project(manifest))  # type: ignore[operator]
    said = pinner("lock", manifest)
    assert said.code == 2
    assert "python.projects[0]: " in said.err
    assert words in said.err


def test_a_project_that_cannot_be_built_says_so(pinner: Pinner, tmp_path: Path, address: str) -> None:
    manifest = deployment(tmp_path, address, 'projects = ["mine"]')
    root = project(manifest)
    (root / "kernel" / "__init__.py").unlink()
    assert pinner("lock", manifest).code == 0
    said = pinner("materialize", manifest)
    assert said.code == 3
    assert "mine could not be built" in said.err
    assert not list((tmp_path / "pinner" / "workspaces").glob("*/seal.json"))


def test_links_of_the_manifest_and_of_the_site(
    pinner: Pinner, tmp_path: Path, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder beside the manifest serves what the index lacks; the site's folders take its place."""
    manifest = deployment(
        tmp_path, address, 'find-links = ["more"]', 'excludes = ["kernel"]', 'overrides = ["small==0.3.0"]'
    )
    other, empty = tmp_path / "site", tmp_path / "empty"
    empty.mkdir()
    for folder in (manifest.parent / "more", other):
        make_wheel(folder, "small", "0.3.0", {"small/__init__.py": "VERSION = '0.3.0'\n"})
    said = pinner("lock", manifest)
    assert said.code == 0, said.err
    pylock = manifest.parent / "pylock.tiny.toml"
    assert str(tmp_path) not in pylock.read_text(), "no path of this machine"
    assert packages(manifest)["small"] == "0.3.0"
    assert pinner("materialize", manifest).code == 0
    first = pylock.read_bytes()

    (manifest.parent / "more" / "small-0.3.0-py3-none-any.whl").unlink()
    assert pinner("lock", manifest, "--upgrade").code == 2
    monkeypatch.setenv("PINNER_FIND_LINKS", f"{empty} {other}")
    assert pinner("lock", manifest, "--upgrade").code == 0
    assert pylock.read_bytes() == first
    monkeypatch.setenv("PINNER_HOME", str(tmp_path / "another"))
    said = pinner("materialize", manifest)
    assert said.code == 0, said.err


def test_locking_again_gives_the_same_bytes_where_newer_pythons_get_other_versions(
    pinner: Pinner, tmp_path: Path, wheels: Path, address: str
) -> None:
    make_wheel(wheels, "apart", "1.0", {"apart/__init__.py": ""}, ["small==0.1.0 ; python_version < '3.12'"])
    manifest = deployment(tmp_path, address, 'excludes = ["kernel"]')
    manifest.write_text(manifest.read_text().replace('["big"]', '["apart", "small; python_version >= \'3.12\'"]'))
    assert pinner("lock", manifest).code == 0
    assert packages(manifest) == {"apart": "1.0", "small": "0.1.0"}
    first = (manifest.parent / "pylock.tiny.toml").read_bytes()
    manifest.with_suffix(".lock").unlink()
    assert pinner("lock", manifest).code == 0
    assert (manifest.parent / "pylock.tiny.toml").read_bytes() == first


def test_a_copy_holds_the_source_and_nothing_else(tmp_path: Path) -> None:
    root = tmp_path / "mine"
    (root / "kernel").mkdir(parents=True)
    (root / "kernel" / "__init__.py").write_text("")
    (root / "tool").write_text("#!/bin/sh\n")
    (root / "dist").mkdir()
    (root / "dist" / "old.whl").write_text("")
    digest = project_digest(root)
    (root / "tool").chmod(0o755)
    assert project_digest(root) != digest, "the executable bit counts"
    assert copy_project(root, tmp_path / "copy") == project_digest(root)
    assert sorted(path.name for path in (tmp_path / "copy").iterdir()) == ["kernel", "tool"]
