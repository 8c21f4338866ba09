"""`pinner adopt`: the manifest and the lock of a server that somebody started by hand."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pinner.deploy.load import load_manifest
from pinner.deploy.locks import load_lock
from pinner.host import export
from pinner.host.git import Git
from tests import tiny
from tests.integration import adopting
from tests.integration.adopting import ByHand, by_hand, generate
from tests.integration.command import Pinner, Said, differences
from tests.integration.environments import SITE, run_uv
from tests.integration.hub import FakeHub

POCKET = ("-m", "pocket.launch_server", "--model-path", "model")
SECRET = "s3cret-value-of-nobody"


@pytest.fixture
def here(tmp_path: Path) -> Path:
    """A directory of somebody who serves: a checkout `engine`, `model`, `draft`, and `out` for what is written."""
    place = tmp_path / "place"
    place.mkdir()
    adopting.checkout(place / "engine")
    adopting.models(place)
    (place / "out").mkdir()
    return place


@pytest.fixture(scope="module")
def slim(tmp_path_factory: pytest.TempPathFactory, bare: Path) -> Path:
    """An environment with what the engine imports, and not all that the tests have installed."""
    root = tmp_path_factory.mktemp("slim") / "env"
    shutil.copytree(bare, root, symlinks=True)
    own = Path(np.__file__).parent.parent
    left_out = shutil.ignore_patterns("tests", "__pycache__", "*.pyi", "include")
    for name in ("numpy", "numpy.libs", "setproctitle"):
        if (own / name).is_dir():
            shutil.copytree(own / name, root / SITE / name, ignore=left_out)
    return root


@pytest.fixture
def stub(tmp_path: Path, venv: Path, cache: Path) -> Path:
    """A directory with the stub engine installed in the environment `venv`."""
    place = tmp_path / "stub"
    tiny.deployment(place)
    run_uv(cache, "pip", "install", "-q", "--python", str(venv / "bin/python"), str(place / "engine"))
    (place / "out").mkdir()
    return place


def manifest(out: Path, name: str = "model") -> dict[str, Any]:
    return tomllib.loads((out / f"{name}.toml").read_text())


def everything(out: Path) -> str:
    return "".join(path.read_text() for path in out.iterdir())


def clean(said: Said) -> None:
    assert said.code == 0, said.out + said.err


@pytest.fixture
def edited(here: Path, slim: Path) -> Iterator[ByHand]:
    """A server from a checkout with edits, on PYTHONPATH, with a shell's variables."""
    module = here / "engine/pocket/scheduler.py"
    module.write_text(module.read_text() + "\n# by hand\n")
    (here / "engine/pocket/added.bin").write_bytes(bytes(range(256)))
    (here / "engine/README.md").unlink()
    variables = {"NCCL_PROTO": "Simple", "HF_TOKEN": SECRET, "FOO_BAR": "x", "PYTHONPATH": "engine"}
    with by_hand(slim / "bin/python", here, *POCKET, *adopting.ARGUMENTS, *adopting.EAGLE3, **variables) as server:
        yield server


