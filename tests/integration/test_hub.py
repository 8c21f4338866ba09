"""The Hub as huggingface_hub speaks to it: revisions, ranges, broken downloads, and errors in pinner's words."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from pinner.errors import OperationFailed
from pinner.host import hub as hub_module
from pinner.host import progress
from pinner.host.hub import Hub, HubFailed, Why
from pinner.host.hub_cache import cache_directory, find_file
from tests.integration.engine_run import wait_for
from tests.integration.hub import SIGNATURE, FakeHub

FILES = {"config.json": "{}", "model.safetensors": b"w" * 1000, "sub/tokenizer.json": b"t" * 10}
# The library hands a download on in pieces of 10 MiB.
PIECE = 10 << 20


class Bytes(progress.View):
    """Counts what is told of transfers."""

    def __init__(self) -> None:
        self.total = self.done = 0

    def transfer(self, what: str, total_bytes: int) -> progress.Advance:  # noqa: ARG002
        self.total += total_bytes

        def advance(count: int) -> None:
            self.done += count

        return advance


def sizes(hub: Hub, repo: str, revision: str) -> dict[str, int]:
    return {file.path: file.size for file in hub.resolve(repo, revision).files}


def content(hub: Hub, repo: str, revision: str, path: str) -> bytes:
    found = find_file(hub.cache, repo, revision, path, None)
    assert found is not None
    return found.read_bytes()


def test_a_branch_a_tag_and_a_commit_are_one_commit(hub: FakeHub) -> None:
    commit = hub.push("org/m", FILES)
    hub.refs["org/m"]["pr/1"] = commit
    for name in ("main", "pr/1", commit):
        listing = Hub().resolve("org/m", name)
        assert listing.revision == commit
        assert [(file.path, file.size) for file in listing.files] == [
            ("config.json", 2),
            ("model.safetensors", 1000),
            ("sub/tokenizer.json", 10),
        ]
    assert listing.files[0].sha256 is None
    assert listing.files[1].sha256 is not None


def test_a_download_is_told_silent_and_not_repeated(
    hub: FakeHub, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    told = Bytes()
    monkeypatch.setattr(progress, "_views", [told])
    commit = hub.push("org/m", FILES)
    wanted = sizes(Hub(), "org/m", "main")
    Hub().download("org/m", commit, wanted)
    assert (told.done, told.total) == (1012, 1012)
    assert sorted(hub.fetched()) == sorted(FILES)
    assert content(Hub(), "org/m", commit, "model.safetensors") == FILES["model.safetensors"]
    Hub().download("org/m", commit, wanted)
    assert sorted(hub.fetched()) == sorted(FILES)
    assert capfd.readouterr() == ("", "")


def test_a_connection_that_breaks_is_taken_up_where_it_broke(hub: FakeHub) -> None:
    data = os.urandom(2 * PIECE + 5)
    commit = hub.push("org/m", {"model.safetensors": data})
    hub.cut["model.safetensors"] = PIECE + 10
    Hub().download("org/m", commit, {"model.safetensors": len(data)})
    assert [one.range for one in hub.asked if "/cdn/" in one.path] == [None, f"bytes={PIECE}-"]
    assert content(Hub(), "org/m", commit, "model.safetensors") == data


FETCH = """
import sys
from pinner.host.hub import Hub
hub = Hub()
hub.download("org/m", sys.argv[1], {file.path: file.size for file in hub.resolve("org/m", "main").files})
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_after_a_kill_only_what_is_missing_is_fetched(hub: FakeHub, number: signal.Signals) -> None:
    big, small = os.urandom(PIECE + 5), os.urandom(100)
    commit = hub.push("org/m", {"a.safetensors": small, "b.safetensors": big, "config.json": "{}"})
    hub.held["b.safetensors"] = PIECE
    process = subprocess.Popen([sys.executable, "-c", FETCH, commit], stderr=subprocess.DEVNULL)
    try:
        hub.is_holding.wait(30)
        there = Hub()
        wait_for(lambda: all(find_file(there.cache, "org/m", commit, one, None) for one in ("a.safetensors",)))
        process.send_signal(number)
        if number == signal.SIGINT:
            # It is let go where it waits for the next piece.
            hub.release.set()
        process.wait(30)
    finally:
        process.kill()
        process.wait()
    assert find_file(there.cache, "org/m", commit, "b.safetensors", None) is None
    hub.held.clear()
    hub.asked.clear()
    there.download("org/m", commit, sizes(there, "org/m", "main"))
    assert "a.safetensors" not in hub.fetched()
    assert content(there, "org/m", commit, "b.safetensors") == big


def test_ranges_are_read_and_nothing_more(hub: FakeHub) -> None:
    data = os.urandom(5000)
    commit = hub.push("org/m", {"model.safetensors": data})
    assert Hub().read("org/m", commit, "model.safetensors", range(10, 20)) == data[10:20]
    hub.ignores_ranges = True
    assert Hub().read("org/m", commit, "model.safetensors", range(4990, 5000)) == data[4990:]
    assert not (Hub().cache).exists()


