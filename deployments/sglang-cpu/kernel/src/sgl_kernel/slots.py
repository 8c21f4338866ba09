"""Which slots of the KV cache hold which tokens of which request, and moving them.

`req_to_token` has a row for each request with the slot of each of its tokens. All functions write into what they
are given, as SGLang expects of its kernels.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator

import torch

Tensor = torch.Tensor


def assign_req_to_token_pool_cpu(
    rows: Tensor, req_to_token: Tensor, starts: Tensor, ends: Tensor, slots: Tensor, pool_len: int
) -> None:
    """Note the slots of tokens `starts[i]` to `ends[i]` of each request; `slots` has them one after another."""
    for row, start, end, at in _ranges(rows, starts, ends):
        req_to_token[row, start:end] = slots[at : at + end - start].to(req_to_token.dtype)


def assign_extend_cache_locs_cpu(
    rows: Tensor, req_to_token: Tensor, starts: Tensor, ends: Tensor, slots: Tensor, pool_len: int
) -> None:
    """The reverse: collect the slots of those tokens into `slots`."""
    for row, start, end, at in _ranges(rows, starts, ends):
        slots[at : at + end - start] = req_to_token[row, start:end].to(slots.dtype)


def _ranges(rows: Tensor, starts: Tensor, ends: Tensor) -> Iterator[tuple[int, int, int, int]]:
    """(row, start, end) of each request, and how many tokens the requests before it have."""
    at = 0
    for row, start, end in zip(rows.tolist(), starts.tolist(), ends.tolist(), strict=True):
        yield row, start, end, at
        at += end - start


def assign_draft_cache_locs_contiguous_cpu(
    rows: Tensor, req_to_token: Tensor, lengths: Tensor, slots: Tensor, pool_len: int, topk: int, num_steps: int
) -> None:
    """Collect the slots set aside for the drafted tokens of each request, which follow its own."""
    count = topk * num_steps
    for index, (row, length) in enumerate(zip(rows.tolist(), lengths.tolist(), strict=True)):
        slots[index * count : (index + 1) * count] = req_to_token[row, length : length + count].to(slots.dtype)


def build_draft_decode_metadata_cpu(
    req_to_token: Tensor, rows: Tensor, lengths: Tensor, topk: int, num_steps: int, pool_len: int
) -> Tensor:
    """A `req_to_token` with a row for each branch of the draft: the request's tokens, then the branch's own."""
    found = torch.zeros((rows.numel() * topk, pool_len), dtype=req_to_token.dtype)
    for request, (row, length) in enumerate(zip(rows.tolist(), lengths.tolist(), strict=True)):
        for branch in range(topk):
            line, start = found[request * topk + branch], length + branch * num_steps
            line[:length] = req_to_token[row, :length]
            line[length : length + num_steps] = req_to_token[row, start : start + num_steps]
    return found


def fill_accept_out_cache_loc_cpu(accept_index: Tensor, slots: Tensor, accepted_slots: Tensor) -> None:
    """The slots of accepted tokens, packed to the front; an index of -1 was not accepted."""
    accepted = accept_index.flatten()
    accepted = accepted[accepted > -1].long()
    accepted_slots[: accepted.numel()] = slots[accepted]


def copy_all_layer_kv_cache_cpu(
    data_ptrs: Tensor, strides: Tensor, target_slots: Tensor, source_slots: Tensor
) -> None:
    """Move rows of every layer's cache, given by address and row size in bytes.

    All rows are read before one is written: a slot may be source and target.
    """
    sources, targets = source_slots.tolist(), target_slots.tolist()
    for address, stride in zip(data_ptrs.tolist(), strides.tolist(), strict=True):
        rows = [ctypes.string_at(address + stride * slot, stride) for slot in sources]
        for slot, row in zip(targets, rows, strict=True):
            ctypes.memmove(address + stride * slot, row, stride)
