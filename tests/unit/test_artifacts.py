"""Model files judged by their first bytes and size."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pinner.model import artifacts


def fault(tensors: object, data: int) -> str | None:
    header = json.dumps(tensors).encode()
    return artifacts.header_fault(header, 8 + len(header) + data)


def tensor(start: int, stop: int, *, dtype: str = "U8", shape: list[int] | None = None) -> dict[str, object]:
    return {"dtype": dtype, "shape": [stop - start] if shape is None else shape, "data_offsets": [start, stop]}


@pytest.mark.parametrize(
    ("tensors", "data", "said"),
    [
        ({"a": tensor(0, 4), "b": tensor(4, 8)}, 8, None),
        ({"b": tensor(4, 8), "a": tensor(0, 4), "__metadata__": {"format": "pt"}}, 8, None),
        ({}, 0, None),
        ({"a": tensor(0, 0, dtype="F32", shape=[0, 3])}, 0, None),
        ({"a": tensor(0, 4, dtype="F32", shape=[])}, 4, None),
        ({"a": tensor(0, 3, dtype="NEW", shape=[7])}, 3, None),
        ({"a": tensor(0, 5), "b": tensor(4, 8)}, 8, "'b' overlaps"),
        ({"a": tensor(4, 2)}, 4, "describes the bytes before|overlaps"),
        ({"a": tensor(-2, 2)}, 4, "overlaps"),
        ({"a": tensor(0, 2), "b": tensor(4, 8)}, 8, "describes the bytes before 'b'"),
        ({"a": tensor(0, 4, dtype="F32", shape=[2])}, 4, "does not fit its shape"),
        ({"a": tensor(0, 8)}, 4, "truncated: its header declares"),
        ({"a": tensor(0, 8)}, 9, "too long"),
        ({"a": {"dtype": "F32"}}, 0, "not readable"),
        ([1], 0, "not readable"),
    ],
)
def test_headers(tensors: object, data: int, said: str | None) -> None:
    found = fault(tensors, data)
    if said is None:
        assert found is None
    else:
        assert found is not None
        assert any(part in found for part in said.split("|"))


@given(st.binary(max_size=200), st.integers(0, 10_000))
def test_no_bytes_are_a_crash(data: bytes, size: int) -> None:
    artifacts.header_fault(data, size)
    artifacts.length_fault(data[:8], size)
    artifacts.parse_pointer(data)


def test_pointers() -> None:
    text = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"a" * 64 + b"\nsize 12\n"
    assert artifacts.parse_pointer(text) == artifacts.Pointer("sha256:" + "a" * 64, 12)
    extended = text.replace(b"oid", b"ext-0-foo sha256:x\noid")
    assert artifacts.parse_pointer(extended) is not None
    assert artifacts.parse_pointer(b"version https://git-lfs.github.com/spec/v1\n") is None
    assert artifacts.parse_pointer(text + b" " * 1024) is None
    windows = b"\xef\xbb\xbf" + text.replace(b"\n", b"\r\n")
    assert artifacts.parse_pointer(windows) == artifacts.Pointer("sha256:" + "a" * 64, 12)


@pytest.mark.parametrize(
    ("beginning", "said"),
    [
        (b"<html>404 Not Found</html>", "an HTML or XML page, not weights"),
        (b"\n<!DOCTYPE html><p>", "an HTML or XML page"),
        (b'<?xml version="1.0"?><Error>', "an HTML or XML page"),
        (b'{"error": "gated"}', "JSON, not weights"),
        (
            b"Entry not found",
            "text, not weights (an answer of a server saved as a file?): it begins with 'Entry not",
        ),
        (b"\x00\x00\x00\x10", None),
        (b"\x08\0\0\0\0\0\0\0{}", None),
        (b"", None),
    ],
)
def test_texts_in_the_place_of_weights(beginning: bytes, said: str | None) -> None:
    found = artifacts.text_fault(beginning)
    assert found is None if said is None else found is not None and said in found


def test_an_index_that_is_none() -> None:
    with pytest.raises(ValueError, match="not a shard index"):
        artifacts.indexed_shards(b"[]")


def shards(stem: str, total: int, *numbers: int) -> list[str]:
    return [f"{stem}-{number:05}-of-{total:05}.safetensors" for number in numbers]


@pytest.mark.parametrize(
    ("names", "indexed", "stray"),
    [
        (shards("model", 2, 1, 2), shards("model", 2, 1, 2), {}),
        (["model.safetensors"], [], {}),
        # As Mistral and GLM publish them.
        ([*shards("model", 2, 1, 2), "consolidated.safetensors", "mtp.safetensors"], shards("model", 2, 1, 2), {}),
        (["model.safetensors", "consolidated.safetensors"], [], {}),
        ([*shards("model", 2, 1, 2), *shards("consolidated", 3, 1, 2, 3)], shards("model", 2, 1, 2), {}),
        (shards("model", 3, 1, 2, 3), [], {}),
        (
            [*shards("model", 2, 1, 2), *shards("model", 4, 3)],
            shards("model", 2, 1, 2),
            {"model-00003-of-00004.safetensors": "no index names it"},
        ),
        (
            [*shards("model", 1, 1), *shards("model", 2, 1, 2)],
            [],
            dict.fromkeys([*shards("model", 1, 1), *shards("model", 2, 1, 2)], "1 and 2 lie side by side"),
        ),
        (shards("model", 3, 1, 3), [], {"model-00003-of-00003.safetensors": "shard 2 of 3 is missing"}),
        (
            [*shards("model", 2, 1, 2), "model.safetensors"],
            shards("model", 2, 1, 2),
            {"model.safetensors": "a whole checkpoint beside shards"},
        ),
    ],
)
def test_weights_of_another_checkpoint(names: list[str], indexed: list[str], stray: dict[str, str]) -> None:
    found = artifacts.stray_weights(names, frozenset(indexed))
    assert found.keys() == stray.keys()
    assert all(wording in found[name] for name, wording in stray.items())
