"""What a benchmark sends, and when: prompts, sampling parameters, schedules.

Pure but for reading the model's config. Deterministic: the same bench, dataset and vocabulary give the same bytes
on every machine. Each measurement draws from a seed of its own, so that no prefix cache can help, unless the bench
declares a warm cache: then all send the same.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

import msgspec

from pinner.errors import OperationFailed
from pinner.measure.client import Call
from pinner.measure.dataset import Row
from pinner.model.bench import Bench
from pinner.model.record import Load

# Makes an engine's request of a prompt and sampling parameters.
Request = Callable[[str | list[int], Mapping[str, Any]], Mapping[str, Any]]


class Workload(msgspec.Struct, frozen=True, kw_only=True):
    """A bench with all that its requests are made of: dataset rows, or token ids to draw from."""

    bench: Bench
    rows: tuple[Row, ...] = ()
    tokens: tuple[int, ...] = ()
    request: Request

    def calls(self, load: Load, *, start: int, repeat: int) -> list[Call]:
        """The requests of one measurement."""
        draw = self._draw("prompts", load, start, repeat)
        return [self._call(row) for row in self._rows(draw, self.bench.requests)]

    def warmup(self, load: Load, *, start: int) -> list[Call]:
        """Requests before the first measurement of a start: with a warm cache the very ones that follow."""
        if self.bench.cache == "warm":
            return self.calls(load, start=start, repeat=0)
        draw = self._draw("warm-up", load, start, 0)
        return [self._call(row) for row in self._rows(draw, self.bench.warmup)]

    def schedule(self, load: Load, *, start: int, repeat: int) -> list[float]:
        """When each request of an open loop is to be sent, in seconds from the beginning."""
        if self.bench.arrival == "constant":
            return [number / load.value for number in range(self.bench.requests)]
        draw = self._draw("arrivals", load, start, repeat)
        gaps = (draw.expovariate(load.value) for _ in range(self.bench.requests - 1))
        return list(accumulate(gaps, initial=0.0))

    def loads(self) -> list[Load]:
        """One for each measurement of a repeat."""
        return [
            Load(kind="rate" if kind == "rate" else "concurrency", value=value) for kind, value in self.bench.loads
        ]

    def digest(self) -> str:
        """Of all that the first start sends: equal where two benches put the same load."""
        found = hashlib.sha256()
        for load in self.loads():
            found.update(f"{load.name} {self.bench.driver} {sorted(self.bench.driver_args.items())}\n".encode())
            if self.bench.driver != "pinner":
                shape = (self.bench.requests, self.bench.input_tokens, self.bench.output_tokens, self.bench.seed)
                found.update(repr(shape).encode())
                continue
            for call in self.calls(load, start=0, repeat=0):
                found.update(call.body + b"\n")
            if load.kind == "rate":
                found.update(repr(self.schedule(load, start=0, repeat=0)).encode())
        return f"sha256:{found.hexdigest()}"

    def _draw(self, what: str, load: Load, start: int, repeat: int) -> random.Random:
        where = "" if self.bench.cache == "warm" else f"{start}/{repeat}"
        return random.Random(f"{self.bench.seed}/{what}/{load.name}/{where}")  # noqa: S311  # no secret hangs on it

    def _rows(self, draw: random.Random, count: int) -> list[Row]:
        if not self.rows:
            length = self.bench.input_tokens
            return [Row(input_ids=draw.choices(self.tokens, k=length)) for _ in range(count)]
        found: list[Row] = []
        while len(found) < count:
            found += draw.sample(self.rows, min(len(self.rows), count - len(found)))
        return found

    def _call(self, row: Row) -> Call:
        tokens = row.output_tokens or self.bench.output_tokens
        params = {
            "max_new_tokens": tokens,
            "temperature": self.bench.temperature,
            "ignore_eos": self.bench.ignore_eos,
        }
        prompt = row.prompt if row.prompt is not None else row.input_ids or []
        body = json.dumps(self.request(prompt, params), separators=(",", ":")).encode()
        return Call(body=body, wanted=tokens if self.bench.ignore_eos else None)


def ordinary_tokens(model: Path) -> tuple[int, ...]:
    """Token ids of a model that stand for text: its vocabulary without the special ones."""
    config = _json(model / "config.json")
    sizes = [
        part.get("vocab_size") for part in (config, config.get("text_config"), config.get("llm_config")) if part
    ]
    size = next((one for one in sizes if isinstance(one, int) and one > 0), None)
    if size is None:
        raise OperationFailed(
            f"{model / 'config.json'} tells no vocab_size, so that no prompt can be made up",
            hint="name a `dataset` in the bench",
        )
    special = {*_ids(config), *_ids(_json(model / "generation_config.json"))}
    special |= {int(key) for key in _json(model / "tokenizer_config.json").get("added_tokens_decoder", {})}
    special |= {one["id"] for one in _json(model / "tokenizer.json").get("added_tokens") or () if "id" in one}
    found = tuple(token for token in range(size) if token not in special)
    if not found:
        raise OperationFailed(f"{model / 'config.json'}: every token of its vocabulary is a special one")
    return found


def _ids(config: Mapping[str, Any]) -> list[int]:
    found: list[int] = []
    for name in ("bos_token_id", "eos_token_id", "pad_token_id"):
        value = config.get(name)
        values: Sequence[Any] = value if isinstance(value, list) else [value]
        found += [one for one in values if isinstance(one, int)]
    return found


def _json(path: Path) -> dict[str, Any]:
    try:
        data = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return data if isinstance(data, dict) else {}
