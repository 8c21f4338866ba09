"""Trees by remembered digest: never a wrong answer, whatever is done to the files."""

from __future__ import annotations

import hashlib
import os
import shutil
import socket
import stat
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pinner.errors import OperationFailed
from pinner.host import hashing, tree
from pinner.host.digest import DigestMemory, Scope, Snapshot, take_snapshot, tree_digest
from pinner.model.facts import Unknown

AGE_S = 0.03


@pytest.fixture(autouse=True)
def _short_racy_window(monkeypatch: pytest.MonkeyPatch) -> None:
    """A ctime cannot be set, so that the tests wait for files to settle; 2 s each would be too long."""
    monkeypatch.setattr(hashing, "SAFE_AGE_NS", int(AGE_S * 0.7 * 1e9))


def naive(root: Path, exclude: frozenset[str] = frozenset()) -> dict[str, str]:
    """The reference: read everything, every time."""
    found = {}
    for directory, names, files in os.walk(root):
        links = [name for name in names if (Path(directory) / name).is_symlink()]
        names[:] = [name for name in names if name not in exclude]
        for name in (*files, *links):
            path = Path(directory) / name
            mode = path.lstat().st_mode
            if stat.S_ISLNK(mode):
                entry = "120000 sha256:" + hashlib.sha256(os.fsencode(path.readlink())).hexdigest()
            else:
                letter = "100755" if mode & 0o100 else "100644"
                entry = f"{letter} sha256:{hashlib.sha256(path.read_bytes()).hexdigest()}"
            found[str(path.relative_to(root))] = entry
    return found


def settle() -> None:
    time.sleep(AGE_S)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "tree"
    for name in ("a.py", "pkg/b.py", "pkg/deep/c.py", "pkg/deep/d.py", "other/e.py"):
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"content of {name}\n")
    (root / "pkg/link.py").symlink_to("b.py")
    return root


@pytest.fixture
def memory(tmp_path: Path) -> DigestMemory:
    return DigestMemory(tmp_path / "digests.sqlite")


def warm(root: Path, memory: DigestMemory) -> Snapshot:
    """A snapshot after which all is remembered and trusted."""
    settle()
    take_snapshot(root, memory)
    snapshot = take_snapshot(root, memory)
    assert snapshot.read_anew == 0
    return snapshot


def keep_times(path: Path, edit: Callable[[Path], object]) -> None:
    before = path.stat()
    edit(path)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def replace_by_rename(root: Path) -> None:
    path = root / "a.py"
    before = path.stat()
    other = root.parent / "other-file"
    other.write_text("CONTENT of a.py\n")
    os.utime(other, ns=(before.st_atime_ns, before.st_mtime_ns))
    other.rename(path)


def swap_link(root: Path) -> None:
    (root / "pkg/link.py").unlink()
    (root / "pkg/link.py").write_bytes((root / "pkg/b.py").read_bytes())


def swap_directory(root: Path) -> None:
    (root / "pkg/deep").rename(root / "away")
    (root / "pkg/deep").symlink_to("../away")


def restore_backup(root: Path) -> None:
    saved = root.parent / "saved"
    shutil.copytree(root / "pkg", saved, symlinks=True)
    (saved / "b.py").write_text("CONTENT of pkg/b.py\n")
    shutil.copystat(root / "pkg/b.py", saved / "b.py")
    shutil.copystat(root / "pkg", saved)
    shutil.rmtree(root / "pkg")
    shutil.copytree(saved, root / "pkg", symlinks=True)


