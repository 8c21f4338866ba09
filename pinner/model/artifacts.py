"""What is wrong with a model file, judged from its first bytes and its size.

Owns the shapes of Git LFS pointers, safetensors headers and shard indexes. Must not read files:
pinner/probes/weights.py does. Sentences come without the file's name.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable

import msgspec

# The safetensors library refuses longer headers.
MAX_HEADER_BYTES = 100_000_000
LENGTH_BYTES = 8
MAX_POINTER_BYTES = 1024
INDEX_SUFFIX = ".index.json"
BEGINNING_BYTES = 256  # enough to tell a text

_SHOWN = 60  # characters
_SUFFIX = ".safetensors"
_SHARD = re.compile(r"(?P<stem>.+)-(?P<number>\d{5,6})-of-(?P<of>\d{5,6})\.safetensors")

_POINTER = re.compile(
    # A byte order mark and line ends of Windows are what editors and conversions add.
    rb"(?:\xef\xbb\xbf)?version https://(?:git-lfs\.github\.com|hawser\.github\.com)/spec/v1\r?\n"
    rb"(?:[a-z0-9.-]+ [^\n]*\n)*?"
    rb"oid sha256:(?P<oid>[0-9a-f]{64})\r?\nsize (?P<size>\d+)\r?\n?"
)
_BITS = {
    name: bits
    for bits, names in {
        4: "F4",
        6: "F6_E2M3 F6_E3M2",
        8: "BOOL U8 I8 F8_E4M3 F8_E5M2 F8_E8M0",
        16: "I16 U16 F16 BF16",
        32: "I32 U32 F32",
        64: "I64 U64 F64 C64",
    }.items()
    for name in names.split()
}


class Pointer(msgspec.Struct, frozen=True):
    """A Git LFS pointer: the digest and the size in bytes of the file that it stands for."""

    sha256: str
    size: int


class Tensor(msgspec.Struct, frozen=True):
    """A tensor as a safetensors header tells of it; `data_offsets` are bytes from the end of the header."""

    dtype: str
    shape: tuple[int, ...]
    data_offsets: tuple[int, int]


class _Index(msgspec.Struct, frozen=True):
    weight_map: dict[str, str]


def parse_pointer(data: bytes) -> Pointer | None:
    """The pointer that a file of these bytes is, or None."""
    found = _POINTER.match(data)
    if found is None or len(data) > MAX_POINTER_BYTES:
        return None
    return Pointer(f"sha256:{found['oid'].decode()}", int(found["size"]))


def pointer_fault(pointer: Pointer, locked_sha256: str | None = None) -> str:
    """The sentence for a pointer found in the place of weights."""
    if pointer.sha256 == locked_sha256:
        return (
            "Git LFS pointer, not weights: it stands for exactly the locked file, so the right file was "
            "never downloaded (run `git lfs pull`)"
        )
    return f"Git LFS pointer, not weights: it stands for a file of {pointer.size:,} bytes"


def text_fault(beginning: bytes) -> str | None:
    """What a file of text in the place of weights is, from its beginning: mostly a server's error, saved."""
    text = beginning.removeprefix(b"\xef\xbb\xbf").lstrip().decode("utf-8", "ignore")
    if re.match(r"<[!?]?[a-z]+[ >]", text, re.IGNORECASE):
        kind = "an HTML or XML page"
    elif re.match(r"[{\[]\s*[\"{}\[\]]", text):
        kind = "JSON"
    elif text and text.replace("\n", "").replace("\r", "").replace("\t", "").isprintable():
        kind = "text"
    else:
        return None
    shown = re.sub(r"[^\x20-\x7e]+", " ", text[:_SHOWN]).strip()
    return f"{kind}, not weights (an answer of a server saved as a file?): it begins with {shown!r}"


