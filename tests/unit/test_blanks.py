"""Blanks: what nobody knows yet is listed, all of it, and nothing can be done with it."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from pinner.deploy.blanks import blanks
from pinner.deploy.load import load_manifest
from pinner.errors import ExitCode, ManifestError

KIMI = Path(__file__).parent.parent.parent / "deployments" / "kimi-eagle3.toml"


def test_blanks_are_found_wherever_they_stand() -> None:
    data = {"a": "FILL IN: one", "b": {"c": ["x", " FILL IN: two "], "d": 3}, "e": "never FILL IN: this", "f": ""}
    assert list(blanks(data)) == [("a", "one"), ("b.c[1]", "two")]
    assert list(blanks({"a": "FILL IN:"})) == [("a", "a value")]


def test_the_incidents_deployment_lists_every_blank() -> None:
    with pytest.raises(ManifestError) as raised:
        load_manifest(KIMI)
    assert raised.value.exit_code is ExitCode.INVALID
    text = raised.value.message
    assert text.startswith(f"{KIMI}: 13 blanks to fill in:")
    for key in (
        "engine.source.commit: the full id of commit bba2fc4",
        "model.revision: ",
        "draft.path: where the EAGLE-3 draft lies",
        "env.NCCL_VARIABLES: ",
        "python.requirements[0]: NCCL as",
    ):
        assert f"\n  {key}" in text


def test_it_holds_the_facts_of_the_story_and_no_others() -> None:
    data = tomllib.loads(KIMI.read_text())
    blank = dict(blanks(data))

    def facts(value: object, key: str = "") -> dict[str, object]:
        if isinstance(value, dict):
            return {
                k: v for name, item in value.items() for k, v in facts(item, f"{key}.{name}".strip(".")).items()
            }
        if isinstance(value, list):
            return {k: v for index, item in enumerate(value) for k, v in facts(item, f"{key}[{index}]").items()}
        return {} if key in blank else {key: value}

    def under_load(key: str, value: int, tolerance: int) -> dict[str, object]:
        long = {"value": value, "class": "within", "tolerance": tolerance}
        return {f"hardware.gpu.{key}.{name}": one for name, one in long.items()}

    assert facts(data) == {
        "version": 1,
        "engine.kind": "sglang",
        "engine.source.subdirectory": "python",
        "draft.algorithm": "EAGLE3",
        "draft.num-steps": 2,
        "hardware.count": 8,
        "hardware.driver": "590.48.01",
        "hardware.gpu.pcie-generation": 5,
        "hardware.gpu.pcie-width": 16,
        **under_load("clock-sm-mhz", 2344, 19),
        **under_load("power-watts", 231, 6),
        **under_load("temperature-celsius", 37, 1),
    }
    # What the format cannot hold stands in comments.
    for fact in (
        "bba2fc4",
        "2.27.5",
        "94 tok/s",
        "82 to 83",
        "19 ms",
        "2325 to 2362 MHz",
        "225 to 237 W",
        "36 to 38 °C",
    ):
        assert fact in KIMI.read_text()


def test_filled_in_it_is_a_manifest(tmp_path: Path) -> None:
    answers = {
        "git": "https://git.example/sglang",
        "commit": "b" * 40,
        "tp-size": "8",
        "version": "3.11",
        "nvidia": "nvidia-nccl-cu12==2.27.5",
        "exclude-newer": "2026-01-01",
        "repo": "someone/Kimi-K2.5",
        "revision": "a" * 40,
        "path": "/srv/draft",
        "name": "NVIDIA RTX PRO 6000 Blackwell Server Edition",
    }
    text = KIMI.read_text()
    for key, answer in answers.items():
        text = re.sub(rf'\b{key} = "FILL IN:[^"]*"', f'{key} = "{answer}"', text)
    text = re.sub(r'"FILL IN: NCCL as[^"]*"', f'"{answers["nvidia"]}"', text)
    # A number is no text, and what was not there is deleted.
    text = re.sub(r'(eagle-topk = )"[^"]*"', r"\g<1>1", text)
    text = re.sub(r'(num-draft-tokens = )"[^"]*"', r"\g<1>3", text)
    text = re.sub(r"NCCL_VARIABLES = .*\n", "", text)
    manifest = tmp_path / "kimi-eagle3.toml"
    manifest.write_text(text)
    loaded = load_manifest(manifest).manifest
    assert loaded.draft is not None
    assert (loaded.draft.num_steps, loaded.engine.source.commit) == (2, "b" * 40)
