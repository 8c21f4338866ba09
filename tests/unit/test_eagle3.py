"""Every row of the table of EAGLE-3 pairs that do not fit: what SGLang accepts, or finds too late."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from pinner.engines import ENGINES, eagle3_targets
from pinner.model.facts import Unknown
from pinner.model.pair import DraftWeights, Pair, TokenMap, Verdict
from tests.eagle_pair import DRAFT, MLA_DRAFT, MLA_SHAPES, SHAPES, TARGET

IDS = "eagle_aux_hidden_state_layer_ids"
MAP = TokenMap(shape=(16,), lowest=0, highest=30)
GONE = object()


def changed(config: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """A copy with some keys changed, and gone where the value is GONE."""
    return {key: value for key, value in {**config, **changes}.items() if value is not GONE}


def weights(shapes: dict[str, Any] | None = None, token_map: TokenMap | None = MAP) -> DraftWeights:
    return DraftWeights(shapes=changed(SHAPES, shapes or {}), token_map=token_map)


def judge(
    draft: dict[str, Any] | None = None,
    target: dict[str, Any] | None = None,
    *,
    engine: str = "sglang",
    **fields: Any,
) -> Verdict:
    """The verdict on the pair that fits, with these changes."""
    pair = Pair(
        algorithm="EAGLE3",
        draft=changed(DRAFT, draft or {}),
        target=changed(TARGET, target or {}),
        weights=weights(),
    )
    return ENGINES[engine].judge_pair(msgspec.structs.replace(pair, **fields))


def asked(*ids: Any) -> dict[str, Any]:
    return {"eagle_config": {IDS: list(ids)}}


@pytest.mark.parametrize("engine", ["sglang", "pocket"])
def test_the_pair_that_fits(engine: str) -> None:
    assert judge(engine=engine) == Verdict()


def test_a_target_that_hands_out_no_hidden_states() -> None:
    target = {"architectures": ["MixtralForCausalLM"]}
    (said,) = judge(target=target, version=eagle3_targets.VERSION).problems
    assert "MixtralForCausalLM hands no hidden states to a draft in SGLang 0.5.23" in said
    # Of a commit or another release nobody knows.
    verdict = judge(target=target, version=None)
    assert verdict.problems == ()
    assert "whether the target's architecture MixtralForCausalLM hands hidden states" in verdict.unread[0]
    assert judge(target=target, engine="pocket") == Verdict()


@pytest.mark.parametrize("name", ["LlamaForCausalLM", "KimiK25ForConditionalGeneration", "Qwen3_5MoeForCausalLM"])
def test_targets_that_do(name: str) -> None:
    assert judge(target={"architectures": [name]}) == Verdict()


def test_a_draft_for_a_shorter_context() -> None:
    draft = {"max_position_embeddings": 48}
    (said,) = judge(draft).problems
    assert "the draft's context is 48 positions, and the target's context is 64" in said
    assert "ValueError" in said
    assert "context-length = 48" in said
    assert judge(draft, flags={"context-length": "48"}) == Verdict()
    (said,) = judge(draft, flags={"context-length": "49"}).problems
    assert "engine.args.context-length is 49" in said
    allowed = judge(draft, env={"SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN": "1"})
    assert allowed.problems == ()
    assert "acceptance falls beyond 48" in allowed.advice[0]
    assert judge(draft, env={"SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN": "0"}).problems


def test_a_stretched_context_counts_as_sglang_counts_it() -> None:
    draft: dict[str, Any] = {"max_position_embeddings": 16, "rope_scaling": {"rope_type": "linear", "factor": 4.0}}
    assert judge(draft) == Verdict()
    draft["rope_scaling"] = {"rope_type": "llama3", "factor": 4.0}
    assert judge(draft).problems
    draft["rope_scaling"] = {"factor": 4.0, "original_max_position_embeddings": 16}
    assert judge(draft).problems


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"fc.weight": (8, 16)}, "fc.weight is [8, 16], and [8, 24] is needed"),
        ({"lm_head.weight": (32, 8)}, "lm_head.weight is [32, 8], and [16, 8] is needed"),
        ({"midlayer.self_attn.q_proj.weight": (8, 8)}, "q_proj.weight is [8, 8], and [8, 16] is needed"),
        ({"norm.weight": (8, 1)}, "norm.weight is [8, 1], and [8] is needed"),
        ({"embed_tokens.weight": (31, 8)}, "embed_tokens.weight is [31, 8], and [32, 8] is needed"),
    ],
)
def test_wrong_shapes(changes: dict[str, Any], said: str) -> None:
    (problem,) = judge(weights=weights(changes)).problems
    assert "not of the shapes that its config.json tells" in problem
    assert said in problem


@pytest.mark.parametrize("name", [name for name in SHAPES if name != "t2d"])
def test_each_missing_weight(name: str) -> None:
    (problem,) = judge(weights=weights({name: GONE})).problems
    assert "SGLang starts with whatever these hold when allocated" in problem
    assert name.replace("midlayer", "layers.0") in problem


def test_weights_of_unknown_names() -> None:
    (problem,) = judge(weights=weights({"midlayer.self_attn.q_proj.bias": (8,), "extra.weight": (1,)})).problems
    assert "SGLang skips these silently" in problem
    assert "extra.weight, midlayer.self_attn.q_proj.bias" in problem


def test_a_renamed_weight_is_both_unknown_and_missing() -> None:
    problems = judge(weights=weights({"fc.weight": GONE, "model.fc_in.weight": (8, 24)})).problems
    assert len(problems) == 2
    assert "lack fc.weight" in problems[0]
    assert "hold model.fc_in.weight" in problems[1]


def test_many_names_are_counted() -> None:
    (problem,) = judge(weights=weights({f"x{number}": (1,) for number in range(20)})).problems
    assert "and 14 more" in problem


def test_names_that_sglang_also_takes() -> None:
    renamed = {f"model.{name.replace('midlayer', 'layers.0')}": shape for name, shape in SHAPES.items()}
    renamed["lm_head.weight"] = renamed.pop("model.lm_head.weight")
    renamed["model.layers.0.self_attn.rotary_emb.inv_freq"] = (1,)
    assert judge(weights=DraftWeights(shapes=renamed, token_map=MAP)) == Verdict()
    renamed["model.lm_head.weight"] = renamed.pop("lm_head.weight")
    assert len(judge(weights=DraftWeights(shapes=renamed, token_map=MAP)).problems) == 2


def test_packed_weights_count_as_their_parts() -> None:
    packed = {f"midlayer.self_attn.{name}_proj.weight": GONE for name in "qkv"}
    assert judge(weights=weights({**packed, "midlayer.self_attn.qkv_proj.weight": (16, 16)})) == Verdict()


def test_one_parameter_given_twice() -> None:
    (problem,) = judge(weights=weights({"layers.0.hidden_norm.weight": (8,)})).problems
    assert "layers.0.hidden_norm.weight and midlayer.hidden_norm.weight" in problem
    found = msgspec.structs.replace(weights(), repeated=("fc.weight",))
    assert "the one read last counts: fc.weight" in judge(weights=found).problems[0]


def test_what_the_config_adds_to_the_weights() -> None:
    draft = {"attention_bias": True, "fc_norm": True, "norm_before_fc": True, "num_hidden_layers": 2, "bias": True}
    (problem,) = judge(draft).problems
    assert "fc.bias, fc_norm.0.weight, fc_norm.1.weight, fc_norm.2.weight, input_norm.weight" in problem
    second = {
        f"layers.1.{name.removeprefix('midlayer.')}": (
            (shape[0], 8) if len(shape) == 2 and shape[1] == 16 else shape
        )
        for name, shape in SHAPES.items()
        if name.startswith("midlayer.")
    }
    added = {
        "fc.bias": (8,),
        "aux_norm_low.weight": (8,),
        "aux_norm_mid.weight": (8,),
        "aux_norm_high.weight": (8,),
        "input_norm.weight": (24,),
        "midlayer.self_attn.o_proj.bias": (8,),
        "layers.1.self_attn.o_proj.bias": (8,),
    }
    assert judge(draft, weights=weights({**second, **added})) == Verdict()


def test_heads_that_are_tied_or_the_targets() -> None:
    (problem,) = judge({"tie_word_embeddings": True}).problems
    assert "hold lm_head.weight" in problem
    whole = TokenMap(shape=(32,), highest=31)
    assert judge({"draft_vocab_size": None}, weights=weights({"lm_head.weight": GONE}, whole)) == Verdict()
    (problem,) = judge({"draft_vocab_size": GONE}, weights=weights({"lm_head.weight": (32, 8)}, None)).problems
    assert "no draft_vocab_size: SGLang stops with an AttributeError" in problem


def test_quantized_weights_are_not_looked_into() -> None:
    broken = weights({"fc.weight": (1, 1)})
    verdict = judge({"quantization_config": {"quant_method": "fp8"}}, weights=broken)
    assert verdict.problems == ()
    assert "they are quantized (fp8)" in verdict.unread[0]
    verdict = judge(weights=weights({"midlayer.mlp.up_proj.weight_scale": (1,)}))
    assert verdict.problems == ()
    assert "as midlayer.mlp.up_proj.weight_scale shows" in verdict.unread[0]


def test_what_cannot_be_looked_into_is_said() -> None:
    verdict = judge(weights=Unknown("a.bin is a pickle"))
    assert verdict == Verdict(unread=("the draft's weights were not looked into: a.bin is a pickle",))
    verdict = judge({"architectures": ["QwenForCausalLMEagle3"]})
    assert verdict.problems == ()
    assert "QwenForCausalLMEagle3 is not known here" in verdict.unread[0]


def test_a_target_without_a_config() -> None:
    pair = Pair(algorithm="EAGLE3", draft=DRAFT, target=None, weights=weights({"norm.weight": GONE}))
    verdict = ENGINES["sglang"].judge_pair(pair)
    assert "the target has no readable config.json" in verdict.unread[0]
    assert "lack norm.weight" in verdict.problems[0]


def test_a_target_of_another_width() -> None:
    (problem,) = judge(target={"hidden_size": 16}).problems
    assert "the draft's hidden_size is 8, and the target's hidden_size is 16" in problem
    # The draft says that it is made for that width; then it needs an embedding of its own.
    wide = {"fc.weight": (8, 48)}
    (problem,) = judge({"target_hidden_size": 16}, {"hidden_size": 16}, weights=weights(wide)).problems
    assert "lack embed_tokens.weight" in problem
    own = weights({**wide, "embed_tokens.weight": (32, 8)})
    assert judge({"target_hidden_size": 16}, {"hidden_size": 16}, weights=own) == Verdict()
    (problem,) = judge({"target_hidden_size": 16}, weights=own).problems
    assert "the draft's target_hidden_size is 16, and the target's hidden_size is 8" in problem


@pytest.mark.parametrize("config", [GONE, None, {}, {"use_aux_hidden_state": True}, {IDS: None}])
def test_without_layer_ids_the_default_is_told(config: Any) -> None:
    verdict = judge({"eagle_config": config})
    assert verdict.problems == ()
    assert "SGLang then takes layers 2, 5, 7 without a word" in verdict.advice[0]


@pytest.mark.parametrize(("layers", "taken"), [(2, "2, 1, -1"), (5, "2, 2, 2"), (6, "2, 3, 3")])
def test_a_target_too_small_for_the_default(layers: int, taken: str) -> None:
    (problem,) = judge({"eagle_config": GONE}, {"num_hidden_layers": layers}).problems
    assert f"takes layers {taken} without a word, which a target with {layers} layers" in problem
    assert judge({"eagle_config": GONE}, {"num_hidden_layers": 7}).problems == ()


def test_layer_ids_where_nobody_looks() -> None:
    (problem,) = judge({"eagle_config": GONE, IDS: [1, 3, 5]}).problems
    assert "1, 3, 5 stands outside eagle_config" in problem
    # Those that it would take anyway.
    assert judge({"eagle_config": GONE, IDS: [2, 5, 7]}).problems == ()
    assert judge({"eagle_config": GONE, IDS: [1, 4, 6]}).problems == ()


@pytest.mark.parametrize(
    ("ids", "said"),
    [
        ([1, 4, 10], "10 would never be captured (the target has 10 layers, 0 to 9)"),
        ([-1, 4, 7], "-1 would never be captured"),
        ([1, 4, 9], "9 would never be captured (SGLang takes a layer's output as it enters the next one"),
        ([1, 4, 4], "a layer is captured once"),
        ([1, 4], "the draft's fc takes 3 captured layers, and 2 are asked"),
        (["1", 4, 7], "not a list of layer numbers"),
        ([], "not a list of layer numbers"),
        ([True, 4, 7], "not a list of layer numbers"),
    ],
)
def test_layer_ids_that_cannot_be(ids: list[Any], said: str) -> None:
    fixed = {"num_aux_hidden_states": 3}
    assert any(said in problem for problem in judge({**asked(*ids), **fixed}).problems)


def test_the_last_layer_by_the_models_that_take_it() -> None:
    last = asked(1, 4, 9)
    for name in ("MiniMaxM3SparseForCausalLM", "GptOssForCausalLM"):
        assert judge(last, {"architectures": [name]}) == Verdict()
    assert judge(asked(2, 5, 10), {"architectures": ["GptOssForCausalLM"]}) == Verdict()
    kimi = {"architectures": ["KimiK25ForConditionalGeneration"]}
    # The ids are entries of layers there, unless the first is 1.
    assert judge(asked(2, 5, 9), kimi) == Verdict()
    assert judge(last, kimi).problems
    assert judge(last, engine="pocket") == Verdict()
    # What an unknown model does nobody knows.
    assert judge(last, {"architectures": ["NewForCausalLM"]}).problems == ()


def test_layers_in_another_order_are_told() -> None:
    verdict = judge(asked(7, 4, 1))
    assert verdict.problems == ()
    assert "reach fc in rising order" in verdict.advice[0]


def test_more_layers_need_a_wider_fc() -> None:
    (problem,) = judge(asked(1, 3, 5, 7)).problems
    assert "fc.weight is [8, 24], and [8, 32] is needed" in problem
    assert judge(asked(1, 3, 5, 7), weights=weights({"fc.weight": (8, 32)})) == Verdict()


def test_a_draft_that_takes_only_the_last_state() -> None:
    verdict = judge({"eagle_config": {"use_aux_hidden_state": False}})
    assert verdict.problems == ()
    assert "fc.weight is not used" in verdict.advice[0]


def test_a_token_map_of_another_length() -> None:
    found = weights(token_map=TokenMap(shape=(15,), highest=30))
    assert "d2t has the shape [15], and draft_vocab_size is 16" in judge(weights=found).problems[0]


@pytest.mark.parametrize(("lowest", "highest"), [(0, 32), (-1, 30)])
def test_tokens_that_the_target_does_not_have(lowest: int, highest: int) -> None:
    found = weights(token_map=TokenMap(shape=(16,), lowest=lowest, highest=highest))
    (problem,) = judge(weights=found).problems
    assert f"leads to tokens {lowest} to {highest}, and the target's are 0 to 31" in problem


def test_the_last_token_of_the_target_is_one() -> None:
    assert judge(weights=weights(token_map=TokenMap(shape=(16,), highest=31))) == Verdict()


def test_a_map_that_is_missing() -> None:
    (problem,) = judge(weights=weights(token_map=None)).problems
    assert "no d2t, and it has 16 tokens of the target's 32" in problem
    whole = weights({"lm_head.weight": (32, 8)}, None)
    assert judge({"draft_vocab_size": 32}, weights=whole) == Verdict()


def test_a_map_that_is_odd_is_told() -> None:
    found = weights(token_map=TokenMap(shape=(16,), highest=30, repeated=2, is_rising=False))
    assert "leads 2 tokens to one that another has already" in judge(weights=found).advice[0]
    found = weights(token_map=TokenMap(shape=(16,), highest=30, is_rising=False))
    assert "not in rising order" in judge(weights=found).advice[0]
    found = weights(token_map=TokenMap(shape=(16,), unreadable="is of F32, not of whole numbers"))
    assert "d2t is of F32" in judge(weights=found).problems[0]


def test_vocabularies_that_differ() -> None:
    assert "the draft's vocab_size is 32, and the target's is 40" in judge(target={"vocab_size": 40}).problems[0]
    large = weights({"lm_head.weight": (48, 8)}, TokenMap(shape=(48,), highest=31))
    (problem,) = judge({"draft_vocab_size": 48}, weights=large).problems
    assert "draft_vocab_size is 48, and the target knows only 32 tokens" in problem


def test_a_target_whose_language_model_is_a_part() -> None:
    text = {key: value for key, value in TARGET.items() if key != "architectures"}
    nested = {"architectures": ["KimiK25ForConditionalGeneration"], "text_config": text}
    pair = Pair(algorithm="EAGLE3", draft={**DRAFT, **asked(2, 5, 7)}, target=nested, weights=weights())
    assert ENGINES["sglang"].judge_pair(pair) == Verdict()
    text["hidden_size"] = 16
    assert len(ENGINES["sglang"].judge_pair(pair).problems) == 1


@pytest.mark.parametrize(
    ("key", "said"),
    [
        ("hidden_size", "hidden_size"),
        ("vocab_size", "vocab_size"),
        ("num_hidden_layers", "num_hidden_layers"),
        ("max_position_embeddings", "context length"),
        ("architectures", "names no architecture"),
    ],
)
def test_what_the_target_does_not_tell_is_no_guess(key: str, said: str) -> None:
    for nonsense in (GONE, None, "8", True, 0):
        verdict = judge(target={key: nonsense})
        assert verdict.problems == ()
        assert any(said in sentence for sentence in verdict.unread)


@pytest.mark.parametrize("key", sorted(DRAFT.keys() - {"architectures"}))
def test_a_draft_that_does_not_tell_a_size_never_ends_in_a_traceback(key: str) -> None:
    for nonsense in (GONE, None, "8", [], {}, -1, 1.5):
        judge({key: nonsense})


def test_all_problems_are_told_at_once() -> None:
    problems = judge(
        {"max_position_embeddings": 8, **asked(1, 4, 99)},
        {"hidden_size": 16, "vocab_size": 20},
        weights=weights({"norm.weight": GONE, "x": (1,)}),
    ).problems
    assert len(problems) == 7


MLA = {"draft": MLA_DRAFT, "target": {**TARGET, "architectures": ["KimiK25ForConditionalGeneration"]}}


def judge_mla(draft: dict[str, Any] | None = None, shapes: dict[str, Any] | None = None) -> Verdict:
    pair = Pair(
        algorithm="EAGLE3",
        draft=changed(MLA_DRAFT, {**asked(2, 5, 7), **(draft or {})}),
        target=MLA["target"],
        weights=DraftWeights(shapes=changed(MLA_SHAPES, shapes or {}), token_map=MAP),
    )
    return ENGINES["sglang"].judge_pair(pair)


def test_a_draft_with_latent_attention() -> None:
    assert judge_mla() == Verdict()
    assert (
        "lack midlayer.self_attn.kv_b_proj.weight"
        in (judge_mla(shapes={"midlayer.self_attn.kv_b_proj.weight": GONE}).problems[0])
    )
    assert (
        "kv_a_proj_with_mqa.weight is [6, 8], and [6, 16] is needed"
        in (judge_mla(shapes={"midlayer.self_attn.kv_a_proj_with_mqa.weight": (6, 8)}).problems[0])
    )
    assert "takes only 1" in judge_mla({"num_hidden_layers": 2}).problems[0]
    assert "no q_lora_rank" in judge_mla({"q_lora_rank": None}).problems[0]


def test_a_draft_with_latent_attention_has_no_names_with_model_in_front() -> None:
    problems = judge_mla(shapes={"fc.weight": GONE, "model.fc.weight": (8, 24)}).problems
    assert "lack fc.weight" in problems[0]
    assert "hold model.fc.weight" in problems[1]
    layers = {name: GONE for name in MLA_SHAPES if name.startswith("midlayer.")}
    renamed = {name.replace("midlayer", "layers.0"): MLA_SHAPES[name] for name in layers}
    assert judge_mla(shapes={**layers, **renamed}) == Verdict()


def test_a_token_map_file_is_ignored_with_eagle3() -> None:
    verdict = judge(flags={"speculative-token-map": "x.pt"})
    assert "SGLang ignores it with EAGLE3" in verdict.advice[0]
    assert judge(flags={"json-model-override-args": json.dumps({"hidden_size": 9})}).unread


@pytest.mark.parametrize(
    ("backend", "is_refused"), [("flashinfer", False), ("fa3", False), ("triton", False), ("flashmla", True)]
)
def test_trees_on_pages(backend: str, is_refused: bool) -> None:
    flags = {"speculative-eagle-topk": "4", "page-size": "64", "attention-backend": backend}
    assert bool(judge(flags=flags).problems) is is_refused
    assert judge(flags={**flags, "speculative-eagle-topk": "1"}) == Verdict()
    assert judge(flags={**flags, "page-size": "1"}) == Verdict()
    del flags["attention-backend"]
    assert "SGLang chooses by the GPU" in judge(flags=flags).advice[0]


def test_other_algorithms_are_not_judged_by_these_rules() -> None:
    draft = {"architectures": ["LlamaForCausalLMEagle"]}
    assert judge(draft, {"hidden_size": 99}, algorithm="EAGLE") == Verdict()
