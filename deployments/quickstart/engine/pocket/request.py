"""Owns the state of one request inside the scheduler. Must not compute."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from pocket.sampling_params import SamplingParams


@dataclass
class Request:
    """A request from arrival to its last token."""

    rid: str
    prompt: list[int]
    params: SamplingParams
    seed: int
    stream: bool
    tokens: list[int] = field(default_factory=list)
    slot: int = -1
    cached_tokens: int = 0
    # Rows of the draft's cache that were made from the target's hidden states, and the hidden states that
    # the draft has not seen yet.
    draft_rows: int = 0
    fused: np.ndarray | None = None
    verify_steps: int = 0
    correct_drafts: int = 0
    drafts_histogram: list[int] = field(default_factory=list)
    reported: int = 0
    finish: dict[str, Any] | None = None

    @property
    def output(self) -> list[int]:
        return self.tokens[len(self.prompt) :]
