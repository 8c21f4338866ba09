"""`materialize` asks the engine itself whether it takes its arguments, and nothing is launched if it does not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pinner.deploy.running import all_runs
from pinner.host.home import Home
from tests import tiny
from tests.integration.command import Pinner

# A parser as the small engine has one, which also tells who asks it and how.
PARSER = """\
import argparse, json, os, sys

NOTE = os.path.join(sys.prefix, "..", "..", "..", "asked.json")
with open(NOTE, "a") as stream:
    stream.write(json.dumps({"env": dict(os.environ), "cwd": os.getcwd()}) + "\\n")
print("importing prints this")


def parser():
    parse = argparse.ArgumentParser(prog="pocket.launch_server")
    parse.add_argument("--model-path", required=True)
    parse.add_argument("--host")
    parse.add_argument("--port", type=int)
    parse.add_argument("--tp-size", type=int)
    parse.add_argument("--mem-fraction-static", type=float)
    parse.add_argument("--cuda-graph-bs-decode", nargs="+", type=int)
    parse.add_argument("--cuda-graph-bs-prefill", nargs="+", type=int)
    parse.add_argument("--dtype", choices=["auto", "float32"])
    return parse
"""
SGLANG = {
    "pyproject.toml": tiny.PYPROJECT.replace('"pocket"', '"sglang"'),
    "sglang/__init__.py": '__version__ = "0.5.99"\n',
    "sglang/launch_server.py": tiny.SERVER,
    "sglang/srt/__init__.py": "",
    "sglang/srt/environ.py": 'KNOWN = ["SGLANG_KNOWN"]\n',
    "sglang/srt/server_args.py": """\
import argparse


class DeprecatedStoreTrueAction(argparse._StoreTrueAction):
    pass


class ServerArgs:
    def __init__(self):
        raise AssertionError("this would look for GPUs")

    @staticmethod
    def add_cli_args(parser):
        for flag in ("--model-path", "--host", "--port", "--tp-size"):
            parser.add_argument(flag)
        parser.add_argument("--enable-dp-attention", action=DeprecatedStoreTrueAction, help="Use --attn-dp-size.")
