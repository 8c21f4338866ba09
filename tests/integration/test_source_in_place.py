"""A checkout in place: symlinks that leave it, submodules, where the package lies, and who edited what."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import msgspec
import pytest

from pinner.errors import ManifestError
from pinner.model.facts import ABSENT, Difference, Unknown
from tests.integration.source_deployments import Deployment, deployment_of
from tests.integration.source_repos import ENV, Repo


@pytest.fixture
def repo(tmp_path: Path) -> Repo:
    repo = Repo(tmp_path / "eng")
    repo.write("python/pocket/__init__.py", "")
    repo.write("python/pocket/a.py", "1\n")
    repo.write("python/pyproject.toml", "")
    repo.commit("one", README="hello\n")
    return repo


def in_place(tmp_path: Path, **wished: str) -> Deployment:
    wished = {"path": "eng", "commit": "main", "subdirectory": "python", **wished}
    return deployment_of(tmp_path, importable=True, **wished)


def by_key(deployment: Deployment) -> dict[str, Difference]:
    differences, unknown = deployment.check()
    assert unknown == ()
    return {difference.key: difference for difference in differences}


# Symlinks ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("target", ["{outside}/a.py", "../../../outside/a.py", "../../.git/config", "../link"])
def test_a_symlink_that_leaves_is_not_locked(repo: Repo, tmp_path: Path, target: str) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside/a.py").write_text("1\n")
    (repo.path / "python/link").symlink_to(tmp_path / "outside/a.py")
    (repo.path / "python/pocket/b.py").symlink_to(target.format(outside=tmp_path / "outside"))
    repo.commit("links")
    with pytest.raises(ManifestError, match=r"symlinks lead out of the checkout.*python/pocket/b\.py -> "):
        in_place(tmp_path)


def test_a_directory_of_links_is_not_locked_either(repo: Repo, tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (repo.path / "python/json").symlink_to(tmp_path / "outside")  # not committed
    with pytest.raises(ManifestError, match="python/json -> "):
        in_place(tmp_path)


def test_the_import_root_itself_must_not_lie_elsewhere(repo: Repo, tmp_path: Path) -> None:
    (repo.path / "python").rename(tmp_path / "python")
    (repo.path / "python").symlink_to(tmp_path / "python")
    repo.commit("link")
    with pytest.raises(ManifestError, match="python -> "):
        in_place(tmp_path)


def test_outside_of_what_is_imported_it_is_a_note(repo: Repo, tmp_path: Path) -> None:
    (repo.path / "data").symlink_to("/usr")
    deployment = in_place(tmp_path)
    assert any("data -> /usr" in line for line in deployment.said)
    for _ in range(2):
        assert by_key(deployment) == {}
        assert any("a symlink leads out of what is pinned" in note for note in deployment.observe().notes)


def test_what_a_symlink_within_the_checkout_leads_to_counts(repo: Repo, tmp_path: Path) -> None:
    repo.write("shared/k.py", "1\n")
    (repo.path / "python/shared").symlink_to(repo.path / "shared")
    (repo.path / "python/pocket/c.py").symlink_to("../../notes.py")
    repo.commit("links")
    repo.write("notes.py", "own\n")
    deployment = in_place(tmp_path)
    assert set(deployment.lock.engine.source.differs) == {"notes.py"}
    assert by_key(deployment) == {}
    repo.write("shared/new.py", "2\n")
    repo.write("notes.py", "other\n")
    assert {key: item.note for key, item in by_key(deployment).items()} == {
        "notes.py": "edited",
        "shared/new.py": "added",
    }


def test_a_symlink_that_leaves_later_is_drift(repo: Repo, tmp_path: Path) -> None:
    (repo.path / "python/pocket/l.py").symlink_to("a.py")
    repo.commit("link")
    deployment = in_place(tmp_path)
    (repo.path / "python/pocket/l.py").unlink()
    (repo.path / "python/pocket/l.py").symlink_to("/etc/hostname")
    found = by_key(deployment)
    assert found["python/pocket/l.py"].note == "edited, -> /etc/hostname, which leaves the checkout"


def test_a_lock_that_holds_such_a_symlink_is_never_clean(repo: Repo, tmp_path: Path) -> None:
    deployment = in_place(tmp_path)
    (repo.path / "python/pocket/b.py").symlink_to("/etc/hostname")
    head = repo.commit("link")
    # As an older pinner would have locked it.
    pin = msgspec.structs.replace(
        deployment.lock.engine.source, commit=head, tree=repo.git("rev-parse", "HEAD^{tree}")
    )
    deployment.lock = deployment.locked(pin, ())
    for _ in range(2):
        differences, (unknown,) = deployment.check()
        assert differences == ()
        assert unknown.key == "python/pocket/b.py"
        assert isinstance(unknown.observed, Unknown)
        assert "that leads out of the checkout" in unknown.observed.reason


# Submodules --------------------------------------------------------------------------------------------------


@pytest.fixture
def third(repo: Repo, tmp_path: Path) -> Repo:
    """The submodule python/third of the engine, as its checkout."""
    upstream = Repo(tmp_path / "third")
    upstream.commit("third one", k_dot_py="1\n")
    repo.git("-c", "protocol.file.allow=always", "submodule", "--quiet", "add", str(upstream.path), "python/third")
    repo.commit("submodule")
    third = Repo(repo.path / "python/third")
    third.clock = repo.clock
    return third


def test_a_submodule_is_pinned_by_its_commit(repo: Repo, third: Repo, tmp_path: Path) -> None:
    deployment = in_place(tmp_path)
    assert deployment.lock.engine.source.differs == {}
    assert deployment.said == []
    assert by_key(deployment) == {}
    third.write("k.py", "2\n")
    third.write("new.py", "")
    assert {key: item.note for key, item in by_key(deployment).items()} == {
        "python/third/k.py": "edited",
        "python/third/new.py": "added",
    }
    before = third.head
    after = third.commit("third two")
    third.write("k.py", "3\n")
    found = by_key(deployment)
    assert found.keys() == {"python/third", "python/third/k.py"}
    moved = found["python/third"]
    assert (moved.pinned, moved.observed) == (f"commit {before[:10]}", f"commit {after[:10]}")
    assert any("third two" in line for line in moved.evidence)
    assert repo.head == deployment.lock.engine.source.commit


def test_a_submodule_is_locked_as_it_is(repo: Repo, third: Repo, tmp_path: Path) -> None:
    moved = third.commit("third two", k_dot_py="2\n")
    third.write("k.py", "dirty\n")
    deployment = in_place(tmp_path)
    differs = deployment.lock.engine.source.differs
    assert set(differs) == {"python/third", "python/third/k.py"}
    assert differs["python/third"] == f"160000 {moved}"
    assert any("submodule python/third is at" in line for line in deployment.said)
    assert by_key(deployment) == {}
    third.write("k.py", "2\n")
    assert set(by_key(deployment)) == {"python/third/k.py"}


@pytest.mark.usefixtures("third")
def test_a_submodule_that_is_not_checked_out(repo: Repo, tmp_path: Path) -> None:
    deployment = in_place(tmp_path)
    repo.git("submodule", "--quiet", "deinit", "-f", "python/third")
    (gone,) = by_key(deployment).values()
    assert (gone.key, gone.observed, gone.note) == ("python/third", ABSENT, "the submodule is not checked out")
    deployment.relock(upgrade=True)
    assert deployment.lock.engine.source.differs == {"python/third": "deleted"}
    assert any("python/third is not checked out" in line for line in deployment.said)
    assert by_key(deployment) == {}
    repo.git("-c", "protocol.file.allow=always", "submodule", "--quiet", "update", "--init")
    (come,) = by_key(deployment).values()
    assert (come.key, come.pinned, come.note) == ("python/third", ABSENT, "the submodule has been checked out")


@pytest.mark.usefixtures("third")
def test_a_submodule_without_its_repository(repo: Repo, tmp_path: Path) -> None:
    deployment = in_place(tmp_path)
    (repo.path / "python/third/.git").unlink()
    repo.write("python/third/k.py", "2\n")
    (lost,) = by_key(deployment).values()
    assert (lost.key, lost.observed) == ("python/third", "files without a repository")


def test_a_pull_that_moves_a_submodule_is_told_by_commits(repo: Repo, third: Repo, tmp_path: Path) -> None:
    deployment = in_place(tmp_path)
    third.commit("third two", k_dot_py="2\n")
    repo.commit("bump", python__pocket__a_dot_py="2\n")
    assert by_key(deployment).keys() == {"commit", "python/third"}


@pytest.mark.usefixtures("third")
def test_a_git_source_tells_of_its_submodules(repo: Repo, tmp_path: Path) -> None:
    deployment = deployment_of(tmp_path, git="eng", commit=repo.head, subdirectory="python")
    said = "submodule python/third is not checked out: pinner leaves submodules out"
    assert deployment.said == [said]
    deployment.materialize()
    assert said in deployment.observe(workspace=deployment.workspace()).notes
    deployment.forget_mirrors()
    assert said in deployment.observe(workspace=deployment.workspace()).notes


# Where the package lies --------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["git", "path"])
def test_a_wrong_subdirectory_is_refused(repo: Repo, tmp_path: Path, kind: str) -> None:
    for wrong in ("python/pocket", "", "README"):
        with pytest.raises(ManifestError, match=r"engine\.source\.subdirectory: ") as caught:
            deployment_of(tmp_path, subdirectory=wrong, commit=repo.head, **{kind: "eng"})
        if wrong != "README":
            assert "python" in (caught.value.hint or "")


def test_a_src_layout_is_no_wrong_subdirectory(repo: Repo, tmp_path: Path) -> None:
    (repo.path / "python/src").mkdir()
    (repo.path / "python/pocket").rename(repo.path / "python/src/pocket")
    repo.commit("src")
    deployment_of(tmp_path, git="eng", commit=repo.head, subdirectory="python")
    deployment = deployment_of(tmp_path, path="eng", commit=repo.head, subdirectory="python")
    deployment.add_finder("pocket", repo.path / "python/src/pocket")
    assert by_key(deployment) == {}


# Names, marks and unfinished work ----------------------------------------------------------------------------


def test_a_name_that_is_not_utf8(repo: Repo, tmp_path: Path) -> None:
    deployment = in_place(tmp_path)
    odd = repo.path / os.fsdecode(b"python/b\xff.py")
    odd.write_text("x")
    (difference,) = by_key(deployment).values()
    assert difference.key == "python/b\\xff.py"
    assert msgspec.json.encode(deployment.observe())
    with pytest.raises(ManifestError, match=r"python/b\\xff\.py .* its name is not UTF-8"):
        deployment.relock(upgrade=True)


def test_edits_carry_when_and_who_and_what_hides_them(repo: Repo, tmp_path: Path) -> None:
    deployment = in_place(tmp_path)
    repo.git("update-index", "--assume-unchanged", "python/pocket/a.py")
    repo.write("python/pocket/a.py", "2\n")
    (edit,) = by_key(deployment).values()
    assert "(file time), owner " in edit.evidence[0]
    assert edit.evidence[1] == "git status does not show it: the file is marked assume-unchanged"


def test_unfinished_work_is_a_note(repo: Repo, tmp_path: Path) -> None:
    deployment = in_place(tmp_path)
    repo.git("checkout", "-q", "-b", "other")
    repo.commit("theirs", README="theirs\n")
    repo.git("checkout", "-q", "main")
    repo.git("merge", "-q", "--no-commit", "--no-ff", "other")
    assert "an unfinished merge is in the checkout" in deployment.observe().notes


def test_a_line_break_in_the_checkouts_path(repo: Repo, tmp_path: Path) -> None:
    odd = tmp_path / "a\nb"
    odd.mkdir()
    subprocess.run(["git", "clone", "-q", str(repo.path), str(odd / "eng")], env=ENV, check=True)
    deployment = deployment_of(odd, path="eng", commit="main", subdirectory="python")
    deployment.add_finder("pocket", odd / "eng/python/pocket")
    assert by_key(deployment) == {}
