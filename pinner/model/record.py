"""A record: one benchmark's immutable result with all that is needed to judge and repeat it.

Owns the format of record.json. Must not read files: pinner/measure/records.py stores and finds records. Beside
record.json lie the files that `files` names: below deployment/ the manifest, lock, pylock and patches as they were
and as `pinner up` takes them, the raw samples of every measurement, telemetry and the engine's log, the last three
compressed.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from pinner.model.bench import Bench
from pinner.model.facts import Override

FORMAT = 1
READS_FORMAT = "0.1.0"

RECORD_FILE = "record.json"
# What a signature is over, and the signature; not part of the record, since they come later.
STATEMENT_FILE, SIGNATURE_FILE = "statement.json", "statement.json.sig"
DEPLOYMENT = "deployment"


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

    `metrics` by the names of pinner/model/bench.py; one that could not be told is missing, never 0, and so are
    `requests` and the numbers of tokens. `failures`
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
    requests: int | None = None
    failures: dict[str, int] = {}
    input_tokens: int | None = None
    output_tokens: int | None = None
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
    `arguments` what it tells of the server and `load_arguments` of the benchmark. `manifest` is where the manifest
    lay when it was measured, `lock` the digest of the lock's bytes. `reproduces` is the id of the record
    that this one repeats.
    `baseline` is the id of the one that `speedup` is relative to.
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
    manifest: str = ""
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
    baseline: str | None = None
    source: str = ""
    arguments: dict[str, Any] = {}
    load_arguments: dict[str, Any] = {}
    notes: tuple[str, ...] = ()
    files: dict[str, str] = {}

    @property
    def is_valid(self) -> bool:
        """Whether it may serve as a baseline: something was measured, and nothing says that it does not count."""
        return not self.invalid and bool(self.counting())

    @property
    def manifest_file(self) -> str:
        """The manifest among `files`; a manifest's own name, so that the directory is a deployment."""
        return f"{DEPLOYMENT}/{self.deployment}.toml"

    @property
    def lock_file(self) -> str:
        return f"{DEPLOYMENT}/{self.deployment}.lock"

    @property
    def pylock_file(self) -> str:
        return f"{DEPLOYMENT}/pylock.{self.deployment}.toml"

    def counting(self) -> tuple[Measurement, ...]:
        """The measurements that count: neither they nor their start are invalid."""
        bad = {number for number, start in enumerate(self.starts) if start.invalid}
        return tuple(one for one in self.measurements if not one.invalid and one.start not in bad)


def name_problem(name: str) -> str | None:
    """Why a record must not hold a file of that name; None where it may."""
    parts = name.split("/")
    if name in (RECORD_FILE, STATEMENT_FILE, SIGNATURE_FILE):
        return "is a name of pinner's own"
    if any(part in ("", ".", "..") for part in parts) or len(name) > 1024:
        return "leaves the record's directory"
    if not name.isprintable() or "\\" in name or max(len(part.encode()) for part in parts) > 255:
        return "is no name for a file"
    return None
