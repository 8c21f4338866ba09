"""Exports: committed bytes and nothing else, whatever the repository's attributes, links and patches try."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from pinner.errors import OperationFailed
from pinner.host import mirror
from pinner.host.export import ExportedTree, Patch
from tests.integration.source_repos import Repo

Export = Callable[..., ExportedTree]


@pytest.fixture
def repo(tmp_path: Path) -> Repo:
    return Repo(tmp_path / "origin")


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out"


@pytest.fixture
def export(tmp_path: Path, repo: Repo, out: Path) -> Export:
    def run(commit: str, *patches: bytes) -> ExportedTree:
        mine = mirror.ensure(tmp_path / "mirrors", str(repo.path))
        mine.make_present(commit)
        return mine.export(commit, out, [Patch(f"p{at}.patch", data) for at, data in enumerate(patches, 1)])

    return run


def test_attributes_change_no_byte(repo: Repo, out: Path, export: Export, tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    contents = {
        "crlf.txt": b"a\r\nb\r\n",
        "lf.txt": b"a\nb\n",
        "ident.c": b"$Id$\n",
        "subst.py": b"$Format:%H$\n",
        "utf16.txt": "x\n".encode("utf-16"),
        "ignored.py": b"1\n",
    }
    attributes = (
        b"* filter=evil\n*.txt text eol=crlf\nident.c ident\nsubst.py export-subst\n"
        b"utf16.txt working-tree-encoding=UTF-16\nignored.py export-ignore\n"
    )
    rows = [("100644", name, data) for name, data in contents.items()]
    commit = repo.commit_tree([("100644", ".gitattributes", attributes), *rows])
    repo.git("config", "filter.evil.smudge", f"touch {mark}; cat")
    result = export(commit)
    assert {name: (out / name).read_bytes() for name in contents} == contents
    assert result.tree == repo.git("rev-parse", "HEAD^{tree}")
    assert result.patched_tree is None
    assert result.files == len(contents) + 1
    assert not mark.exists()
    assert not (out / ".git").exists()


@pytest.mark.parametrize("umask", [0o022, 0o077, 0o000])
def test_modes_do_not_depend_on_the_umask(repo: Repo, out: Path, export: Export, umask: int) -> None:
    repo.write("d/run.sh", "#!/bin/sh\n").chmod(0o755)
    repo.write("d/a.py", "1\n")
    commit = repo.commit("modes")
    before = os.umask(umask)
    try:
        export(commit)
    finally:
        os.umask(before)
    modes = [stat.S_IMODE((out / name).stat().st_mode) for name in (".", "d", "d/run.sh", "d/a.py")]
    assert modes == [0o755, 0o755, 0o755, 0o644]


@pytest.mark.parametrize(
    ("links", "named"),
    [
        ({"out": b"/etc/passwd"}, "out is absolute"),
        ({"out": b"../x"}, "out leaves the tree"),
        ({"d/out": b"../../x"}, "d/out leaves the tree"),
        # `d/up` stays inside, but a path through it goes one further up than it looks.
        ({"a/b/up": b"../..", "sly": b"a/b/up/../x"}, "sly leaves the tree"),
    ],
)
def test_links_that_leave_the_tree_are_refused_by_name(
    repo: Repo, out: Path, export: Export, links: dict[str, bytes], named: str
) -> None:
    for name, target in links.items():
        path = repo.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.symlink_to(os.fsdecode(target))
    with pytest.raises(OperationFailed, match=named):
        export(repo.commit("links"))
    assert not out.exists()


def test_links_that_stay_are_written(repo: Repo, out: Path, export: Export) -> None:
    repo.write("pkg/a.py", "1\n")
    (repo.path / "pkg/b.py").symlink_to("../pkg/a.py")
    (repo.path / "loop").symlink_to("loop")
    export(repo.commit("links"))
    assert (out / "pkg/b.py").readlink() == Path("../pkg/a.py")
    assert (out / "pkg/b.py").read_text() == "1\n"


@pytest.mark.parametrize("name", [".GIT", "git~1", ".g\u200cit", "a\\b"])
def test_names_that_some_file_systems_take_for_git_are_refused(
    repo: Repo, out: Path, tmp_path: Path, name: str
) -> None:
    commit = repo.commit_tree([("100644", name, b"x")])
    with pytest.raises(OperationFailed):
        mirror.ensure(tmp_path / "mirrors", str(repo.path)).export(commit, out)
    assert not out.exists()


def test_submodules_pointers_and_case_are_told(repo: Repo, out: Path, export: Export) -> None:
    pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"0" * 64 + b"\nsize 9\n"
    commit = repo.commit_tree(
        [
            ("100644", ".gitattributes", b"*.bin filter=lfs diff=lfs merge=lfs -text\n"),
            ("100644", ".gitmodules", b'[submodule "sub"]\n\tpath = sub\n\turl = ext::touch ran\n'),
            ("100644", "Readme", b"1"),
            ("100644", "readme", b"2"),
            ("160000", "sub", b"1" * 40),
            ("100644", "w.bin", pointer),
        ]
    )
    result = export(commit)
    assert result.lfs_pointers == ("w.bin",)
    assert (out / "w.bin").read_bytes() == pointer
    assert "submodule sub is not checked out: pinner leaves submodules out" in result.notes
    assert any("Readme and readme differ only by case" in note for note in result.notes)
    assert result.files == 5


PATCH = b"""--- a/pkg/a.py
+++ b/pkg/a.py
@@ -1,2 +1,2 @@
 one
