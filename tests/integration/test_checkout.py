"""A checkout in place: where HEAD is, and the story of how it came there. Nothing is written in it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pinner.errors import UnknownFact
from pinner.host import checkout
from pinner.host.checkout import CheckoutMissing, inspect, named, story
from tests.integration.source_repos import Repo


@pytest.fixture
def repo(tmp_path: Path) -> Repo:
    repo = Repo(tmp_path / "upstream")
    repo.commit("one", pkg__a_dot_py="1\n")
    return repo


def files_of(path: Path) -> dict[str, tuple[int, int]]:
    """Every file with its size and time, to show that nothing was written."""
    return {str(file): (file.lstat().st_size, file.lstat().st_mtime_ns) for file in sorted(path.rglob("*"))} | {
        ".": (0, path.stat().st_mtime_ns)
    }


def test_state_from_any_directory_and_without_a_trace(
    repo: Repo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (repo.path / "pkg/a.py").touch()  # an index that wants to be refreshed
    before = files_of(repo.path)
    for cwd in (tmp_path, repo.path, repo.path / "pkg", Path("/")):
        monkeypatch.chdir(cwd)
        state = inspect(repo.path)
        assert (state.toplevel, state.head, state.branch) == (repo.path, repo.head, "main")
        assert state.tree == repo.git("rev-parse", "HEAD^{tree}")
    story(inspect(repo.path), repo.head)
    assert files_of(repo.path) == before


def test_detached_worktrees_and_submodules(repo: Repo, tmp_path: Path) -> None:
    repo.git("worktree", "add", "-q", "--detach", str(tmp_path / "wt"))
    state = inspect(tmp_path / "wt")
    assert (state.branch, state.head) == (None, repo.head)
    assert state.common_dir == repo.path / ".git"
    outer = Repo(tmp_path / "outer")
    outer.git("-c", "protocol.file.allow=always", "submodule", "add", "-q", str(repo.path), "sub")
    assert inspect(outer.path / "sub").head == repo.head


def test_each_refusal_has_its_own_words(repo: Repo, tmp_path: Path) -> None:
    with pytest.raises(CheckoutMissing, match="no directory"):
        inspect(tmp_path / "nowhere")
    (tmp_path / "plain").mkdir()
    with pytest.raises(UnknownFact, match="not a git repository"):
        inspect(tmp_path / "plain")
    with pytest.raises(UnknownFact, match="not a git repository"):
        inspect(repo.path / "pkg")  # a directory of a checkout is no checkout
    with pytest.raises(UnknownFact, match="no commit yet"):
        inspect(Repo(tmp_path / "unborn").path)
    with pytest.raises(UnknownFact, match="bare repository"):
        inspect(Repo(tmp_path / "bare", bare=True).path)


def test_the_users_own_safe_directories_count_and_are_not_written(
    repo: Repo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    monkeypatch.setenv("GIT_TEST_ASSUME_DIFFERENT_OWNER", "1")
    with pytest.raises(UnknownFact, match="ownership"):
        inspect(repo.path)
    config = home / ".gitconfig"
    config.write_text(f"[safe]\n\tdirectory = {repo.path}\n")
    before = config.read_bytes()
    assert inspect(repo.path).head == repo.head
    assert config.read_bytes() == before


def test_names_are_found_in_the_checkout(repo: Repo, tmp_path: Path) -> None:
    repo.git("tag", "v1")
    mine = repo.clone(tmp_path / "mine")
    state = inspect(mine.path)
    expected = (repo.head, repo.git("rev-parse", "HEAD^{tree}"))
    for wish in ("main", "v1", "origin/main", "refs/tags/v1", repo.head, repo.head[:8]):
        assert named(state, wish) == expected
    assert named(state, "nope") is None
    mine.git("branch", "v1", mine.commit("more"))
    with pytest.raises(UnknownFact, match="more than one thing"):
        named(state, "v1")


def pulled(repo: Repo, tmp_path: Path) -> tuple[Repo, str]:
    """A checkout in which somebody pulled three commits, and the commit it was at."""
    mine = repo.clone(tmp_path / "mine")
    pinned = mine.head
    repo.commit("innocent", README="hello\n")
    repo.commit("faster verify", pkg__spec__verify_dot_py="x\n")
    repo.commit("typo", README="hello!\n")
    mine.clock = repo.clock
    mine.git("pull", "-q", "--ff-only", GIT_COMMITTER_NAME="Bob", GIT_COMMITTER_EMAIL="bob@example.org")
    return mine, pinned


def test_a_pull_is_told_with_who_when_and_the_suspect(repo: Repo, tmp_path: Path) -> None:
    mine, pinned = pulled(repo, tmp_path)
    told = story(inspect(mine.path), pinned)
    assert [commit.subject for commit in told.came] == ["typo", "faster verify", "innocent"]
    assert told.went == ()
    lines = told.lines(["pkg/spec/"])
    assert lines[0] == (
        f"HEAD moved from {pinned[:10]} to {mine.head[:10]} by `pull -q --ff-only: Fast-forward` at "
        "2025-10-09T14:53:20+02:00 by Bob <bob@example.org> (as far as the reflog knows)"
    )
    assert lines[1] == "3 commits came in, 1 of them on a hot path:"
    suspects = [line for line in lines if line.endswith("← suspect")]
    assert len(suspects) == 1
    assert "faster verify" in suspects[0]
    assert "2025-10-09" in suspects[0]


def test_moves_are_told_from_when_head_was_last_at_the_pin(repo: Repo, tmp_path: Path) -> None:
    mine, pinned = pulled(repo, tmp_path)
    latest = mine.head
    mine.git("reset", "-q", "--hard", pinned)
    mine.git("checkout", "-q", "-b", "other", latest)
    moves = story(inspect(mine.path), pinned).moves
    assert [move.action for move in moves] == ["checkout: moving from main to other"]


def test_backwards_and_diverged(repo: Repo, tmp_path: Path) -> None:
    mine, old = pulled(repo, tmp_path)
    pinned = mine.head
    mine.git("reset", "-q", "--hard", old)
    back = story(inspect(mine.path), pinned)
    assert [commit.subject for commit in back.went] == ["typo", "faster verify", "innocent"]
    assert "3 commits went away:" in back.lines()
    mine.commit("own work")
    aside = story(inspect(mine.path), pinned)
    assert [commit.subject for commit in aside.came] == ["own work"]
    assert any("diverged" in note for note in aside.notes)


def test_a_silent_reflog_is_said_to_be_silent(repo: Repo, tmp_path: Path) -> None:
    mine, pinned = pulled(repo, tmp_path)
    log = mine.path / ".git/logs/HEAD"
    whole = log.read_bytes()
    log.write_bytes(b"")
    lines = story(inspect(mine.path), pinned).lines()
    assert any("no reflog" in line for line in lines)
    assert any("last written at" in line and f"uid {os.getuid()}" in line for line in lines)
    log.unlink()
    assert any("no reflog" in line for line in story(inspect(mine.path), pinned).lines())
    log.write_bytes(b"garbage\n" + whole.splitlines(keepends=True)[0])
    assert any("without a reflog entry" in line for line in story(inspect(mine.path), pinned).lines())
    stranger = story(inspect(mine.path), "1" * 40)
    assert any("does not hold the pinned commit" in note for note in stranger.notes)
    assert any("does not go back" in note for note in stranger.notes)


def test_a_long_story_keeps_its_ends_and_every_suspect(repo: Repo, tmp_path: Path) -> None:
    mine = repo.clone(tmp_path / "mine")
    pinned = mine.head
    mine.commit("the culprit", hot_dot_py="1\n")
    for number in range(30):
        mine.commit(f"n{number}")
    lines = story(inspect(mine.path), pinned).lines(["hot.py"])
    assert any("the culprit" in line and "suspect" in line for line in lines)
    assert any("moves between" in line for line in lines)
    assert any("more" in line for line in lines)
    assert len(lines) < 40


def test_nothing_of_a_hostile_checkout_runs(repo: Repo, tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    evil = tmp_path / "evil"
    evil.write_text(f"#!/bin/sh\ntouch {mark}\n")
    evil.chmod(0o755)
    pinned = repo.head
    repo.commit("two", _dot_gitattributes="* diff=x filter=x\n", pkg__a_dot_py="2\n")
    for name in (
        "core.fsmonitor", "core.sshCommand", "core.pager", "gpg.program", "diff.external", "diff.x.textconv",
        "diff.x.command", "filter.x.clean", "filter.x.process", "core.alternateRefsCommand", "core.editor",
    ):  # fmt: skip
        repo.git("config", name, str(evil))
    repo.git("config", "log.showSignature", "true")
    repo.git("config", "remote.origin.url", f"ext::{evil}")
    repo.git("config", "remote.origin.promisor", "true")
    state = inspect(repo.path)
    story(state, pinned).lines()
    story(state, "1" * 40).lines()
    assert named(state, "1" * 40) is None
    assert not mark.exists()


def test_the_checkout_of_a_file_is_found(repo: Repo) -> None:
    state = checkout.find(repo.path / "pkg" / "a.py")
    assert state is not None
    assert state.toplevel == repo.path


def test_what_a_repository_says_cannot_steer_a_terminal_or_leak(repo: Repo, tmp_path: Path) -> None:
    mine = repo.clone(tmp_path / "mine")
    pinned = mine.head
    mine.commit("\x1b[2Jall is well")
    log = mine.path / ".git/logs/HEAD"
    log.write_text(
        log.read_text().replace("commit: ", "pull https://me:ghp_word@example.org/x: Fast-forward\x1b[2J ")
    )
    text = "\n".join(story(inspect(mine.path), pinned).lines())
    assert "\x1b" not in text
    assert "all is well" in text
    assert "ghp_word" not in text


def test_a_line_break_in_a_directorys_name(repo: Repo, tmp_path: Path) -> None:
    odd = tmp_path / "a\nb\n"
    odd.mkdir()
    mine = repo.clone(odd / "mine\n")
    state = inspect(mine.path)
    assert (state.toplevel, state.git_dir, state.head) == (mine.path, mine.path / ".git", repo.head)


def test_a_fresh_repository_began_somewhere(repo: Repo) -> None:
    first = repo.head
    repo.commit("two")
    (repo.path / ".git/logs/HEAD").write_text((repo.path / ".git/logs/HEAD").read_text().splitlines()[0] + "\n")
    lines = story(inspect(repo.path), "1" * 40).lines()
    assert lines[0].startswith(f"HEAD began at {first[:10]} by `commit (initial): one`")
    assert "0000000000" not in "\n".join(lines)
