"""Reading a server's command line back: the entry point, and flags as the engine's parser takes them."""

from __future__ import annotations

import subprocess
import sys

import pytest

from pinner.engines import ENGINES, sglang
from pinner.engines.command_line import TABLE_SCRIPT, Entry, Flag, entry_of, given, read_table

KNOWN = {
    "model-path": Flag("model-path", "one"),
    "model": Flag("model-path", "one"),
    "tp-size": Flag("tp-size", "one"),
    "tensor-parallel-size": Flag("tp-size", "one"),
    "trust-remote-code": Flag("trust-remote-code", "none"),
    "cuda-graph-bs": Flag("cuda-graph-bs", "many"),
    "cuda-graph-max-bs": Flag("cuda-graph-max-bs", "one"),
    "lora-paths": Flag("lora-paths", "many", adds=True),
    "log-requests": Flag("log-requests", "optional"),
}


@pytest.mark.parametrize(
    ("argv", "name", "options", "arguments"),
    [
        (["python", "-m", "sglang.launch_server", "--tp", "2"], "-m sglang.launch_server", (), ("--tp", "2")),
        (["/v/bin/python3", "-uBm", "sglang.launch_server"], "-m sglang.launch_server", ("-u", "-B"), ()),
        (["python", "-X", "dev", "-Wignore", "-msglang.launch_server"], "-m sglang.launch_server",
         ("-Xdev", "-Wignore"), ()),
        (["python", "--check-hash-based-pycs", "never", "-m", "sglang.launch_server"], "-m sglang.launch_server",
         ("--check-hash-based-pycs", "never"), ()),
        (["/v/bin/python", "/v/bin/sglang", "serve", "org/m", "--tp=2"], "sglang serve", (), ("org/m", "--tp=2")),
        (["python", "-m", "sglang.cli.main", "serve", "m"], "-m sglang.cli.main serve", (), ("m",)),
        (["python", "/x/sglang/launch_server.py", "--tp", "2"], "sglang/launch_server.py", (), ("--tp", "2")),
    ],
)  # fmt: skip
def test_entry_points(argv: list[str], name: str, options: tuple[str, ...], arguments: tuple[str, ...]) -> None:
    assert entry_of(argv, sglang.ENTRIES) == Entry(name=name, options=options, arguments=arguments)


@pytest.mark.parametrize(
    "argv",
    [
        [
            "python",
            "-c",
            "from multiprocessing.spawn import spawn_main; spawn_main()",
            "-m",
            "sglang.launch_server",
        ],
        ["python", "-Ic", "import sglang.launch_server"],
        ["python", "-m", "sglang.bench_serving"],
        ["python", "/v/bin/sglang", "generate", "m"],
        ["python", "launch_server.py"],
        ["python"],
        ["python", "-m"],
        [],
        ["sglang::scheduler"],
    ],
)
def test_what_is_no_entry_point(argv: list[str]) -> None:
    assert all(entry_of(argv, engine.ENTRIES) is None for engine in ENGINES.values())


def test_flags_as_the_parser_takes_them() -> None:
    found = given(
        ["--model", "m", "--tensor-parallel-size=2", "--trust-remote-code", "stray", "--cuda-graph-bs", "1", "2",
         "--cuda-graph-max", "8", "--log-requests", "--lora-paths", "a", "--lora-paths", "b"],
        KNOWN, {},
    )  # fmt: skip
    assert found.flags == {
        "model-path": ["m"],
        "tp-size": ["2"],
        "trust-remote-code": None,
        "cuda-graph-bs": ["1", "2"],
        "cuda-graph-max-bs": ["8"],
        "log-requests": None,
        "lora-paths": ["a", "b"],
    }
    assert found.alone == ["stray"]
    assert len(found.notes) == 1


def test_the_last_of_several_counts_and_that_is_told() -> None:
    found = given(["--tp-size", "2", "--tp-size", "4"], KNOWN, {})
    assert found.flags == {"tp-size": ["4"]}
    assert "the last one counts" in found.notes[0]


def test_an_empty_value_and_negative_numbers_are_values() -> None:
    found = given(["--model-path=", "--tp-size", "-1"], KNOWN, {})
    assert found.flags == {"model-path": [""], "tp-size": ["-1"]}
    assert given(["--a", "-1.5e-3", "-.5", "--b", "-x"], None, {}) == (
        {"a": ["-1.5e-3", "-.5"], "b": None},
        ["-x"],
        [],
    )


def test_without_the_parser_the_known_short_names_still_count() -> None:
    found = given(["--tp", "2", "--model", "m", "--new-flag"], None, sglang.ALIASES)
    assert found.flags == {"tp-size": ["2"], "model-path": ["m"], "new-flag": None}


def test_the_table_of_a_real_parser() -> None:
    code = """
import argparse
print("noise")
parser = argparse.ArgumentParser()
parser.add_argument("--model-path", "--model")
parser.add_argument("--odd", "--odd-name", dest="something_else")
parser.add_argument("--fast", action=argparse.BooleanOptionalAction)
parser.add_argument("--on", action="store_true")
parser.add_argument("--sizes", nargs="+")
parser.add_argument("--maybe", nargs="?")
parser.add_argument("--more", action="append")
parser.add_argument("positional", nargs="*")
"""
    said = subprocess.run([sys.executable, "-c", code + TABLE_SCRIPT], capture_output=True, text=True, check=True)
    table = read_table(said.stdout)
    assert table is not None
    assert table == {
        "help": Flag("help", "none"),
        "model-path": Flag("model-path", "one"),
        "model": Flag("model-path", "one"),
        "odd": Flag("odd", "one"),
        "odd-name": Flag("odd", "one"),
        "fast": Flag("fast", "none"),
        "no-fast": Flag("no-fast", "none"),
        "on": Flag("on", "none"),
        "sizes": Flag("sizes", "many"),
        "maybe": Flag("maybe", "optional"),
        "more": Flag("more", "one", adds=True),
    }
    assert read_table("nothing of the kind") is None
    assert read_table(said.stdout[:-1]) is None
