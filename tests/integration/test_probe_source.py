"""The source probe: what it pins, and every way in which a tree or checkout can differ."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pinner.errors import ManifestError, OperationFailed, UnknownFact
from pinner.model.facts import ABSENT, Difference, Unknown
from tests.integration.source_deployments import Deployment, deployment_of
from tests.integration.source_repos import Repo

PATCH = "--- a/python/pocket/a.py\n+++ b/python/pocket/a.py\n@@ -1 +1 @@\n-1\n+2\n"


@pytest.fixture
def repo(tmp_path: Path) -> Repo:
    repo = Repo(tmp_path / "eng")
    repo.write("python/pocket/__init__.py", "")
    repo.write("python/pocket/a.py", "1\n")
    repo.write("pyproject.toml", "")
    repo.write("python/pyproject.toml", "")
    repo.write("run.sh", "#!/bin/sh\n").chmod(0o755)
    repo.commit("one", README="hello\n")
    repo.git("tag", "v1")
    return repo


def in_place(tmp_path: Path, commit: str = "main", **wished: str) -> Deployment:
    return deployment_of(tmp_path, path="eng", commit=commit, subdirectory="python", importable=True, **wished)


def by_key(deployment: Deployment, *, deep: bool = False) -> dict[str, Difference]:
    differences, unknown = deployment.check(deep=deep)
    assert unknown == ()
    return {difference.key: difference for difference in differences}


# Pinning a repository ----------------------------------------------------------------------------------------


def test_a_branch_stays_where_it_was_locked_until_an_upgrade(repo: Repo, tmp_path: Path) -> None:
    deployment = deployment_of(tmp_path, git="eng", commit="main", subdirectory="python")
    first = deployment.lock.engine.source
    assert (first.type, first.url, first.wish, first.commit) == ("git", "eng", "main", repo.head)
    assert first.tree == repo.git("rev-parse", "HEAD^{tree}")
    newer = repo.commit("two")
    deployment.forget_mirrors()
    assert deployment.relock() == first
    repo.path.rename(tmp_path / "gone")
    assert deployment.relock() == first  # offline
    (tmp_path / "gone").rename(repo.path)
    assert deployment.relock(upgrade=True).commit == newer


def test_patches_are_pinned_by_digest_and_resulting_tree(repo: Repo, tmp_path: Path) -> None:
    (tmp_path / "fix.patch").write_text(PATCH)
    deployment = deployment_of(tmp_path, git="eng", commit="v1", patches=["fix.patch"])
    (patch,) = deployment.lock.engine.patches
    assert patch.file == "fix.patch"
    assert patch.sha256.startswith("sha256:")
    tree = deployment.materialize()
    assert (tree / "python/pocket/a.py").read_text() == "2\n"
    assert deployment.check_tree() == ((), ())
    repo.commit("by hand", python__pocket__a_dot_py="2\n")
    assert deployment.lock.engine.source.patched_tree == repo.git("rev-parse", "HEAD^{tree}")


@pytest.mark.parametrize(
    ("wished", "message"),
    [
        ({"git": "eng", "commit": "nope"}, r"engine\.source\.commit: .*no branch, tag or commit 'nope'"),
        ({"git": "eng", "commit": "main", "subdirectory": "nope"}, r"engine\.source\.subdirectory"),
        ({"git": "ext::sh", "commit": "main"}, r"engine\.source\.git"),
        ({"git": "eng", "commit": "main", "patches": ["nope.patch"]}, r"engine\.patches\[0\].*nope\.patch"),
        ({"path": "eng", "commit": "nope"}, r"engine\.source\.commit: .*no branch, tag or commit 'nope'"),
        ({"path": "nowhere", "commit": "main"}, r"engine\.source\.path: there is no directory"),
        ({"path": "eng", "commit": "main", "subdirectory": "nope"}, r"engine\.source\.subdirectory"),
    ],
)
@pytest.mark.usefixtures("repo")
def test_what_cannot_be_pinned_is_refused_by_key(tmp_path: Path, wished: dict[str, str], message: str) -> None:
    with pytest.raises(ManifestError, match=message):
        deployment_of(tmp_path, **wished)


def test_a_package_is_pinned_as_written_and_imported_from_the_environment(tmp_path: Path) -> None:
    deployment = deployment_of(tmp_path, package="pocket", version="1.0")
    pin = deployment.lock.engine.source
    assert (pin.type, pin.name, pin.version) == ("package", "pocket", "1.0")
    (missing,), _ = deployment.check()
    assert (missing.key, missing.observed) == ("imported-from", ABSENT)
    (deployment.site_packages / "pocket.py").touch()
    assert deployment.check() == ((), ())


def test_a_first_lock_fetches_once(repo: Repo, tmp_path: Path) -> None:
    deployment = deployment_of(tmp_path, git="eng", commit="main")
    assert [line for line in deployment.progress if "fetching" in line] == [f"fetching {repo.path}"]


# A materialized tree -----------------------------------------------------------------------------------------


def test_a_materialized_tree_is_judged_by_its_bytes(repo: Repo, tmp_path: Path) -> None:
    deployment = deployment_of(tmp_path, git="eng", commit="v1")
    tree = deployment.materialize()
    assert deployment.check_tree() == ((), ())
    (tree / "README").write_text("hullo\n")
    (tree / "extra.py").touch()
    (tree / "run.sh").chmod(0o644)
    (tree / "python/pocket/a.py").unlink()
    differences, unknown = deployment.check_tree()
    assert unknown == ()
    assert {item.key: item.note for item in differences} == {
        "README": "edited",
        "extra.py": "added",
        "python/pocket/a.py": "deleted",
        "run.sh": "mode changed from 100755 to 100644",
    }
    by_path = {item.key: item for item in differences}
    blob = repo.git("rev-parse", "HEAD:README")
    assert by_path["README"].pinned == f"100644 {blob[:12]}"
    assert by_path["extra.py"].pinned == ABSENT
    assert by_path["python/pocket/a.py"].observed == ABSENT


def test_without_its_mirror_a_tree_is_still_proved(repo: Repo, tmp_path: Path) -> None:
    deployment = deployment_of(tmp_path, git="eng", commit=repo.head)
    tree = deployment.materialize()
    deployment.forget_mirrors()
    deployment.home.digests.unlink(missing_ok=True)
    assert deployment.check_tree() == ((), ())
    (tree / "README").write_text("hullo\n")
    (difference,), unknown = deployment.check_tree()
    assert unknown == ()
    assert (difference.key, difference.pinned) == ("tree", deployment.lock.engine.source.tree)
    assert "mirror" in difference.note


def test_nothing_materialized_is_unknown(repo: Repo, tmp_path: Path) -> None:
    deployment = deployment_of(tmp_path, git="eng", commit=repo.head)
    _, unknown = deployment.check()
    assert [item.key for item in unknown if isinstance(item.observed, Unknown)] == ["tree"]


# A checkout in place -----------------------------------------------------------------------------------------


def test_a_checkout_must_be_at_what_is_asked_for(repo: Repo, tmp_path: Path) -> None:
    newer = repo.commit("two")
    with pytest.raises(OperationFailed, match=f"is at {newer}, and the manifest asks for v1"):
        in_place(tmp_path, "v1")
    assert in_place(tmp_path, "main").lock.engine.source.commit == newer


def test_a_pull_is_one_difference_with_its_story(repo: Repo, tmp_path: Path) -> None:
    upstream = repo.clone(tmp_path / "upstream")
    repo.git("remote", "add", "origin", str(upstream.path))
    deployment = in_place(tmp_path)
    pinned = repo.head
    upstream.commit("innocent", README="hello!\n")
    upstream.commit("faster", python__pocket__a_dot_py="2\n", python__pocket__b_dot_py="b\n")
    repo.git("pull", "-q", "--ff-only", "origin", "main")
    repo.write("run.sh", "#!/bin/sh\nexit\n")  # on top of what came in
    found = by_key(deployment)
    assert set(found) == {"commit", "run.sh"}
    assert (found["commit"].pinned, found["commit"].observed) == (pinned, repo.head)
    evidence = "\n".join(found["commit"].evidence)
    assert "by `pull -q --ff-only origin main: Fast-forward` at 2025-" in evidence
    assert "2 commits came in" in evidence
    assert deployment.relock().commit == pinned
    assert any("kept commit" in line for line in deployment.said)
    assert deployment.relock(upgrade=True).commit == repo.head


def test_hot_paths_of_the_manifest_mark_suspects(repo: Repo, tmp_path: Path) -> None:
    deployment = deployment_of(tmp_path, path="eng", commit="main", importable=True, hot=["README"])
    repo.commit("words", README="x\n")
    (difference, *_), _ = deployment.check()
    assert any("words" in line and "suspect" in line for line in difference.evidence)


def test_edits_are_found_whatever_the_index_says(repo: Repo, tmp_path: Path) -> None:
    deployment = in_place(tmp_path)
    repo.git("update-index", "--assume-unchanged", "python/pocket/a.py")
    repo.git("update-index", "--skip-worktree", "README")
    repo.write("python/pocket/a.py", "9\n")
    repo.write("README", "x\n")
    repo.git("add", "-A")  # staged or not makes no difference
    assert set(by_key(deployment)) == {"README", "python/pocket/a.py"}
    repo.write("README", "hello\n")
    assert set(by_key(deployment)) == {"python/pocket/a.py"}


def test_an_edit_that_hides_behind_its_old_times_is_found(repo: Repo, tmp_path: Path) -> None:
    file = repo.path / "python/pocket/a.py"
    deployment = in_place(tmp_path)
    assert by_key(deployment) == {}
    before = file.stat()
    file.write_text("9\n")
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert set(by_key(deployment)) == {"python/pocket/a.py"}


def test_extra_files_count_where_they_could_be_imported(repo: Repo, tmp_path: Path) -> None:
    deployment = in_place(tmp_path)
    for name in (
        "python/pocket/__pycache__/a.cpython-311.pyc", "python/.cache/x", "notes.txt", "build/x.o",
        "python/venv/lib/python3.11/site-packages/x.py", "python/venv/lib/x.py", "python/venv/pyvenv.cfg",
        "python/venv/bin/python",
    ):  # fmt: skip
        repo.write(name, "x")
    assert by_key(deployment) == {}
    assert any("3 files" in note for note in deployment.observe().notes)
    repo.write("python/json.py", "x")
    assert {key: item.note for key, item in by_key(deployment).items()} == {"python/json.py": "added"}


def test_a_pyvenv_cfg_beside_code_hides_nothing(repo: Repo, tmp_path: Path) -> None:
    deployment = in_place(tmp_path)
    repo.write("python/pocket/pyvenv.cfg", "")
    repo.write("python/yaml/pyvenv.cfg", "")
    repo.write("python/yaml/__init__.py", "evil")
    for name in ("pyvenv.cfg", "bin/python", "lib/python3.11/site-packages/x.py", "evil.py"):
        repo.write(f"python/whole/{name}", "")
    found = by_key(deployment)
    assert {item.note for item in found.values()} == {"added"}
    assert {"python/pocket/pyvenv.cfg", "python/yaml/__init__.py"} < found.keys()
    assert {"python/whole/evil.py", "python/whole/lib/python3.11/site-packages/x.py"} < found.keys()
    (repo.path / "python/whole/evil.py").unlink()
    assert not any("whole" in key for key in by_key(deployment))


def test_what_differed_when_locked_is_pinned_as_it_was(repo: Repo, tmp_path: Path) -> None:
    repo.write("python/pocket/a.py", "local\n")
    repo.write("python/pocket/own.py", "own\n")
    repo.write("notes.txt", "x")
    (repo.path / "README").unlink()
    deployment = in_place(tmp_path)
    differs = deployment.lock.engine.source.differs
    assert set(differs) == {"README", "python/pocket/a.py", "python/pocket/own.py"}
    assert differs["README"] == "deleted"
    assert by_key(deployment) == {}
    repo.write("python/pocket/a.py", "1\n")  # back to the commit is not what was locked
    repo.write("README", "hello\n")
    (repo.path / "python/pocket/own.py").unlink()
    assert {key: item.note for key, item in by_key(deployment).items()} == {
        "README": "added",
        "python/pocket/a.py": "edited",
        "python/pocket/own.py": "deleted",
    }


def test_a_file_named_like_a_key_of_the_probe(repo: Repo, tmp_path: Path) -> None:
    repo.commit("names", commit="x", tree="y")
    deployment = in_place(tmp_path)
    repo.write("commit", "z")
    assert set(by_key(deployment)) == {"./commit"}


def test_symlinks_and_odd_names(repo: Repo, tmp_path: Path) -> None:
    (repo.path / "python/link.py").symlink_to("pocket/a.py")
    Path(os.fsdecode(os.fsencode(repo.path) + b"/python/\xff \n\t.py")).write_text("x")
    repo.commit("odd")
    deployment = in_place(tmp_path)
    assert by_key(deployment) == {}
    (repo.path / "run.sh").unlink()
    (repo.path / "run.sh").symlink_to("/bin/sh")
    assert {key: item.note for key, item in by_key(deployment).items()} == {
        "run.sh": "replaced by a symlink, -> /bin/sh"
    }


def test_checkouts_that_cannot_be_told(repo: Repo, tmp_path: Path) -> None:
    deployment = in_place(tmp_path)
    (repo.path / ".git").rename(tmp_path / "moved")
    _, unknown = deployment.check()
    assert [item.key for item in unknown] == ["commit"]
    assert "not a git repository" in str(unknown[0].observed)
    repo.path.rename(tmp_path / "elsewhere")
    differences, unknown = deployment.check()
    assert [(item.key, item.observed) for item in differences] == [("commit", ABSENT), ("imported-from", ABSENT)]
    assert unknown == ()


def test_a_nested_checkout_is_not_the_pinned_one(repo: Repo, tmp_path: Path) -> None:
    deployment = in_place(tmp_path)
    old = repo.clone(repo.path / "python/pocket/old")
    deployment.add_pth("engine.pth", f"{old.path / 'python'}\n")
    found = by_key(deployment)["imported-from"]
    assert found.observed == str(old.path / "python/pocket/__init__.py")


def test_an_interpreter_that_gives_no_answer_is_unknown(repo: Repo, tmp_path: Path) -> None:
    deployment = in_place(tmp_path)
    deployment.add_pth("bad.pth", "import os; os._exit(3)\n")
    _, (failed,) = deployment.check()
    assert failed.key == "imported-from"
    assert "failed (3)" in str(failed.observed)
    (deployment.env / "bin/python").unlink()
    _, (missing,) = deployment.check()
    assert "cannot start" in str(missing.observed)


def test_a_damaged_object_database_is_not_believed(repo: Repo, tmp_path: Path) -> None:
    """A tree object that was swapped for another one must not become the pinned side."""
    deployment = in_place(tmp_path)
    tree = repo.git("rev-parse", "HEAD:python/pocket")
    good = repo.path / ".git/objects" / tree[:2] / tree[2:]
    repo.write("python/pocket/a.py", "evil\n")
    repo.commit("evil")
    evil_tree = repo.git("rev-parse", "HEAD:python/pocket")
    repo.git("reset", "-q", "--soft", "HEAD~1")
    good.chmod(0o644)
    good.write_bytes((repo.path / ".git/objects" / evil_tree[:2] / evil_tree[2:]).read_bytes())
    deployment.home.digests.unlink(missing_ok=True)
    with pytest.raises(UnknownFact, match="damaged"):
        deployment.check()
