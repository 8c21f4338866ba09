"""H01 to H04 of the cases from the field, each under its number."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from pinner.errors import ExitCode, OperationFailed, UnknownFact
from pinner.host import mirror
from pinner.model.facts import Unknown
from pinner.probes import source
from tests.integration.source_deployments import Deployment, deployment_of
from tests.integration.source_repos import Repo


@pytest.fixture
def eng(tmp_path: Path) -> Repo:
    """The engine's repository, with the package at its root."""
    repo = Repo(tmp_path / "eng")
    repo.write("pocket/__init__.py", "V = 1\n")
    repo.commit("one", pyproject_dot_toml='[project]\nname = "pocket"\nversion = "1"\n')
    return repo


# H01 ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["pth", "finder"])
def test_h01_an_editable_install_of_another_checkout_is_drift_from_any_directory(
    eng: Repo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    x, y = eng.clone(tmp_path / "X"), eng.clone(tmp_path / "Y")
    newer = y.commit("two", pocket__new_dot_py="1\n")
    deployment = deployment_of(tmp_path, path="X", commit=x.head)
    if how == "pth":
        deployment.add_pth("__editable__.pocket-1.pth", f"{y.path}\n")
    else:
        deployment.add_finder("pocket", y.path / "pocket")
    answers = []
    for cwd in (x.path, y.path, Path("/")):
        monkeypatch.chdir(cwd)
        (difference,), unknown = deployment.check()
        assert unknown == ()
        answers.append(difference)
    assert answers[0] == answers[1] == answers[2]
    difference = answers[0]
    assert difference.key == "imported-from"
    assert difference.pinned == str(x.path / "pocket")
    assert difference.observed == str(y.path / "pocket" / "__init__.py")
    text = "\n".join(difference.evidence)
    assert f"that is the checkout {y.path} at {newer[:10]} (branch main)" in text
    assert f"expected: {x.path} at {x.head[:10]}" in text
    assert ("__editable__.pocket-1.pth adds" if how == "pth" else "__editable___pocket_finder.py") in text


def test_h01_the_pinned_checkout_is_clean_from_any_directory(
    eng: Repo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, y = eng.clone(tmp_path / "X"), eng.clone(tmp_path / "Y")
    deployment = deployment_of(tmp_path, path="X", commit=x.head)
    deployment.add_pth("pocket.pth", f"{x.path}\n")
    monkeypatch.setenv("PYTHONPATH", str(y.path))
    for cwd in (x.path, y.path, Path("/")):
        monkeypatch.chdir(cwd)
        assert deployment.check() == ((), ())


# H02 ---------------------------------------------------------------------------------------------------------


def assert_told_as_ownership(deployment: Deployment, directory: Path) -> None:
    differences, unknown = deployment.check()
    assert differences == ()
    (fact,) = unknown
    assert fact.key == "commit"
    assert isinstance(fact.observed, Unknown)
    assert "ownership" in fact.observed.reason
    assert str(directory) in fact.observed.reason
    for wrong in ("not a git repository", "clean", "dirty"):
        assert wrong not in fact.observed.reason
    with pytest.raises(UnknownFact, match="ownership") as caught:
        deployment.pin(upgrade=True)
    assert caught.value.exit_code is ExitCode.FAILED


def test_h02_dubious_ownership_is_unknown(eng: Repo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "home-of-user"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    deployment = deployment_of(tmp_path, path="eng", commit=eng.head, importable=True)
    assert deployment.check() == ((), ())
    monkeypatch.setenv("GIT_TEST_ASSUME_DIFFERENT_OWNER", "1")
    assert_told_as_ownership(deployment, eng.path)
    assert list(home.iterdir()) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_h02_a_checkout_of_another_user_is_unknown(
    eng: Repo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "nobody"))
    monkeypatch.setenv("SUDO_UID", "12345")
    deployment = deployment_of(tmp_path, path="eng", commit=eng.head, importable=True)
    for path in (eng.path, *eng.path.rglob("*")):
        os.chown(path, 12345, 12345)
    assert_told_as_ownership(deployment, eng.path)


# H03 ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def hub(eng: Repo, tmp_path: Path) -> tuple[Repo, str, str]:
    """A bare repository; A is held by refs/pull/7/head only, B by nothing since its branch was deleted."""
    bare = Repo(tmp_path / "hub.git", bare=True)
    eng.git("push", "-q", str(bare.path), "main")
    a = eng.commit("A", pocket__a_dot_py="a\n")
    eng.git("push", "-q", str(bare.path), "HEAD:refs/pull/7/head")
    eng.git("reset", "-q", "--hard", "HEAD~1")
    b = eng.commit("B", pocket__b_dot_py="b\n")
    eng.git("push", "-q", str(bare.path), "HEAD:refs/heads/temp")
    eng.git("push", "-q", str(bare.path), ":refs/heads/temp")
    return bare, a, b


def test_h03_a_commit_of_a_pull_request_is_pinned_with_a_warning(
    hub: tuple[Repo, str, str], tmp_path: Path
) -> None:
    _, a, b = hub
    for commit, name in ((a, "a.py"), (b, "b.py")):
        deployment = deployment_of(tmp_path, git="hub.git", commit=commit)
        assert deployment.lock.engine.source.commit == commit
        assert any("no branch or tag" in line and commit in line for line in deployment.said)
        tree = deployment.materialize()
        assert (tree / "pocket" / name).is_file()
        assert deployment.check_tree() == ((), ())


def test_h03_where_the_server_gives_no_ids_the_reference_is_found(
    hub: tuple[Repo, str, str], tmp_path: Path
) -> None:
    bare, a, _ = hub
    # Version 0 of the protocol gives only what a reference names.
    bare.git("config", "uploadpack.allowAnySHA1InWant", "false")
    mine = mirror.ensure(tmp_path / "m", str(bare.path))
    assert mine.resolve(a).commit == a
    assert mine.resolve("refs/pull/7/head").commit == a


def test_h03_a_collected_commit_fails_by_name_and_leaves_nothing(
    hub: tuple[Repo, str, str], tmp_path: Path
) -> None:
    bare, _, b = hub
    deployment = deployment_of(tmp_path, git="hub.git", commit=b)
    deployment.forget_mirrors()
    bare.git("reflog", "expire", "--expire=now", "--all")
    bare.git("gc", "-q", "--prune=now")
    with pytest.raises(OperationFailed) as caught:
        deployment.materialize()
    assert b in caught.value.message
    assert str(bare.path) in caught.value.message
    assert caught.value.exit_code is ExitCode.FAILED
    assert not (tmp_path / "workspace" / "tree").exists()
    differences, unknown = deployment.check_tree()
    assert (differences, unknown) != ((), ())


# H04 ---------------------------------------------------------------------------------------------------------


def test_h04_line_endings_make_no_drift_and_a_changed_byte_does(eng: Repo, tmp_path: Path) -> None:
    eng.commit("crlf", pocket__w_dot_txt=b"a\r\nb\r\n")
    eng.write(".gitattributes", "*.txt text\n")
    eng.git("add", ".gitattributes")
    eng.git("commit", "-q", "-m", "attributes")
    file = eng.path / "pocket/w.txt"
    os.utime(file, (1, 1))
    assert "w.txt" in eng.git("status", "--porcelain")
    deployment = deployment_of(tmp_path, path="eng", commit=eng.head, importable=True)
    assert deployment.lock.engine.source.differs == {}
    assert deployment.check() == ((), ())
    file.write_bytes(b"a\r\nb\n\n")
    (difference,), _ = deployment.check()
    assert (difference.key, difference.note) == ("pocket/w.txt", "edited")


def test_h04_a_touched_file_is_no_drift(eng: Repo, tmp_path: Path) -> None:
    deployment = deployment_of(tmp_path, path="eng", commit=eng.head, importable=True)
    (eng.path / "pocket/__init__.py").touch()
    index = (eng.path / ".git/index").read_bytes()
    assert deployment.check() == ((), ())
    assert deployment.check(deep=True) == ((), ())
    assert (eng.path / ".git/index").read_bytes() == index


def test_the_probe_has_the_five_parts() -> None:
    for part in ("NAME", "pin", "observe", "observe_live", "compare", "capture"):
        assert hasattr(source, part)
    assert (
        subprocess.run(
            [sys.executable, "-c", "import pinner.probes.source, sys; assert 'git' not in sys.modules"],
            check=False,
        ).returncode
        == 0
    )
    assert msgspec.to_builtins(Unknown("x"))
