"""How likely a difference explains that a deployment became slower.

Owns the table of ranks with its reasons, and what belongs to which. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from enum import IntEnum

import msgspec

from pinner.model.facts import Difference


class Rank(IntEnum):
    """The likeliest first."""

    SOURCE = 1
    KERNELS = 2
    DRAFT = 3
    ARGUMENTS = 4
    ENVIRONMENT = 5
    PACKAGES = 6
    HARDWARE = 7
    HOST = 8
    OTHER = 9


# What a person reads as the heading of a group, and why it stands where it stands.
REASONS: dict[Rank, tuple[str, str]] = {
    Rank.SOURCE: ("source", "the engine's own code: one commit on a hot path moves speed more than all else"),
    Rank.KERNELS: (
        "kernels and libraries",
        "they compute and communicate; a minor version can change the algorithm",
    ),
    Rank.DRAFT: (
        "draft and model",
        "other weights or steps change how many tokens are accepted, and what a step costs",
    ),
    Rank.ARGUMENTS: (
        "arguments",
        "they choose backends, batch sizes and memory; people know that they changed them",
    ),
    Rank.ENVIRONMENT: ("environment", "variables of NCCL, CUDA and the engine; many are read, few matter"),
    Rank.PACKAGES: ("other packages", "they seldom touch the way of a token"),
    Rank.HARDWARE: ("hardware", "caps, clocks and links change rarely, and a check sees them first"),
    Rank.HOST: ("host", "it matters where the CPU is the limit"),
    Rank.OTHER: ("other", "it says where something lies or how it was asked for, not what runs"),
}

# Packages that hold kernels, or the libraries that these call.
_KERNELS = re.compile(
    r"(torch|triton|pytorch-triton.*|triton-kernels|torchao|sgl-kernel.*|sglang-kernel.*|flashinfer.*|flash-attn.*"
    r"|flash-mla|deep-gemm.*|deep-ep.*|fast-hadamard-transform|tilelang|(apache-)?tvm-ffi|quack-kernels|xformers"
    r"|nvidia(-.*)?|cuda-.*|cupy.*|nccl.*|mscclpp|nixl.*|mooncake.*|aiter|vllm.*|tokenspeed.*|numpy)"
)
_BY_ASPECT = {
    "source": Rank.SOURCE,
    "libraries": Rank.KERNELS,
    "draft": Rank.DRAFT,
    "model": Rank.DRAFT,
    "arguments": Rank.ARGUMENTS,
    "account": Rank.ARGUMENTS,
    "environment": Rank.ENVIRONMENT,
    "python": Rank.PACKAGES,
    "hardware": Rank.HARDWARE,
    "caches": Rank.HOST,
    "host": Rank.HOST,
}
# Keys that say where something lies, or how a person asked for it, and not what it is.
_PLACES = {
    "source": {"url", "path", "wish", "type"},
    "model": {"path", "repo", "revision", "wish", "include", "exclude"},
    "draft": {"path", "repo", "revision", "wish", "include", "exclude"},
    "python": {"path", "site-packages"},
    "arguments": {"host", "port"},
}


class Ranked(msgspec.Struct, frozen=True, kw_only=True):
    """A difference with its place in the order of likelihood."""

    rank: Rank
    difference: Difference


def rank_of(aspect: str, key: str) -> Rank:
    """The rank of a difference, by its aspect and key."""
    if key in _PLACES.get(aspect, ()):
        return Rank.OTHER
    if aspect == "python" and is_kernel(key):
        return Rank.KERNELS
    return _BY_ASPECT.get(aspect, Rank.OTHER)


def is_kernel(key: str) -> bool:
    """Whether a distribution, or a file installed by one, belongs to kernels and what they call."""
    parts = [part for part in key.split("/") if part]
    inner = next((parts[at + 1] for at, part in enumerate(parts[:-1]) if part.endswith("-packages")), None)
    name = inner or (parts[0] if parts else "")
    name = re.sub(r"(-[0-9][^-]*)?(\.dist-info|\.libs|\.py)$", "", name)
    return _KERNELS.fullmatch(re.sub(r"[-_.]+", "-", name).lower()) is not None


def ranked(differences: Iterable[Difference]) -> tuple[Ranked, ...]:
    """The likeliest first; within a rank in the order given."""
    found = [Ranked(rank=rank_of(item.aspect, item.key), difference=item) for item in differences]
    return tuple(sorted(found, key=lambda item: item.rank))