@pytest.mark.timeout(240)
def test_an_edited_checkout_is_adopted_checked_and_served_again(
    pinner: Pinner, here: Path, slim: Path, edited: ByHand, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = generate(edited.url)
    status = tiny.git(here / "engine", "status", "--porcelain", "--ignored")
    said = pinner.json("adopt", edited.pid, "--directory", here / "out", "--name", "good")
    clean(said)
    assert adopting.written(here / "out") == ["good.lock", "good.patch", "good.toml"]
    data = manifest(here / "out", "good")
    assert data["engine"]["source"] == {
        "path": str(here / "engine"),
        "commit": tiny.git(here / "engine", "rev-parse", "HEAD"),
        "import-path": True,
    }
    assert data["engine"]["args"] == {"random-seed": 7, "enable-metrics": True, "served-model-name": "model"}
    assert data["model"] == {"path": str(here / "model")}
    assert data["draft"] == {"path": str(here / "draft"), "algorithm": "EAGLE3", "num-steps": 3}
    assert data["env"] == {"NCCL_PROTO": "Simple", "HF_TOKEN": {"secret": "HF_TOKEN"}}
    assert data["serve"] == {"port": edited.port}
    assert data["python"] == {"path": str(slim)}
    # Secrets are nowhere, and what is left out is told.
    assert SECRET not in everything(here / "out") + said.out + said.err
    missed = said.data["not_captured"]
    assert any("FOO_BAR" in sentence for sentence in missed)
    assert not any("PYTHONPATH" in sentence for sentence in missed)
    assert all(f"# - {sentence}" in (here / "out/good.toml").read_text() for sentence in missed)
    # Nothing of the server or its checkout was touched.
    assert tiny.git(here / "engine", "status", "--porcelain", "--ignored") == status
    assert generate(edited.url) == before

    assert pinner("lock", here / "out/good.toml", "--check").code == 0
    clean(pinner("check", here / "out/good.toml", "--deep"))
    # The port is taken while the original is up.
    monkeypatch.setenv("HF_TOKEN", SECRET)
    busy = pinner("up", here / "out/good.toml")
    assert busy.code == 3
    assert str(edited.port) in busy.err
    edited.stop()
    up = pinner.json("up", here / "out/good.toml")
    clean(up)
    assert up.data["url"] == edited.url
    assert generate(edited.url) == before
    clean(pinner("check", here / "out/good.toml"))
    clean(pinner("down", here / "out/good.toml"))


def test_the_patch_makes_the_edits_again_elsewhere(
    pinner: Pinner, here: Path, edited: ByHand, tmp_path: Path
) -> None:
    clean(pinner("adopt", edited.pid, "--directory", here / "out", "--name", "good"))
    commit = manifest(here / "out", "good")["engine"]["source"]["commit"]
    patch = export.Patch("good.patch", (here / "out/good.patch").read_bytes())
    bare = tmp_path / "bare.git"
    tiny.git(tmp_path, "clone", "--quiet", "--bare", str(here / "engine"), str(bare))
    export.export(Git.bare(bare), commit, tmp_path / "again", [patch])
    assert not (tmp_path / "again/README.md").exists()
    for name in ("pocket/scheduler.py", "pocket/added.bin"):
        assert (tmp_path / "again" / name).read_bytes() == (here / "engine" / name).read_bytes()


def test_any_process_of_it_and_its_url_mean_the_same_server(pinner: Pinner, here: Path, edited: ByHand) -> None:
    workers = [pid for title, pid in edited.workers().items() if title.startswith("pocket::")]
    ways = [*map(str, workers), edited.url, f"localhost:{edited.port}"]
    for number, way in enumerate(ways):
        said = pinner.json("adopt", way, "--directory", here / "out", "--name", f"way{number}")
        clean(said)
        assert said.data["pid"] == edited.pid
    assert {str(manifest(here / "out", f"way{number}")) for number in range(len(ways))} == {
        str(manifest(here / "out", "way0"))
    }


def test_a_shell_that_started_it_means_the_server(pinner: Pinner, stub: Path, venv: Path) -> None:
    script = stub / "start.sh"
    script.write_text('echo "$$" > shell.pid\n"$@"\ntrue\n')
    server = ByHand(
        Path("/bin/sh"),
        stub,
        [str(script), str(venv / "bin/python"), "-m", "pocket.launch_server", "--model-path", "model",
         "--host", "127.0.0.1"],
    )  # fmt: skip
    try:
        server.wait()
        said = pinner.json("adopt", (stub / "shell.pid").read_text().strip(), "--directory", stub / "out")
        clean(said)
        assert said.data["pid"] in server.workers().values()
    finally:
        for pid in server.workers().values():
            os.kill(pid, 15)
        server.process.wait(10)


def test_an_installed_engine_with_secrets_and_odd_arguments(pinner: Pinner, stub: Path, venv: Path) -> None:
    (stub / "template.jinja").write_text("{{ messages }}")
    words = (
        "-O", "-m", "pocket.launch_server", "--model-path=model", "--host", "127.0.0.1", "--tp", "2",
        "--api-key", SECRET, "--mem-frac=0.50", "--log-level", "info", "--log-level", "debug", "--offset", "-1",
        "--chat-template", "template.jinja", "--sizes", "1", "2", "4", "--proxy", f"http://me:{SECRET}@host/",
    )  # fmt: skip
    variables = {
        "NCCL_TOKEN": SECRET,
        "SGLANG_MIRROR": f"https://me:{SECRET}@host/",
        "LD_LIBRARY_PATH": "/opt/lib",
        "PYTHONHASHSEED": "0",
        "MY_API_KEY": SECRET,
        "HF_HOME": "/data/hf",
    }
    with by_hand(venv / "bin/python", stub, *words, **variables) as server:
        said = pinner.json("adopt", server.url, "--directory", stub / "out")
        clean(said)
    assert SECRET not in everything(stub / "out") + said.out + said.err
    data = manifest(stub / "out")
    assert data["engine"]["source"] == {"package": "pocket", "version": "0.1"}
    assert data["engine"]["args"] == {
        "tp-size": 2,
        "mem-fraction-static": "0.50",
        "log-level": "debug",
        "offset": -1,
        "chat-template": str(stub / "template.jinja"),
        "sizes": [1, 2, 4],
    }
    assert data["env"] == {
        "LD_LIBRARY_PATH": "/opt/lib",
        "NCCL_TOKEN": {"secret": "NCCL_TOKEN"},
        "PYTHONHASHSEED": "0",
        "SGLANG_MIRROR": {"secret": "SGLANG_MIRROR"},
    }
    assert data["serve"] == {"host": "127.0.0.1", "port": server.port}
    missed = "\n".join(said.data["not_captured"])
    for words_of in (
        "--api-key: a secret",
        "--proxy: holds a password",
        "--log-level was given more than once",
        "--chat-template names",
        "started with -O",
        "the engine's own parser could not be asked",
        "MY_API_KEY",
        "HF_HOME: places of the Hub's files",
    ):
        assert words_of in missed, missed


def test_an_editable_install_from_a_subdirectory(pinner: Pinner, stub: Path, tmp_path: Path, bare: Path) -> None:
    env = tmp_path / "own"
    shutil.copytree(bare, env, symlinks=True)
    repository = tmp_path / "repository"
    (repository / "python").mkdir(parents=True)
    shutil.copytree(stub / "engine/pocket", repository / "python/pocket")
    tiny.git(repository, "init", "--quiet")
    commit = tiny.commit(repository, {"pyproject.toml": tiny.PYPROJECT}, "Start")
    (env / SITE / "__editable__.pocket.pth").write_text(f"{repository / 'python'}\n")
    words = ("-m", "pocket.launch_server", "--model-path", "model", "--host", "127.0.0.1")
    with by_hand(env / "bin/python", stub, *words) as server:
        said = pinner.json("adopt", server.pid, "--directory", stub / "out")
        clean(said)
    assert manifest(stub / "out")["engine"]["source"] == {
        "path": str(repository),
        "commit": commit,
        "subdirectory": "python",
    }
    assert said.data["patch"] is None
    up = pinner.json("up", stub / "out/model.toml")
    clean(up)
    (repository / "python/pocket/launch_server.py").write_text("")
    assert differences(pinner.json("check", stub / "out/model.toml")).keys() == {
        "source.python/pocket/launch_server.py"
    }


def test_a_server_that_pinner_brought_up(pinner: Pinner, tmp_path: Path) -> None:
    original = tiny.deployment(tmp_path / "deployment")
    up = pinner.json("up", original)
    clean(up)
    out = tmp_path / "out"
    out.mkdir()
    said = pinner.json("adopt", up.data["url"], "--directory", out, "--name", "again")
    clean(said)
    assert said.data["run"] == up.data["run"]
    missed = said.data["not_captured"]
    assert any(str(original) in sentence and up.data["run"] in sentence for sentence in missed)
    assert any("pinner's own state" in sentence for sentence in missed)
    assert manifest(out, "again")["env"] == {"NCCL_PROTO": "Simple"}
    before = generate(up.data["url"])
    clean(pinner("down", original))
    again = pinner.json("up", out / "again.toml")
    clean(again)
    assert generate(again.data["url"]) == before
    assert (
        load_lock(load_manifest(out / "again.toml")).engine.argv == load_lock(load_manifest(original)).engine.argv
    )


def test_what_changed_after_the_start_is_not_certain(pinner: Pinner, here: Path, slim: Path) -> None:
    with by_hand(slim / "bin/python", here, *POCKET, PYTHONPATH="engine") as server:
        module = here / "engine/pocket/model.py"
        # Change times cannot be set, and within two seconds the clocks of /proc and of files do not tell.
        time.sleep(3)
        module.write_text(module.read_text() + "# later\n")
        said = pinner.json("adopt", server.pid, "--directory", here / "out")
    clean(said)
    (sentence,) = [one for one in said.data["not_captured"] if "after the server had started" in one]
    assert "model.py" in sentence


@pytest.fixture
def cached(here: Path, hub: FakeHub) -> tuple[str, Path]:
    """A repository whose cache holds what an engine loads, and not all that the Hub has: (commit, cache)."""
    files = {path.name: path.read_bytes() for path in (here / "model").iterdir()}
    big = bytes(100)  # locking reads the header of such files, and fetches small ones of other kinds
    rest = {"original/big.safetensors": big, "original/params.json": b"{}", "onnx.safetensors": big}
    commit = hub.push("acme/tiny", {**files, **rest})
    cache = Path(os.environ["HF_HOME"]) / "hub"
    folder = cache / "models--acme--tiny"
    shutil.copytree(here / "model", folder / "snapshots" / commit)
    (folder / "refs").mkdir()
    (folder / "refs/main").write_text(commit)
    return commit, cache


def test_the_hub_s_cache_gives_repository_and_commit(
    pinner: Pinner, here: Path, hub: FakeHub, cached: tuple[str, Path], slim: Path
) -> None:
    commit, cache = cached
    words = ("-m", "pocket.launch_server", "--model-path", str(cache / f"models--acme--tiny/snapshots/{commit}"))
    with by_hand(slim / "bin/python", here, *words, PYTHONPATH="engine") as server:
        before = generate(server.url)
        said = pinner.json("adopt", server.pid, "--directory", here / "out", "--name", "hub")
        clean(said)
    model = manifest(here / "out", "hub")["model"]
    assert said.data["not_captured"] == []
    assert model == {"repo": "acme/tiny", "revision": commit, "exclude": ["onnx.safetensors", "original/*"]}
    # The large files that it lacked are still not in the cache, and nothing is needed to start it again.
    assert [path.name for path in cache.rglob("*.safetensors")] == ["model.safetensors"]
    hub.is_down = True
    clean(pinner("check", here / "out/hub.toml", "--deep"))
    up = pinner.json("up", here / "out/hub.toml")
    clean(up)
    assert generate(up.data["url"]) == before


def test_without_the_hub_the_cache_s_directory_is_pinned(
    pinner: Pinner, here: Path, hub: FakeHub, cached: tuple[str, Path], slim: Path
) -> None:
    commit, cache = cached
    hub.is_down = True
    snapshot = cache / f"models--acme--tiny/snapshots/{commit}"
    words = ("-m", "pocket.launch_server", "--model-path", str(snapshot))
    with by_hand(slim / "bin/python", here, *words, PYTHONPATH="engine") as server:
        said = pinner.json("adopt", server.pid, "--directory", here / "out", "--name", "hub")
    clean(said)
    assert manifest(here / "out", "hub")["model"] == {"path": str(snapshot)}
    assert any(f"acme/tiny at {commit} is pinned as a directory" in one for one in said.data["not_captured"])


def test_no_file_is_overwritten_and_none_is_left_half_done(pinner: Pinner, stub: Path, venv: Path) -> None:
    with by_hand(
        venv / "bin/python", stub, "-m", "pocket.launch_server", "--model-path", "model", "--host", "127.0.0.1"
    ) as server:
        (stub / "out/model.lock").write_text("mine")
        said = pinner("adopt", server.pid, "--directory", stub / "out")
        assert said.code == 2
        assert "model.lock exists already; nothing was written" in said.err
        (stub / "out/model.lock").unlink()
        # A model that cannot be pinned is found before anything is written.
        (stub / "model/model.safetensors").write_bytes(b"version https://git-lfs.github.com/spec/v1\n")
        said = pinner("adopt", server.pid, "--directory", stub / "out")
        assert said.code == 2
        assert adopting.written(stub / "out") == []


@pytest.mark.parametrize(
    ("what", "code", "words"),
    [
        ("http://192.0.2.1:30000", 2, "is another machine"),
        ("http://name.invalid:30000", 2, "means no address"),
        ("nonsense", 2, "neither a process id nor the URL"),
        ("ftp://localhost:1", 2, "neither a process id nor the URL"),
        ("4194305", 3, "there is no process"),
    ],
)
def test_what_is_no_server_here(pinner: Pinner, tmp_path: Path, what: str, code: int, words: str) -> None:
    said = pinner("adopt", what, "--directory", tmp_path)
    assert said.code == code
    assert words in said.err


def test_other_processes_and_free_ports(pinner: Pinner, tmp_path: Path) -> None:
    said = pinner("adopt", f"http://127.0.0.1:{tiny.free_port()}", "--directory", tmp_path)
    assert said.code == 3
    assert "nothing listens" in said.err
    with subprocess.Popen(["sleep", "60"]) as process:
        said = pinner("adopt", process.pid, "--directory", tmp_path)
        process.kill()
    assert said.code == 3
    assert "(sleep 60) is no server that pinner knows" in said.err


def test_a_drifting_original_is_told(
    pinner: Pinner, stub: Path, venv: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An environment whose engine is another one without the server's PYTHONPATH."""
    shutil.copytree(stub / "engine", stub / "other")
    with by_hand(
        venv / "bin/python", stub, "-m", "pocket.launch_server", "--model-path", "model", "--host", "127.0.0.1",
        PYTHONPATH=str(stub / "other"),
    ) as server:  # fmt: skip
        said = pinner.json("adopt", server.pid, "--directory", stub / "out")
    clean(said)
    assert manifest(stub / "out")["engine"]["source"]["import-path"] is True
    (stub / "other/pocket/new.py").write_text("")
    assert differences(pinner.json("check", stub / "out/model.toml")).keys() == {"source.pocket/new.py"}


def test_several_servers_below_one_process(pinner: Pinner, stub: Path, venv: Path) -> None:
    words = ("-m", "pocket.launch_server", "--model-path", "model", "--host", "127.0.0.1")
    with by_hand(venv / "bin/python", stub, *words) as one:
        said = pinner.json("adopt", os.getpid(), "--directory", stub / "out")
        clean(said)
        assert said.data["pid"] == one.pid
        with by_hand(venv / "bin/python", stub, *words) as other:
            said = pinner("adopt", os.getpid(), "--directory", stub / "out")
    assert said.code == 2
    assert f"several servers run below pid {os.getpid()}: " in said.err
    assert str(one.pid) in said.err
    assert str(other.pid) in said.err


def test_a_worker_without_its_main_process(pinner: Pinner, tmp_path: Path) -> None:
    code = "import setproctitle as s, time; s.setproctitle('sglang::scheduler'); print(flush=True); time.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        said = pinner("adopt", process.pid, "--directory", tmp_path)
        process.kill()
    assert said.code == 3
    assert "is a worker whose main process has ended" in said.err


def test_arguments_in_a_file_are_not_adopted(pinner: Pinner, stub: Path, venv: Path) -> None:
    words = ("-m", "pocket.launch_server", "--model-path", "model", "--host", "127.0.0.1", "--config", "c.yaml")
    with by_hand(venv / "bin/python", stub, *words) as server:
        said = pinner("adopt", server.pid, "--directory", stub / "out")
    assert said.code == 3
    assert "takes arguments from a file (--config)" in said.err


AS_NOBODY = """
import encodings.idna, os, socket, sys
from pathlib import Path
from pinner.deploy.find_server import find_server
from pinner.errors import PinnerError
from pinner.host import hub, process, uv
from pinner.host.home import Home
from pinner.probes import PROBES
os.setgid(65534)
os.setuid(65534)
for what in sys.argv[1:]:
    try:
        find_server(what, Path("/"), Home(Path("/nonexistent")))
    except PinnerError as error:
        print(type(error).__name__, error.message, error.hint)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_a_server_of_another_user(stub: Path, venv: Path) -> None:
    words = ("-m", "pocket.launch_server", "--model-path", "model", "--host", "127.0.0.1")
    with by_hand(venv / "bin/python", stub, *words) as server:
        argv = [sys.executable, "-c", AS_NOBODY, str(server.pid), server.url]
        said = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert said.returncode == 0, said.stderr
    first, second = said.stdout.splitlines()
    assert first.startswith(
        f"UnknownFact the environment of pid {server.pid} cannot be read: it belongs to root (uid 0)"
    )
    assert first.endswith("run pinner as that user")
    assert second.startswith(f"UnknownFact who listens on port {server.port} cannot be read")
