"""Owns the two networks in torch, with the tensor names and the arithmetic of the engine's numpy versions.

Used for training only; the engine never imports torch.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

TARGET_CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "torch_dtype": "bfloat16",
    "vocab_size": 1024,
    "hidden_size": 96,
    "intermediate_size": 224,
    "num_hidden_layers": 10,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 24,
    "hidden_act": "silu",
    "max_position_embeddings": 1024,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": True,
    "bos_token_id": 0,
    "eos_token_id": 1,
}
DRAFT_CONFIG = {
    "architectures": ["LlamaForCausalLMEagle3"],
    "model_type": "llama",
    "torch_dtype": "bfloat16",
    "vocab_size": 1024,
    "draft_vocab_size": 512,
    "hidden_size": 96,
    "target_hidden_size": 96,
    "intermediate_size": 224,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 24,
    "hidden_act": "silu",
    "max_position_embeddings": 1024,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "eagle_config": {"use_aux_hidden_state": True, "eagle_aux_hidden_state_layer_ids": [1, 5, 8]},
    "bos_token_id": 0,
    "eos_token_id": 1,
}


class RMSNorm(nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.rms_norm(x, self.weight.shape, self.weight, 1e-5)


def rope(x: torch.Tensor, positions: torch.Tensor, theta: float) -> torch.Tensor:
    half = x.shape[-1] // 2
    angles = positions[:, None] / theta ** (torch.arange(half) / half)
    cos, sin = angles.cos(), angles.sin()
    a, b = x[..., :half], x[..., half:]
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


class Attention(nn.Module):
    def __init__(self, config: dict, inputs: int) -> None:
        super().__init__()
        self.heads, self.kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
        self.head_dim, self.theta = config["head_dim"], config["rope_theta"]
        self.q_proj = nn.Linear(inputs, self.heads * self.head_dim, bias=False)
        self.k_proj = nn.Linear(inputs, self.kv_heads * self.head_dim, bias=False)
        self.v_proj = nn.Linear(inputs, self.kv_heads * self.head_dim, bias=False)
        self.o_proj = nn.Linear(self.heads * self.head_dim, config["hidden_size"], bias=False)

    def project(self, x: torch.Tensor, positions: torch.Tensor) -> tuple[torch.Tensor, ...]:
        rows, length = x.shape[:2]
        q = self.q_proj(x).view(rows, length, self.heads, -1).transpose(1, 2)
        k = self.k_proj(x).view(rows, length, self.kv_heads, -1).transpose(1, 2)
        v = self.v_proj(x).view(rows, length, self.kv_heads, -1).transpose(1, 2)
        group = self.heads // self.kv_heads
        q, k = rope(q, positions, self.theta), rope(k, positions, self.theta)
        return q, k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)

    def merge(self, heads: torch.Tensor) -> torch.Tensor:
        return self.o_proj(heads.transpose(1, 2).flatten(2))

    def forward(self, x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        q, k, v = self.project(x, positions)
        return self.merge(F.scaled_dot_product_attention(q, k, v, is_causal=True))


class MLP(nn.Module):
    def __init__(self, config: dict) -> None:
        super().__init__()
        hidden, inner = config["hidden_size"], config["intermediate_size"]
        self.gate_proj = nn.Linear(hidden, inner, bias=False)
        self.up_proj = nn.Linear(hidden, inner, bias=False)
        self.down_proj = nn.Linear(inner, hidden, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    def __init__(self, config: dict) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(config["hidden_size"])
        self.self_attn = Attention(config, config["hidden_size"])
        self.post_attention_layernorm = RMSNorm(config["hidden_size"])
        self.mlp = MLP(config)

    def forward(self, x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        x = x + self.self_attn(self.input_layernorm(x), positions)
        return x + self.mlp(self.post_attention_layernorm(x))


class Target(nn.Module):
    """The target; also returns the hidden states that enter the layers named for the draft."""

    def __init__(self, config: dict) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(config["vocab_size"], config["hidden_size"])
        self.layers = nn.ModuleList(Layer(config) for _ in range(config["num_hidden_layers"]))
        self.norm = RMSNorm(config["hidden_size"])
        for name, weight in self.named_parameters():
            if weight.ndim == 2:
                scale = (
                    (2 * len(self.layers)) ** -0.5 if name.endswith(("o_proj.weight", "down_proj.weight")) else 1
                )
                nn.init.normal_(weight, std=scale * (0.05 if "embed" in name else weight.shape[1] ** -0.5))

    def forward(self, ids: torch.Tensor, aux: tuple[int, ...] = ()) -> tuple[torch.Tensor, torch.Tensor | None]:
        positions = torch.arange(ids.shape[1])
        x, kept = self.embed_tokens(ids), []
        for index, layer in enumerate(self.layers):
            if index in aux:
                kept.append(x)
            x = layer(x, positions)
        return self.norm(x) @ self.embed_tokens.weight.T, torch.cat(kept, -1) if kept else None


class DraftLayer(nn.Module):
    def __init__(self, config: dict) -> None:
        super().__init__()
        hidden = config["hidden_size"]
        self.input_layernorm, self.hidden_norm = RMSNorm(hidden), RMSNorm(hidden)
        self.self_attn = Attention(config, 2 * hidden)
        self.post_attention_layernorm = RMSNorm(hidden)
        self.mlp = MLP(config)


class Draft(nn.Module):
    """The EAGLE-3 head, unrolled over its own outputs as it will be used."""

    def __init__(self, config: dict) -> None:
        super().__init__()
        self.fc = nn.Linear(3 * config["target_hidden_size"], config["hidden_size"], bias=False)
        self.midlayer = DraftLayer(config)
        self.norm = RMSNorm(config["hidden_size"])
        self.lm_head = nn.Linear(config["hidden_size"], config["draft_vocab_size"], bias=False)

    def forward(self, embeds: list[torch.Tensor], fused: torch.Tensor) -> list[torch.Tensor]:
        """Logits of each step. embeds[s] are the embeddings of the tokens that follow after s more tokens."""
        layer, hidden, logits = self.midlayer, self.fc(fused), []
        keys: list[torch.Tensor] = []
        values: list[torch.Tensor] = []
        length = fused.shape[1]
        causal = torch.full((length, length), float("-inf")).triu(1)
        for step, embed in enumerate(embeds):
            joined = torch.cat([layer.input_layernorm(embed), layer.hidden_norm(hidden)], -1)
            q, k, v = layer.self_attn.project(joined, torch.arange(length) + step)
            keys.append(k)
            values.append(v)
            # Step s sees the rows that came from the target up to its own, and then only its own chain.
            scores = [q @ keys[0].transpose(-1, -2) + causal * q.shape[-1] ** 0.5]
            scores += [(q * key).sum(-1, keepdim=True) for key in keys[1:]]
            weights = (torch.cat(scores, -1) * q.shape[-1] ** -0.5).softmax(-1)
            mixed = weights[..., :length] @ values[0]
            for n, value in enumerate(values[1:]):
                mixed = mixed + weights[..., length + n : length + n + 1] * value
            hidden = hidden + layer.self_attn.merge(mixed)
            hidden = hidden + layer.mlp(layer.post_attention_layernorm(hidden))
            logits.append(self.lm_head(self.norm(hidden)))
        return logits
