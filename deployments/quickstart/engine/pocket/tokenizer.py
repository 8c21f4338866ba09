"""Owns text to token ids and back: byte-level BPE read from a Hugging Face `tokenizer.json`.

Must not know about models, requests or processes.
"""

from __future__ import annotations

import json
import re
from functools import lru_cache
from pathlib import Path

# The usual byte-level split, written for Python's `re`: a word with its leading space, digits, signs, blanks.
SPLIT = re.compile(r" ?[^\W\d_]+| ?\d+| ?[^\s\w]+|_+|\s+(?!\S)|\s+")


def byte_symbols() -> dict[int, str]:
    """The printable character that byte-level BPE writes for each byte."""
    plain = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAC + 1), *range(0xAE, 0xFF + 1)]
    symbols = {byte: chr(byte) for byte in plain}
    others = (byte for byte in range(256) if byte not in symbols)
    return symbols | {byte: chr(256 + n) for n, byte in enumerate(others)}


class Tokenizer:
    """Encodes and decodes with one vocabulary."""

    def __init__(self, path: Path) -> None:
        data = json.loads(path.read_text(encoding="utf-8"))
        self.vocab: dict[str, int] = data["model"]["vocab"]
        merges = [tuple(m.split(" ")) if isinstance(m, str) else tuple(m) for m in data["model"]["merges"]]
        self.ranks = {pair: rank for rank, pair in enumerate(merges)}
        self.special = {t["content"]: t["id"] for t in data.get("added_tokens", [])}
        self.symbols = byte_symbols()
        to_byte = {symbol: byte for byte, symbol in self.symbols.items()}
        self.pieces = {
            index: b"" if token in self.special else bytes(to_byte[c] for c in token)
            for token, index in self.vocab.items()
        }
        self.bos_id = self.special["<s>"]
        self.eos_id = self.special["</s>"]
        self._split_special = re.compile("(" + "|".join(map(re.escape, self.special)) + ")")
        self._word = lru_cache(maxsize=65536)(self._encode_word)

    def encode(self, text: str, add_bos: bool = True) -> list[int]:
        ids = [self.bos_id] if add_bos else []
        for part in self._split_special.split(text):
            if part in self.special:
                ids.append(self.special[part])
            else:
                for word in SPLIT.findall(part):
                    ids.extend(self._word(word))
        return ids

    def decode_bytes(self, ids: list[int]) -> bytes:
        return b"".join(self.pieces.get(i, b"") for i in ids)

    def decode(self, ids: list[int]) -> str:
        return self.decode_bytes(ids).decode("utf-8", "replace")

    def _encode_word(self, word: str) -> tuple[int, ...]:
        parts = [self.symbols[byte] for byte in word.encode("utf-8", "surrogatepass")]
        while len(parts) > 1:
            ranked = [
                (self.ranks.get(pair, len(self.ranks)), n) for n, pair in enumerate(zip(parts, parts[1:]))
            ]
            rank, n = min(ranked)
            if rank == len(self.ranks):
                break
            parts[n : n + 2] = [parts[n] + parts[n + 1]]
        return tuple(self.vocab[part] for part in parts)
