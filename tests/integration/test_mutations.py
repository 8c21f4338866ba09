"""Manifests and locks that somebody broke: a message each and exit 2, never a traceback."""

from __future__ import annotations

import copy
import shutil
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import tomlkit
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pinner.cli import main
from tests import tiny

SETTINGS = settings(
    max_examples=500,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
EXTRA = """
[draft]
path = "model"
algorithm = "EAGLE3"
num-steps = 3
"""
JUNK = st.one_of(
    st.text(max_size=20),
    st.integers(-(2**70), 2**70),
    st.floats(),
    st.booleans(),
    st.lists(st.text(max_size=5), max_size=3),
    st.dictionaries(st.text(max_size=5), st.integers(), max_size=3),
)
Paths = list[tuple[str | int, ...]]


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A deployment whose manifest and lock are right and name every section."""
    directory = tmp_path_factory.mktemp("good")
    home = tmp_path_factory.mktemp("home")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PINNER_HOME", str(home))
        env = 'TOKEN = { secret = "T" }\nIFNAME = { site = "I" }\nONE = 1'
        manifest = tiny.deployment(directory, env=env, python="exclude-newer = 2026-01-01")
        assert main(["lock", str(manifest)]) == 0
    yield manifest


@pytest.fixture
def copied(good: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    """A fresh copy of its files, without the engine's repository."""
    target = tmp_path / "copy"
    shutil.copytree(good.parent, target, ignore=shutil.ignore_patterns("engine"))
    return target / good.name


def answer(capsys: pytest.CaptureFixture[str], manifest: Path) -> tuple[int, str]:
    """What the two offline verbs say; they must agree on whether the files can be read at all."""
    capsys.readouterr()
    code = main(["lock", "--check", str(manifest)])
    out, err = capsys.readouterr()
    assert "Traceback" not in out + err
    assert code in (0, 1, 2), err
    if code == 2:
        assert "error: " in err
        assert manifest.stem in err
    return code, err


def places(data: Any, prefix: tuple[str | int, ...] = ()) -> Paths:
    """Every place in parsed TOML."""
    found: Paths = []
    items = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    for key, value in items:
        found.append((*prefix, key))
        found += places(value, (*prefix, key))
    return found


def changed(
    data: dict[str, Any], place: tuple[str | int, ...], change: Callable[[Any, Any], None]
) -> dict[str, Any]:
    result: Any = copy.deepcopy(data)
    parent = result
    for key in place[:-1]:
        parent = parent[key]
    change(parent, place[-1])
    assert isinstance(result, dict)
    return result


@st.composite
def mutated_text(draw: st.DrawFn, text: str) -> str:
    """Text with a few cuts, repeats and insertions."""
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, len(text)))
        end = min(len(text), start + draw(st.integers(0, 40)))
        text = draw(
            st.sampled_from(
                [
                    text[:start] + text[end:],
                    text[:start] + text[start:end] * 3 + text[end:],
                    text[:start] + draw(st.text(max_size=8)) + text[end:],
                    text[:start],
                ]
            )
        )
    return text


@pytest.mark.parametrize("which", ["manifest", "lock"])
@given(data=st.data())
@SETTINGS
def test_broken_text(which: str, data: st.DataObject, copied: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = copied if which == "manifest" else copied.with_suffix(".lock")
    original = target.read_bytes()
    try:
        target.write_bytes(data.draw(mutated_text(original.decode())).encode("utf-8", "surrogatepass"))
        answer(capsys, copied)
    finally:
        target.write_bytes(original)


@pytest.mark.parametrize("which", ["manifest", "lock"])
@given(data=st.data())
@SETTINGS
def test_wrong_data_is_exit_2(
    which: str, data: st.DataObject, copied: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A key that the format lacks, or a value that no key can have: always 2."""
    target = copied if which == "manifest" else copied.with_suffix(".lock")
    original = target.read_bytes()
    parsed = tomllib.loads(original.decode())
    place = data.draw(st.sampled_from([place for place in places(parsed) if isinstance(place[-1], str)]))
    junk = data.draw(JUNK)

    def misspell(parent: Any, key: Any) -> None:
        parent[f"{key}x"] = parent.pop(key)

    def of_no_type(parent: Any, key: Any) -> None:
        parent[key] = [[junk]]

    is_free = place[:2] in (("engine", "args"), ("engine", "source")) or place[0] == "env"
    change = of_no_type if is_free else data.draw(st.sampled_from([misspell, of_no_type]))
    if which == "lock" and place[:3] == ("engine", "source", "differs"):
        return
    try:
        target.write_text(tomlkit.dumps(changed(parsed, place, change)))
        code, err = answer(capsys, copied)
        assert code == 2, (place, change.__name__, err)
    finally:
        target.write_bytes(original)
