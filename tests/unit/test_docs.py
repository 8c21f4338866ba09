"""What the documents say is what the code does."""

from __future__ import annotations

import importlib.util
import json
import re
import tomllib
from pathlib import Path

import jsonschema
import pytest
import typer

from pinner.cli import app
from pinner.deploy.init import init
from pinner.deploy.load import load_manifest
from pinner.errors import ExitCode

ROOT = Path(__file__).parent.parent.parent
DOCUMENTS = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")])


def test_the_published_schemas_are_current() -> None:
    spec = importlib.util.spec_from_file_location("write_schemas", ROOT / "scripts" / "write_schemas.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    for name, schema in module.schemas().items():
        assert (ROOT / "docs" / name).read_text() == module.render(schema), "run scripts/write_schemas.py"


def test_what_init_writes_is_a_valid_manifest(tmp_path: Path) -> None:
    path = init("fresh", tmp_path)
    assert load_manifest(path).manifest.engine.kind == "sglang"
    schema = json.loads((ROOT / "docs" / "manifest.schema.json").read_text())
    jsonschema.validate(tomllib.loads(path.read_text()), schema)


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_links_between_documents_lead_somewhere(path: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+?)(?:#[^)]*)?\)", path.read_text()):
        if "://" not in target:
            assert (path.parent / target).exists(), f"{path.name} links to {target}"


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_manifests_in_documents_are_valid(path: Path, tmp_path: Path) -> None:
    for number, block in enumerate(re.findall(r"```toml\n(.*?)```", path.read_text(), re.DOTALL)):
        if "version = 1" in block and "[engine]" in block:
            manifest = tmp_path / f"block-{number}.toml"
            manifest.write_text(block)
            load_manifest(manifest)


def test_the_readme_lists_every_command_and_exit_code() -> None:
    text = (ROOT / "README.md").read_text()
    for name in typer.main.get_command(app).commands:  # type: ignore[attr-defined]
        assert f"pinner {name}" in text, f"README.md does not mention `pinner {name}`"
    table = (ROOT / "docs" / "exit-codes.md").read_text()
    for code in ExitCode:
        assert f"| {int(code)} |" in table
