"""Owns the arithmetic that target and draft share: norm, rotary positions, attention over a KV cache, SwiGLU.

Everything is float64. The rows of a verify step and the single row of a plain decode step go through BLAS in
different shapes and differ in their last bits; with float64 that is 1e-13 of a logit, so that greedy output
is the same with and without speculation, on any machine. Must not know about requests or processes.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np


class Segment(NamedTuple):
    """`count` rows of a flat batch that belong to one request: the positions from `start` on of one slot."""

    slot: int
    start: int
    count: int


class KVCache:
    """Keys and values of all slots. Keys are kept transposed, as attention reads them."""

    def __init__(self, slots: int, heads: int, head_dim: int, length: int) -> None:
        # Untouched pages of zeros cost no memory, so a slot costs what is written to it.
        self.keys = np.zeros((slots, heads, head_dim, length))
        self.values = np.zeros((slots, heads, length, head_dim))

    def copy_rows(self, source: int, target: int, count: int) -> None:
        self.keys[target, :, :, :count] = self.keys[source, :, :, :count]
        self.values[target, :, :count] = self.values[source, :, :count]


class Turns(NamedTuple):
    """Cosines and sines for some rows, as (row, 1, half of the head, angle)."""

    cos: np.ndarray
    sin: np.ndarray

    def __call__(self, x: np.ndarray) -> np.ndarray:
        halves = x.reshape(*x.shape[:2], 2, -1)
        return (halves * self.cos + halves[:, :, ::-1] * self.sin).reshape(x.shape)


class Rotary:
    """Rotary position embedding over the two halves of a head."""

    def __init__(self, head_dim: int, length: int, theta: float) -> None:
        half = head_dim // 2
        angles = np.arange(length)[:, None] / theta ** (np.arange(half) / half)
        self.cos = np.stack([np.cos(angles)] * 2, axis=1)[:, None]
        self.sin = np.stack([-np.sin(angles), np.sin(angles)], axis=1)[:, None]

    def rows(self, segments: list[Segment]) -> Turns:
        """What the rows of one forward pass are turned by, the same in all its layers."""
        if len(segments) == 1:
            rows = slice(segments[0].start, segments[0].start + segments[0].count)
            return Turns(self.cos[rows], self.sin[rows])
        positions = [p for s in segments for p in range(s.start, s.start + s.count)]
        return Turns(self.cos[positions], self.sin[positions])


@lru_cache(maxsize=8)
def later_rows(count: int, group: int) -> np.ndarray:
    """What each of the new rows must not see of the new rows: those after it."""
    return np.tile(np.triu(np.full((count, count), -np.inf), 1), (group, 1))


def rms_norm(x: np.ndarray, eps: float) -> np.ndarray:
    """Without the weight, which `fold` puts into the matrices that follow."""
    return x / np.sqrt(np.vecdot(x, x) / x.shape[1] + eps)[:, None]


def fold(norm: np.ndarray, *matrices: np.ndarray) -> np.ndarray:
    """Matrices that read the same normed rows, stacked, with the norm's weight in them, ready for `x @ w`."""
    return np.ascontiguousarray((np.concatenate(matrices) * norm).T)


def swiglu(x: np.ndarray, gate_up: np.ndarray, down: np.ndarray) -> np.ndarray:
    both = x @ gate_up
    half = both.shape[1] // 2
    gate = both[:, :half]
    return (gate / (1.0 + np.exp(-gate)) * both[:, half:]) @ down


class Attention:
    """One attention layer (grouped-query) with its part of the heads."""

    def __init__(
        self, norm: np.ndarray, projections: dict[str, np.ndarray], heads: int, kv_heads: int
    ) -> None:
        self.heads, self.kv_heads = heads, kv_heads
        self.head_dim = len(projections["q"]) // heads
        scaled = projections["q"] * self.head_dim**-0.5
        self.qkv = fold(norm, scaled, projections["k"], projections["v"])
        self.out = np.ascontiguousarray(projections["o"].T)

    def __call__(self, x: np.ndarray, segments: list[Segment], turns: Turns, cache: KVCache) -> np.ndarray:
        rows = x.shape[0]
        qkv = (x @ self.qkv).reshape(rows, -1, self.head_dim)
        turned = turns(qkv[:, : self.heads + self.kv_heads])
        query, keys = turned[:, : self.heads], turned[:, self.heads :]
        values = qkv[:, self.heads + self.kv_heads :]
        mixed = np.empty((rows, self.heads * self.head_dim))
        row = 0
        for segment in segments:
            part = slice(row, row + segment.count)
            end = segment.start + segment.count
            cache.keys[segment.slot, :, :, segment.start : end] = keys[part].transpose(1, 2, 0)
            cache.values[segment.slot, :, segment.start : end] = values[part].transpose(1, 0, 2)
            mixed[part] = self._attend(query[part], cache, segment)
            row += segment.count
        return mixed @ self.out

    def _attend(self, query: np.ndarray, cache: KVCache, segment: Segment) -> np.ndarray:
        count, end, group = segment.count, segment.start + segment.count, self.heads // self.kv_heads
        grouped = query.reshape(count, self.kv_heads, group, -1).transpose(1, 2, 0, 3)
        scores = grouped.reshape(self.kv_heads, group * count, -1) @ cache.keys[segment.slot, :, :, :end]
        if count > 1:
            scores[:, :, segment.start :] += later_rows(count, group)
        scores -= scores.max(axis=-1, keepdims=True)
        np.exp(scores, out=scores)
        out = scores @ cache.values[segment.slot, :, :end] / scores.sum(axis=-1, keepdims=True)
        return out.reshape(self.kv_heads, group, count, -1).transpose(2, 0, 1, 3).reshape(count, -1)
