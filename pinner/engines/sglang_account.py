"""Whether what a server says of an argument is what was pinned.

Pure. Owns how SGLang reports values: names of algorithms in upper case, lists, numbers, JSON with its defaults
filled in, other names for the same field.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

# Full names of flags whose field has another.
_FIELDS = {
    "attention-context-parallel-size": "attn_cp_size",
    "attention-data-parallel-size": "attn_dp_size",
    "data-parallel-size": "dp_size",
    "decode-context-parallel-size": "dcp_size",
    "enable-hicache": "enable_hierarchical_cache",
    "ep": "ep_size",
    "expert-parallel-size": "ep_size",
    "moe-data-parallel-size": "moe_dp_size",
    "nccl-init-addr": "dist_init_addr",
    "pipeline-parallel-size": "pp_size",
    "tensor-parallel-size": "tp_size",
}
# Older words for an algorithm, with what the engine makes of them.
_ALGORITHMS = {"NEXTN": "EAGLE", "LOOKAHEAD": "NGRAM"}


def reported(flag: str, pinned: str, account: Mapping[str, Any]) -> str | None:
    """What a server says of a flag, in the pinned words where it is the same; None where it says nothing.

    `pinned` is the flag's values as one text, "true" for a bare flag. A server that has no value for a flag leaves
    it to a later decision, and says nothing.
    """
    name, given = flag.removeprefix("--"), pinned
    value = account.get(_FIELDS.get(name, name.replace("-", "_")))
    if name.startswith("no-") and value is None:
        value = account.get(name.removeprefix("no-").replace("-", "_"))
        pinned, value = ("true", not value) if isinstance(value, bool) else (pinned, value)
    if value is None:
        return None
    if name == "speculative-algorithm":
        pinned, value = _ALGORITHMS.get(pinned.upper(), pinned.upper()), str(value).upper()
    return given if _is_same(pinned, value) else _text(value)


def _is_same(pinned: str, value: Any) -> bool:
    if isinstance(value, bool):
        return pinned.lower() == str(value).lower()
    if isinstance(value, (int, float)):
        return _number(pinned) == float(value)
    if isinstance(value, str):
        return pinned == value
    if isinstance(value, list):
        words = pinned.split(" ")
        if len(words) == len(value) and all(_is_same(word, item) for word, item in zip(words, value, strict=True)):
            return True
    return _holds(value, _parsed(pinned))


def _holds(value: Any, wanted: Any) -> bool:
    """Whether JSON holds what was asked for; the engine fills in defaults beside it."""
    if isinstance(value, dict) and isinstance(wanted, dict):
        return all(key in value and _holds(value[key], item) for key, item in wanted.items())
    return bool(value == wanted)


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return " ".join(map(_text, value))
    return json.dumps(value, sort_keys=True) if isinstance(value, dict) else str(value)
