"""Which drafts fit which algorithm."""

from __future__ import annotations

import pytest

from pinner.engines.eagle import algorithm_problem, pair_problems

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
        ("EAGLE3", None, "a draft that has no readable config.json, for the target LlamaForCausalLM"),
        ("EAGLE", None, "a draft that has no readable config.json, for the target LlamaForCausalLM"),
        ("EAGLE3", {"architectures": "x"}, "no architecture"),
        ("STANDALONE", {"architectures": ["LlamaForCausalLMEagle3"]}, "cannot run without its target"),
    ],
)
def test_pairs_that_do_not(algorithm: str, draft: dict[str, object] | None, said: str) -> None:
    problems = pair_problems(algorithm, draft, TARGET)
    assert len(problems) == 1
    assert said in problems[0]
    assert algorithm in problems[0]


@pytest.mark.parametrize("algorithm", ["EAGLE", "NEXTN", "EAGLE3", "STANDALONE"])
def test_the_target_is_no_draft_for_itself(algorithm: str) -> None:
    (problem,) = pair_problems(algorithm, TARGET, TARGET, is_target=True)
    assert "is the directory of the target LlamaForCausalLM itself" in problem


@pytest.mark.parametrize(
    "config",
    [
        {"architectures": ["DeepseekV3ForCausalLM"], "num_nextn_predict_layers": 1},
        {"architectures": ["Qwen3_5ForConditionalGeneration"], "text_config": {"mtp_num_hidden_layers": 1}},
        {"architectures": ["Qwen3NextForCausalLM"]},
    ],
)
def test_a_model_with_layers_that_draft_is_its_own_draft(config: dict[str, object]) -> None:
    assert pair_problems("NEXTN", config, config, is_target=True) == []
    assert pair_problems("EAGLE3", config, config, is_target=True) != []


@pytest.mark.parametrize("algorithm", ["EAGLE3", "eagle", "NextN", "ngram", "LOOKAHEAD", "DFLASH"])
def test_known_algorithms_in_either_case(algorithm: str) -> None:
    assert algorithm_problem(algorithm) is None


@pytest.mark.parametrize(
    ("algorithm", "near"),
    [("EAGEL3", "EAGLE3"), ("eagle-3", "EAGLE3"), ("N-GRAM", "NGRAM"), ("standalon", "STANDALONE")],
)
def test_an_unknown_algorithm_names_the_nearest(algorithm: str, near: str) -> None:
    problem = algorithm_problem(algorithm)
    assert problem is not None
    assert f"did you mean {near}?" in problem
    assert algorithm in problem
