"""Whether an EAGLE-3 draft fits its target: layers, widths, vocabularies, context and weights.

Owns the rules, taken from SGLang 0.5.23. Must not read files. Most of what is refused here SGLang starts with, and
then every drafted token is refused: slower than no speculation, with no error to find it by.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pinner.engines import eagle3_targets
from pinner.engines.eagle3_weights import DEEPSEEK, LLAMA, fit, layout, quantized, size, taken_size
from pinner.model.facts import Unknown
from pinner.model.pair import DraftWeights, Opinion, Pair

LONGER_CONTEXT = "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN"

_TRUE = ("true", "1", "yes", "y")
_SHOWN = 6
_IDS = "eagle_aux_hidden_state_layer_ids"
_TEXT_PARTS = ("text_config", "llm_config", "language_config")
_CONTEXT_KEYS = (
    "max_sequence_length",
    "seq_length",
    "max_seq_len",
    "model_max_length",
    "max_position_embeddings",
)


def judge(pair: Pair, *, is_sglang: bool = True) -> Opinion:
    """Every rule for a draft whose architecture is one of EAGLE-3. `is_sglang`: SGLang's own models are used."""
    opinion = Opinion()
    draft, target = pair.draft or {}, _text_part(pair.target)
    architecture = _architecture(draft)
    if target is None:
        opinion.unread.append("the target has no readable config.json: only the draft by itself was looked at")
    captured = _captured(pair, target or {}, opinion, is_sglang=is_sglang)
    _own_keys(architecture, draft, opinion)
    if target is not None:
        _target(pair, opinion, is_sglang=is_sglang)
        _widths(architecture, draft, target, opinion)
        _vocabularies(draft, target, opinion)
        _context(pair, target, opinion)
    if isinstance(pair.weights, Unknown):
        opinion.unread.append(f"the draft's weights were not looked into: {pair.weights.reason}")
    else:
        _weights(architecture, draft, pair.weights, captured, opinion)
        _token_map(draft, target or {}, pair.weights, opinion)
    return opinion


def _target(pair: Pair, opinion: Opinion, *, is_sglang: bool) -> None:
    """Whether the target can hand its hidden states to a draft."""
    architecture = _architecture(pair.target or {})
    if not is_sglang or eagle3_targets.captures(architecture):
        return
    table = f"SGLang {eagle3_targets.VERSION}"
    if not architecture:
        opinion.unread.append("the target's config.json names no architecture")
    elif pair.version == eagle3_targets.VERSION:
        opinion.problems.append(
            f"the target's architecture {architecture} hands no hidden states to a draft in {table} (it has no "
            "set_eagle3_layers_to_capture): the server would stop with a ValueError once the target is loaded"
        )
    else:
        opinion.unread.append(
            f"whether the target's architecture {architecture} hands hidden states to a draft: {table} has no "
            "such model that does"
        )


def _captured(pair: Pair, target: Mapping[str, Any], opinion: Opinion, *, is_sglang: bool) -> int:
    """How many layers the draft's fc takes, after judging which layers of the target are captured."""
    draft = pair.draft or {}
    eagle = draft.get("eagle_config")
    eagle = eagle if isinstance(eagle, dict) else {}
    ids, layers = eagle.get(_IDS), size(target, "num_hidden_layers")
    outside = draft.get(_IDS)
    count = _fc_layers(draft, ids, outside)
    if eagle.get("use_aux_hidden_state") is False:
        opinion.advice.append(
            "eagle_config.use_aux_hidden_state is false: the draft gets only the last hidden state of the target, "
            "and fc.weight is not used"
        )
        return count
    if ids is not None and (not ids or not _are_ids(ids)):
        opinion.problems.append(f"the draft's eagle_config.{_IDS} is {ids!r}, not a list of layer numbers")
        return count
    if layers is None:
        if target:
            opinion.unread.append("the target's config.json does not tell num_hidden_layers: captured layers")
        return count
    if ids:
        _asked_layers(_architecture(pair.target or {}) if is_sglang else "", ids, layers, opinion)
    else:
        ids = _default_layers(layers, outside, opinion)
    if len(ids) != count:
        opinion.problems.append(
            f"the draft's fc takes {count} captured layers, and {len(ids)} are asked of the target: "
            f"{', '.join(map(str, ids))}"
        )
    return count


def _fc_layers(draft: Mapping[str, Any], ids: Any, outside: Any) -> int:
    if _architecture(draft) == LLAMA:
        said = size(draft, "num_aux_hidden_states")
    else:
        said, ids = None, ids if ids is not None else outside
    return said or (len(ids) if _are_ids(ids) and ids else 3)


