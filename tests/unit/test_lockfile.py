"""The text of locks: stable, commented by people, and comparable."""

from __future__ import annotations

import tomllib

import msgspec

from pinner.deploy.lockfile import changes, render_lock
from pinner.model.expectations import FactPin
from pinner.model.facts import Class
from pinner.model.lock import EnginePin, EnvironmentPin, FilePin, Lock, PythonPin, ServePin, SourcePin, WeightsPin


def lock(commit: str = "a" * 40, sha256: str = "sha256:11") -> Lock:
    return Lock(
        version=1,
        requires_pinner="0.1.0",
        manifest="sha256:00",
        engine=EnginePin(
            kind="pocket",
            source=SourcePin(type="git", url="engine.bundle", wish="good", commit=commit, tree="b" * 40),
            argv=("-m", "pocket.launch_server", "--port", "30000"),
        ),
        python=PythonPin(version="3.11", patch_level="3.11.7", pylock="sha256:22"),
        model=WeightsPin(path="model", files=(FilePin(path="a.safetensors", size=3, sha256=sha256),)),
        env=EnvironmentPin(set={"NCCL_IB_HCA": "=mlx5_0:1,mlx5_1", "QUOTED": '"a" $HOME # b\n'}),
        serve=ServePin(
            host="127.0.0.1", port=30000, start_timeout_s=1.0, generate_timeout_s=1.0, stop_timeout_s=1.0
        ),
    )


def read(text: str) -> Lock:
    return msgspec.convert(tomllib.loads(text), Lock)


def test_what_is_written_is_read_again() -> None:
    assert read(render_lock(lock())) == lock()


def test_the_same_lock_gives_the_same_bytes() -> None:
    text = render_lock(lock())
    assert render_lock(lock(), text) == text


def test_comments_survive_where_something_else_changes() -> None:
    text = render_lock(lock()).replace('kind = "pocket"', 'kind = "pocket" # ours')
    text = "# before release 7\n" + text
    updated = render_lock(lock(commit="c" * 40), text)
    assert read(updated) == lock(commit="c" * 40)
    assert "# ours" in updated
    assert updated.startswith("# before release 7\n")


def test_a_damaged_previous_lock_is_replaced() -> None:
    assert read(render_lock(lock(), "= = =")) == lock()


def test_changes_are_old_to_new() -> None:
    lines = changes(lock(), lock(commit="c" * 40, sha256="sha256:33"), ({"numpy": "1.0"}, {"numpy": "2.0"}))
    assert f"engine.source.commit: {'a' * 40} → {'c' * 40}" in lines
    assert "model.files.a.safetensors: sha256:11 → sha256:33" in lines
    assert "python.numpy: 1.0 → 2.0" in lines
    assert len(lines) == 3
    assert changes(lock(), lock(), ({}, {})) == []


def test_an_expected_fact_changes_in_one_line() -> None:
    old = msgspec.structs.replace(lock(), host={"cpu-count": FactPin(value=8, comparison=Class.AT_LEAST)})
    new = msgspec.structs.replace(lock(), host={"cpu-count": FactPin(value=16), "kernel": FactPin(value="6.1")})
    assert changes(old, new, ({}, {})) == ["host.cpu-count: 8 (at-least) → 16", "host.kernel: none → 6.1"]
