"""Owns the slots of the KV cache, and what finished requests left in them for later ones.

Must not touch the cached numbers: it says which rows can be reused, the scheduler copies them.
"""

from __future__ import annotations

from collections import OrderedDict


def common_prefix(a: list[int], b: list[int]) -> int:
    length = min(len(a), len(b))
    if a[:length] == b[:length]:
        return length
    return next(n for n in range(length) if a[n] != b[n])


class PrefixCache:
    """Slots, each free, used by a running request, or cached; the longest unused is given away first."""

    def __init__(self, slots: int, enabled: bool) -> None:
        self.free = list(range(slots))
        self.enabled = enabled
        self.cached: OrderedDict[int, list[int]] = OrderedDict()

    def match(self, prompt: list[int]) -> tuple[int, int]:
        """The slot with the longest common beginning, and its length; the last prompt token never counts,
        for somebody must compute what follows it."""
        best, length = -1, 0
        for slot, tokens in self.cached.items():
            common = min(common_prefix(tokens, prompt), len(prompt)) - 1
            if common > length:
                best, length = slot, common
        if best >= 0:
            self.cached.move_to_end(best)
        return best, length

    def take(self) -> int:
        """A slot for a new request. There are more slots than requests can run, so there is always one."""
        if self.free:
            return self.free.pop()
        slot, _ = self.cached.popitem(last=False)
        return slot

    def release(self, slot: int, tokens: list[int]) -> None:
        """Give a slot back; `tokens` are those whose rows are complete."""
        if self.enabled and len(tokens) > 1:
            self.cached[slot] = tokens
        else:
            self.free.append(slot)

    def flush(self) -> None:
        self.free.extend(self.cached)
        self.cached.clear()

    def cached_token_count(self) -> int:
        return sum(len(tokens) for tokens in self.cached.values())
