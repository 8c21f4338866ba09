"""The engines that pinner knows. A new one is one module and one line here."""

from __future__ import annotations

import difflib

from pinner.engines import pocket, sglang
from pinner.engines.base import Engine
from pinner.errors import ManifestError

__all__ = ["ENGINES", "Engine", "engine_for"]

ENGINES: dict[str, Engine] = {
    pocket.NAME: pocket,
    sglang.NAME: sglang,
}


def engine_for(kind: str) -> Engine:
    """The engine of that name. Raises ManifestError naming the known ones."""
    if kind in ENGINES:
        return ENGINES[kind]
    near = difflib.get_close_matches(kind, ENGINES, n=1)
    more = f"did you mean {near[0]!r}?" if near else f"known engines: {', '.join(sorted(ENGINES))}"
    raise ManifestError(f"engine.kind: there is no engine {kind!r}; {more}")
