"""`[bench.NAME]`: what a manifest wishes to have measured, and what it expects of it.

Owns the section's keys and the rules between them that need no disk. Must not read files or touch a clock:
pinner/measure/ does.
"""

from __future__ import annotations

import math
import re
from typing import Annotated, Literal

from msgspec import Meta

from pinner.model.sections import NAME_PATTERN, Positive, Section, Text

# The metrics of one measurement, by the field's definitions; each latency also as mean, median, p90, p95, p99.
THROUGHPUTS = ("request_throughput", "input_throughput", "output_throughput")
LATENCIES = ("ttft", "tpot", "itl", "e2el")
QUANTITIES = ("mean", "median", "p90", "p95", "p99")
ACCEPT_LENGTH = "accept_length"
SPEEDUP = "speedup"
# Of speculative decoding. An engine that does not tell the two apart counts drafting as part of verifying.
STEP_TIMES = ("verify_step_ms", "draft_step_ms")
METRICS: tuple[str, ...] = (
    *THROUGHPUTS,
    *(f"{latency}_{quantity}_ms" for latency in LATENCIES for quantity in QUANTITIES),
    ACCEPT_LENGTH,
    SPEEDUP,
    *STEP_TIMES,
)
# Flags of sglang.bench_serving that have a home of their own here.
DRIVER_OWNED = {
    "backend": "pinner",
    "base-url": "`serve`",
    "host": "`serve`",
    "port": "`serve`",
    "max-concurrency": "`concurrency`",
    "request-rate": "`rate`",
    "num-prompts": "`requests`",
    "output-file": "pinner",
    "random-input-len": "`input-tokens`",
    "random-output-len": "`output-tokens`",
    "seed": "`seed`",
    "temperature": "`temperature`",
    "warmup-requests": "`warmup`",
    "flush-cache": "`cache`",
    "disable-ignore-eos": "`ignore-eos`",
}
# Of these less is better.
IS_TIME = frozenset(metric for metric in METRICS if metric.endswith("_ms"))

NotNegative = Annotated[int, Meta(ge=0)]
Rate = Annotated[float, Meta(gt=0)]
Seconds = Annotated[float, Meta(gt=0)]
Milliseconds = Annotated[float, Meta(gt=0)]


class Expect(Section, frozen=True, kw_only=True):
    """What a metric must be: at least, at most, or a value within a relative tolerance (0.03 is 3 %)."""

    at_least: float | None = None
    at_most: float | None = None
    value: float | None = None
    tolerance: float | None = None


class Bench(Section, frozen=True, kw_only=True):
    """One benchmark.

    Load: `concurrency` (closed loop, one measurement each) or `rate` (open loop, requests a second, with
    `arrival`). Prompts: `dataset`, a JSONL file beside the manifest, or synthetic ones of exactly
    `input_tokens`. `starts` are fresh servers, `repeats` measurements within each. `cache` "flush" empties the
    prefix cache before every measurement, "warm" declares that it is not. `speculation` false leaves the draft
    out; `baseline` names the bench whose output throughput `speedup` is relative to. `allowed_errors` is how
    many requests may fail, `timeout_s` how long one may take, `client_lag_ms` how late the load generator itself
    may be (99th percentile). `driver` puts the load; `driver_args` are flags of one that is not pinner's own.
    """

    dataset: Text | None = None
    input_tokens: Positive = 128
    output_tokens: Positive = 128
    requests: Positive = 32
    concurrency: tuple[Positive, ...] = ()
    rate: tuple[Rate, ...] = ()
    arrival: Literal["poisson", "constant"] = "poisson"
    warmup: NotNegative = 4
    repeats: Positive = 3
    starts: Positive = 2
    temperature: Annotated[float, Meta(ge=0)] = 0.0
    seed: int = 1
    ignore_eos: bool = True
    cache: Literal["flush", "warm"] = "flush"
    speculation: bool = True
    baseline: Text | None = None
    driver: Literal["pinner", "sglang.bench_serving"] = "pinner"
    driver_args: dict[str, bool | int | float | str] = {}
    allowed_errors: NotNegative = 0
    timeout_s: Seconds = 600.0
    client_lag_ms: Milliseconds = 50.0
    expect: dict[str, Expect] = {}

    @property
    def loads(self) -> tuple[tuple[str, float], ...]:
        """("concurrency", 8) or ("rate", 2.5), one for each measurement of a repeat."""
        if self.rate:
            return tuple(("rate", rate) for rate in self.rate)
        return tuple(("concurrency", float(streams)) for streams in self.concurrency or (1,))


