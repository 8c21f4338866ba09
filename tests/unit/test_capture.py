"""What the probes make of a running server: keys of a manifest, and what they could not capture."""

from __future__ import annotations

import os
import time
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from pinner.deploy.adopted_manifest import one_line, render
from pinner.engines.command_line import Entry
from pinner.errors import OperationFailed, UnknownFact
from pinner.host import hub_cache, origin, traces
from pinner.host.digest import DigestMemory
from pinner.host.home import Home
from pinner.host.procfs import ProcessInfo
from pinner.probes import arguments_capture, environment_capture, weights_capture
from pinner.probes.base import Captured, CapturedKey, RunningServer

COMMIT = "0123456789abcdef0123456789abcdef01234567"


def server(
    place: Path,
    given: Mapping[str, list[str] | None] | None = None,
    env: Mapping[str, str] | None = None,
    **more: Any,
) -> RunningServer:
    argv = ("python", "-m", "sglang.launch_server")
    main = ProcessInfo(
        pid=7, ppid=1, session=7, start_ticks=0, state="S", comm="python", title="", argv=argv, retitled=False,
        exe="/v/bin/python3.11",
    )  # fmt: skip
    fields: dict[str, Any] = {
        "kind": "sglang",
        "main": main,
        "entry": Entry(name="-m sglang.launch_server"),
        "given": given or {},
        "python": Path("/v/bin/python"),
        "cwd": place,
        "env": env or {},
        "started_s": time.time() + 3600,
        "port": 30000,
        "account": {},
        "directory": place / "out",
        "home": Home(place / "home"),
        "memory": DigestMemory(place / "digests.sqlite"),
    }
    return RunningServer(**{**fields, **more})


def values(captured: Captured, section: str) -> dict[str, Any]:
    return {key.name: key.value for key in captured.keys if key.section == section}


def test_values_come_out_as_they_were_spelled(tmp_path: Path) -> None:
    given = {
        "a": ["8"],
        "b": ["0.85"],
        "c": ["0.850"],
        "d": ["08"],
        "e": None,
        "f": ["1", "x"],
        "g": ["nan"],
        "h": [""],
    }
    captured = arguments_capture.capture(server(tmp_path, given, port=None))
    assert values(captured, "engine.args") == {
        "a": 8, "b": 0.85, "c": "0.850", "d": "08", "e": True, "f": [1, "x"], "g": "nan", "h": "",
    }  # fmt: skip
    assert captured.missed == []


def test_no_secret_of_a_command_line_is_kept(tmp_path: Path) -> None:
    given = {"api-key": ["hush"], "admin-api-key": ["hush"], "hf-token": ["hush"], "x": ["http://u:hush@h/"]}
    captured = arguments_capture.capture(server(tmp_path, given, port=None))
    assert captured.keys == []
    assert len(captured.missed) == 4
    assert "hush" not in str(captured.missed)


def test_a_relative_file_becomes_absolute_and_a_word_stays(tmp_path: Path) -> None:
    (tmp_path / "t.jinja").touch()
    (tmp_path / "cpu").mkdir()
    captured = arguments_capture.capture(
        server(tmp_path, {"chat-template": ["t.jinja"], "device": ["cpu"]}, port=None)
    )
    assert values(captured, "engine.args") == {"chat-template": str(tmp_path / "t.jinja"), "device": "cpu"}
    assert captured.missed == [f"--chat-template names {tmp_path / 't.jinja'}, whose content is not pinned"]


def test_the_port_that_is_listened_on_counts_where_none_was_given(tmp_path: Path) -> None:
    assert values(arguments_capture.capture(server(tmp_path, {"port": ["0"]})), "serve") == {"port": 30000}
    assert values(arguments_capture.capture(server(tmp_path, {"port": ["81"]})), "serve") == {"port": 81}


@pytest.mark.parametrize(
    ("account", "name"),
    [
        ({"served_model_name": "m"}, "m"),  # as the server says
        (None, "m"),  # it does not answer: the default
        ({"served_model_name": "other"}, None),
        ({"port": 1}, None),  # it has no such name
    ],
)
def test_the_name_that_clients_see_stays(tmp_path: Path, account: Any, name: str | None) -> None:
    captured = arguments_capture.capture(server(tmp_path, {"model-path": ["m"]}, account=account))
    assert values(captured, "engine.args").get("served-model-name") == name