def test_a_token_goes_to_the_hub_and_nowhere_else(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_good")
    hub.gated.add("org/m")
    commit = hub.push("org/m", FILES)
    Hub().download("org/m", commit, sizes(Hub(), "org/m", "main"))
    Hub().read("org/m", commit, "model.safetensors", range(10))
    assert {one.token for one in hub.asked if "/cdn/" not in one.path} == {"Bearer hf_good"}
    assert {one.token for one in hub.asked if "/cdn/" in one.path} == {None}


@pytest.mark.parametrize(("token", "wording"), [(None, "no token is set"), ("hf_bad", "has no access")])
def test_a_gated_repository_is_told_as_one(
    hub: FakeHub, monkeypatch: pytest.MonkeyPatch, token: str | None, wording: str
) -> None:
    if token:
        monkeypatch.setenv("HF_TOKEN", token)
    hub.gated.add("org/m")
    commit = hub.push("org/m", FILES)
    with pytest.raises(HubFailed, match=rf"org/m is gated, and .*{wording}") as failed:
        Hub().download("org/m", commit, {"config.json": 2})
    assert failed.value.why is Why.REFUSED
    assert "https://huggingface.co/org/m" in str(failed.value.hint)
    shown = f"{failed.value.message} {failed.value.hint}"
    assert "hf_bad" not in shown
    assert SIGNATURE not in shown


def test_what_is_not_there_is_told_apart(hub: FakeHub) -> None:
    commit = hub.push("org/m", FILES)
    told = {
        Why.NO_REPO: ("org/none", "main", "has no repository org/none, or it is private and no token is set"),
        Why.NO_REVISION: ("org/m", "v9", "has no revision v9 of org/m"),
    }
    for why, (repo, revision, wording) in told.items():
        with pytest.raises(HubFailed, match=wording) as failed:
            Hub().resolve(repo, revision)
        assert failed.value.why is why
    with pytest.raises(HubFailed, match=f"has no file absent.bin in org/m@{commit[:12]}") as failed:
        Hub().download("org/m", commit, {"absent.bin": 1})
    assert failed.value.why is Why.NO_FILE


def test_a_hub_that_does_not_answer(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    commit = hub.push("org/m", FILES)
    for status, wording in {
        503: "answers 503",
        429: "too many requests",
        401: "does not accept the token",
    }.items():
        hub.status = status
        with pytest.raises(HubFailed, match=wording):
            Hub().resolve("org/m", "main")
    monkeypatch.setenv("HF_ENDPOINT", "http://user:password@127.0.0.1:9")
    with pytest.raises(HubFailed, match=r"mirror 127\.0\.0\.1:9 \(HF_ENDPOINT\) cannot be reached") as failed:
        Hub().download("org/m", commit, {"config.json": 2})
    assert failed.value.why is Why.UNREACHABLE
    assert "password" not in failed.value.message
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(HubFailed, match="HF_HUB_OFFLINE is set"):
        Hub().resolve("org/m", "main")


def test_what_does_not_fit_is_not_begun(hub: FakeHub) -> None:
    commit = hub.push("org/m", FILES)
    with pytest.raises(OperationFailed, match=r"1,000,000\.0 GB are to be downloaded, and .* has room for"):
        Hub().download("org/m", commit, {"model.safetensors": 10**15})
    assert hub.fetched() == []


def test_one_failure_stops_the_rest() -> None:
    began = []

    def work(item: int, stop: object) -> None:
        began.append(item)
        raise OperationFailed("no")

    with pytest.raises(OperationFailed):
        hub_module.each(work, range(1000), at_once=2)
    assert len(began) < 1000


@pytest.mark.parametrize(
    ("environ", "place"),
    [
        ({"HF_HUB_CACHE": "/a", "HF_HOME": "/b"}, "/a"),
        ({"HUGGINGFACE_HUB_CACHE": "/a", "HF_HOME": "/b"}, "/a"),
        ({"HF_HOME": "/b", "XDG_CACHE_HOME": "/c"}, "/b/hub"),
        ({"XDG_CACHE_HOME": "/c"}, "/c/huggingface/hub"),
        ({}, "~/.cache/huggingface/hub"),
    ],
)
def test_the_cache_is_where_everybody_has_it(environ: dict[str, str], place: str) -> None:
    assert cache_directory(environ) == Path(place).expanduser()


def test_a_file_of_another_commit_serves_by_its_digest(hub: FakeHub) -> None:
    first = hub.push("org/m", FILES)
    wanted = {file.path: file for file in Hub().resolve("org/m", first).files}
    Hub().download("org/m", first, {"model.safetensors": 1000})
    place = wanted["model.safetensors"]
    found = find_file(Hub().cache, "org/m", "b" * 40, place.path, place.sha256)
    assert found == find_file(Hub().cache, "org/m", first, place.path, None)
    assert find_file(Hub().cache, "org/m", "b" * 40, place.path, None) is None


def test_a_check_loads_nothing_of_the_hub() -> None:
    code = "import sys, pinner.deploy.live; assert not {'huggingface_hub', 'pinner.host.hub'} & sys.modules.keys()"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_cache_that_takes_nothing_is_named(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    commit = hub.push("org/m", FILES)
    file = Hub().cache.parent.with_name("file")
    file.write_text("")
    monkeypatch.setenv("HF_HOME", str(file))
    with pytest.raises(HubFailed, match=r"cannot write to the cache .*/file/hub: Not a directory"):
        Hub().download("org/m", commit, {"config.json": 2})
