"""The names and shapes that an EAGLE-3 draft's weights must have, from its config.json.

Owns what SGLang's two draft classes hold and how they map the names in a file. SGLang skips a name that it does
not know and leaves a parameter that no file gives as it was allocated, both without a word. Must not read files.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

LLAMA = "LlamaForCausalLMEagle3"
DEEPSEEK = "Eagle3DeepseekV2ForCausalLM"

# A size that the config.json does not tell is None, and any size will do.
Size = int | None
Sizes = tuple[Size, ...]

_HEAD, _EMBEDDING = "lm_head.weight", "embed_tokens.weight"
_LEGACY = {
    "midlayer": "layers.0",
    "aux_norm_low": "fc_norm.0",
    "aux_norm_mid": "fc_norm.1",
    "aux_norm_high": "fc_norm.2",
}
_PACKED = {"qkv_proj": ("q_proj", "k_proj", "v_proj"), "gate_up_proj": ("gate_proj", "up_proj")}


class Layout(NamedTuple):
    """What a draft class holds: parameters by name with their sizes, and those that no file needs to give."""

    parameters: dict[str, Sizes]
    optional: frozenset[str]


class Fit(NamedTuple):
    """What the names and shapes in a draft's files are to its layout."""

    missing: list[str]
    unknown: list[str]
    misshapen: list[str]
    doubled: list[str]


def layout(architecture: str, config: Mapping[str, Any], captured: int) -> Layout | None:
    """The parameters of a draft that takes `captured` layers of its target; None for a class that is not known."""
    if architecture == LLAMA:
        layers = _llama_layers(config)
    elif architecture == DEEPSEEK:
        layers = _deepseek_layer(config)
    else:
        return None
    hidden = size(config, "hidden_size")
    taken = taken_size(architecture, config)
    parameters = {"fc.weight": (hidden, _times(taken, captured)), "norm.weight": (hidden,), **layers}
    if config.get("bias"):
        parameters["fc.bias"] = (hidden,)
    if config.get("fc_norm") or config.get("use_aux_norm"):
        parameters.update({f"fc_norm.{number}.weight": (taken,) for number in range(captured)})
    if architecture == LLAMA and _norms_before_fc(config):
        parameters["input_norm.weight"] = (_times(taken, captured),)
    parameters[_EMBEDDING] = (size(config, "vocab_size"), hidden)
    # The target's embedding takes the place of the draft's, but for a draft of another width.
    optional = set() if taken is not None and taken != hidden else {_EMBEDDING}
    if not config.get("tie_word_embeddings"):
        parameters[_HEAD] = (size(config, "draft_vocab_size") or size(config, "vocab_size"), hidden)
        if config.get("draft_vocab_size") is None:
            optional.add(_HEAD)
    return Layout(parameters, frozenset(optional))


def fit(architecture: str, wanted: Layout, shapes: Mapping[str, tuple[int, ...]]) -> Fit:
    """Compare the tensors of the files, by their names there, with what the draft class holds."""
    given: dict[str, list[str]] = {}
    result = Fit([], [], [], [])
    for name in sorted(shapes):
        parameters = _parameters(architecture, name)
        if not parameters:
            continue
        if not set(parameters) <= wanted.parameters.keys():
            result.unknown.append(name)
            continue
        for parameter in parameters:
            given.setdefault(parameter, []).append(name)
        sizes = wanted.parameters[parameters[0]]
        if len(parameters) == 1 and not _is_of(shapes[name], sizes):
            result.misshapen.append(f"{name} is {_shown(shapes[name])}, and {_shown(sizes)} is needed")
    result.missing.extend(sorted(wanted.parameters.keys() - given.keys() - wanted.optional))
    result.doubled.extend(" and ".join(names) for names in given.values() if len(names) > 1)
    return result


def quantized(config: Mapping[str, Any], names: Iterable[str]) -> str | None:
    """How a draft's weights are quantized, if they are: then names and shapes are the method's own."""
    told = config.get("quantization_config") or config.get("compression_config")
    if told:
        method = told.get("quant_method") if isinstance(told, dict) else None
        return str(method or "a method that its config.json does not name")
    marks = ("qweight", "weight_scale", "weight_packed", "qzeros", "weight_scale_inv")
    found = next((name for name in sorted(names) if name.rpartition(".")[2] in marks), None)
    return None if found is None else f"as {found} shows"


def size(config: Mapping[str, Any], key: str) -> Size:
    """A size that a config.json tells; None if it does not, or tells nonsense."""
    found = config.get(key)
    return found if isinstance(found, int) and not isinstance(found, bool) and found > 0 else None


