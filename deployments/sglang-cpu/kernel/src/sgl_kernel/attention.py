"""Attention for one new token a request, or for several, over a cache of keys and values in slots.

Owns the two operations of the `intel_amx` backend under the names and signatures that SGLang calls.
"""

from __future__ import annotations

import torch

_library = torch.library.Library("sgl_kernel", "FRAGMENT")
_library.define(
    "decode_attention_cpu(Tensor query, Tensor k_cache, Tensor v_cache, float k_scale, float v_scale,"
    " Tensor output, Tensor? key, Tensor? value, Tensor loc, Tensor attn_logits, Tensor req_to_token, Tensor rows,"
    " Tensor lengths, float scale, float cap, bool cross, int window, Tensor? encoder_lengths,"
    " Tensor? sinks) -> ()"
)
_library.define(
    "extend_attention_cpu(Tensor query, Tensor? key, Tensor? value, Tensor output, Tensor k_cache, Tensor v_cache,"
    " float k_scale, float v_scale, Tensor req_to_token, Tensor rows, Tensor lengths, Tensor new_lengths,"
    " Tensor starts, int longest, float scale, float cap, bool cross, int window, Tensor? encoder_lengths,"
    " Tensor? sinks, Tensor? tree_mask, bool causal) -> ()"
)


def _attend(
    query: torch.Tensor,
    caches: tuple[torch.Tensor, torch.Tensor],
    slots: torch.Tensor,
    scale: float,
    mask: torch.Tensor | None,
) -> torch.Tensor:
    """[tokens, heads, size] in and out; keys and values are those of the given slots."""
    keys, values = (cache[slots].to(query.dtype).transpose(0, 1)[None] for cache in caches)
    found = torch.nn.functional.scaled_dot_product_attention(
        query.transpose(0, 1)[None],
        keys,
        values,
        attn_mask=mask,
        scale=scale,
        enable_gqa=query.shape[1] != keys.shape[1],
    )
    return found[0].transpose(0, 1)


def _refuse(cap: float, cross: bool, window: int, sinks: torch.Tensor | None) -> None:
    """What this attention does not do must not be left out silently."""
    if cap or cross or window > 0 or sinks is not None:
        raise NotImplementedError("attention with a logit cap, a window, sinks or an encoder is not implemented")


def _decode(
    query: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    k_scale: float,
    v_scale: float,
    output: torch.Tensor,
    key: torch.Tensor | None,
    value: torch.Tensor | None,
    loc: torch.Tensor,
    attn_logits: torch.Tensor,
    req_to_token: torch.Tensor,
    rows: torch.Tensor,
    lengths: torch.Tensor,
    scale: float,
    cap: float,
    cross: bool,
    window: int,
    encoder_lengths: torch.Tensor | None,
    sinks: torch.Tensor | None,
) -> None:
    """One new token a request: token i belongs to request `rows[i]`, whose cache holds `lengths[i]` tokens."""
    _refuse(cap, cross, window, sinks)
    if key is not None and value is not None:
        k_cache[loc] = key.view(-1, *k_cache.shape[1:])
        v_cache[loc] = value.view(-1, *v_cache.shape[1:])
    for index, (row, length) in enumerate(zip(rows.tolist(), lengths.tolist(), strict=True)):
        one = slice(index, index + 1)
        slots = req_to_token[row, :length].long()
        output[one] = _attend(query[one], (k_cache, v_cache), slots, scale, None)


def _extend(
    query: torch.Tensor,
    key: torch.Tensor | None,
    value: torch.Tensor | None,
    output: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    k_scale: float,
    v_scale: float,
    req_to_token: torch.Tensor,
    rows: torch.Tensor,
    lengths: torch.Tensor,
    new_lengths: torch.Tensor,
    starts: torch.Tensor,
    longest: int,
    scale: float,
    cap: float,
    cross: bool,
    window: int,
    encoder_lengths: torch.Tensor | None,
    sinks: torch.Tensor | None,
    tree_mask: torch.Tensor | None,
    causal: bool,
) -> None:
    """Several new tokens a request. A prompt sees what is before it; drafted tokens see their own branch only."""
    _refuse(cap, cross, window, sinks)
    requests = zip(rows.tolist(), lengths.tolist(), new_lengths.tolist(), starts.tolist(), strict=True)
    for index, (row, length, new, start) in enumerate(requests):
        if new == 0:
            continue
        mask = None
        if tree_mask is not None:
            mask = torch.ones(new, length, dtype=torch.bool)
            mask[:, length - new :] = tree_mask.view(-1, new, new)[index].bool()
        elif causal:
            mask = torch.ones(new, length, dtype=torch.bool).tril(length - new)
        some = slice(start, start + new)
        slots = req_to_token[row, :length].long()
        output[some] = _attend(query[some], (k_cache, v_cache), slots, scale, mask)


_library.impl("decode_attention_cpu", _decode, "CompositeExplicitAutograd")
_library.impl("extend_attention_cpu", _extend, "CompositeExplicitAutograd")
