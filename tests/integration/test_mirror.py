"""Mirrors: finding commits, keeping what is pinned, recovering from kills, refusing hostile remotes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from pinner.errors import ManifestError, OperationFailed
from pinner.host import fetch, mirror
from pinner.host.git import address
from pinner.host.mirror import Mirror
from pinner.host.process import Completed
from tests.integration.source_repos import Repo


@pytest.fixture
def repo(tmp_path: Path) -> Repo:
    repo = Repo(tmp_path / "origin")
    repo.commit("one", a_dot_py="1\n")
    repo.git("tag", "-a", "v1", "-m", "the first")
    repo.commit("two", a_dot_py="2\n", pkg__b_dot_py="b\n")
    return repo


@pytest.fixture
def mirrors(tmp_path: Path) -> Path:
    return tmp_path / "home" / "mirrors"


def ensure(mirrors: Path, repo: Repo) -> Mirror:
    return mirror.ensure(mirrors, address(str(repo.path), Path("/")))


def test_branch_tag_and_ids_resolve_to_commit_and_tree(repo: Repo, mirrors: Path) -> None:
    mine = ensure(mirrors, repo)
    head, first = repo.head, repo.git("rev-parse", "v1^{commit}")
    tag_object = repo.git("rev-parse", "v1")
    assert mine.resolve("main").commit == head
    assert mine.resolve("v1").commit == first
    assert mine.resolve(tag_object).commit == first
    assert mine.resolve(head[:9]).commit == head
    assert mine.resolve("refs/tags/v1").commit == first
    resolved = mine.resolve(head)
    assert resolved.tree == repo.git("rev-parse", "HEAD^{tree}")
    assert resolved.refs == ("refs/heads/main",)
    assert resolved.note == ""


def test_a_branch_that_moved_is_followed_and_its_old_commit_stays(repo: Repo, mirrors: Path) -> None:
    mine = ensure(mirrors, repo)
    old = repo.head
    repo.git("reset", "-q", "--hard", "HEAD~1")
    new = repo.commit("other", a_dot_py="3\n")
    assert mine.resolve("main").commit == new
    stale = mine.resolve(old)
    assert stale.commit == old
    assert "no branch or tag" in stale.note


def test_a_name_that_is_branch_and_tag_is_refused_with_both(repo: Repo, mirrors: Path) -> None:
    repo.git("branch", "v1")
    with pytest.raises(ManifestError, match=r"branch v1, tag v1") as caught:
        ensure(mirrors, repo).resolve("v1")
    assert "refs/heads/v1 or refs/tags/v1" in (caught.value.hint or "")


def test_an_ambiguous_short_id_lists_the_candidates(repo: Repo, mirrors: Path) -> None:
    tree = repo.git("rev-parse", "HEAD^{tree}")
    seen: dict[str, str] = {}
    for number in range(2000):  # the birthday of 16 bits comes after some 300
        made = repo.git("commit-tree", tree, "-m", f"n{number}", "-p", "HEAD")
        if other := seen.get(made[:4]):
            break
        seen[made[:4]] = made
    else:
        pytest.fail("no two commits with the same four digits")
    repo.git("branch", "x", made)
    repo.git("branch", "y", other)
    with pytest.raises(ManifestError, match=f"(?s){min(made, other)}.*{max(made, other)}"):
        ensure(mirrors, repo).resolve(made[:4])


def test_what_is_nothing_is_said_to_be_nothing(repo: Repo, mirrors: Path) -> None:
    mine = ensure(mirrors, repo)
    with pytest.raises(ManifestError, match="no branch, tag or commit 'nope'"):
        mine.resolve("nope")
    with pytest.raises(ManifestError, match="is a tree, not a commit"):
        mine.resolve(repo.git("rev-parse", "HEAD^{tree}"))
    with pytest.raises(ManifestError, match="is not a branch"):
        mine.resolve("--upload-pack=touch x")


def test_the_commits_between_are_told_offline_in_both_directions(repo: Repo, mirrors: Path) -> None:
    mine = ensure(mirrors, repo)
    old, new = repo.git("rev-parse", "v1^{commit}"), repo.head
    repo.path.rename(repo.path.with_name("gone"))
    came = mine.log(old, new)
    assert [(commit.sha, commit.subject, commit.paths) for commit in came] == [(new, "two", ("a.py", "pkg/b.py"))]
    assert came[0].date == "2025-10-09T12:53:20+02:00"
    assert mine.log(new, old) == ()
    assert mine.commit_info(old).author == "Ada"
    assert set(mine.tree_entries(new)) == {"a.py", "pkg/b.py"}


def test_a_remote_that_can_leaves_contents_out_until_they_are_pinned(repo: Repo, mirrors: Path) -> None:
    repo.git("config", "uploadpack.allowFilter", "true")
    repo.git("config", "uploadpack.allowAnySHA1InWant", "true")
    mine = mirror.ensure(mirrors, f"file://{repo.path}")
    blob = repo.git("rev-parse", "HEAD:a.py")
    assert mine.git.run("cat-file", "-e", blob, check=False).code != 0
    with pytest.raises(OperationFailed, match="does not offer commit"):
        mine.resolve("1" * 40)
    mine.make_present(repo.head)
    repo.path.rename(repo.path.with_name("gone"))
    exported = mine.export(mine.commit_info("refs/heads/main").sha, mirrors.parent / "tree")
    assert exported.files == 2
    assert (mirrors.parent / "tree" / "a.py").read_text() == "2\n"


def test_a_bundle_is_a_remote(repo: Repo, mirrors: Path, tmp_path: Path) -> None:
    repo.git("bundle", "create", str(tmp_path / "engine.bundle"), "--all")
    mine = mirror.ensure(mirrors, address("engine.bundle", tmp_path))
    assert mine.resolve("v1").commit == repo.git("rev-parse", "v1^{commit}")
    mine.make_present(repo.head)
    with pytest.raises(OperationFailed, match="does not offer commit"):
        mine.resolve("1" * 40)


def test_a_killed_fetch_leaves_what_the_next_one_repairs(repo: Repo, mirrors: Path) -> None:
    url = address(str(repo.path), Path("/"))
    key = mirror.Mirror(mirrors / "x", url)
    half = mirrors / f".{mirror._key(url)}.dead"
    (half / "objects").mkdir(parents=True)
    mine = mirror.ensure(mirrors, url)
    assert not half.exists()
    assert key.url == mine.url
    for left in ("packed-refs.lock", "refs/heads/main.lock", "objects/pack/tmp_pack_x"):
        (mine.path / left).touch()
        os.utime(mine.path / left, (1, 1))
    new = repo.commit("three")
    assert mine.resolve("main").commit == new
    assert not list(mine.path.rglob("*.lock"))


def test_a_failed_first_fetch_leaves_nothing(tmp_path: Path, mirrors: Path) -> None:
    with pytest.raises(OperationFailed, match="cannot fetch"):
        mirror.ensure(mirrors, str(tmp_path / "nowhere"))
    assert [path.suffix for path in mirrors.iterdir()] == [".lock"]


def test_two_at_once_make_one_mirror(repo: Repo, mirrors: Path) -> None:
    made: list[str] = []

    def work() -> None:
        made.append(ensure(mirrors, repo).resolve("main").commit)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert made == [repo.head] * 4


@pytest.mark.parametrize(
    "url",
    [
        "ext::sh -c touch% x",
        "--upload-pack=touch x",
        "-u",
        "http://example.org/x.git",
        "git://example.org/x.git",
        "ftp://example.org/x",
        "fd::7",
        "ssh://-oProxyCommand=touch/x",
        "-oProxyCommand=x:y",
        "host::path",
        "a b:c",
        "https://user:word@example.org/x",
        "https://token@example.org/x",
        "x\ny",
    ],
)
def test_other_addresses_are_refused_by_key(url: str) -> None:
    with pytest.raises(ManifestError, match=r"engine\.source\.git") as caught:
        address(url, Path("/"))
    assert "word" not in caught.value.message
    assert "token@" not in caught.value.message


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("https://example.org/x.git", "https://example.org/x.git"),
        ("git@example.org:o/x.git", "git@example.org:o/x.git"),
        ("ssh://git@example.org:22/o/x", "ssh://git@example.org:22/o/x"),
        ("file:///srv/x", "file:///srv/x"),
        ("../x.bundle", "/srv/x.bundle"),
        ("/abs/x", "/abs/x"),
        ("./a:b", "/srv/y/a:b"),
    ],
)
def test_addresses_are_made_absolute(url: str, expected: str) -> None:
    assert address(url, Path("/srv/y")) == expected


def test_malformed_trees_are_refused_on_the_way_in(repo: Repo, mirrors: Path) -> None:
    blob = repo.git("hash-object", "-w", "--stdin", input=b"x")
    raw = b"100644 .git\0" + bytes.fromhex(blob)
    tree = repo.git("hash-object", "-t", "tree", "-w", "--stdin", "--literally", input=raw)
    repo.git("update-ref", "refs/heads/main", repo.git("commit-tree", tree, "-m", "bad"))
    with pytest.raises(OperationFailed, match=r"(?s)refuses as harmful.*hasDotgit"):
        ensure(mirrors, repo)
    assert not [path for path in mirrors.iterdir() if path.is_dir()]


def test_nothing_of_a_hostile_remote_or_caller_runs(
    repo: Repo, mirrors: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mark = tmp_path / "ran"
    evil = tmp_path / "evil"
    evil.write_text(f"#!/bin/sh\ntouch {mark}\n")
    evil.chmod(0o755)
    for hook in ("post-checkout", "reference-transaction", "post-index-change", "pre-auto-gc"):
        (repo.path / ".git" / "hooks").mkdir(exist_ok=True)
        (repo.path / ".git" / "hooks" / hook).symlink_to(evil)
    for name in ("core.fsmonitor", "uploadpack.packObjectsHook", "core.alternateRefsCommand", "core.sshCommand"):
        repo.git("config", name, str(evil))
    config = tmp_path / "gitconfig"
    config.write_text(
        f'[core]\n\thooksPath = {evil.parent}\n\tfsmonitor = {evil}\n[filter "x"]\n\tsmudge = {evil}\n'
        f'[url "ext::{evil}"]\n\tinsteadOf = {repo.path}\n'
    )
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(config))
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "elsewhere"))
    monkeypatch.setenv("GIT_EXTERNAL_DIFF", str(evil))
    monkeypatch.setenv("GIT_SSH_COMMAND", str(evil))
    monkeypatch.setenv("GIT_TRACE", str(mark))
    mine = ensure(mirrors, repo)
    mine.make_present(mine.resolve("main").commit)
    mine.export(repo.head, tmp_path / "tree")
    mine.log(repo.git("rev-parse", "v1"), repo.head)
    assert not mark.exists()
    assert not (mine.path / "hooks").exists()


def test_kills_at_any_moment_leave_a_mirror_that_works(repo: Repo, mirrors: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from pinner.host import mirror\n"
        "m = mirror.ensure(Path(sys.argv[1]), sys.argv[2]); m.update(); m.update()"
    )
    for number in range(8):
        repo.commit(f"n{number}", **{f"f{at}_dot_py": f"{number}{at}\n" * 50 for at in range(20)})
        repo.git("branch", f"b{number}")
        child = subprocess.Popen([sys.executable, "-c", code, str(mirrors), str(repo.path)])
        time.sleep(0.08 + 0.03 * number)
        child.send_signal(signal.SIGKILL)
        child.wait()
    mine = ensure(mirrors, repo)
    assert mine.resolve("main").commit == repo.head
    assert mine.resolve("b7").commit == repo.head
    mine.export(repo.head, mirrors.parent / "tree")
    mine.git.run("fsck", "--full", "--strict", "--no-dangling")
    assert len([path for path in mirrors.iterdir() if path.is_dir()]) == 1


def test_ssh_is_the_sites_own_and_asks_no_questions(
    repo: Repo, mirrors: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = tmp_path / "seen"
    ssh = tmp_path / "bin" / "ssh"
    ssh.parent.mkdir()
    ssh.write_text(
        f'#!/bin/sh\necho "$SSH_AUTH_SOCK $*" >> {seen}\nfor last; do :; done\nexec /bin/sh -c "$last"\n'
    )
    ssh.chmod(0o755)
    monkeypatch.setenv("PATH", f"{ssh.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("SSH_AUTH_SOCK", "/run/agent")
    monkeypatch.setenv("GIT_SSH_COMMAND", f"touch {tmp_path / 'ran'}")
    mine = mirror.ensure(mirrors, f"ssh://git@example.org{repo.path}")
    assert mine.resolve("main").commit == repo.head
    assert mirror.ensure(mirrors, f"git@example.org:{repo.path}").resolve("v1").refs
    assert not (tmp_path / "ran").exists()
    line = seen.read_text().splitlines()[0]
    assert line.startswith("/run/agent ")
    assert "-oBatchMode=yes" in line
    assert "git@example.org" in line


def test_programs_are_not_taken_from_the_callers_directory(
    repo: Repo, mirrors: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "git").write_text(f"#!/bin/sh\ntouch {tmp_path / 'ran'}\n")
    (tmp_path / "git").chmod(0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f".::{os.environ['PATH']}")
    ensure(mirrors, repo)
    assert not (tmp_path / "ran").exists()
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    with pytest.raises(OperationFailed, match="git was not found"):
        ensure(mirrors, repo).update()


@pytest.mark.parametrize("scheme", ["", "file://"])
def test_a_shallow_clone_is_refused_with_the_way_out(
    repo: Repo, mirrors: Path, tmp_path: Path, scheme: str
) -> None:
    subprocess.run(
        ["git", "clone", "-q", "--depth", "1", f"file://{repo.path}", str(tmp_path / "shallow")], check=True
    )
    url = f"{scheme}{tmp_path / 'shallow'}"
    with pytest.raises(ManifestError, match="is a shallow clone: its history is cut off") as caught:
        mirror.ensure(mirrors, url)
    assert f"git -C {tmp_path / 'shallow'} fetch --unshallow" in (caught.value.hint or "")
    assert mirror.existing(mirrors, url) is None
    Repo(tmp_path / "shallow").git("fetch", "-q", "--unshallow")
    assert mirror.ensure(mirrors, url).resolve("main").commit == repo.head


def test_what_git_says_of_a_shallow_remote_elsewhere() -> None:
    said = b" ! [rejected] main -> main (shallow update not allowed)\n"
    with pytest.raises(ManifestError, match="is a shallow clone"):
        fetch.refuse_shallow("https://example.org/x", Completed(("git",), 0, b"", said))
    fetch.refuse_shallow("https://example.org/x", Completed(("git",), 0, b"", b"From x\n"))
    fetch.refuse_shallow("https://example.org/x")


def test_a_mirror_that_was_just_made_is_not_fetched_again(repo: Repo, mirrors: Path) -> None:
    said: list[str] = []
    mine = mirror.ensure(mirrors, str(repo.path), said.append)
    assert mine.resolve("main", say=said.append, is_new=True).commit == repo.head
    assert len(said) == 1
