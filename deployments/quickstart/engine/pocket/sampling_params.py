"""Owns SGLang's sampling parameters, as far as they are supported, and their check. Loads nothing heavy."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any


@dataclass
class SamplingParams:
    """SGLang's sampling parameters, as far as they are supported."""

    max_new_tokens: int = 128
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    stop: list[str] = field(default_factory=list)
    ignore_eos: bool = False
    sampling_seed: int | None = None

    @classmethod
    def parse(cls, data: dict[str, Any]) -> SamplingParams:
        """From a request's JSON; raises ValueError with what is wrong."""
        if not isinstance(data, dict):
            raise ValueError("sampling_params must be an object")
        known = {f.name for f in fields(cls)}
        if unknown := sorted(set(data) - known):
            raise ValueError(f"unsupported sampling parameters: {', '.join(unknown)}")
        params = cls(**{k: v for k, v in data.items() if v is not None})
        if isinstance(params.stop, str):
            params.stop = [params.stop]
        if not isinstance(params.stop, list) or not all(isinstance(s, str) and s for s in params.stop):
            raise ValueError("stop must be a string or a list of strings")
        for name in ("max_new_tokens", "top_k", "sampling_seed"):
            value = getattr(params, name)
            if value is not None and (isinstance(value, bool) or not isinstance(value, int)):
                raise ValueError(f"{name} must be an integer")
        for name in ("temperature", "top_p"):
            value = getattr(params, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e6:
                raise ValueError(f"{name} must be a number that is not negative")
        if params.max_new_tokens < 1:
            raise ValueError(f"max_new_tokens must be at least 1, got {params.max_new_tokens}")
        if not 0 < params.top_p <= 1:
            raise ValueError(f"top_p must be in (0, 1], got {params.top_p}")
        return params
