"""A record: one benchmark's immutable result with all that is needed to judge and repeat it.

Owns the format of record.json. Must not read files: pinner/measure/records.py stores and finds records. Beside
record.json lie the files that `files` names: manifest, lock, pylock and patches as they were, the raw samples of
every measurement, telemetry and the engine's log, the last three compressed.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from pinner.model.bench import Bench
from pinner.model.facts import Override

FORMAT = 1
READS_FORMAT = "0.1.0"


class RecordPart(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """Base of the parts of a record. Keys keep underscores: the metrics' names are the field's own."""


class Load(RecordPart, frozen=True, kw_only=True):
    """`kind` "concurrency" or "rate" (requests a second), and how much of it."""

    kind: Literal["concurrency", "rate"]
    value: float

    @property
    def name(self) -> str:
        return f"{self.kind}={self.value:g}"


class Measurement(RecordPart, frozen=True, kw_only=True):
    """One measured interval within one start, at one load.

    `metrics` by the names of pinner/model/bench.py; one that could not be told is missing, never 0. `failures`
    by kind. `cached_share` is the share of input tokens that came from the prefix cache (None: the engine does
    not tell). `is_flushed` whether the cache was emptied before (None: not asked for). `client_lag_ms` is by how
    much the load generator itself was late at most; `invalid` are the reasons for which it does not count.
    `samples` names the file of raw samples; "" in a foreign record.
    """

    start: int
    repeat: int
    load: Load
    began: float
    duration_s: float
    metrics: dict[str, float]
    requests: int
    failures: dict[str, int] = {}
    input_tokens: int = 0
    output_tokens: int = 0
    cached_share: float | None = None
    is_flushed: bool | None = None
    client_lag_ms: float | None = None
    invalid: tuple[str, ...] = ()
    samples: str = ""


class Start(RecordPart, frozen=True, kw_only=True):
    """One server that was measured.

    `run` is its run, `account` the engine's own account of its arguments without secrets, `caches` "cold" or
    "warm", `log` and `telemetry` name files. `invalid` are reasons for which nothing of it counts.
    """

    run: str
    began: float
    ready_s: float | None = None
    engine_version: str | None = None
    account: dict[str, Any] = {}
    caches: str = ""
    log: str = ""
    telemetry: str = ""
    invalid: tuple[str, ...] = ()


class Verdict(RecordPart, frozen=True, kw_only=True):
    """Whether an expectation of the manifest was met; `observed` is the mean over starts, None if it cannot be
    told."""

    metric: str
    load: str
    expected: str
    observed: float | None
    is_met: bool | None


class Record(RecordPart, frozen=True, kw_only=True):
    """A whole record. Times are Unix seconds, UTC.

    `origin` "pinner", or "foreign" for evidence that was imported and has no pins: then `source` says from what,
    and `arguments` what it tells of the server. `reproduces` is the id of the record that this one repeats.
    `before` and `after` are the checks around the measuring, as `check --output json` words them; `machine` what
    probes saw of hardware and host, by aspect and key; `tools` versions of what measured. `files` maps each file
    to its digest; the record's id is the digest of record.json.
    """

    format: int
    requires_pinner: str
    origin: Literal["pinner", "foreign"]
    deployment: str
    bench: str
    began: float
    ended: float
    workload: Bench | None = None
    workload_digest: str = ""
    lock: str = ""
    measurements: tuple[Measurement, ...] = ()
    starts: tuple[Start, ...] = ()
    verdicts: tuple[Verdict, ...] = ()
    invalid: tuple[str, ...] = ()
    before: dict[str, Any] | None = None
    after: dict[str, Any] | None = None
    overrides: tuple[Override, ...] = ()
    machine: dict[str, dict[str, Any]] = {}
    tools: dict[str, str] = {}
    reproduces: str | None = None
    source: str = ""
    arguments: dict[str, Any] = {}
    notes: tuple[str, ...] = ()
    files: dict[str, str] = {}

    @property
    def is_valid(self) -> bool:
        """Whether it may serve as a baseline: something was measured, and nothing says that it does not count."""
        return not self.invalid and any(not one.invalid for one in self.measurements)
