"""The engines that pinner knows. A new one is one module and one line here."""

from __future__ import annotations

from pinner.engines import pocket, sglang
from pinner.engines.base import Engine
from pinner.errors import LockError

__all__ = ["ENGINES", "Engine", "engine_for"]

ENGINES: dict[str, Engine] = {
    pocket.NAME: pocket,
    sglang.NAME: sglang,
}


def engine_for(kind: str) -> Engine:
    """The engine of that name. Raises LockError: a manifest was asked before, so only a foreign lock gets here."""
    if kind not in ENGINES:
        raise LockError(f"engine.kind: this pinner knows no engine {kind!r}")
    return ENGINES[kind]
