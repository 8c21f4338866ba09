"""Imports run downwards only, and every module says what it owns."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import pinner

ROOT = Path(pinner.__file__).parent
# From the top down; modules of one layer may import each other, nothing imports upwards.
LAYERS = [
    ("pinner.__main__",),
    ("pinner.cli", "pinner.cli_explain", "pinner.cli_base"),
    ("pinner.verbs",),
    ("pinner.command",),
    (
        "pinner.render",
        "pinner.render_bench",
        "pinner.render_records",
        "pinner.render_explain",
        "pinner.bug",
        "pinner.deploy",
        "pinner.measure",
        "pinner.explain",
        "pinner.cluster",
    ),
    ("pinner.terminal",),
    ("pinner.probes",),
    ("pinner.engines",),
    ("pinner.host",),
    ("pinner.model",),
    ("pinner.errors",),
]
# These outlive pinner or run without it, so that they may import only the standard library and each other.
STANDALONE = {"pinner.host.supervisor", "pinner.host.kin", "pinner.host.rundir", "pinner.host.nvml"}
MODULES = sorted(path for path in ROOT.rglob("*.py"))


def name_of(path: Path) -> str:
    parts = ("pinner", *path.relative_to(ROOT).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def layer_of(module: str) -> int | None:
    for number, names in enumerate(LAYERS):
        if any(module == name or module.startswith(f"{name}.") for name in names):
            return number
    return None


def imports_of(path: Path) -> list[tuple[int, str]]:
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found += [(node.lineno, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            found += [(node.lineno, f"{node.module}.{alias.name}") for alias in node.names]
    return found


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_imports_run_downwards(path: Path) -> None:
    module = name_of(path)
    own = layer_of(module)
    assert own is not None or module == "pinner", f"{module} belongs to no layer"
    for line, imported in imports_of(path):
        layer = layer_of(imported)
        if layer is not None and own is not None:
            assert layer >= own, f"{path}:{line}: {module} must not import {imported}"
        if imported.startswith("pinner") and module in STANDALONE:
            assert any(imported.startswith(name) for name in STANDALONE), f"{path}:{line}: {imported}"


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_modules_say_what_they_own(path: Path) -> None:
    assert ast.get_docstring(ast.parse(path.read_text())), f"{path} has no docstring"


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_modules_stay_readable(path: Path) -> None:
    text = path.read_text()
    assert text.count("\n") <= 350, f"{path} has outgrown its purpose: split it"
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            assert length <= 60, f"{path}:{node.lineno}: {node.name} has {length} lines"


def test_model_touches_nothing() -> None:
    forbidden = {"os", "pathlib", "time", "socket", "subprocess", "random", "tempfile", "shutil"}
    for path in (ROOT / "model").glob("*.py"):
        for line, imported in imports_of(path):
            assert imported.split(".")[0] not in forbidden, f"{path}:{line}: {imported}"
