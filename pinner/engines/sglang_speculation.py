"""Arguments of SGLang that change speculative decoding without saying so.

Owns those facts only; whether the draft fits the target is in engines/eagle.py.
"""

from __future__ import annotations

from pinner.model.pair import Opinion, Pair

_EAGLE = ("EAGLE", "EAGLE3", "NEXTN", "STANDALONE")
# The attention backends that draft a tree (eagle-topk above 1) on pages of more than one token.
_TREES_ON_PAGES = ("flashinfer", "fa3", "triton")


def judge_arguments(pair: Pair, opinion: Opinion) -> None:
    """Add what the arguments of a pair do to speculation."""
    algorithm, flags = pair.algorithm.upper(), pair.flags
    if algorithm not in _EAGLE:
        return
    if algorithm == "EAGLE3" and "speculative-token-map" in flags:
        opinion.advice.append(
            "engine.args.speculative-token-map: SGLang ignores it with EAGLE3, whose draft has a d2t"
        )
    _tree(pair, opinion)
    if "json-model-override-args" in flags:
        opinion.unread.append("engine.args.json-model-override-args changes what the config.json files tell")


def _tree(pair: Pair, opinion: Opinion) -> None:
    """A draft that is a tree, on pages of more than one token."""
    topk, page = (pair.flags.get(flag, "") for flag in ("speculative-eagle-topk", "page-size"))
    if not (topk.isdecimal() and page.isdecimal() and int(topk) > 1 and int(page) > 1):
        return
    backend = pair.flags.get("attention-backend")
    said = f"draft.eagle-topk is {topk} and engine.args.page-size is {page}"
    needed = f"which SGLang takes only with the attention backend {', '.join(_TREES_ON_PAGES)}"
    if backend is None:
        opinion.advice.append(f"{said}, {needed}: none is written, and SGLang chooses by the GPU")
    elif backend not in _TREES_ON_PAGES:
        opinion.problems.append(f"{said}, {needed}: engine.args.attention-backend is {backend}")
