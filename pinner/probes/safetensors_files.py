"""What a draft's weights tell without being loaded: the shapes in their headers, and the token map.

Owns which files count, as SGLang chooses them. Reads the headers and the map, and not a byte more: while a
repository is locked, the rest of its large files is not here yet. Never unpickles: that would run code.
"""

from __future__ import annotations

import array
import itertools
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

from pinner.model import artifacts
from pinner.model.artifacts import Tensor
from pinner.model.facts import Unknown
from pinner.model.pair import DraftWeights, TokenMap

_SUFFIX = ".safetensors"
_INDEX = f"model{_SUFFIX}{artifacts.INDEX_SUFFIX}"
_INTEGERS = {"I64": "q", "I32": "i", "I16": "h", "U8": "B", "I8": "b"}
_PICKLES = (".bin", ".pt", ".pth")


def weight_files(directory: Path) -> list[str] | Unknown:
    """The files whose weights SGLang would load, and their index; Unknown with the reason if none can be read."""
    try:
        names = sorted(path.name for path in directory.iterdir() if not path.name.startswith("."))
        found = [name for name in names if name.endswith(_SUFFIX)]
        if not found:
            pickles = [name for name in names if name.endswith(_PICKLES)]
            if pickles:
                return Unknown(f"{pickles[0]} is a pickle, and to open one is to run the code in it")
            return Unknown(f"no {_SUFFIX} file is there")
        if _INDEX in names:
            shards = artifacts.indexed_shards((directory / _INDEX).read_bytes())
            return [_INDEX, *(name for name in found if name in shards)]
    except OSError as error:
        return Unknown(f"{error.filename}: {error.strerror}")
    except ValueError as error:
        return Unknown(f"{_INDEX}: {error}")
    if found == ["consolidated.safetensors", "model.safetensors"]:
        return found[1:]
    return found


def read_weights(directory: Path, names: Sequence[str]) -> DraftWeights | Unknown:
    """Shapes and token map of the weights in the files that `weight_files` named."""
    shapes: dict[str, tuple[int, ...]] = {}
    repeated: list[str] = []
    token_map = None
    for name in names:
        if not name.endswith(_SUFFIX):
            continue
        try:
            with (directory / name).open("rb") as stream:
                length = artifacts.header_length(stream.read(artifacts.LENGTH_BYTES))
                if not 0 < length <= artifacts.MAX_HEADER_BYTES:
                    return Unknown(f"{name}: it has no safetensors header")
                found = artifacts.tensors(stream.read(length))
                for tensor_name, tensor in found.items():
                    if "d2t" in tensor_name:
                        token_map = _token_map(stream, artifacts.LENGTH_BYTES + length, tensor)
        except OSError as error:
            return Unknown(f"{name}: {error.strerror}")
        except ValueError as error:
            return Unknown(f"{name}: its safetensors header is not readable: {error}")
        repeated += shapes.keys() & found.keys()
        shapes |= {tensor_name: tensor.shape for tensor_name, tensor in found.items()}
    return DraftWeights(shapes=shapes, token_map=token_map, repeated=tuple(sorted(repeated)))


def _token_map(stream: BinaryIO, data: int, tensor: Tensor) -> TokenMap:
    """The map in a tensor of a file whose data begins at `data`."""
    code = _INTEGERS.get(tensor.dtype)
    if code is None:
        return TokenMap(shape=tensor.shape, unreadable=f"is of {tensor.dtype}, not of whole numbers")
    start, stop = tensor.data_offsets
    offsets = array.array(code)
    if len(tensor.shape) != 1 or stop - start != tensor.shape[0] * offsets.itemsize or not tensor.shape[0]:
        return TokenMap(
            shape=tensor.shape, unreadable=f"has the shape {list(tensor.shape)}, not one row of numbers"
        )
    stream.seek(data + start)
    read = stream.read(stop - start)
    if len(read) != stop - start:
        return TokenMap(shape=tensor.shape, unreadable="ends before its file's header says")
    offsets.frombytes(read)
    if sys.byteorder == "big":
        offsets.byteswap()
    tokens = [token + offset for token, offset in enumerate(offsets)]
    return TokenMap(
        shape=tensor.shape,
        lowest=min(tokens),
        highest=max(tokens),
        repeated=len(tokens) - len(set(tokens)),
        is_rising=all(one < other for one, other in itertools.pairwise(tokens)),
    )