def length_fault(prefix: bytes, size: int) -> str | None:
    """What is wrong with the first eight bytes of a safetensors file of `size` bytes."""
    if len(prefix) < LENGTH_BYTES:
        return f"truncated: {size} bytes cannot hold a safetensors header"
    length = header_length(prefix)
    if length == 0:
        return "its safetensors header is declared as 0 bytes long: not weights, or overwritten"
    if length > MAX_HEADER_BYTES:
        return f"its safetensors header is declared as {length:,} bytes long: not weights"
    if LENGTH_BYTES + length > size:
        return f"truncated: its header alone is declared as {length:,} bytes, the file has {size:,}"
    return None


def header_length(prefix: bytes) -> int:
    """The length in bytes that the first eight bytes declare for the header."""
    return int.from_bytes(prefix[:LENGTH_BYTES], "little")


def header_fault(header: bytes, size: int) -> str | None:
    """What is wrong with the header of a safetensors file of `size` bytes, all in all."""
    try:
        found = tensors(header)
    except ValueError as error:
        return f"its safetensors header is not readable: {error}"
    end = 0
    for name, tensor in sorted(found.items(), key=lambda item: item[1].data_offsets):
        start, stop = tensor.data_offsets
        if start < end or stop < start:
            return f"its safetensors header is wrong: the data of {name!r} overlaps other data"
        if start > end:
            return f"its safetensors header is wrong: nothing describes the bytes before {name!r}"
        bits = _BITS.get(tensor.dtype)
        if bits is not None and math.prod(tensor.shape) * bits != (stop - start) * 8:
            return f"its safetensors header is wrong: {name!r} does not fit its shape and dtype"
        end = stop
    declared = LENGTH_BYTES + len(header) + end
    if declared > size:
        return f"truncated: its header declares {declared:,} bytes, the file has {size:,}"
    if declared < size:
        return f"too long: its header declares {declared:,} bytes, the file has {size:,}"
    return None


def tensors(header: bytes) -> dict[str, Tensor]:
    """The tensors that a safetensors header tells of, by name; ValueError if it is no header."""
    try:
        raw = msgspec.json.decode(header, type=dict[str, msgspec.Raw])
        raw.pop("__metadata__", None)
        return {name: msgspec.json.decode(value, type=Tensor) for name, value in raw.items()}
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ValueError(str(error)) from None


def indexed_shards(index: bytes) -> frozenset[str]:
    """The shards that an index names; ValueError if it is no index."""
    try:
        return frozenset(msgspec.json.decode(index, type=_Index).weight_map.values())
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ValueError(f"it is not a shard index: {error}") from None


def stray_weights(names: Iterable[str], indexed: frozenset[str]) -> dict[str, str]:
    """Safetensors files of one directory that tell of a second checkpoint in it, or of a part of one, with why.

    `indexed` are those that the directory's indexes name. SGLang reads what model.safetensors.index.json names and
    without it every *.safetensors (its filter_duplicate_safetensors_files), where the last of two tensors of one
    name wins; transformers prefers a lone model.safetensors. So an engine decides which checkpoint runs, and
    none says so. Sets under another stem (consolidated.safetensors, mtp.safetensors) are how models are published.
    """
    names = frozenset(names)
    sets: dict[str, dict[int, set[int]]] = {}
    for name in names:
        if found := _SHARD.fullmatch(name):
            sets.setdefault(found["stem"], {}).setdefault(int(found["of"]), set()).add(int(found["number"]))
    strays: dict[str, str] = {}
    for stem, by_total in sets.items():
        own = {name for name in names if (found := _SHARD.fullmatch(name)) and found["stem"] == stem}
        if own & indexed:
            strays |= dict.fromkeys(own - indexed, "a shard of another checkpoint: no index names it")
        elif len(by_total) > 1:
            totals = " and ".join(f"{total}" for total in sorted(by_total))
            strays |= dict.fromkeys(own, f"shards of {totals} lie side by side, and no index says which count")
        else:
            ((total, numbers),) = by_total.items()
            if missing := sorted(set(range(1, total + 1)) - numbers):
                strays[max(own)] = f"shard {missing[0]} of {total} is missing"
        if f"{stem}{_SUFFIX}" in names - indexed:
            strays[f"{stem}{_SUFFIX}"] = "a whole checkpoint beside shards of the same name: which one runs?"
    return dict(sorted(strays.items()))
