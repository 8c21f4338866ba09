"""Which drafts fit which algorithm."""

from __future__ import annotations

import pytest

from pinner.engines.eagle import pair_problems

TARGET = {"architectures": ["LlamaForCausalLM"]}


@pytest.mark.parametrize(
    ("algorithm", "architecture"),
    [
        ("EAGLE3", "LlamaForCausalLMEagle3"),
        ("eagle3", "Eagle3DeepseekV2ForCausalLM"),
        ("EAGLE", "LlamaForCausalLMEagle"),
        ("NEXTN", "DeepseekV3ForCausalLMNextN"),
        ("STANDALONE", "LlamaForCausalLM"),
        ("NGRAM", "LlamaForCausalLMEagle3"),
    ],
)
def test_pairs_that_fit(algorithm: str, architecture: str) -> None:
    assert pair_problems(algorithm, {"architectures": [architecture]}, TARGET) == []


@pytest.mark.parametrize(
    ("algorithm", "draft", "said"),
    [
        ("EAGLE", {"architectures": ["LlamaForCausalLMEagle3"]}, "EAGLE3 is its algorithm"),
        ("EAGLE3", {"architectures": ["LlamaForCausalLMEagle"]}, "no EAGLE-3 draft"),
        ("EAGLE3", TARGET, "the architecture of the target"),
        ("EAGLE3", None, "no architecture"),
        ("EAGLE3", {"architectures": "x"}, "no architecture"),
        ("STANDALONE", {"architectures": ["LlamaForCausalLMEagle3"]}, "cannot run without its target"),
    ],
)
def test_pairs_that_do_not(algorithm: str, draft: dict[str, object] | None, said: str) -> None:
    problems = pair_problems(algorithm, draft, TARGET)
    assert len(problems) == 1
    assert said in problems[0]
    assert algorithm in problems[0]