-two
+TWO
"""


def test_patches_apply_in_order_and_give_a_tree(repo: Repo, out: Path, export: Export) -> None:
    commit = repo.commit("base", pkg__a_dot_py="one\ntwo\n")
    second = PATCH.replace(b"-two\n+TWO", b"-TWO\n+three")
    result = export(commit, PATCH, second)
    assert (out / "pkg/a.py").read_text() == "one\nthree\n"
    repo.commit("by hand", pkg__a_dot_py="one\nthree\n")
    assert result.patched_tree == repo.git("rev-parse", "HEAD^{tree}")


def test_a_patch_that_does_not_apply_names_file_and_hunk(repo: Repo, out: Path, export: Export) -> None:
    lines = [f"{number}\n" for number in range(40)]
    commit = repo.commit("base", pkg__a_dot_py="".join(lines))
    first, second = b"@@ -1,3 +1,3 @@\n 0\n-1\n+x\n 2\n", b"@@ -31,3 +31,3 @@\n 30\n-nope\n+x\n 32\n"
    patch = b"--- a/pkg/a.py\n+++ b/pkg/a.py\n" + first + second
    with pytest.raises(OperationFailed, match=r"patch p1\.patch .*file pkg/a\.py, hunk 2 \(line 31\)"):
        export(commit, patch)
    assert not out.exists()


@pytest.mark.parametrize(
    "patch",
    [
        b"--- /dev/null\n+++ b/../outside\n@@ -0,0 +1 @@\n+x\n",
        b"--- /dev/null\n+++ b/.git/hooks/x\n@@ -0,0 +1 @@\n+x\n",
        b"diff --git a/l b/l\nnew file mode 120000\n--- /dev/null\n+++ b/l\n@@ -0,0 +1 @@\n+..\n"
        b"\\ No newline at end of file\n",
        b"--- a/pkg/a.py\n+++ b/pkg/a.py\nnonsense\n",
        b"",
    ],
)
def test_a_patch_cannot_leave_the_tree(repo: Repo, out: Path, export: Export, patch: bytes) -> None:
    commit = repo.commit("base", pkg__a_dot_py="one\ntwo\n")
    with pytest.raises(OperationFailed):
        export(commit, patch)
    assert not out.exists()
    assert not (out.parent / "outside").exists()


def test_a_full_directory_is_left_alone(repo: Repo, out: Path, export: Export) -> None:
    out.mkdir()
    (out / "mine").touch()
    with pytest.raises(OperationFailed, match="not empty"):
        export(repo.commit("base"))
    assert [path.name for path in out.iterdir()] == ["mine"]