def taken_size(architecture: str, config: Mapping[str, Any]) -> Size:
    """The width of the target's hidden states that a draft is made for."""
    if architecture == LLAMA and "target_hidden_size" in config:
        return size(config, "target_hidden_size")
    return size(config, "target_hidden_size") or size(config, "hidden_size")


def _norms_before_fc(config: Mapping[str, Any]) -> bool:
    eagle = config.get("eagle_config")
    own = config.get("norm_before_fc", False)
    return bool(eagle.get("norm_before_fc", own) if isinstance(eagle, dict) else own)


def _llama_layers(config: Mapping[str, Any]) -> dict[str, Sizes]:
    hidden = size(config, "hidden_size")
    inner = size(
        config, "intermediate_size_mlp" if config.get("model_type") == "llama4_text" else "intermediate_size"
    )
    heads = size(config, "num_attention_heads")
    head = size(config, "head_dim") or (hidden // heads if hidden and heads else None)
    keys = _times(size(config, "num_key_value_heads") or heads, head)
    parameters: dict[str, Sizes] = {}
    for number in range(min(size(config, "num_hidden_layers") or 1, 64)):
        before = f"layers.{number}"
        # The first layer takes the embedding and the hidden state side by side.
        wide = _times(hidden, 2) if number == 0 else hidden
        parameters |= {
            f"{before}.self_attn.q_proj.weight": (_times(heads, head), wide),
            f"{before}.self_attn.k_proj.weight": (keys, wide),
            f"{before}.self_attn.v_proj.weight": (keys, wide),
            f"{before}.self_attn.o_proj.weight": (hidden, _times(heads, head)),
            **_mlp_and_norms(before, hidden, inner),
        }
        if config.get("attention_bias") or config.get("bias"):
            parameters[f"{before}.self_attn.o_proj.bias"] = (hidden,)
    return parameters


def _deepseek_layer(config: Mapping[str, Any]) -> dict[str, Sizes]:
    hidden, heads = size(config, "hidden_size"), size(config, "num_attention_heads")
    rope, nope = size(config, "qk_rope_head_dim"), size(config, "qk_nope_head_dim")
    queries, keys, values = size(config, "q_lora_rank"), size(config, "kv_lora_rank"), size(config, "v_head_dim")
    before = "midlayer.self_attn"
    return {
        f"{before}.q_a_proj.weight": (queries, _times(hidden, 2)),
        f"{before}.kv_a_proj_with_mqa.weight": (_plus(keys, rope), _times(hidden, 2)),
        f"{before}.q_a_layernorm.weight": (queries,),
        f"{before}.q_b_proj.weight": (_times(heads, _plus(nope, rope)), queries),
        f"{before}.kv_a_layernorm.weight": (keys,),
        f"{before}.kv_b_proj.weight": (_times(heads, _plus(nope, values)), keys),
        f"{before}.o_proj.weight": (hidden, _times(heads, values)),
        **_mlp_and_norms("midlayer", hidden, size(config, "intermediate_size")),
    }


def _mlp_and_norms(before: str, hidden: Size, inner: Size) -> dict[str, Sizes]:
    norms = ("input_layernorm", "hidden_norm", "post_attention_layernorm")
    return {
        f"{before}.mlp.gate_proj.weight": (inner, hidden),
        f"{before}.mlp.up_proj.weight": (inner, hidden),
        f"{before}.mlp.down_proj.weight": (hidden, inner),
        **{f"{before}.{name}.weight": (hidden,) for name in norms},
    }


def _parameters(architecture: str, name: str) -> tuple[str, ...]:
    """Which parameters a tensor of a file gives, by this module's names; none for one that is no parameter."""
    if "d2t" in name or "t2d" in name or "rotary_emb" in name:
        return ()
    if architecture == DEEPSEEK:
        name = re.sub(r"^layers\.0\.", "midlayer.", name)
    else:
        for old, new in _LEGACY.items():
            name = name.replace(old, new)
        if name != f"model.{_HEAD}":
            name = name.removeprefix("model.")
    for packed, parts in _PACKED.items():
        if f".{packed}." in name:
            return tuple(name.replace(packed, part) for part in parts)
    return (name,)


def _is_of(shape: tuple[int, ...], sizes: Sizes) -> bool:
    return len(shape) == len(sizes) and all(want in (None, have) for have, want in zip(shape, sizes, strict=True))


def _shown(sizes: Sizes) -> str:
    return "[" + ", ".join("?" if item is None else str(item) for item in sizes) + "]"


def _times(one: Size, other: Size) -> Size:
    return None if one is None or other is None else one * other


def _plus(one: Size, other: Size) -> Size:
    return None if one is None or other is None else one + other