def bench_problems(benches: dict[str, Bench], *, has_draft: bool) -> list[tuple[str, str]]:
    """Everything wrong between the keys, as (key path, sentence)."""
    found = []
    for name, bench in benches.items():
        key = f"bench.{name}"
        if re.fullmatch(NAME_PATTERN, name) is None:
            found.append((key, "a name is letters, digits, - and _"))
        found += [(f"{key}.{part}", said) for part, said in _number_problems(bench)]
        found += [(f"{key}.{part}", said) for part, said in _driver_problems(bench)]
        if bench.concurrency and bench.rate:
            found.append((f"{key}.rate", "does not go with `concurrency`: a load is closed or open"))
        if bench.starts == 1 and bench.repeats == 1 and bench.expect:
            found.append((f"{key}.repeats", "one measurement cannot be held against an expectation: take more"))
        if "\0" in (bench.dataset or ""):
            found.append((f"{key}.dataset", "holds a NUL byte"))
        if bench.baseline == name:
            found.append((f"{key}.baseline", "names itself"))
        elif bench.baseline is not None and bench.baseline not in benches:
            found.append((f"{key}.baseline", f"there is no [bench.{bench.baseline}]"))
        elif bench.baseline is not None and benches[bench.baseline].loads != bench.loads:
            found.append((f"{key}.baseline", f"[bench.{bench.baseline}] puts another load"))
        if not bench.speculation and not has_draft:
            found.append((f"{key}.speculation", "there is no [draft] to leave out"))
        found += [(f"{key}.expect.{metric}", said) for metric, said in _expect_problems(bench)]
    return found


def _number_problems(bench: Bench) -> list[tuple[str, str]]:
    numbers = {
        "rate": bench.rate,
        "temperature": (bench.temperature,),
        "timeout-s": (bench.timeout_s,),
        "client-lag-ms": (bench.client_lag_ms,),
    }
    return [
        (key, "must be a finite number") for key, values in numbers.items() if not all(map(math.isfinite, values))
    ]


def _driver_problems(bench: Bench) -> list[tuple[str, str]]:
    if bench.driver == "pinner":
        return [("driver-args", "go with a `driver` that is not pinner's own")] if bench.driver_args else []
    found = []
    if bench.dataset is not None:
        found.append(("dataset", f"is for pinner's own driver; give {bench.driver} its own by `driver-args`"))
    owned = sorted(bench.driver_args.keys() & DRIVER_OWNED.keys())
    found += [(f"driver-args.{flag}", f"is set by {DRIVER_OWNED[flag]}") for flag in owned]
    return found


def _expect_problems(bench: Bench) -> list[tuple[str, str]]:
    found = []
    for metric, expect in bench.expect.items():
        if metric not in METRICS:
            found.append((metric, f"is no metric; known: {', '.join(METRICS[:3])}, ttft_median_ms …"))
        elif metric == SPEEDUP and bench.baseline is None:
            found.append((metric, "needs `baseline`, the bench that it is relative to"))
        bounds = (expect.at_least, expect.at_most, expect.value, expect.tolerance)
        if any(bound is not None and not math.isfinite(bound) for bound in bounds):
            found.append((metric, "must be finite numbers"))
        elif (expect.value is None) == (expect.at_least is None and expect.at_most is None):
            found.append((metric, "needs either `value` with `tolerance`, or `at-least` and/or `at-most`"))
        elif (expect.value is None) != (expect.tolerance is None):
            found.append((metric, "`value` and `tolerance` (relative: 0.03 is 3 %) go together"))
    return found
