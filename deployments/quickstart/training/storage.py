"""Owns writing and reading safetensors from torch, as bfloat16 (integers as int64), keys in sorted order."""

from __future__ import annotations

import json
from pathlib import Path

import torch

TYPES = {torch.bfloat16: "BF16", torch.int64: "I64"}


def save(path: Path, tensors: dict[str, torch.Tensor]) -> None:
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    blobs: list[bytes] = []
    offset = 0
    for name in sorted(tensors):
        tensor = tensors[name].detach()
        tensor = tensor.to(torch.bfloat16) if tensor.is_floating_point() else tensor.to(torch.int64)
        blob = tensor.contiguous().view(torch.uint8).numpy().tobytes()
        header[name] = {
            "dtype": TYPES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [offset, offset + len(blob)],
        }
        offset += len(blob)
        blobs.append(blob)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"".join(blobs))


def load(path: Path) -> dict[str, torch.Tensor]:
    raw = path.read_bytes()
    size = int.from_bytes(raw[:8], "little")
    header, body = json.loads(raw[8 : 8 + size]), raw[8 + size :]
    tensors: dict[str, torch.Tensor] = {}
    names = {name: kind for kind, name in TYPES.items()}
    for name, entry in header.items():
        if name != "__metadata__":
            begin, end = entry["data_offsets"]
            part = torch.frombuffer(bytearray(body[begin:end]), dtype=names[entry["dtype"]])
            tensors[name] = part.view(entry["shape"])
    return tensors
