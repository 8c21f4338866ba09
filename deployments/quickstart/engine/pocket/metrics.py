"""Owns the Prometheus text of `/metrics`, with SGLang's names. Must not ask the scheduler itself."""

from __future__ import annotations

import threading
from bisect import bisect_left
from typing import Any

BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
GAUGES = {
    "sglang:gen_throughput": "last_gen_throughput",
    "sglang:num_running_reqs": "num_running_reqs",
    "sglang:num_queue_reqs": "num_queue_reqs",
    "sglang:token_usage": "token_usage",
    "sglang:cache_hit_rate": "cache_hit_rate",
    "sglang:spec_accept_length": "avg_spec_accept_length",
    "sglang:spec_accept_rate": "spec_accept_rate",
    "sglang:is_cuda_graph": "is_cuda_graph",
}
COUNTERS = {
    "sglang:prompt_tokens_total": "prompt_tokens_total",
    "sglang:generation_tokens_total": "generation_tokens_total",
    "sglang:cached_tokens_total": "cached_tokens_total",
    "sglang:spec_verify_calls_total": "spec_verify_calls_total",
    # Not one of SGLang's: how many token positions the target computed, prefill included.
    "pocket:target_positions_total": "target_positions_computed",
}


class Latencies:
    """Histograms of what clients wait for."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: dict[str, list[int]] = {}
        self._sums: dict[str, float] = {}

    def observe(self, name: str, seconds: float) -> None:
        with self._lock:
            counts = self._counts.setdefault(name, [0] * (len(BUCKETS) + 1))
            counts[bisect_left(BUCKETS, seconds)] += 1
            self._sums[name] = self._sums.get(name, 0.0) + seconds

    def render(self, label: str) -> list[str]:
        lines = []
        with self._lock:
            for name, counts in self._counts.items():
                lines.append(f"# TYPE sglang:{name} histogram")
                total = 0
                for bound, count in zip([*map(str, BUCKETS), "+Inf"], counts):
                    total += count
                    lines.append(f'sglang:{name}_bucket{{le="{bound}",{label}}} {total}')
                lines.append(f"sglang:{name}_sum{{{label}}} {self._sums[name]}")
                lines.append(f"sglang:{name}_count{{{label}}} {total}")
        return lines


def render(state: dict[str, Any], latencies: Latencies, model: str) -> str:
    """Only what is known: a gauge without a value is left out, never written as 0."""
    label = 'model_name="{}"'.format(model.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n"))
    lines = []
    for kind, names in (("gauge", GAUGES), ("counter", COUNTERS)):
        for name, key in names.items():
            if key in state:
                lines.append(f"# TYPE {name} {kind}")
                lines.append(f"{name}{{{label}}} {state[key]}")
    return "\n".join(lines + latencies.render(label)) + "\n"
