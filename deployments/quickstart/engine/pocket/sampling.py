"""Owns how one row of logits becomes a token.

A draw depends on the request's seed and the token's position only, not on how many rows a step computed, so
that sampled text too is the same with and without speculation. Must not know about caches or processes.
"""

from __future__ import annotations

import numpy as np

from pocket.sampling_params import SamplingParams


def pick(logits: np.ndarray, params: SamplingParams, seed: int, first_position: int) -> list[int]:
    """One token for each row; row i decides the token at `first_position + i`."""
    if params.temperature == 0 or params.top_k == 1:
        return np.argmax(logits, axis=1).tolist()
    return [_draw(row, params, seed, first_position + n) for n, row in enumerate(logits)]


def _draw(row: np.ndarray, params: SamplingParams, seed: int, position: int) -> int:
    weights = np.exp((row - row.max()) / params.temperature)
    order = np.argsort(-weights, kind="stable")
    if params.top_k > 0:
        order = order[: params.top_k]
    total = np.cumsum(weights[order] / weights.sum())
    order = order[: int(np.searchsorted(total, params.top_p)) + 1]
    total = total[: len(order)]
    key = (seed << 32 | position) & (1 << 64) - 1
    uniform = np.random.Generator(np.random.Philox(key=key)).random()
    return int(order[min(int(np.searchsorted(total, uniform * total[-1], side="right")), len(order) - 1)])
