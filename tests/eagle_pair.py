"""A draft and a target of a few hundred numbers that fit, to be changed in one place at a time."""

from __future__ import annotations

import json
import math
import struct
from pathlib import Path
from typing import Any

SIZES = {"BF16": 2, "F32": 4, "I64": 8, "I32": 4, "I16": 2, "U8": 1}
CODES = {"I64": "q", "I32": "i", "I16": "h", "U8": "B"}

TARGET: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 8,
    "num_hidden_layers": 10,
    "vocab_size": 32,
    "max_position_embeddings": 64,
}
DRAFT: dict[str, Any] = {
    "architectures": ["LlamaForCausalLMEagle3"],
    "model_type": "llama",
    "hidden_size": 8,
    "intermediate_size": 12,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 2,
    "vocab_size": 32,
    "draft_vocab_size": 16,
    "max_position_embeddings": 64,
    "tie_word_embeddings": False,
    "eagle_config": {"use_aux_hidden_state": True, "eagle_aux_hidden_state_layer_ids": [1, 4, 7]},
}
SHAPES: dict[str, tuple[int, ...]] = {
    "fc.weight": (8, 24),
    "lm_head.weight": (16, 8),
    "midlayer.hidden_norm.weight": (8,),
    "midlayer.input_layernorm.weight": (8,),
    "midlayer.mlp.down_proj.weight": (8, 12),
    "midlayer.mlp.gate_proj.weight": (12, 8),
    "midlayer.mlp.up_proj.weight": (12, 8),
    "midlayer.post_attention_layernorm.weight": (8,),
    "midlayer.self_attn.k_proj.weight": (4, 16),
    "midlayer.self_attn.o_proj.weight": (8, 8),
    "midlayer.self_attn.q_proj.weight": (8, 16),
    "midlayer.self_attn.v_proj.weight": (4, 16),
    "norm.weight": (8,),
    "t2d": (32,),
}
# Token n of the draft is token 2n of the target.
OFFSETS = tuple(range(16))

MLA_DRAFT: dict[str, Any] = {
    **{key: DRAFT[key] for key in DRAFT if key not in ("num_key_value_heads", "head_dim", "model_type")},
    "architectures": ["Eagle3DeepseekV2ForCausalLM"],
    "q_lora_rank": 6,
    "kv_lora_rank": 4,
    "qk_nope_head_dim": 3,
    "qk_rope_head_dim": 2,
    "v_head_dim": 5,
}
MLA_SHAPES: dict[str, tuple[int, ...]] = {
    **{name: shape for name, shape in SHAPES.items() if "self_attn" not in name},
    "midlayer.self_attn.q_a_proj.weight": (6, 16),
    "midlayer.self_attn.q_a_layernorm.weight": (6,),
    "midlayer.self_attn.q_b_proj.weight": (20, 6),
    "midlayer.self_attn.kv_a_proj_with_mqa.weight": (6, 16),
    "midlayer.self_attn.kv_a_layernorm.weight": (4,),
    "midlayer.self_attn.kv_b_proj.weight": (32, 4),
    "midlayer.self_attn.o_proj.weight": (8, 20),
}


def safetensors(
    shapes: dict[str, tuple[int, ...]], numbers: dict[str, tuple[str, tuple[int, ...]]] | None = None
) -> bytes:
    """A file with tensors of zeros in BF16, and of whole numbers by (dtype, values)."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    data = b""
    for name, shape in shapes.items():
        content = bytes(math.prod(shape) * SIZES["BF16"])
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [len(data), len(data) + len(content)]}
        data += content
    for name, (dtype, values) in (numbers or {}).items():
        content = struct.pack(f"<{len(values)}{CODES[dtype]}", *values)
        offsets = [len(data), len(data) + len(content)]
        header[name] = {"dtype": dtype, "shape": [len(values)], "data_offsets": offsets}
        data += content
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def write(draft: Path, target: Path) -> None:
    """The pair as two directories; the target has no weights, which nothing here reads."""
    for directory, config in ((draft, DRAFT), (target, TARGET)):
        directory.mkdir()
        (directory / "config.json").write_text(json.dumps(config))
    (draft / "model.safetensors").write_bytes(safetensors(SHAPES, {"d2t": ("I64", OFFSETS)}))
