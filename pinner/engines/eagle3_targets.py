"""Which targets hand their hidden states to an EAGLE-3 draft, and after which layers.

A table taken from the source of one version of SGLang: every class of a model that has, or inherits,
`set_eagle3_layers_to_capture`. Must not judge a pair: engines/eagle3.py does.
"""

from __future__ import annotations

from collections.abc import Sequence

VERSION = "0.5.23"

# What a target does with the ids that a draft's config.json asks for. A model takes a layer's output at the entry
# of the next one: all but a few never take what leaves the last layer.
_NEXT_LAYER = """
ApertusForCausalLM BailingMoEForCausalLM BailingMoeForCausalLM BailingMoeV2ForCausalLM
Cosmos3ForConditionalGeneration ExaoneMoEForCausalLM ExaoneMoeForCausalLM Gemma3ForCausalLM
Gemma3ForConditionalGeneration Gemma4ForCausalLM Gemma4ForConditionalGeneration
Gemma4UnifiedForConditionalGeneration Glm4MoeForCausalLM Glm4MoeLiteForCausalLM Glm5NextForConditionalGeneration
IQuestCoderForCausalLM InternLM3ForCausalLM InternS1ProForConditionalGeneration
InternS2MobiusForConditionalGeneration InternS2PreviewForConditionalGeneration Llama4ForCausalLM
Llama4ForConditionalGeneration LlamaForCausalLM LongcatFlashForCausalLM MellumForCausalLM MindSporeForCausalLM
MiniMaxM2ForCausalLM Ministral3ForCausalLM MistralForCausalLM Phi3ForCausalLM Qwen2ForCausalLM
Qwen2MoeForCausalLM Qwen2_5_VLForConditionalGeneration Qwen3ForCausalLM Qwen3MoeForCausalLM Qwen3NextForCausalLM
Qwen3VLForConditionalGeneration Qwen3VLMoeForConditionalGeneration Qwen3_5ForCausalLM
Qwen3_5ForConditionalGeneration Qwen3_5MoeForCausalLM Qwen3_5MoeForConditionalGeneration
Qwen4ExpForConditionalGeneration SarvamMoEForCausalLM TeleFLMForCausalLM
"""
# These also take what leaves the last layer.
_NEXT_LAYER_AND_END = "MiniMaxM3SparseForCausalLM MiniMaxM3SparseForConditionalGeneration"
# These take the ids as entries of layers, unless the first is 1.
_ENTRIES = """
DeepseekV2ForCausalLM DeepseekV3ForCausalLM DeepseekV32ForCausalLM GlmMoeDsaForCausalLM
KimiK25ForConditionalGeneration MistralLarge3ForCausalLM
"""
# This takes the ids as entries of layers where the highest is the number of layers.
_ENTRIES_TO_THE_END = "GptOssForCausalLM"

_KINDS = {
    name: kind
    for kind, names in {
        "next": _NEXT_LAYER,
        "next-and-end": _NEXT_LAYER_AND_END,
        "entries": _ENTRIES,
        "entries-to-the-end": _ENTRIES_TO_THE_END,
    }.items()
    for name in names.split()
}


def captures(architecture: str) -> bool:
    """Whether a target of this architecture is known to hand its hidden states to a draft."""
    return architecture in _KINDS


def never_captured(architecture: str, ids: Sequence[int], layers: int) -> list[int]:
    """Which of the ids that a draft asks for a target of so many layers never captures.

    For an architecture that is not in the table only those that no model can have.
    """
    kind = _KINDS.get(architecture)
    if kind is None:
        return [number for number in ids if not 0 <= number < layers]
    is_entry = (kind == "entries" and ids[:1] != [1]) or (kind == "entries-to-the-end" and max(ids) == layers)
    last = layers if kind in ("next-and-end", "entries-to-the-end") else layers - 1
    return [number for number in ids if not 0 <= (number if is_entry else number + 1) <= last or number < 0]