EDITS: dict[str, Callable[[Path], object]] = {
    "edit keeping size and mtime": lambda root: keep_times(
        root / "pkg/deep/c.py", lambda path: path.write_text(path.read_text().upper())
    ),
    "append": lambda root: (root / "a.py").write_text("content of a.py\nmore"),
    "replace by rename, same size and mtime": replace_by_rename,
    "add": lambda root: (root / "pkg/deep/new.py").write_text("new"),
    "add in a new directory": lambda root: (
        (root / "x/y").mkdir(parents=True),
        (root / "x/y/z.py").write_text("z"),
    ),
    "remove": lambda root: (root / "pkg/deep/d.py").unlink(),
    "remove a directory": lambda root: shutil.rmtree(root / "pkg/deep"),
    "rename": lambda root: (root / "pkg/b.py").rename(root / "pkg/bb.py"),
    "rename a directory": lambda root: (root / "pkg/deep").rename(root / "pkg/deeper"),
    "exchange two files": lambda root: (
        (root / "pkg/deep/c.py").rename(root / "t"),
        (root / "pkg/deep/d.py").rename(root / "pkg/deep/c.py"),
        (root / "t").rename(root / "pkg/deep/d.py"),
    ),
    "symlink becomes a file": swap_link,
    "symlink points elsewhere": lambda root: (
        (root / "pkg/link.py").unlink(),
        (root / "pkg/link.py").symlink_to("c.py"),
    ),
    "directory becomes a symlink": swap_directory,
    "chmod +x": lambda root: (root / "a.py").chmod(0o755),
    "restored backup": restore_backup,
}


@pytest.mark.parametrize("is_settled", [True, False], ids=["settled", "racy"])
@pytest.mark.parametrize("edit", EDITS.values(), ids=EDITS)
def test_every_edit_shows(
    root: Path, memory: DigestMemory, edit: Callable[[Path], object], is_settled: bool
) -> None:
    before = warm(root, memory) if is_settled else take_snapshot(root, memory)
    entries = before.entries
    edit(root)
    after = take_snapshot(root, memory)
    assert after.entries == naive(root) != entries
    assert after.digest == tree_digest(naive(root)) != before.digest
    settle()
    assert take_snapshot(root, memory).digest == take_snapshot(root, memory).digest == after.digest


def test_only_what_changed_is_read_again(root: Path, memory: DigestMemory) -> None:
    warm(root, memory)
    (root / "pkg/deep/c.py").write_text("changed")
    snapshot = take_snapshot(root, memory)
    assert (snapshot.read_anew, snapshot.how) == (1, "6 files, 1 read anew")


def test_deep_reads_everything(root: Path, memory: DigestMemory) -> None:
    digest = warm(root, memory).digest
    seen = []
    snapshot = take_snapshot(root, memory, deep=True, progress=seen.append)
    assert snapshot.read_anew == 5
    assert snapshot.digest == digest
    assert sum(seen) == sum(path.stat().st_size for path in root.rglob("*.py") if not path.is_symlink())


def test_a_snapshot_within_two_seconds_is_not_trusted(
    root: Path, memory: DigestMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hashing, "SAFE_AGE_NS", 2_000_000_000)
    take_snapshot(root, memory)
    assert take_snapshot(root, memory).read_anew == 5


def test_a_ctime_in_the_future_is_not_trusted() -> None:
    seen = (0o100644, 1, 1, 1, 0, 10**18)
    assert not hashing.is_settled(seen, 10**18 - 1)
    assert hashing.is_settled(seen, 10**18 + hashing.SAFE_AGE_NS)


def test_git_ids_are_those_of_git(root: Path, memory: DigestMemory) -> None:
    (root / "a.py").chmod(0o755)
    git = ["git", "-c", "user.name=t", "-c", "user.email=t@localhost"]
    environ = {"PATH": os.environ["PATH"], "HOME": str(root), "GIT_CONFIG_NOSYSTEM": "1"}
    for command in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "all"]):
        subprocess.run([*git, *command], cwd=root, check=True, env=environ, capture_output=True)
    listed = subprocess.run(
        [*git, "ls-tree", "-r", "-z", "HEAD"], cwd=root, check=True, env=environ, capture_output=True
    ).stdout.decode()
    expected = {}
    for line in listed.split("\0")[:-1]:
        fields, path = line.split("\t")
        mode, _, blob = fields.split()
        expected[path] = f"{mode} {blob}"
    scope = Scope("git", frozenset({".git"}))
    snapshot = take_snapshot(root, memory, scope)
    assert snapshot.entries == expected
    assert snapshot.digest == tree_digest(expected)


