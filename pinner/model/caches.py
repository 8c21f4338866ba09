"""What is known of an engine's caches: what one says of itself, and what a launch found.

Pure data. Must not know where they lie: pinner/probes/caches.py does.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec


class Made(msgspec.Struct, frozen=True, kw_only=True):
    """What a cache directory says of itself: what it depends on, and the run that began it."""

    schema: int = 1
    inputs: dict[str, Any]
    run: str
    started: float


class Caches(msgspec.Struct, frozen=True, kw_only=True):
    """The engine's caches at the moment of a launch.

    `cleared` are locks of dead builds that were removed, `shared_with` a run that is up and uses the same ones.
    """

    path: str
    state: Literal["cold", "warm"]
    files: int = 0
    size_bytes: int = 0
    made_by: str = ""
    made: float = 0.0
    cleared: tuple[str, ...] = ()
    shared_with: str = ""
