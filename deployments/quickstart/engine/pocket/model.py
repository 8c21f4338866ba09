"""Owns the target: a Llama decoder over a KV cache, and its split over tensor-parallel ranks.

Each rank holds its share of the attention heads and of the MLP, and all ranks add their parts after each, as
SGLang's do. Rank 0 leads: it tells the others what to run. Must not know about requests or sampling.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from pocket.layers import Attention, KVCache, Rotary, Segment, fold, rms_norm, swiglu
from pocket.parallel import Group


class Layer:
    """The weights of one decoder layer, cut for one rank."""

    def __init__(
        self, weights: dict[str, np.ndarray], prefix: str, config: dict[str, Any], group: Group
    ) -> None:
        def rows(name: str) -> np.ndarray:
            return np.array_split(weights[f"{prefix}.{name}.weight"], group.size)[group.rank]

        def columns(name: str) -> np.ndarray:
            return np.array_split(weights[f"{prefix}.{name}.weight"], group.size, axis=1)[group.rank]

        projections = {n: rows(f"self_attn.{n}_proj") for n in "qkv"} | {"o": columns("self_attn.o_proj")}
        heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
        norm = weights[f"{prefix}.input_layernorm.weight"]
        self.attention = Attention(norm, projections, heads // group.size, kv_heads // group.size)
        norm = weights[f"{prefix}.post_attention_layernorm.weight"]
        self.gate_up = fold(norm, rows("mlp.gate_proj"), rows("mlp.up_proj"))
        self.down = np.ascontiguousarray(columns("mlp.down_proj").T)


class Target:
    """The target model of one rank with its KV cache."""

    def __init__(
        self, config: dict[str, Any], weights: dict[str, np.ndarray], group: Group, slots: int, length: int
    ) -> None:
        heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
        if heads % group.size or kv_heads % group.size:
            raise ValueError(f"{heads} heads and {kv_heads} KV heads cannot be split over {group.size} ranks")
        head_dim = config.get("head_dim") or config["hidden_size"] // heads
        self.rotary = Rotary(head_dim, length, config.get("rope_theta", 10000.0))
        self.group, self.eps = group, config["rms_norm_eps"]
        self.embedding = weights["model.embed_tokens.weight"]
        head = weights["lm_head.weight"] if not config["tie_word_embeddings"] else self.embedding
        self.lm_head = fold(weights["model.norm.weight"], head)
        count = config["num_hidden_layers"]
        self.layers = [Layer(weights, f"model.layers.{n}", config, group) for n in range(count)]
        self.caches = [KVCache(slots, kv_heads // group.size, head_dim, length) for _ in range(count)]
        matrices = [m for n in self.layers for m in (n.attention.qkv, n.attention.out, n.gate_up, n.down)]
        self.weight_bytes = sum(m.nbytes for m in (self.embedding, self.lm_head, *matrices))
        # Hidden states leaving these layers are kept for the draft.
        self.captured_layers: tuple[int, ...] = ()
        self.positions_computed = 0

    def forward(self, tokens: list[int], segments: list[Segment]) -> tuple[np.ndarray, np.ndarray | None]:
        """Final hidden states of all rows, and the captured ones side by side (None without a draft)."""
        self.group.lead("forward", tokens, segments)
        self.positions_computed += len(tokens)
        turns = self.rotary.rows(segments)
        x = self.embedding[tokens]
        captured = []
        for number, (layer, cache) in enumerate(zip(self.layers, self.caches)):
            attended = layer.attention(rms_norm(x, self.eps), segments, turns, cache)
            x = x + self.group.all_reduce(attended)
            inner = swiglu(rms_norm(x, self.eps), layer.gate_up, layer.down)
            x = x + self.group.all_reduce(inner)
            if number in self.captured_layers:
                captured.append(x)
        return rms_norm(x, self.eps), np.concatenate(captured, axis=1) if captured else None

    def logits(self, hidden: np.ndarray) -> np.ndarray:
        return hidden @ self.lm_head

    def copy_rows(self, source: int, target: int, count: int) -> None:
        """Give a slot the first rows of another slot."""
        self.group.lead("copy_rows", source, target, count)
        for cache in self.caches:
            cache.copy_rows(source, target, count)
