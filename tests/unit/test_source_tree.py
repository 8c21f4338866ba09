"""What counts as a pinned file, and how a file that differs is told."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import msgspec
import pytest

from pinner.host.history import tree_id
from pinner.model.facts import ABSENT, Unknown
from pinner.probes.base import Findings
from pinner.probes.source_pinned import comparable
from pinner.probes.source_tree import compare_files, is_by_product, is_importable_place

A, B = "a" * 40, "b" * 40


@pytest.mark.parametrize(
    ("path", "subdirectory", "expected"),
    [
        ("python/json.py", "python", True),
        ("python/pkg/data/x.json", "python/", True),
        ("pythonic/x.py", "python", False),
        ("x.py", "python", False),
        ("x.py", "", True),
        ("x.py", ".", True),
        (".cache/x.py", "", False),
        ("python/.cache/x.py", "python", False),
        (".hidden/python/x.py", ".hidden/python", True),
        ("python/.x.py", "python", True),
    ],
)
def test_extra_files_count_below_the_import_root(path: str, subdirectory: str, expected: bool) -> None:
    assert is_importable_place(path, subdirectory) is expected


def test_comparable_entries_are_what_a_snapshot_shows() -> None:
    entries = {
        "a.py": f"100664 {A}",
        "old.sh": f"100775 {A}",
        "link": f"120000 {A}",
        "sub": f"160000 {A}",
        "p/__pycache__/a.pyc": f"100644 {A}",
        "__pycache__": f"100644 {A}",
        ".github/x": f"100644 {A}",
        "venv/pyvenv.cfg": f"100644 {A}",
        "venv/bin/python3": f"120000 {A}",
        "venv/lib/python3.11/site-packages/x.py": f"100644 {A}",
        "venv/lib/x.py": f"100644 {A}",
        "code/pyvenv.cfg": f"100644 {A}",
        "code/__init__.py": f"100644 {A}",
        "pyvenv.cfg": f"100644 {A}",
    }
    assert comparable(entries) == {
        "a.py": f"100644 {A}",
        "old.sh": f"100755 {A}",
        "link": f"120000 {A}",
        "__pycache__": f"100644 {A}",
        ".github/x": f"100644 {A}",
        "pyvenv.cfg": f"100644 {A}",
        "code/pyvenv.cfg": f"100644 {A}",
        "code/__init__.py": f"100644 {A}",
    }


class Seen:
    """A snapshot as far as a comparison looks at it."""

    def __init__(self, entries: dict[str, str], unknown: dict[str, Unknown]) -> None:
        self.entries, self.unknown = entries, unknown


def compared(pinned: dict[str, str], seen: dict[str, str], root: Path, **unknown: str) -> Findings:
    findings = Findings()
    snapshot = Seen(seen, {path: Unknown(reason) for path, reason in unknown.items()})
    compare_files(findings, pinned, snapshot, root)  # type: ignore[arg-type]
    return findings


def test_each_kind_of_change_is_told(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to("/bin/sh")
    findings = compared(
        dict.fromkeys(("edited", "alike", "deleted", "mode", "unreadable", "folder", "link"), f"100644 {A}"),
        {
            "edited": f"100644 {B}",
            "alike": f"100644 {A[:39]}b",
            "added": f"100644 {B}",
            "mode": f"100755 {A}",
            "tree": f"100644 {B}",
            "link": f"120000 {B}",
            os.fsdecode(b"b\xff.py"): f"100644 {B}",
        },
        tmp_path,
        unreadable="permission denied",
    )
    assert findings.sealed["edited"] == f"100644 {A[:12]}"
    # Ids that begin alike are told in full: what differs must not look equal.
    assert findings.sealed["alike"] != findings.facts["alike"]
    assert findings.sealed["added"] == ABSENT
    assert findings.facts["deleted"] == ABSENT
    assert findings.facts["unreadable"] == Unknown("permission denied")
    assert findings.notes_by_key == {
        "edited": "edited",
        "alike": "edited",
        "added": "added",
        "deleted": "deleted",
        "mode": "mode changed from 100644 to 100755",
        "./tree": "added",
        "folder": "a directory is in its place",
        "link": "replaced by a symlink, -> /bin/sh",
        "b\\xff.py": "added",
    }
    msgspec.json.encode(findings)
    assert findings.evidence["deleted"][0].startswith(f"its directory {tmp_path.name} changed 20")


def test_an_empty_tree_has_gits_well_known_id() -> None:
    assert tree_id({}) == "4b825dc642cb6eb9a060e54bf8d69288fbee4904"


def test_directories_sort_as_git_sorts_them() -> None:
    blob = bytes.fromhex(A)

    def tree(*rows: bytes) -> bytes:
        data = b"".join(rows)
        return hashlib.sha1(b"tree %d\0" % len(data) + data, usedforsecurity=False).digest()

    inner = tree(b"100644 x\0" + blob)
    whole = tree(b"100644 a-b\0" + blob, b"40000 a\0" + inner, b"100644 a0\0" + blob)
    assert tree_id({"a/x": f"100644 {A}", "a0": f"100644 {A}", "a-b": f"100644 {A}"}) == whole.hex()


@pytest.mark.parametrize(
    "path",
    [
        "server.log",
        "results.jsonl",
        "data/a.bin",
        "trace.json.gz",
        "notes.md",
        "nb.ipynb",
        ".x.swp",
        "uv.lock",
        "dist/pocket-1.whl",
        "build/lib/pocket/a.py",
        "pocket.egg-info/PKG-INFO",
        "pocket/a.py~",
        "pocket/a.py.orig",
        "pocket/.DS_Store",
        "core.123",
        "nohup.out",
    ],
)
@pytest.mark.parametrize("root", ["", "python"])
def test_what_work_leaves_behind_is_no_drift(path: str, root: str) -> None:
    assert is_by_product(f"{root}/{path}" if root else path, root, "pocket")


@pytest.mark.parametrize(
    "path", ["yaml.py", "yaml/__init__.py", "_x.so", "ghost.pyc", "pocket/config.json", "src/pocket/d.txt"]
)
@pytest.mark.parametrize("root", ["", "python"])
def test_code_and_the_packages_data_count(path: str, root: str) -> None:
    assert not is_by_product(f"{root}/{path}" if root else path, root, "pocket")