""",
}


def asked(home: Path) -> list[dict[str, object]]:
    note = home / "asked.json"
    return [json.loads(line) for line in note.read_text().splitlines()] if note.exists() else []


def deployment(directory: Path, **files: str) -> Path:
    """A tiny deployment whose engine has a parser, and the given files besides."""
    manifest = tiny.deployment(directory)
    engine = manifest.parent / "engine"
    tiny.commit(engine, {"pocket/server_args.py": PARSER, **files}, "Add a parser")
    tiny.git(engine, "tag", "--force", "good")
    return manifest


def with_arguments(manifest: Path, text: str) -> Path:
    manifest.write_text(manifest.read_text().replace("tp-size = 1", text))
    return manifest


def remembered(home: Path) -> list[Path]:
    return sorted(home.glob("workspaces/*/arguments-*.json"))


def locked(pinner: Pinner, manifest: Path) -> Path:
    said = pinner("lock", manifest)
    assert said.code == 0, said.err
    return manifest


def test_good_arguments_are_asked_for_once(
    pinner: Pinner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "pinner"
    monkeypatch.setenv("NCCL_ALGO", "Ring")
    manifest = locked(pinner, deployment(tmp_path / "d"))
    assert "asking the engine" in pinner("materialize", manifest).err
    (call,) = asked(home)
    assert call["cwd"] == "/"
    env = call["env"]
    assert isinstance(env, dict)
    assert (env["CUDA_VISIBLE_DEVICES"], env["HF_HUB_OFFLINE"], env["NCCL_PROTO"]) == ("", "1", "Simple")
    assert "NCCL_ALGO" not in env, "the caller's shell does not reach it"
    assert not Path(str(env["HOME"])).exists(), "whatever it writes at home is thrown away"
    assert len(remembered(home)) == 1

    assert pinner("materialize", manifest).code == 0
    assert pinner("check", manifest).code == 0
    assert len(asked(home)) == 1, "a second call pays nothing"
    assert not list(home.glob("workspaces/*/env/**/__pycache__/*.tmp"))

    locked(pinner, with_arguments(manifest, "tp-size = 2"))
    assert pinner("materialize", manifest).code == 0
    assert (len(asked(home)), len(remembered(home))) == (2, 2), "another list is another question"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ("mem-frac = 0.5", "engine.args.mem-frac: is only the beginning of mem-fraction-static"),
        ("cuda-graph-bs = [1, 2]", "beginning of several flags: cuda-graph-bs-decode, cuda-graph-bs-prefill"),
        ("tp-sise = 2", "engine.args.tp-sise: this engine has no such flag; did you mean tp-size?"),
        ('tp-size = "two"', "argument --tp-size: invalid int value: 'two'"),
        ('dtype = "float31"', "argument --dtype: invalid choice: 'float31'"),
        ("help = true", "asks for help"),
    ],
)
def test_what_the_engine_does_not_take_is_refused_before_a_launch(
    pinner: Pinner, tmp_path: Path, state: Home, arguments: str, sentence: str
) -> None:
    manifest = locked(pinner, with_arguments(deployment(tmp_path / "d"), arguments))
    said = pinner("up", manifest)
    assert said.code == 2
    assert sentence in said.err
    assert "mend [engine.args]" in said.err
    assert all_runs(state) == [], "nothing was launched"
    assert remembered(state.root) == []
    # The workspace is whole: only the arguments were wrong.
    manifest.write_text(manifest.read_text().replace(arguments, "tp-size = 1"))
    again = pinner.json("materialize", locked(pinner, manifest))
    assert (again.code, again.data["built"]) == (0, False)


def test_an_engine_that_cannot_be_imported_says_why(pinner: Pinner, tmp_path: Path) -> None:
    broken = "import nonesuch_package\n"
    manifest = locked(pinner, deployment(tmp_path / "d", **{"pocket/server_args.py": broken}))
    said = pinner("materialize", manifest)
    assert said.code == 3
    assert "the engine cannot be imported: ModuleNotFoundError: No module named 'nonesuch_package'" in said.err
    assert "python.requirements" in said.err


def test_an_engine_that_dies_while_it_is_asked(pinner: Pinner, tmp_path: Path) -> None:
    dying = "import os, sys\nprint('no such device', file=sys.stderr, flush=True)\nos._exit(9)\n"
    manifest = locked(pinner, deployment(tmp_path / "d", **{"pocket/server_args.py": dying}))
    said = pinner("materialize", manifest)
    assert said.code == 3
    assert "exit code 9" in said.err
    assert "| no such device" in said.err


def test_without_the_drivers_library_it_is_told_and_asked_again(pinner: Pinner, tmp_path: Path) -> None:
    """A login node builds for a machine with GPUs."""
    lacking = "raise ImportError('libcuda.so.1: cannot open shared object file')\n"
    manifest = locked(pinner, deployment(tmp_path / "d", **{"pocket/server_args.py": lacking}))
    for _ in range(2):
        said = pinner("materialize", manifest)
        assert said.code == 0
        assert "was not asked for its arguments: ImportError: libcuda.so.1" in said.err
    assert remembered(tmp_path / "pinner") == []


def test_an_engine_without_a_parser_is_told_once(pinner: Pinner, tmp_path: Path) -> None:
    manifest = locked(pinner, tiny.deployment(tmp_path / "d"))
    said = pinner("materialize", manifest)
    assert said.code == 0
    assert "was not asked for its arguments: ModuleNotFoundError: No module named 'pocket.server_args'" in said.err
    assert "arguments" not in pinner("materialize", manifest).err


def test_code_that_is_not_what_the_lock_says_is_not_run(pinner: Pinner, tmp_path: Path) -> None:
    home = tmp_path / "pinner"
    manifest = locked(pinner, deployment(tmp_path / "d"))
    root = Path(pinner.json("materialize", manifest).data["workspace"])
    (installed,) = root.glob("env/lib/*/site-packages/pocket/server_args.py")
    installed.chmod(0o644)
    with installed.open("a") as stream:
        stream.write("print('edited')\n")
    locked(pinner, with_arguments(manifest, "tp-size = 2"))
    said = pinner("materialize", manifest)
    assert said.code == 1
    assert "was not asked for its arguments: what would answer is not what the lock says" in said.err
    assert len(asked(home)) == 1


def test_a_checkout_in_place_is_asked_too(pinner: Pinner, tmp_path: Path) -> None:
    manifest = deployment(tmp_path / "d")
    manifest.write_text(manifest.read_text().replace('git = "engine"', 'path = "engine"'))
    locked(pinner, with_arguments(manifest, "mem-frac = 0.5"))
    said = pinner("up", manifest)
    assert said.code == 2
    assert "only the beginning of mem-fraction-static" in said.err
    assert not list((manifest.parent / "engine").rglob("__pycache__")), (
        "nothing is written next to the user's code"
    )


def test_sglangs_own_parser_is_asked_without_making_its_arguments(pinner: Pinner, tmp_path: Path) -> None:
    manifest = tiny.deployment(tmp_path / "d")
    engine = manifest.parent / "engine"
    tiny.commit(engine, SGLANG, "Be SGLang")
    tiny.git(engine, "tag", "--force", "good")
    text = manifest.read_text().replace('kind = "pocket"', 'kind = "sglang"')
    text = text.replace("[env]", "[env]\nSGLANG_KNOWN = 1\nSGLANG_NOWHERE_READ = 1")
    manifest.write_text(text.replace("tp-size = 1", "tp-size = 1\nenable-dp-attention = true"))
    said = pinner("lock", manifest)
    assert said.code == 0, said.err
    assert "left to the engine, so that runs may differ, as far as SGLang" in said.err
    said = pinner("materialize", manifest)
    assert said.code == 0, said.err
    assert "engine.args.enable-dp-attention: Use --attn-dp-size." in said.err
    assert "nothing in this engine reads SGLANG_NOWHERE_READ" in said.err

    locked(pinner, with_arguments(manifest, "tp = 1"))
    said = pinner("materialize", manifest)
    assert said.code == 2
    assert "the engine 0.5.99 does not take" in said.err
    assert "engine.args.tp: is only the beginning of tp-size" in said.err


def test_a_released_version_is_judged_while_locking(pinner: Pinner, tmp_path: Path) -> None:
    manifest = tiny.deployment(tmp_path / "d")
    engine = manifest.parent / "engine"
    tiny.commit(engine, SGLANG, "Be SGLang")
    tiny.git(engine, "tag", "v0.5.23")
    text = manifest.read_text().replace('kind = "pocket"', 'kind = "sglang"').replace('"good"', '"v0.5.23"')
    manifest.write_text(text.replace("tp-size = 1", "cuda-graph-max-bs = 8"))
    said = pinner("lock", manifest)
    assert said.code == 2
    assert "engine.args.cuda-graph-max-bs: is gone since SGLang 0.5.20" in said.err
    assert "write cuda-graph-max-bs-decode" in said.err
    assert not manifest.with_suffix(".lock").exists()


# A mixture-of-experts model without tuned kernels, then some decoding.
TALKATIVE = tiny.SERVER.replace(
    'print("The server is fired up',
    """print("[2026-11-30 11:54:40 TP0] Using default MoE kernel config. Performance might be sub-optimal! Config")
print("[2026-11-30 11:54:41 TP0] Decode batch, #running-req: 1, #token: 39, token usage: 0.00, accept len: 1.77, "
      "accept rate: 0.26, cpu graph: False, gen throughput (token/s): 58.52, #queue-req: 0")
print("The server is fired up""",
)


def test_what_the_log_says_of_speed_is_told(pinner: Pinner, tmp_path: Path) -> None:
    manifest = deployment(tmp_path / "d", **{"pocket/launch_server.py": TALKATIVE})
    said = pinner("up", manifest)
    assert said.code == 0, said.err
    assert "log: it has no tuned MoE kernels for this GPU and model" in said.out
    (shown,) = pinner.json("status", manifest).data["runs"]
    assert shown["detail"] == "generates; its log: accept length 1.77, 59 tok/s at 11:54:41"
