"""Whether a draft fits its algorithm and its target, as far as their config.json tell.

Owns the rules of EAGLE pairs. Must not read files. The engines start such a pair without an error: every
drafted token is then refused, and speculation costs time instead of saving it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_EAGLE3 = "EAGLE3"
_OLDER = ("EAGLE", "NEXTN")
_STANDALONE = "STANDALONE"


def pair_problems(
    algorithm: str, draft_config: Mapping[str, Any] | None, target_config: Mapping[str, Any] | None
) -> list[str]:
    """Sentences that name both sides; None is a config.json that is missing or not readable."""
    name = algorithm.upper()
    if name not in (_EAGLE3, _STANDALONE, *_OLDER):
        return []
    drafts, targets = _architectures(draft_config), _architectures(target_config)
    said = " and ".join(drafts) if drafts else "no architecture"
    is_eagle3 = any("eagle3" in draft.lower() for draft in drafts)
    if name == _EAGLE3 and not is_eagle3:
        same = drafts and drafts == targets
        reason = "the architecture of the target, not a draft for it" if same else "which is no EAGLE-3 draft"
        return [f"algorithm {algorithm} with a draft whose config.json names {said}, {reason}"]
    if name in _OLDER and is_eagle3:
        return [
            f"algorithm {algorithm} with a draft whose config.json names {said}, an EAGLE-3 draft: it would "
            "run, and accept no drafted token; EAGLE3 is its algorithm"
        ]
    if name == _STANDALONE and any("eagle" in draft.lower() for draft in drafts):
        return [
            f"algorithm {algorithm} with a draft whose config.json names {said}, an EAGLE draft that cannot "
            "run without its target"
        ]
    return []


def _architectures(config: Mapping[str, Any] | None) -> list[str]:
    found = (config or {}).get("architectures")
    return [item for item in found if isinstance(item, str)] if isinstance(found, list) else []
