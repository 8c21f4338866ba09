"""Whether a draft fits its algorithm and its target.

Owns the rules of architecture against algorithm; those of EAGLE-3 are in engines/eagle3.py. Must not read files.
The engines start such a pair without an error: every drafted token is then refused, and speculation costs time
instead of saving it.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any

from pinner.engines import eagle3
from pinner.model.pair import Opinion, Pair

# What SGLang 0.5 takes, in either case: NEXTN is its older word for EAGLE with a model's own layers, LOOKAHEAD for
# NGRAM.
ALGORITHMS = ("EAGLE", "EAGLE3", "NEXTN", "STANDALONE", "NGRAM", "LOOKAHEAD", "DFLASH", "DSPARK", "FROZEN_KV_MTP")

_EAGLE3 = "EAGLE3"
_OLDER = ("EAGLE", "NEXTN")
_STANDALONE = "STANDALONE"
# Models whose own files hold layers that draft, although their config.json has no number of them.
_WITH_OWN_DRAFT = ("Qwen3NextForCausalLM",)


def algorithm_problem(algorithm: str) -> str | None:
    """Why an algorithm is none that the engines know, with the nearest one."""
    if algorithm.upper() in ALGORITHMS:
        return None
    near = difflib.get_close_matches(algorithm.upper(), ALGORITHMS, n=1, cutoff=0.0)
    return f"{algorithm!r} is no algorithm for speculative decoding that the engine knows; did you mean {near[0]}?"


def judge(pair: Pair, *, is_sglang: bool = True) -> Opinion:
    """What can be told of a pair before it is loaded. `is_sglang`: SGLang's own models are used."""
    wrong = pair_problems(pair.algorithm, pair.draft, pair.target, is_target=pair.is_target)
    if wrong or pair.algorithm.upper() != _EAGLE3:
        return Opinion(problems=wrong)
    return eagle3.judge(pair, is_sglang=is_sglang)


def pair_problems(
    algorithm: str,
    draft_config: Mapping[str, Any] | None,
    target_config: Mapping[str, Any] | None,
    *,
    is_target: bool = False,
) -> list[str]:
    """Sentences that name both sides; None is a config.json that is missing or not readable.

    `is_target`: the draft's directory is the target's own.
    """
    name = algorithm.upper()
    if name not in (_EAGLE3, _STANDALONE, *_OLDER):
        return []
    drafts, targets = _architectures(draft_config), _architectures(target_config)
    target = f"for the target {_joined(targets)}"
    if is_target:
        if name in _OLDER and _drafts_for_itself(target_config, targets):
            return []
        return [
            f"algorithm {algorithm} with a draft that is the directory of the target {_joined(targets)} itself: "
            "the architecture of the target, not a draft for it"
        ]
    if draft_config is None and name != _STANDALONE:
        return [f"algorithm {algorithm} with a draft that has no readable config.json, {target}"]
    said = _joined(drafts)
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


def _drafts_for_itself(config: Mapping[str, Any] | None, architectures: list[str]) -> bool:
    """Whether a model's own files hold layers that draft its next tokens (multi-token prediction)."""
    if not set(architectures).isdisjoint(_WITH_OWN_DRAFT):
        return True
    parts = [part for part in (config, (config or {}).get("text_config")) if isinstance(part, Mapping)]
    return any(
        ("nextn" in key or "mtp" in key) and isinstance(value, int) and value > 0
        for part in parts
        for key, value in part.items()
    )


def _joined(architectures: list[str]) -> str:
    return " and ".join(architectures) if architectures else "no architecture"


def _architectures(config: Mapping[str, Any] | None) -> list[str]:
    found = (config or {}).get("architectures")
    return [item for item in found if isinstance(item, str)] if isinstance(found, list) else []
