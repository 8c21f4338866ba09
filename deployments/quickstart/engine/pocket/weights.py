"""Owns reading safetensors files. Must not compute anything with what they hold."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np

RAW_TYPES = {"BF16": "<u2", "F16": "<f2", "F32": "<f4", "F64": "<f8", "I32": "<i4", "I64": "<i8"}


def read_weights(directory: str) -> dict[str, np.ndarray]:
    """All tensors of a directory. Floats become float64: see `layers.py` for why."""
    tensors: dict[str, np.ndarray] = {}
    files = sorted(Path(directory).glob("*.safetensors"))
    if not files:
        raise FileNotFoundError(f"no .safetensors file in {directory}")
    for path in files:
        tensors.update(_read_file(path))
    return tensors


def _read_file(path: Path) -> dict[str, np.ndarray]:
    raw = path.read_bytes()
    size = int.from_bytes(raw[:8], "little")
    if size > len(raw) - 8:
        raise ValueError(f"{path}: not a safetensors file")
    header = json.loads(raw[8 : 8 + size])
    tensors = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        begin, end = entry["data_offsets"]
        if 8 + size + end > len(raw):
            raise ValueError(f"{path}: truncated, {name} ends after the file")
        kind = RAW_TYPES[entry["dtype"]]
        data = np.frombuffer(raw, kind, offset=8 + size + begin, count=math.prod(entry["shape"]))
        if entry["dtype"] == "BF16":
            # bfloat16 is the upper half of a float32.
            data = (data.astype(np.uint32) << 16).view(np.float32)
        floating = not entry["dtype"].startswith("I")
        tensors[name] = data.astype(np.float64 if floating else np.int64).reshape(entry["shape"])
    return tensors