def _asked_layers(architecture: str, ids: Sequence[int], layers: int, opinion: Opinion) -> None:
    shown = ", ".join(map(str, ids))
    wrong = eagle3_targets.never_captured(architecture, ids, layers)
    if wrong:
        why = f"the target has {layers} layers, 0 to {layers - 1}"
        if all(0 <= number < layers for number in wrong):
            why = f"SGLang takes a layer's output as it enters the next one, and {layers - 1} is the last"
        opinion.problems.append(
            f"the draft's eagle_config.{_IDS} is {shown}: {', '.join(map(str, wrong))} would never be captured "
            f"({why})"
        )
    if len(set(ids)) != len(ids):
        opinion.problems.append(
            f"the draft's eagle_config.{_IDS} is {shown}: a layer is captured once, so that fc would get fewer "
            "than it takes"
        )
    if list(ids) != sorted(ids):
        opinion.advice.append(
            f"the draft's eagle_config.{_IDS} is {shown}: the layers reach fc in rising order, whatever order is "
            "written; a draft trained on another order accepts little"
        )


def _default_layers(layers: int, outside: Any, opinion: Opinion) -> list[int]:
    """What SGLang takes where the draft says nothing."""
    ids = [2, layers // 2, layers - 3]
    shown = ", ".join(map(str, ids))
    silently = (
        f"the draft's config.json has no eagle_config.{_IDS}: SGLang then takes layers {shown} without a word"
    )
    if len(set(ids)) != len(ids) or ids[-1] < 0:
        opinion.problems.append(f"{silently}, which a target with {layers} layers does not have")
    elif _are_ids(outside) and sorted(outside) not in (ids, [number - 1 for number in ids]):
        opinion.problems.append(
            f"{silently}; {_IDS} {', '.join(map(str, outside))} stands outside eagle_config, where no target "
            "looks for it"
        )
    else:
        opinion.advice.append(f"{silently}; a draft trained on others accepts little")
    return ids


def _own_keys(architecture: str, draft: Mapping[str, Any], opinion: Opinion) -> None:
    """Keys of the draft's config.json without which its class cannot be made."""
    if architecture == LLAMA and "draft_vocab_size" not in draft and not draft.get("tie_word_embeddings"):
        opinion.problems.append(
            "the draft's config.json has no draft_vocab_size: SGLang stops with an AttributeError; write the "
            "number of rows of lm_head.weight, or null where the target's own head is to be used"
        )
    if architecture != DEEPSEEK:
        return
    layers = draft.get("num_hidden_layers")
    if layers is not None and layers != 1:
        opinion.problems.append(f"the draft's num_hidden_layers is {layers}, and {DEEPSEEK} takes only 1")
    if draft.get("q_lora_rank") is None:
        opinion.problems.append(f"the draft's config.json has no q_lora_rank, which {DEEPSEEK} needs")


def _widths(architecture: str, draft: Mapping[str, Any], target: Mapping[str, Any], opinion: Opinion) -> None:
    taken, given = taken_size(architecture, draft), size(target, "hidden_size")
    if taken is None or given is None:
        side = "draft" if taken is None else "target"
        opinion.unread.append(f"the {side}'s config.json does not tell hidden_size: whether the widths fit")
    elif taken != given:
        key = "target_hidden_size" if draft.get("target_hidden_size") is not None else "hidden_size"
        opinion.problems.append(
            f"the draft's {key} is {taken}, and the target's hidden_size is {given}: the draft was made for "
            "another target, and the first request ends in an error of shapes"
        )


def _vocabularies(draft: Mapping[str, Any], target: Mapping[str, Any], opinion: Opinion) -> None:
    mine, theirs = size(draft, "vocab_size"), size(target, "vocab_size")
    if mine is None or theirs is None:
        side = "draft" if mine is None else "target"
        opinion.unread.append(f"the {side}'s config.json does not tell vocab_size: whether the vocabularies fit")
    elif mine != theirs:
        opinion.problems.append(
            f"the draft's vocab_size is {mine}, and the target's is {theirs}: the target's embedding takes the "
            "place of the draft's, and SGLang compares nothing; a draft of another tokenizer accepts little"
        )


def _context(pair: Pair, target: Mapping[str, Any], opinion: Opinion) -> None:
    asked = pair.flags.get("context-length", "")
    wanted = int(asked) if asked.isdecimal() else _context_length(target)
    has = _context_length(_text_part(pair.draft) or {})
    if wanted is None or has is None:
        side = "target" if wanted is None else "draft"
        opinion.unread.append(f"the {side}'s config.json does not tell its context length")
    elif has < wanted:
        source = "engine.args.context-length is" if asked else "the target's context is"
        said = f"the draft's context is {has} positions, and {source} {wanted}"
        if pair.env.get(LONGER_CONTEXT, "").lower() in _TRUE:
            opinion.advice.append(f"{said}: {LONGER_CONTEXT} allows it, and acceptance falls beyond {has}")
        else:
            opinion.problems.append(
                f"{said}: the server would stop with a ValueError once the target is loaded. Write "
                f'context-length = {has} in [engine.args], or {LONGER_CONTEXT} = "1" in [env] and bear that '
                f"acceptance falls beyond {has}"
            )


def _weights(
    architecture: str, draft: Mapping[str, Any], weights: DraftWeights, captured: int, opinion: Opinion
) -> None:
    """Whether the draft's files give what its class holds, and nothing else."""
    method = quantized(draft, weights.shapes)
    wanted = None if method else layout(architecture, draft, captured)
    if method:
        opinion.unread.append(f"names and shapes of the draft's weights: they are quantized ({method})")
    if wanted is None:
        if not method:
            opinion.unread.append(f"names and shapes of the draft's weights: {architecture} is not known here")
        return
    found = fit(architecture, wanted, weights.shapes)
    doubled = [*found.doubled, *weights.repeated]
    for items, said in (
        (found.missing, "the draft's files lack {}: SGLang starts with whatever these hold when allocated"),
        (
            found.unknown,
            "the draft's files hold {}, which its class has no place for: SGLang skips these silently",
        ),
        (found.misshapen, "the draft's weights are not of the shapes that its config.json tells: {}"),
        (doubled, "the draft's files give one parameter twice, and the one read last counts: {}"),
    ):
        if items:
            opinion.problems.append(said.format(_listed(items)))


def _token_map(
    draft: Mapping[str, Any], target: Mapping[str, Any], weights: DraftWeights, opinion: Opinion
) -> None:
    """Whether each token of the draft is one of the target."""
    tokens, vocabulary = size(draft, "draft_vocab_size"), size(target, "vocab_size")
    found = weights.token_map
    if tokens is not None and vocabulary is not None and tokens > vocabulary:
        opinion.problems.append(
            f"the draft's draft_vocab_size is {tokens}, and the target knows only {vocabulary} tokens"
        )
    if found is None:
        if tokens is not None and vocabulary is not None and tokens < vocabulary:
            opinion.problems.append(
                f"the draft's files hold no d2t, and it has {tokens} tokens of the target's {vocabulary}: SGLang "
                "takes the draft's ids for the target's, and no drafted token is accepted"
            )
        return
    if found.unreadable:
        opinion.problems.append(f"the draft's d2t {found.unreadable}")
        return
    if tokens is not None and found.shape != (tokens,):
        opinion.problems.append(
            f"the draft's d2t has the shape {list(found.shape)}, and draft_vocab_size is {tokens}"
        )
    if found.lowest < 0 or (vocabulary is not None and found.highest >= vocabulary):
        last = "" if vocabulary is None else f", and the target's are 0 to {vocabulary - 1}"
        opinion.problems.append(
            f"the draft's d2t leads to tokens {found.lowest} to {found.highest}{last}: SGLang does not look, and "
            "reads beside its tables"
        )
    if found.repeated:
        opinion.advice.append(f"the draft's d2t leads {found.repeated} tokens to one that another has already")
    elif not found.is_rising:
        opinion.advice.append("the draft's d2t is not in rising order, as those of the usual trainers are")


def _text_part(config: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """The part of a config.json that tells of the language model; that of a text model is the whole."""
    for name in _TEXT_PARTS if config else ():
        part = (config or {}).get(name)
        if isinstance(part, dict) and "hidden_size" in part:
            return part
    return config


def _context_length(config: Mapping[str, Any]) -> int | None:
    """As SGLang derives it: the first of the keys, times the factor by which positions are stretched."""
    scaling = config.get("rope_scaling") or config.get("rope_parameters")
    factor = scaling.get("factor", 1) if isinstance(scaling, dict) else 1
    if isinstance(scaling, dict) and (
        "original_max_position_embeddings" in scaling or scaling.get("rope_type") == "llama3"
    ):
        factor = 1
    length = next((found for key in _CONTEXT_KEYS if (found := size(config, key)) is not None), None)
    return None if length is None or not isinstance(factor, (int, float)) else int(factor * length)


def _architecture(config: Mapping[str, Any]) -> str:
    found = config.get("architectures")
    return found[0] if isinstance(found, list) and found and isinstance(found[0], str) else ""


def _are_ids(found: Any) -> bool:
    return isinstance(found, list) and all(isinstance(item, int) and not isinstance(item, bool) for item in found)


def _listed(items: Sequence[str]) -> str:
    more = f" and {len(items) - _SHOWN} more" if len(items) > _SHOWN else ""
    return ", ".join(items[:_SHOWN]) + more
