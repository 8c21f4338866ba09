"""An engine that is installed in an environment in place, or imported from a checkout that nobody installed."""

from __future__ import annotations

import json
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from tests import tiny
from tests.integration.command import Pinner, differences
from tests.integration.environments import SITE, run_uv

INSTALLED = '{ package = "pocket", version = "0.1" }'


@pytest.fixture
def installed(tmp_path: Path, venv: Path, cache: Path) -> Path:
    """A deployment whose engine is installed as a package."""
    tiny.engine_repository(tmp_path / "engine")
    run_uv(cache, "pip", "install", "-q", "--python", str(venv / "bin/python"), str(tmp_path / "engine"))
    return in_place(tmp_path, INSTALLED)


def in_place(directory: Path, source: str) -> Path:
    """A manifest whose environment is `env` in the directory."""
    manifest = tiny.deployment(directory, source=source)
    manifest.write_text(manifest.read_text().replace('version = "3.11"', 'path = "env"'))
    return manifest


def launched(url: str) -> dict[str, Any]:
    with urllib.request.urlopen(f"{url}/env", timeout=10) as answer:
        found: dict[str, Any] = json.load(answer)
        return found


def test_an_installed_engine_is_pinned_by_content_and_served(pinner: Pinner, installed: Path) -> None:
    said = pinner("lock", installed)
    assert said.code == 0, said.err
    # At rest nothing has to be built before it can be judged.
    assert pinner("check", installed).code == 0
    up = pinner.json("up", installed)
    assert up.code == 0, up.err
    assert launched(up.data["url"])["file"] == str(installed.parent / "env" / SITE / "pocket/launch_server.py")
    assert pinner("check", installed).code == 0
    assert pinner("down", installed).code == 0

    module = installed.parent / "env" / SITE / "pocket/launch_server.py"
    module.write_text(module.read_text() + "# edited\n")
    said = pinner.json("check", installed)
    assert said.code == 1
    assert list(differences(said)) == [f"python.{SITE}/pocket/launch_server.py"]
    assert pinner("up", installed).code == 1


def test_an_editable_install_elsewhere_is_not_the_installed_package(pinner: Pinner, installed: Path) -> None:
    assert pinner("lock", installed).code == 0
    other = installed.parent / "other"
    tiny.engine_repository(other)
    (installed.parent / "env" / SITE / "a.pth").write_text(f"import sys; sys.path.insert(0, {str(other)!r})\n")
    said = pinner.json("check", installed)
    assert said.code == 1
    assert differences(said)["source.imported-from"]["observed"] == str(other / "pocket/__init__.py")


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ('{ package = "pocket", version = "0.2" }', "has pocket 0.1, and the manifest asks for 0.2"),
        ('{ package = "pockets", version = "0.1" }', "pockets is not installed in the environment env"),
    ],
)
def test_what_is_not_installed_is_refused(pinner: Pinner, installed: Path, source: str, words: str) -> None:
    installed.write_text(installed.read_text().replace(INSTALLED, source))
    said = pinner("lock", installed)
    assert said.code == 2
    assert words in said.err


def test_a_checkout_that_nobody_installed(pinner: Pinner, tmp_path: Path, venv: Path) -> None:
    without = in_place(tmp_path, '{ path = "engine", commit = "good" }')
    assert pinner("lock", without).code == 0
    said = pinner.json("check", without)
    assert differences(said)["source.imported-from"]["observed"] is None

    manifest = in_place(tmp_path, '{ path = "engine", commit = "good", import-path = true }')
    assert pinner("lock", manifest).code == 0
    assert pinner("check", manifest).code == 0
    up = pinner.json("up", manifest)
    assert up.code == 0, up.err
    seen = launched(up.data["url"])
    assert seen["file"] == str(tmp_path / "engine/pocket/launch_server.py")
    assert seen["env"]["PYTHONPATH"] == str(tmp_path / "engine")
    assert pinner("check", manifest).code == 0


def test_import_path_goes_with_an_environment_in_place_only(pinner: Pinner, tmp_path: Path) -> None:
    manifest = tiny.deployment(tmp_path, source='{ path = "engine", commit = "good", import-path = true }')
    said = pinner("lock", manifest)
    assert said.code == 2
    assert "engine.source.import-path: goes with `python.path`" in said.err
