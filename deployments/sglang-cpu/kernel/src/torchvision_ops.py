"""Declares torchvision's compiled operations before torchvision is imported, where they cannot be loaded.

The wheel on PyPI is linked to CUDA. Beside a torch without CUDA its library does not load, and
`import torchvision` ends at the first operation that it describes and nobody declared.
"""

from __future__ import annotations

import importlib.abc
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType

_SCHEMA = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
_OPERATIONS = ("nms", "qnms")


class _Finder(importlib.abc.MetaPathFinder):
    """Finds no module: it acts once, when torchvision is first asked for, since torch takes seconds to import."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name == "torchvision":
            sys.meta_path.remove(self)
            _declare()
        return None


def install() -> None:
    """Have the operations declared when torchvision is imported."""
    sys.meta_path.insert(0, _Finder())


def _declare() -> None:
    import torch  # noqa: PLC0415  # every start of the interpreter runs this module

    for name in _OPERATIONS:
        torch.library.define(f"torchvision::{name}", _SCHEMA)