def test_variables_of_families_only(tmp_path: Path) -> None:
    env = {
        "NCCL_PROTO": "Simple", "SGLANG_X": "line\nbreak", "PATH": "/usr/bin:/opt/cuda/bin", "HOME": "/root",
        "SPT_NOENV": "1", "PYTHONUNBUFFERED": "1", "PYTHONHASHSEED": "0", "PYTHONSAFEPATH": "1",
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": "0", "AWS_SECRET_ACCESS_KEY": "hush",
        "HF_TOKEN": "hush", "SGLANG_URL": "https://user@host/", "TRITON_CACHE_DIR": "/c", "LD_PRELOAD": "/l.so",
        "NCCL_EMPTY_TOKEN": "", "TORCH_\udcff": "x", "CUDA_BAD": "\udcff",
    }  # fmt: skip
    captured = environment_capture.capture(server(tmp_path, env=env))
    assert values(captured, "env") == {
        "CUDA_VISIBLE_DEVICES": "0",
        "HF_TOKEN": {"secret": "HF_TOKEN"},
        "LD_PRELOAD": "/l.so",
        "NCCL_EMPTY_TOKEN": "",
        "NCCL_PROTO": "Simple",
        "PYTHONHASHSEED": "0",
        "SGLANG_URL": {"secret": "SGLANG_URL"},
        "SGLANG_X": "line\nbreak",
    }
    told = "\n".join(captured.missed)
    assert "hush" not in told
    for words in ("AWS_SECRET_ACCESS_KEY", "/opt/cuda/bin", "TRITON_CACHE_DIR: caches", "CUDA_BAD", "'TORCH_"):
        assert words in told
    assert "CUDA_DEVICE_ORDER" not in told


def test_an_isolated_interpreter_never_saw_its_variables(tmp_path: Path) -> None:
    entry = Entry(name="-m sglang.launch_server", options=("-I",))
    env = {"PYTHONPATH": "/x", "PYTHONHASHSEED": "0", "NCCL_PROTO": "LL"}
    captured = environment_capture.capture(server(tmp_path, env=env, entry=entry))
    assert values(captured, "env") == {"NCCL_PROTO": "LL"}
    assert captured.missed == []


def test_other_code_on_the_path_is_told(tmp_path: Path) -> None:
    (tmp_path / "engine/sglang").mkdir(parents=True)
    (tmp_path / "more").mkdir()
    assert environment_capture.capture(server(tmp_path, env={"PYTHONPATH": "engine:/gone"})).missed == []
    (told,) = environment_capture.capture(server(tmp_path, env={"PYTHONPATH": "engine:more"})).missed
    assert told.startswith("PYTHONPATH=engine:more is not carried over")


def test_gpus_that_are_counted_in_another_order_are_told(tmp_path: Path) -> None:
    (told,) = environment_capture.capture(server(tmp_path, env={"CUDA_VISIBLE_DEVICES": "1"})).missed
    assert told.startswith("CUDA_DEVICE_ORDER is not PCI_BUS_ID")


def hub(place: Path, repo: str = "acme/tiny") -> Path:
    """A cache with one repository, whose branch main is at COMMIT; its snapshot."""
    folder = place / f"hub/models--{repo.replace('/', '--')}"
    (folder / "refs").mkdir(parents=True)
    (folder / "refs/main").write_text(COMMIT)
    snapshot = folder / "snapshots" / COMMIT
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_text("{}")
    return snapshot


@pytest.mark.parametrize("by_path", [True, False])
def test_a_repository_of_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by_path: bool) -> None:
    snapshot = hub(tmp_path)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    text = str(snapshot) if by_path else "acme/tiny"
    captured = weights_capture.capture_model(
        server(tmp_path, {"model-path": [text]}, {"HF_HUB_CACHE": str(tmp_path / "hub")})
    )
    assert values(captured, "model") == {"repo": "acme/tiny", "revision": COMMIT}
    assert captured.missed == []


def test_a_cache_that_this_shell_does_not_have_gives_a_directory(tmp_path: Path) -> None:
    snapshot = hub(tmp_path)
    captured = weights_capture.capture_model(server(tmp_path, {"model-path": [str(snapshot)]}))
    assert values(captured, "model") == {"path": str(snapshot)}
    assert f"with HF_HUB_CACHE={tmp_path / 'hub'} it becomes a repository" in captured.missed[0]


def test_a_branch_that_moved_after_the_start_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hub(tmp_path)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    env = {"HF_HUB_CACHE": str(tmp_path / "hub")}
    asked = {"model-path": ["acme/tiny"]}
    captured = weights_capture.capture_model(server(tmp_path, asked, env, started_s=time.time() - 60))
    assert any("main of acme/tiny moved at" in one for one in captured.missed)
    assert any("changed after the server had started" in one for one in captured.missed)


@pytest.mark.parametrize("text", ["missing/dir/deep", "acme/unknown", "./model"])
def test_a_model_that_cannot_be_found(tmp_path: Path, text: str) -> None:
    with pytest.raises(OperationFailed, match=f"--model-path {text}: "):
        weights_capture.capture_model(server(tmp_path, {"model-path": [text]}, {"HOME": str(tmp_path)}))


def test_a_single_file_is_no_directory(tmp_path: Path) -> None:
    (tmp_path / "m.gguf").touch()
    with pytest.raises(OperationFailed, match="a single file"):
        weights_capture.capture_model(server(tmp_path, {"model-path": ["m.gguf"]}))
    with pytest.raises(UnknownFact, match="names no model"):
        weights_capture.capture_model(server(tmp_path))


