"""The tree of drafted tokens of each request, and how much of it the target accepts.

Node 0 is the last token that is certain, the others are drafted. `retrive_next_token` has the first child of each
node, `retrive_next_sibling` its next sibling, -1 for none; the spelling is SGLang's, which passes them by name.
All functions write into what they are given.
"""

from __future__ import annotations

import torch

Tensor = torch.Tensor

# SGLang's two layouts of the mask: over a request's whole text, or over its drafted tokens alone.
_FULL_MASK = 0


def build_tree_kernel_efficient_cpu(
    parent_list: Tensor,
    selected_index: Tensor,
    verified_seq_len: Tensor,
    tree_mask: Tensor,
    positions: Tensor,
    retrive_index: Tensor,
    retrive_next_token: Tensor,
    retrive_next_sibling: Tensor,
    topk: int,
    depth: int,
    draft_token_num: int,
    tree_mask_mode: int,
) -> None:
    """The links, positions and mask of each request's tree, from the candidates that the draft selected."""
    count = draft_token_num
    index = retrive_index.view(-1, count)
    links = (retrive_next_token.view(-1, count), retrive_next_sibling.view(-1, count))
    flat_positions, flat_mask, offset = positions.view(-1), tree_mask.view(-1), 0
    for request, length in enumerate(verified_seq_len.tolist()):
        parents = _parents(selected_index[request].tolist(), parent_list[request].tolist(), topk)
        index[request] = torch.arange(request * count, (request + 1) * count)
        _link(parents, links[0][request], links[1][request])
        width = length + count if tree_mask_mode == _FULL_MASK else count
        mask = flat_mask[offset : offset + count * width].view(count, width)[:, width - count :]
        offset += count * width
        for node, branch in enumerate(_branches(parents)):
            mask[node] = 0
            mask[node, branch] = 1
            flat_positions[request * count + node] = length + len(branch) - 1


def _parents(selected: list[int], parent_list: list[int], topk: int) -> list[int]:
    """The parent node of each node but the first; -1 where it was not selected.

    A candidate's number divided by `topk` tells which earlier candidate it continues; 0 is the root.
    """
    node_of: dict[int, int] = {}
    for node, candidate in enumerate(selected, start=1):
        node_of.setdefault(candidate, node)
    groups = [candidate // topk for candidate in selected]
    return [-1, *(0 if group == 0 else node_of.get(parent_list[group], -1) for group in groups)]


def _link(parents: list[int], next_token: Tensor, next_sibling: Tensor) -> None:
    """First children and next siblings. From the back, so that the best candidate comes first."""
    first, sibling = next_token.tolist(), next_sibling.tolist()
    for node in range(len(parents) - 1, 0, -1):
        parent = parents[node]
        if parent == -1:
            continue
        if first[parent] != -1:
            sibling[node] = first[parent]
        first[parent] = node
    next_token.copy_(torch.tensor(first))
    next_sibling.copy_(torch.tensor(sibling))


def _branches(parents: list[int]) -> list[list[int]]:
    """For each node the nodes that it sees: the root, its ancestors and itself."""
    branches: list[list[int]] = [[0]]
    for node in range(1, len(parents)):
        branch, at = [node], parents[node]
        while at > 0:
            branch.append(at)
            at = parents[at]
        branches.append([0, *branch])
    return branches


def verify_tree_greedy_cpu(
    predicts: Tensor,
    accept_index: Tensor,
    accept_token_num: Tensor,
    candidates: Tensor,
    retrive_index: Tensor,
    retrive_next_token: Tensor,
    retrive_next_sibling: Tensor,
    target_predict: Tensor,
) -> None:
    """Walk each tree along the drafted tokens that the target itself predicts.

    `predicts` gets the target's token at each accepted place; the last of them is the bonus.
    """
    index, child, sibling = (
        tensor.tolist() for tensor in (retrive_index, retrive_next_token, retrive_next_sibling)
    )
    drafted, predicted = candidates.tolist(), target_predict.flatten().tolist()
    for request, tokens in enumerate(drafted):
        last, node, accepted = index[request][0], 0, 0
        accept_index[request, 0] = last
        while accepted + 1 < accept_index.shape[1]:
            node = child[request][node]
            while node != -1 and tokens[node] != predicted[last]:
                node = sibling[request][node]
            if node == -1:
                break
            predicts[last] = predicted[last]
            accepted += 1
            last = index[request][node]
            accept_index[request, accepted] = last
        accept_token_num[request] = accepted
        predicts[last] = predicted[last]


def fill_bonus_tokens_cpu(
    accept_tokens: Tensor, accept_lens: Tensor, bonus_tokens: Tensor, accept_stride: int
) -> None:
    """The last accepted token of each request."""
    count = accept_lens.shape[0]
    last = torch.arange(count) * accept_stride + accept_lens.long() - 1
    bonus_tokens[:count] = accept_tokens.flatten()[last].to(bonus_tokens.dtype)


def rotate_input_ids_cpu(
    input_ids: Tensor, starts: Tensor, lengths: Tensor, topk_index: Tensor, select_index: Tensor | None = None
) -> None:
    """Shift each request's tokens left by one and put the newest at the end, or where `select_index` says."""
    newest = topk_index.flatten()
    for request, (start, length) in enumerate(zip(starts.tolist(), lengths.tolist(), strict=True)):
        if length == 0:
            continue
        input_ids[start : start + length - 1] = input_ids[start + 1 : start + length].clone()
        place = start + length - 1 if select_index is None else int(select_index[request])
        input_ids[place] = newest[request].to(input_ids.dtype)
