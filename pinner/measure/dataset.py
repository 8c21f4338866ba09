"""The dataset of a benchmark: a JSONL file beside the manifest, pinned by digest.

Owns reading and validating rows, and whether the lock pins the file that is there. Must not choose among the rows:
workload.py does.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import msgspec

from pinner.errors import LockError, ManifestError
from pinner.model.bench import Bench
from pinner.model.lock import BenchPin


class Row(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One prompt, as text or as token ids, and how many tokens to generate (None: the bench's `output-tokens`)."""

    prompt: str | None = None
    input_ids: list[int] | None = None
    output_tokens: int | None = None


def pins(benches: dict[str, Bench], directory: Path) -> dict[str, BenchPin]:
    """The pin of each dataset. ManifestError where one cannot be used."""
    found = {}
    for name, bench in benches.items():
        if bench.dataset is not None:
            data = _read(directory / bench.dataset, f"bench.{name}.dataset")
            rows = parse(data, directory / bench.dataset)
            found[name] = BenchPin(dataset=bench.dataset, sha256=digest(data), rows=len(rows))
    return found


def stale_reason(benches: dict[str, Bench], locked: dict[str, BenchPin], directory: Path) -> str | None:
    """Why the lock does not pin the datasets that the manifest names as they are; None where it does."""
    for name, bench in benches.items():
        pin = locked.get(name)
        if bench.dataset != (pin.dataset if pin else None):
            return f"bench.{name}.dataset is not the one that the lock pins"
        if bench.dataset is not None and pin is not None:
            try:
                found = digest((directory / bench.dataset).read_bytes())
            except OSError as error:
                return f"the dataset {bench.dataset} cannot be read ({error.strerror})"
            if found != pin.sha256:
                return f"the dataset {bench.dataset} has changed since"
    return None


def rows_of(name: str, bench: Bench, locked: dict[str, BenchPin], directory: Path) -> tuple[Row, ...]:
    """The rows of a bench's dataset, which must be the pinned one; none without a dataset. LockError."""
    reason = stale_reason({name: bench}, locked, directory)
    if reason is not None:
        raise LockError(f"the lock is out of date: {reason}", hint="run `pinner lock`, and read what it changes")
    if bench.dataset is None:
        return ()
    path = directory / bench.dataset
    return parse(_read(path, f"bench.{name}.dataset"), path)


def parse(data: bytes, path: Path) -> tuple[Row, ...]:
    """The rows of a JSONL file. ManifestError naming the line that is none."""
    rows = []
    for number, line in enumerate(data.splitlines(), 1):
        if not line.strip():
            continue
        try:
            row = msgspec.json.decode(line, type=Row)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise ManifestError(f"{path}, line {number}: is no row of a dataset: {error}", hint=_HINT) from None
        if (row.prompt is None) == (row.input_ids is None) or not (row.prompt or row.input_ids):
            raise ManifestError(
                f"{path}, line {number}: needs exactly one of `prompt` and `input_ids`, not empty", hint=_HINT
            )
        if row.output_tokens is not None and row.output_tokens < 1:
            raise ManifestError(f"{path}, line {number}: output_tokens must be 1 or more")
        rows.append(row)
    if not rows:
        raise ManifestError(f"{path}: holds no row", hint=_HINT)
    return tuple(rows)


_HINT = 'a row is {"prompt": "…"} or {"input_ids": [1, 2]}, with "output_tokens" if it wants its own number'


def _read(path: Path, key: str) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ManifestError(f"{key}: cannot read {path}: {error.strerror}") from None


def digest(data: bytes) -> str:
    """`sha256:<hex>` of a file's bytes."""
    return f"sha256:{hashlib.sha256(data).hexdigest()}"