def test_exclusions_and_nested_environments(root: Path, memory: DigestMemory) -> None:
    (root / "pkg/__pycache__").mkdir()
    (root / "pkg/__pycache__/b.pyc").write_bytes(b"x")
    (root / "venv/lib/python3.11/site-packages").mkdir(parents=True)
    (root / "venv/bin").mkdir()
    (root / "venv/bin/python").symlink_to("/usr/bin/python3")
    (root / "venv/lib/m.py").write_text("m")
    (root / "venv/pyvenv.cfg").write_text("home = /")
    (root / ".git").write_text("gitdir: elsewhere")
    scope = Scope(exclude=frozenset({"__pycache__", ".git"}), skip_environments=True)
    names = {"a.py", "pkg/b.py", "pkg/deep/c.py", "pkg/deep/d.py", "other/e.py", "pkg/link.py"}
    assert set(take_snapshot(root, memory, scope).entries) == names
    settle()
    take_snapshot(root, memory, scope)
    (root / "venv/pyvenv.cfg").unlink()
    inner = {"venv/lib/m.py", "venv/bin/python"}
    assert set(take_snapshot(root, memory, scope).entries) == {*names, *inner}
    # Beside code it hides nothing, nor where there is no interpreter.
    (root / "venv/pyvenv.cfg").touch()
    (root / "venv/__init__.py").touch()
    (root / "pkg/deep/pyvenv.cfg").touch()
    more = {"venv/pyvenv.cfg", "venv/__init__.py", "pkg/deep/pyvenv.cfg"}
    assert set(take_snapshot(root, memory, scope).entries) == {*names, *inner, *more}


def test_other_kinds_are_named_and_never_opened(root: Path, memory: DigestMemory) -> None:
    os.mkfifo(root / "fifo")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(os.path.relpath(root / "socket"))
        entries = take_snapshot(root, memory).entries
    assert (entries["fifo"], entries["socket"]) == ("fifo -", "socket -")
    assert take_snapshot(root, memory).digest == tree_digest(entries)


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_what_cannot_be_read_is_unknown(root: Path, memory: DigestMemory) -> None:
    (root / "a.py").chmod(0)
    (root / "other").chmod(0)
    try:
        snapshot = take_snapshot(root, memory)
    finally:
        (root / "other").chmod(0o755)
    assert snapshot.unknown["a.py"] == Unknown("permission denied")
    assert "permission denied" in snapshot.unknown["other"].reason
    assert isinstance(snapshot.digest, Unknown)


