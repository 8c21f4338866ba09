"""Locking with a real uv and a real index: the same bytes whoever locks, and what moves when they may."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import tiny
from tests.integration.command import Pinner
from tests.integration.index import index, make_wheel


@pytest.fixture
def wheels(tmp_path: Path) -> Path:
    """A folder of wheels with two versions of one package."""
    folder = tmp_path / "wheels"
    make_wheel(folder, "tinylib", "0.1.0", {"tinylib/__init__.py": "VALUE = 1\n"})
    return folder


@pytest.fixture
def address(wheels: Path) -> Iterator[str]:
    """The index that serves them."""
    with index(wheels) as (url, _):
        yield url


def with_requirement(tmp_path: Path, address: str, requirement: str = "tinylib", **more: str) -> Path:
    python = f'requirements = ["{requirement}"]\nindexes = ["{address}"]'
    return tiny.deployment(tmp_path / "d", python=python, **more)


def lock_files(manifest: Path) -> dict[str, bytes]:
    return {
        path.name: path.read_bytes()
        for path in (manifest.with_suffix(".lock"), manifest.parent / f"pylock.{manifest.stem}.toml")
    }


def remove_lock(manifest: Path) -> None:
    manifest.with_suffix(".lock").unlink()
    (manifest.parent / f"pylock.{manifest.stem}.toml").unlink()


@pytest.fixture
def hostile(tmp_path: Path) -> Iterator[dict[str, str]]:
    """Everything in a caller's environment that has leaked into somebody's lock, with an index that lies."""
    other = tmp_path / "other-wheels"
    make_wheel(other, "tinylib", "9.9.9", {"tinylib/__init__.py": "VALUE = 9\n"})
    config = tmp_path / "config"
    with index(other) as (url, _):
        (config / "uv").mkdir(parents=True)
        (config / "uv" / "uv.toml").write_text(f'index-url = "{url}"\n')
        yield {
            "UV_DEFAULT_INDEX": url,
            "UV_INDEX_URL": url,
            "UV_INDEX": url,
            "UV_EXTRA_INDEX_URL": url,
            "UV_FIND_LINKS": str(other),
            "UV_EXCLUDE_NEWER": "2001-01-01",
            "UV_PROJECT_ENVIRONMENT": str(tmp_path / "elsewhere"),
            "UV_TORCH_BACKEND": "cpu",
            "UV_FROZEN": "1",
            "UV_PRERELEASE": "allow",
            "UV_RESOLUTION": "lowest",
            "UV_CONFIG_FILE": str(config / "uv" / "uv.toml"),
            "XDG_CONFIG_HOME": str(config),
            "PIP_INDEX_URL": url,
            "PIP_FIND_LINKS": str(other),
            "GIT_DIR": str(tmp_path / "no-such-repository"),
            "GIT_CONFIG_COUNT": "1",
            "GIT_CONFIG_KEY_0": "core.autocrlf",
            "GIT_CONFIG_VALUE_0": "true",
            "LANG": "tr_TR.UTF-8",
            "LC_ALL": "C",
            "TZ": "Asia/Tokyo",
        }


def test_h05_the_callers_variables_do_not_change_a_lock(
    pinner: Pinner, tmp_path: Path, address: str, hostile: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Case H05: UV_*, PIP_*, GIT_*, configuration files, LANG."""
    manifest = with_requirement(tmp_path, address)
    assert pinner("lock", manifest).code == 0
    first = lock_files(manifest)
    assert b"9.9.9" not in first["pylock.tiny.toml"]
    remove_lock(manifest)
    for name, value in hostile.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("PINNER_HOME", str(tmp_path / "another-home"))
    said = pinner("lock", manifest)
    assert said.code == 0, said.err
    assert lock_files(manifest) == first
    assert pinner("lock", manifest).code == 0
    assert lock_files(manifest) == first


