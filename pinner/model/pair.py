"""What is known of a draft and its target before either is loaded, and the verdict on the two.

Pure data: pinner/probes/pair.py gathers it, pinner/engines/eagle.py judges it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from pinner.model.facts import Unknown

Shape = tuple[int, ...]


class TokenMap(msgspec.Struct, frozen=True, kw_only=True):
    """A draft's `d2t`: which token of the target each token of the draft is, its own id plus the stored offset.

    `unreadable` says why the tokens could not be told.
    """

    shape: Shape
    lowest: int = 0
    highest: int = 0
    repeated: int = 0
    is_rising: bool = True
    unreadable: str = ""


class DraftWeights(msgspec.Struct, frozen=True, kw_only=True):
    """The shape of each tensor of a draft by name, and its token map; `repeated` are names in two files."""

    shapes: dict[str, Shape]
    token_map: TokenMap | None = None
    repeated: tuple[str, ...] = ()


class Pair(msgspec.Struct, frozen=True, kw_only=True):
    """A draft and its target as an engine would be started with them.

    A config is the content of a config.json, None if that is missing or not readable. `flags` are the engine's
    arguments by full name without dashes, `env` its variables. `version` is the engine's, where it is a release.
    `is_target`: the draft is the target's own directory.
    """

    algorithm: str
    draft: Mapping[str, Any] | None
    target: Mapping[str, Any] | None
    weights: DraftWeights | Unknown
    flags: Mapping[str, str] = {}
    env: Mapping[str, str] = {}
    version: str | None = None
    is_target: bool = False


class Verdict(msgspec.Struct, frozen=True):
    """Sentences: `problems` forbid the pair, `unread` could not be told, `advice` is worth knowing once."""

    problems: tuple[str, ...] = ()
    unread: tuple[str, ...] = ()
    advice: tuple[str, ...] = ()


class Opinion(msgspec.Struct):
    """A verdict in the making."""

    problems: list[str] = []
    unread: list[str] = []
    advice: list[str] = []

    def verdict(self) -> Verdict:
        """The whole."""
        return Verdict(tuple(self.problems), tuple(self.unread), tuple(self.advice))
