"""Code that a model's configuration names: transformers imports it under `trust_remote_code`.

Pure: takes parsed configurations. `auto_map` maps a class of transformers to "module.Class" of the model's own
files, or to "owner/name--module.Class" of another repository; a tokenizer's value is a pair, slow and fast.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple


class Reference(NamedTuple):
    """One class by reference: the file that defines it, and the repository where that is another one."""

    text: str
    file: str
    repo: str | None


def references(config: Any) -> list[Reference]:
    """What a configuration's `auto_map` names, in its order, each once."""
    if not isinstance(config, dict):
        return []
    return list(dict.fromkeys(_reference(text) for text in _texts(config.get("auto_map"))))


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from _texts(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _texts(item)


def _reference(text: str) -> Reference:
    repo, dashes, name = text.rpartition("--")
    module = name.rpartition(".")[0] or name
    return Reference(text, f"{module.replace('.', '/')}.py", repo if dashes else None)
