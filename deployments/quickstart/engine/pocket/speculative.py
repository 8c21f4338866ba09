"""Owns EAGLE-3 speculation: the draft head, and the step that drafts, verifies and accepts.

One step: the head proposes `num_steps` tokens, the target computes the last token and all proposals in one
forward over the KV cache, and the longest prefix that the target agrees with is accepted, with one more token
that the target chose itself. Must not know about queues, processes or text.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from pocket.layers import Attention, KVCache, Rotary, Segment, fold, rms_norm, swiglu
from pocket.model import Target
from pocket.request import Request
from pocket.sampling import pick


class Draft:
    """The EAGLE-3 head: `fc` fuses hidden states of the target, one layer drafts in its own vocabulary."""

    def __init__(
        self,
        config: dict[str, Any],
        weights: dict[str, np.ndarray],
        embedding: np.ndarray,
        slots: int,
        length: int,
    ) -> None:
        heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
        head_dim = config.get("head_dim") or config["hidden_size"] // heads
        self.rotary = Rotary(head_dim, length, config.get("rope_theta", 10000.0))
        self.eps = config["rms_norm_eps"]
        # The draft has no embedding of its own: the target's, normed once for all.
        self.embedding = rms_norm(embedding, self.eps)
        self.fc = np.ascontiguousarray(weights["fc.weight"].T)
        projections = {n: weights[f"midlayer.self_attn.{n}_proj.weight"] for n in "qkvo"}
        norms = [weights[f"midlayer.{n}.weight"] for n in ("input_layernorm", "hidden_norm")]
        self.attention = Attention(np.concatenate(norms), projections, heads, kv_heads)
        gate_up = [weights[f"midlayer.mlp.{n}_proj.weight"] for n in ("gate", "up")]
        self.gate_up = fold(weights["midlayer.post_attention_layernorm.weight"], *gate_up)
        self.down = np.ascontiguousarray(weights["midlayer.mlp.down_proj.weight"].T)
        self.lm_head = fold(weights["norm.weight"], weights["lm_head.weight"])
        self.target_ids = np.arange(len(weights["d2t"])) + weights["d2t"]
        self.cache = KVCache(slots, kv_heads, head_dim, length)

    def forward(
        self, tokens: list[int], hidden: np.ndarray, segments: list[Segment], last: np.ndarray
    ) -> tuple[list[int], np.ndarray]:
        """A proposal and the hidden state behind it for each row in `last`."""
        joined = np.concatenate([self.embedding[tokens], rms_norm(hidden, self.eps)], axis=1)
        attended = self.attention(joined, segments, self.rotary.rows(segments), self.cache)
        x = (hidden + attended)[last]
        x = x + swiglu(rms_norm(x, self.eps), self.gate_up, self.down)
        logits = rms_norm(x, self.eps) @ self.lm_head
        return self.target_ids[np.argmax(logits, axis=1)].tolist(), x


class Speculator:
    """Advances running requests by one drafted and verified step."""

    def __init__(self, target: Target, draft: Draft, num_steps: int) -> None:
        self.target, self.draft, self.num_steps = target, draft, num_steps
        self.reset_times()

    def reset_times(self) -> None:
        self.steps, self.draft_seconds, self.verify_seconds = 0, 0.0, 0.0

    def step(self, requests: list[Request]) -> list[list[int]]:
        """The new tokens of each request: those accepted and the target's own."""
        begin = time.perf_counter()
        proposals = self.propose(requests)
        drafted = time.perf_counter()
        accepted = self.verify(requests, proposals)
        self.steps += 1
        self.draft_seconds += drafted - begin
        self.verify_seconds += time.perf_counter() - drafted
        return accepted

    def propose(self, requests: list[Request]) -> list[list[int]]:
        """Draft from the rows that the last verify step left behind, then on from the head's own output."""
        tokens = [token for r in requests for token in r.tokens[r.draft_rows + 1 :]]
        hidden = np.concatenate([r.fused for r in requests]) @ self.draft.fc
        segments = [Segment(r.slot, r.draft_rows, len(r.fused)) for r in requests]
        last = np.cumsum([s.count for s in segments]) - 1
        chosen, hidden = self.draft.forward(tokens, hidden, segments, last)
        chains = [[token] for token in chosen]
        everyone = np.arange(len(requests))
        for r in requests:
            r.draft_rows += len(r.fused)
        for step in range(self.num_steps - 1):
            segments = [Segment(r.slot, r.draft_rows + step, 1) for r in requests]
            chosen, hidden = self.draft.forward(chosen, hidden, segments, everyone)
            for chain, token in zip(chains, chosen):
                chain.append(token)
        return chains

    def verify(self, requests: list[Request], proposals: list[list[int]]) -> list[list[int]]:
        """One target forward over the last token and the proposals of each request."""
        tokens = [token for r, chain in zip(requests, proposals) for token in (r.tokens[-1], *chain)]
        width = self.num_steps + 1
        segments = [Segment(r.slot, len(r.tokens) - 1, width) for r in requests]
        hidden, fused = self.target.forward(tokens, segments)
        logits = self.target.logits(hidden)
        results = []
        for n, (request, chain) in enumerate(zip(requests, proposals)):
            rows = slice(n * width, (n + 1) * width)
            picked = pick(logits[rows], request.params, request.seed, len(request.tokens))
            agreed = 0
            while agreed < self.num_steps and chain[agreed] == picked[agreed]:
                agreed += 1
            request.fused = fused[rows][: agreed + 1]
            results.append(picked[: agreed + 1])
        return results
