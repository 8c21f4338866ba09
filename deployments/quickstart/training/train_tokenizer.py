"""Owns the making of `tokenizer.json` and `tokenizer_config.json`: byte-level BPE merges learned from the corpus.

Run as `python train_tokenizer.py OUT_DIR`. The result depends on the corpus only.
"""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from itertools import pairwise
from pathlib import Path

import corpus

sys.path.insert(0, str(Path(__file__).parents[1] / "engine"))
from pocket.tokenizer import SPLIT, byte_symbols

SPECIAL = ["<s>", "</s>", "<|user|>", "<|assistant|>"]
VOCAB_SIZE = 1024


def learn_merges(words: Counter[str], count: int) -> list[tuple[str, str]]:
    """The `count` most frequent pairs, merged one after another; ties go to the smaller pair."""
    symbols = byte_symbols()
    split = {word: [symbols[b] for b in word.encode()] for word in words}
    merges: list[tuple[str, str]] = []
    for _ in range(count):
        pairs: Counter[tuple[str, str]] = Counter()
        for word, parts in split.items():
            for pair in pairwise(parts):
                pairs[pair] += words[word]
        if not pairs:
            break
        best = min(pairs, key=lambda pair: (-pairs[pair], pair))
        merges.append(best)
        for parts in split.values():
            n = 0
            while n < len(parts) - 1:
                if (parts[n], parts[n + 1]) == best:
                    parts[n : n + 2] = [parts[n] + parts[n + 1]]
                n += 1
    return merges


def main(out: Path) -> None:
    words: Counter[str] = Counter()
    for text in corpus.documents(1, 20_000):
        words.update(SPLIT.findall(re.sub("|".join(map(re.escape, SPECIAL)), " ", text)))
    alphabet = sorted(byte_symbols().values())
    merges = learn_merges(words, VOCAB_SIZE - len(SPECIAL) - len(alphabet))
    tokens = SPECIAL + alphabet + [a + b for a, b in merges]
    tokens += [f"<|reserved_{n}|>" for n in range(VOCAB_SIZE - len(tokens))]
    if len(set(tokens)) != VOCAB_SIZE:
        raise ValueError("two merges make the same token")
    added = [t for t in tokens if t in SPECIAL or t.startswith("<|reserved_")]
    data = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {"id": tokens.index(t), "content": t, "single_word": False, "lstrip": False, "rstrip": False,
             "normalized": False, "special": True}
            for t in added
        ],
        "normalizer": None,
        "pre_tokenizer": {
            "type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True,
        },
        "post_processor": None,
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": {
            "type": "BPE",
            "vocab": {token: index for index, token in enumerate(tokens)},
            "merges": [f"{a} {b}" for a, b in merges],
        },
    }  # fmt: skip
    (out / "tokenizer.json").write_text(json.dumps(data, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
    # For engines that read it, such as SGLang; pocket does not.
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<s>",
        "eos_token": "</s>",
        "model_max_length": 1024,
        "clean_up_tokenization_spaces": False,
    }
    (out / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    print(len(tokens), "tokens,", len(merges), "merges,", len(words), "words")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