def test_h05_a_changed_manifest_with_an_old_lock_is_invalid(
    pinner: Pinner, tmp_path: Path, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest = with_requirement(tmp_path, address)
    assert pinner("lock", manifest).code == 0
    assert pinner("lock", manifest, "--check").code == 0
    manifest.write_text(manifest.read_text().replace('"tinylib"', '"tinylib>=9"'))
    monkeypatch.setenv("UV_FROZEN", "1")
    said = pinner.json("up", manifest)
    assert said.code == 2
    assert "out of date" in said.json["errors"][0]["message"]
    stale = pinner.json("lock", manifest, "--check")
    assert (stale.code, stale.json["status"]) == (1, "stale")
    impossible = pinner("lock", manifest)
    assert impossible.code == 2
    assert "tinylib>=9" in impossible.err


def test_h05_credentials_never_reach_a_lock(pinner: Pinner, tmp_path: Path, address: str) -> None:
    secret = address.replace("http://", "http://user:hush-hush@")
    manifest = with_requirement(tmp_path, secret)
    said = pinner("lock", manifest)
    assert said.code == 0, said.err
    for text in lock_files(manifest).values():
        assert b"hush" not in text
    assert "hush" not in said.out + said.err
    missing = with_requirement(tmp_path, secret, "no-such-package")
    said = pinner("lock", missing)
    assert said.code in (2, 3)
    assert "hush" not in said.out + said.err


def test_pins_stay_until_they_are_upgraded(pinner: Pinner, tmp_path: Path, address: str, wheels: Path) -> None:
    manifest = with_requirement(tmp_path, address)
    assert pinner("lock", manifest).code == 0
    first = lock_files(manifest)
    make_wheel(wheels, "tinylib", "0.2.0", {"tinylib/__init__.py": "VALUE = 2\n"})
    assert pinner("lock", manifest).code == 0
    assert lock_files(manifest) == first
    said = pinner("lock", manifest, "--upgrade", "tinylib")
    assert said.code == 0
    assert "python.tinylib: 0.1.0 → 0.2.0" in said.out
    assert lock_files(manifest) != first


@pytest.mark.parametrize("words", [("--upgrade",), ("--upgrade", "engine")])
def test_a_branch_stays_where_it_was_locked(pinner: Pinner, tmp_path: Path, words: tuple[str, ...]) -> None:
    manifest = tiny.deployment(tmp_path / "d", source='{ git = "engine", commit = "main" }')
    assert pinner("lock", manifest).code == 0
    first = lock_files(manifest)
    moved = tiny.commit(manifest.parent / "engine", {"pocket/extra.py": ""}, "Add a module")
    assert pinner("lock", manifest).code == 0
    assert lock_files(manifest) == first
    said = pinner("lock", manifest, *words)
    assert said.code == 0
    assert moved in said.out and "engine.source.commit" in said.out


def test_comments_in_a_lock_stay(pinner: Pinner, tmp_path: Path) -> None:
    manifest = tiny.deployment(tmp_path / "d", source='{ git = "engine", commit = "main" }')
    assert pinner("lock", manifest).code == 0
    lock = manifest.with_suffix(".lock")
    lock.write_text(lock.read_text().replace("[engine.source]", "# frozen for the benchmark\n[engine.source]"))
    assert pinner("check", manifest).code == 3, "nothing is materialized, but the lock is good"
    tiny.commit(manifest.parent / "engine", {"pocket/extra.py": ""}, "Add a module")
    assert pinner("lock", manifest, "--upgrade").code == 0
    assert "# frozen for the benchmark" in lock.read_text()


def test_a_folder_of_this_site_never_appears_in_a_lock(
    pinner: Pinner, tmp_path: Path, wheels: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with index(tmp_path / "empty") as (address, _):
        (tmp_path / "empty").mkdir()
        manifest = with_requirement(tmp_path, address)
        monkeypatch.setenv("PINNER_FIND_LINKS", str(wheels))
        said = pinner("lock", manifest)
        assert said.code == 0, said.err
        for text in lock_files(manifest).values():
            assert str(wheels).encode() not in text
        assert pinner("materialize", manifest).code == 0
        # Other bytes under the same name are not what the lock holds.
        (tmp_path / "pinner" / "config.toml").write_text(f'find-links = ["{tmp_path / "forged"}"]\n')
        make_wheel(tmp_path / "forged", "tinylib", "0.1.0", {"tinylib/__init__.py": "VALUE = 666\n"})
        monkeypatch.delenv("PINNER_FIND_LINKS")
        monkeypatch.setenv("PINNER_HOME", str(tmp_path / "other"))
        (tmp_path / "other").mkdir()
        (tmp_path / "pinner" / "config.toml").rename(tmp_path / "other" / "config.toml")
        said = pinner("materialize", manifest)
        assert said.code == 3
        assert not list((tmp_path / "other" / "workspaces").glob("*/seal.json"))


def test_a_mirror_never_appears_in_a_lock_and_serves_it(
    pinner: Pinner, tmp_path: Path, address: str, wheels: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest = with_requirement(tmp_path, address)
    assert pinner("lock", manifest).code == 0
    first = lock_files(manifest)
    with index(wheels) as (mirror, asked):
        monkeypatch.setenv("PINNER_INDEX_URL", mirror)
        monkeypatch.setenv("PINNER_HOME", str(tmp_path / "other"))
        assert pinner("lock", manifest).code == 0
        assert lock_files(manifest) == first
        remove_lock(manifest)
        assert pinner("lock", manifest).code == 0
        assert mirror.partition("/simple")[0].encode() not in b"".join(lock_files(manifest).values())
        asked.clear()
        assert pinner("materialize", manifest).code == 0
        assert any(path.startswith("/files/tinylib") for path in asked)


def test_a_lock_that_was_edited_or_cut_is_refused(pinner: Pinner, tmp_path: Path) -> None:
    manifest = tiny.deployment(tmp_path / "d")
    assert pinner("lock", manifest).code == 0
    lock, pylock = manifest.with_suffix(".lock"), manifest.parent / "pylock.tiny.toml"
    good, good_pylock = lock.read_text(), pylock.read_text()
    for text in (
        good[: len(good) // 2],
        "",
        good.replace("[engine]", "[engien]"),
        good.replace('type = "git"', ""),
    ):
        lock.write_text(text)
        for words in (("check",), ("lock", "--check")):
            said = pinner(*words, manifest)
            assert said.code == 2
            assert str(lock) in said.err
    lock.write_text(good)
    pylock.write_text(good_pylock + "# edited\n")
    assert "not the one" in pinner("check", manifest).err
    pylock.unlink()
    assert pinner("check", manifest).code == 2
    said = pinner("lock", manifest)
    assert said.code == 0
    assert lock.read_text() == good
    lock.write_text("= damaged")
    said = pinner("lock", manifest)
    assert said.code == 0
    assert "replaced" in said.err


def test_h03_a_commit_that_only_a_pull_request_holds_is_warned_of(pinner: Pinner, tmp_path: Path) -> None:
    """Case H03, as `lock` says it; fetching and collecting are in test_cases_source.py."""
    manifest = tiny.deployment(tmp_path / "d")
    engine = manifest.parent / "engine"
    tiny.git(engine, "checkout", "--quiet", "--detach")
    lonely = tiny.commit(engine, {"pocket/extra.py": ""}, "Only in a pull request")
    tiny.git(engine, "update-ref", "refs/pull/7/head", lonely)
    tiny.git(engine, "checkout", "--quiet", "main")
    manifest.write_text(manifest.read_text().replace('commit = "good"', f'commit = "{lonely}"'))
    said = pinner("lock", manifest)
    assert said.code == 0, said.err
    assert "no branch or tag" in said.err
    assert pinner("materialize", manifest).code == 0


def test_a_killed_lock_leaves_the_old_one_or_a_stale_one(pinner: Pinner, tmp_path: Path) -> None:
    manifest = tiny.deployment(tmp_path / "d", source='{ git = "engine", commit = "main" }')
    assert pinner("lock", manifest).code == 0
    before = lock_files(manifest)
    process = subprocess.Popen(
        [sys.executable, "-m", "pinner", "lock", str(manifest)], env=dict(os.environ), stderr=subprocess.DEVNULL
    )
    process.kill()
    process.wait()
    assert lock_files(manifest) == before
    assert pinner("lock", manifest).code == 0
    leftovers = [path.name for path in manifest.parent.iterdir() if path.name.startswith(".")]
    assert not leftovers