def test_drafts(tmp_path: Path) -> None:
    for name in ("model", "draft"):
        (tmp_path / name).mkdir()
    given: dict[str, list[str] | None] = {
        "model-path": ["model"],
        "speculative-algorithm": ["EAGLE3"],
        "speculative-draft-model-path": ["draft"],
        "speculative-num-steps": ["3"],
        "speculative-eagle-topk": ["1"],
        "speculative-num-draft-tokens": ["8"],
    }
    captured = weights_capture.capture_draft(server(tmp_path, given))
    # The engine uses steps + 1 whatever is asked; a manifest refuses to say otherwise.
    assert values(captured, "draft") == {
        "path": str(tmp_path / "draft"), "algorithm": "EAGLE3", "num-steps": 3, "eagle-topk": 1,
    }  # fmt: skip
    assert len(captured.missed) == 1
    del given["speculative-draft-model-path"]
    assert values(weights_capture.capture_draft(server(tmp_path, given)), "draft") == {}
    own = weights_capture.capture_draft(server(tmp_path, {**given, "speculative-algorithm": ["NEXTN"]}))
    assert values(own, "draft")["path"] == str(tmp_path / "model")
    assert weights_capture.capture_draft(server(tmp_path)).keys == []


def test_where_a_cache_lies(tmp_path: Path) -> None:
    cases = (
        ({"HF_HUB_CACHE": "/a", "HF_HOME": "/b"}, "/a"),
        ({"HF_HOME": "/b"}, "/b/hub"),
        ({"HF_HOME": "~/b", "HOME": "/h"}, "/h/b/hub"),
        ({"XDG_CACHE_HOME": "/c", "HOME": "/h"}, "/c/huggingface/hub"),
        ({"HOME": "/h"}, "/h/.cache/huggingface/hub"),
    )
    for env, place in cases:
        assert hub_cache.cache_of_another(env) == Path(place)
    assert hub_cache.by_path(tmp_path) is None
    assert hub_cache.by_path(Path("/")) is None
    assert hub_cache.by_name(tmp_path, "a/b", "main") is None


def test_what_changed_since(tmp_path: Path) -> None:
    (tmp_path / "__pycache__").mkdir()
    (tmp_path / "__pycache__/a.pyc").touch()
    (tmp_path / "a.py").touch()
    before = time.time() - 60
    found = traces.changed_since(tmp_path, before, skip=("__pycache__",))
    assert found is not None
    assert (found.files, found.last) == (1, tmp_path / "a.py")
    assert traces.changed_since(tmp_path / "a.py", before) is not None
    assert traces.changed_since(tmp_path, time.time() + 60) is None
    assert traces.changed_since(tmp_path / "gone", before) is None


def test_the_interpreter_by_the_name_it_was_called(tmp_path: Path) -> None:
    real = Path(os.path.realpath("/bin/sh"))
    (tmp_path / "bin").mkdir()
    link = tmp_path / "bin/python"
    link.symlink_to(real)

    def called(name: str, exe: str = str(real)) -> ProcessInfo:
        return ProcessInfo(
            pid=1,
            ppid=0,
            session=1,
            start_ticks=0,
            state="S",
            comm="",
            title="",
            argv=(name,),
            retitled=False,
            exe=exe,
        )

    env = {"PATH": f"/nonexistent:{tmp_path}/bin"}
    assert origin.interpreter(called(str(link)), {}, None) == link
    assert origin.interpreter(called("bin/python"), {}, tmp_path) == link
    assert origin.interpreter(called("python"), env, None) == link
    assert origin.interpreter(called("python"), {"VIRTUAL_ENV": str(tmp_path)}, None) == link
    assert origin.interpreter(called("python", "/bin/other"), env, None) is None
    replaced = called(str(link), f"{real} (deleted)")
    assert origin.is_replaced(replaced)


def test_only_this_machine_is_here() -> None:
    assert origin.is_here("127.0.0.1") is True
    assert origin.is_here("192.0.2.7") is False
    assert origin.is_here("no such name.invalid") is None


def test_the_manifest_is_toml_whatever_was_captured(tmp_path: Path) -> None:
    keys = [
        CapturedKey("engine", "source", {"package": "sglang", "version": "1"}, "read\nfrom"),
        CapturedKey("engine.args", "a", ["x\ny", 'q"'], ""),
        CapturedKey("env", "A", "tab\tand\x1b[31m", ""),
    ]
    text = render("n", server(tmp_path), keys, ["a\nb \x1b[2J"], "today")
    assert tomllib.loads(text) == {
        "version": 1,
        "engine": {
            "kind": "sglang",
            "source": {"package": "sglang", "version": "1"},
            "args": {"a": ["x\ny", 'q"']},
        },
        "env": {"A": "tab\tand\x1b[31m"},
    }
    assert "\x1b" not in text
    assert one_line("a\nb") == "a\\nb"