def test_an_unknown_file_makes_the_digest_unknown(
    root: Path, memory: DigestMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.open

    def refuse(path: bytes, *rest: int) -> int:
        if path == os.fsencode(root / "a.py"):
            raise PermissionError(13, "Permission denied")
        return real(path, *rest)

    monkeypatch.setattr(hashing.os, "open", refuse)
    settle()
    for _ in range(2):
        snapshot = take_snapshot(root, memory)
        assert snapshot.digest == Unknown("a.py: permission denied")
        assert "a.py" not in snapshot.entries
    monkeypatch.undo()
    assert take_snapshot(root, memory).digest == tree_digest(naive(root))


def test_names_that_are_not_text(root: Path, memory: DigestMemory) -> None:
    with (root / os.fsdecode(b"\xff\n")).open("wb") as stream:
        stream.write(b"x")
    entries = take_snapshot(root, memory).entries
    assert os.fsdecode(b"\xff\n") in entries
    assert take_snapshot(root, memory).digest == tree_digest(entries)


def test_a_root_that_is_no_directory(tmp_path: Path, memory: DigestMemory) -> None:
    with pytest.raises(OperationFailed, match="not a directory"):
        take_snapshot(tmp_path / "missing", memory)


def test_an_empty_tree(tmp_path: Path, memory: DigestMemory) -> None:
    (tmp_path / "empty").mkdir()
    snapshot = take_snapshot(tmp_path / "empty", memory)
    assert (snapshot.entries, snapshot.digest) == ({}, tree_digest({}))


def test_trees_that_are_gone_are_forgotten(root: Path, tmp_path: Path, memory: DigestMemory) -> None:
    take_snapshot(root, memory)
    shutil.rmtree(root)
    (tmp_path / "next").mkdir()
    take_snapshot(tmp_path / "next", memory)
    assert len(memory.keys("tree")) == 1


def test_inode_numbers_with_the_top_bit() -> None:
    high = (0o100644, (1 << 64) - 5, 1, 1, -1, 1)
    assert tree.pack([high]) != tree.pack([(0o100644, (1 << 64) - 6, 1, 1, -1, 1)])


def test_forked_and_single_give_the_same(
    root: Path, memory: DigestMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tree, "_FORK_FROM", 1)
    monkeypatch.setattr(tree, "worker_count", lambda: 2)
    monkeypatch.setattr(tree, "can_fork", lambda: True)
    entries = warm(root, memory).entries
    EDITS["edit keeping size and mtime"](root)
    after = take_snapshot(root, memory)
    assert after.entries == naive(root) != entries


def test_entries_of_an_unchanged_tree_are_asked_for_in_time(root: Path, memory: DigestMemory) -> None:
    digest = warm(root, memory).digest
    unchanged, too_late = take_snapshot(root, memory), take_snapshot(root, memory)
    memory.forget("tree", memory.keys("tree"))
    assert unchanged.entries == naive(root), "what is not remembered any more is read"
    EDITS["edit keeping size and mtime"](root)
    assert unchanged.entries != naive(root)
    assert too_late.digest == digest
    with pytest.raises(OperationFailed, match="changes while it is looked at"):
        _ = too_late.entries


def test_outlines_of_another_writer_are_not_mixed_with_its_files(root: Path, memory: DigestMemory) -> None:
    warm(root, memory)
    outlines = {key: memory.recall("outline", key) or b"" for key in memory.keys("outline")}
    EDITS["edit keeping size and mtime"](root)
    take_snapshot(root, memory)
    memory.remember("outline", outlines)
    after = take_snapshot(root, memory)
    assert after.entries == naive(root)
    assert after.read_anew == after.file_count - 1, "all but the symlink"


names = st.sampled_from(["a", "b", "c", "d/a", "d/b", "d/e/a", "f/a"])
actions = st.lists(
    st.tuples(
        st.sampled_from(["write", "same size", "remove", "rename", "link", "mkdir", "chmod", "settle", "look"]),
        names,
        names,
    ),
    max_size=14,
)


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], database=None
)
@given(actions)
def test_random_edits_against_reading_everything(steps: list[tuple[str, str, str]]) -> None:
    with tempfile.TemporaryDirectory() as name:
        root = Path(name) / "root"
        root.mkdir()
        memory = DigestMemory(Path(name) / "digests.sqlite")
        for number, (action, one, two) in enumerate(steps):
            act(root, action, one, two, number)
            if action == "look":
                assert take_snapshot(root, memory).entries == naive(root)
        assert take_snapshot(root, memory).entries == naive(root)
        assert take_snapshot(root, memory).digest == tree_digest(naive(root))
        memory.close()


def act(root: Path, action: str, one: str, two: str, number: int) -> None:
    path, other = root / one, root / two
    try:
        if action == "write":
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"{number:03d}")
        elif action == "same size" and path.is_file():
            keep_times(path, lambda path: path.write_text(f"{number:03d}"))
        elif action == "remove":
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
        elif action == "rename":
            path.rename(other)
        elif action == "link":
            path.symlink_to(other)
        elif action == "mkdir":
            path.mkdir(parents=True)
        elif action == "chmod":
            path.chmod(path.stat().st_mode ^ 0o100)
        elif action == "settle":
            time.sleep(AGE_S)
    except OSError:
        pass  # the step does not fit the tree as it is
