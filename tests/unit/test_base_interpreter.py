"""The interpreter beneath an environment: which of its files count, and how a difference is told."""

from __future__ import annotations

import py_compile
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from pinner.host import hashing
from pinner.host.digest import DigestMemory
from pinner.host.interpreter import Interpreter
from pinner.model.facts import ABSENT, Unknown
from pinner.probes import base_interpreter
from pinner.probes.base import Findings
from pinner.probes.base_interpreter import Base

LIB = "lib/python3.11"
TAG = sys.implementation.cache_tag or ""


@pytest.fixture(autouse=True)
def _short_racy_window(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hashing, "SAFE_AGE_NS", 20_000_000)


class Installation:
    """A small installation whose `python` is the one that runs the tests."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.memory = DigestMemory(root / "digests.sqlite")
        self.base = root / "base"
        self.lib = self.base / LIB
        self.lib.mkdir(parents=True)
        (self.base / "bin").mkdir()
        executable = self.base / "bin/python3.11"
        executable.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
        executable.chmod(0o755)
        (self.base / "lib/libpython3.11.so").write_text("library")
        (root / "etc").mkdir()
        (root / "etc/sitecustomize.py").write_text("")
        for name in ("os.py", "json/__init__.py", "site-packages/pip.py", "test/support.py"):
            (self.lib / name).parent.mkdir(exist_ok=True)
            (self.lib / name).write_text("x = 1\n")
        (self.lib / "sitecustomize.py").symlink_to(root / "etc/sitecustomize.py")
        self.answer = Interpreter(
            version="3.11.7",
            prefix=str(root / "env"),
            places=(),
            executable=str(executable),
            base=str(self.base),
            path=(str(self.base / "lib/python311.zip"), str(self.lib), str(self.lib / "lib-dynload")),
            libraries=(str(self.base / "lib/libpython3.11.so"),),
            tag=TAG,
        )
        self.byte_code = True
        self.sealed: Mapping[str, str] | None = None
        self.seal()

    def look(self, *, deep: bool = False) -> Base:
        return Base(self.answer, self.memory, byte_code=self.byte_code, deep=deep)

    def seal(self) -> None:
        base = self.look()
        self.digest = str(base.gathered.digest)
        self.sealed = dict(base.gathered.entries)

    def drift(self, *, deep: bool = False) -> Findings:
        found = Findings()
        self.look(deep=deep).judge(self.digest, lambda: self.sealed, found, since="when it was built")
        return found

    def compile(self, name: str) -> Path:
        source = self.lib / name
        return Path(py_compile.compile(str(source), doraise=True))


@pytest.fixture
def there(tmp_path: Path) -> Installation:
    return Installation(tmp_path)


def differing(found: Findings) -> list[str]:
    return sorted(key for key in found.sealed if found.sealed[key] != found.facts[key])


def test_what_counts(there: Installation) -> None:
    assert there.sealed is not None
    assert sorted(there.sealed) == [
        "bin/python3.11",
        "lib/libpython3.11.so",
        f"{LIB}/json/__init__.py",
        f"{LIB}/os.py",
        f"{LIB}/sitecustomize.py",
    ]
    assert differing(there.drift()) == []
    (there.lib / "site-packages/pip.py").write_text("other")
    (there.lib / "test/support.py").write_text("other")
    for deep in (False, True):
        assert differing(there.drift(deep=deep)) == []
    assert there.drift(deep=True).how == ["5 files of the interpreter, every byte read"]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("bin/python3.11", "changed: the interpreter itself"),
        ("lib/libpython3.11.so", "changed: the interpreter's own library"),
        (f"{LIB}/json/__init__.py", "changed: standard library"),
        (f"{LIB}/usercustomize.py", "added: runs at every start of the interpreter"),
        (f"{LIB}/extra.so", "added: standard library"),
        ("lib/python311.zip", "added: the first place"),
    ],
)
def test_a_file_that_differs_is_named(there: Installation, name: str, said: str) -> None:
    place = there.base / name
    before = place.read_text() if place.exists() else ""
    place.write_text(before + "x")
    found = there.drift()
    assert differing(found) == [f"base/{name}"]
    assert found.notes_by_key[f"base/{name}"].startswith(f"{name}: {said}")
    assert found.evidence[f"base/{name}"][0].startswith("last changed ")


def test_a_link_counts_by_what_is_read_through_it(there: Installation) -> None:
    """Debian's sitecustomize lies in /etc."""
    (there.root / "etc/sitecustomize.py").write_text("import os\n")
    assert differing(there.drift()) == [f"base/{LIB}/sitecustomize.py"]
    (there.root / "etc/sitecustomize.py").unlink()
    assert differing(there.drift()) == [f"base/{LIB}/sitecustomize.py"]


def test_a_removed_file(there: Installation) -> None:
    (there.lib / "os.py").unlink()
    found = there.drift()
    assert found.facts[f"base/{LIB}/os.py"] == ABSENT
    assert f"{LIB}/os.py: removed" in found.notes_by_key[f"base/{LIB}/os.py"]


def test_byte_code_that_another_program_writes_is_no_drift(there: Installation) -> None:
    there.compile("os.py")
    for _ in range(2):
        assert differing(there.drift()) == []
    there.seal()
    (there.lib / "__pycache__" / f"os.{TAG}.pyc").unlink()
    assert differing(there.drift()) == []


def test_byte_code_that_its_source_does_not_give_is_drift(there: Installation) -> None:
    source = there.lib / "os.py"
    compiled = there.compile("os.py")
    there.seal()
    source.write_text("x = 2\n")
    there.compile("os.py")
    source.write_text("x = 1\n")
    found = there.drift()
    assert differing(found) == [f"base/{LIB}/__pycache__/{compiled.name}"]
    assert "is not what its source gives" in found.notes_by_key[f"base/{LIB}/__pycache__/{compiled.name}"]
    there.compile("os.py")
    assert differing(there.drift()) == []
    compiled.write_bytes(compiled.read_bytes()[:16] + b"nonsense")
    assert differing(there.drift()) == [f"base/{LIB}/__pycache__/{compiled.name}"]


def test_byte_code_that_is_not_read_does_not_count(there: Installation) -> None:
    cache = there.lib / "__pycache__"
    cache.mkdir()
    (cache / "os.cpython-27.pyc").write_bytes(b"other version")
    (cache / f"gone.{TAG}.pyc").write_bytes(b"no source")
    assert differing(there.drift()) == []
    there.byte_code = False
    there.seal()
    (cache / f"os.{TAG}.pyc").write_bytes(b"in place: never read")
    assert differing(there.drift()) == []


def test_a_replaced_interpreter_is_one_difference(there: Installation) -> None:
    for number in range(30):
        (there.lib / f"new{number}.py").touch()
    found = there.drift()
    assert differing(found) == ["base"]
    assert found.notes_by_key["base"].startswith("30 files of the interpreter")
    assert found.evidence["base"][-1] == "and 10 more"


def test_without_an_inventory_the_difference_is_still_told(there: Installation) -> None:
    there.sealed = None
    (there.lib / "os.py").write_text("y")
    found = there.drift()
    assert differing(found) == ["base"]
    assert "which file differs cannot be told" in found.notes_by_key["base"]


def test_what_cannot_be_read_is_unknown(there: Installation, monkeypatch: pytest.MonkeyPatch) -> None:
    (there.lib / "os.py").write_text("y")
    monkeypatch.setattr(hashing, "_digest", lambda *_: None)
    found = there.drift()
    assert isinstance(found.facts["base"], Unknown)
    assert base_interpreter.digest_of(there.look()) == found.facts["base"]
