"""Owns the scheduler's counters and its log lines, in the words and formats of SGLang 0.5.23.

Must not influence scheduling.
"""

from __future__ import annotations

import logging
import time
from typing import Any

from pocket.request import Request
from pocket.server_args import ServerArgs

logger = logging.getLogger("pocket.scheduler")


class Statistics:
    """Totals since the start, and the figures of the current log interval."""

    def __init__(self, args: ServerArgs) -> None:
        self.args = args
        self.requests = 0
        self.prompt_tokens = 0
        self.cached_tokens = 0
        self.generated_tokens = 0
        self.verify_calls = 0
        self.decode_steps = 0
        self.last_gen_throughput = 0.0
        self._interval_tokens = 0
        self._interval_verified = 0
        self._interval_start = self._last_prefill = time.perf_counter()
        self.reset_averages()

    def reset_averages(self) -> None:
        """As a flush does: the average acceptance is unknown until the next log interval ends."""
        self._accepted = self._verified = 0
        self._decode_times = self._prefill_times = (0, 0.0)

    def prefilled(self, batch: list[Request], running: int, queued: int, seconds: float) -> None:
        cached = sum(r.cached_tokens for r in batch)
        new = sum(len(r.prompt) for r in batch) - cached
        self.prompt_tokens += new + cached
        self.cached_tokens += cached
        self.generated_tokens += len(batch)
        self._prefill_times = (self._prefill_times[0] + 1, self._prefill_times[1] + seconds)
        now = time.perf_counter()
        throughput = new / max(now - self._last_prefill, 1e-9)
        self._last_prefill = now
        logger.info(
            f"Prefill batch, #new-seq: {len(batch)}, #new-token: {new}, #cached-token: {cached}, "
            f"token usage: {new / self.args.max_total_tokens:.2f}, #running-req: {running}, "
            f"#queue-req: {queued}, #pending-token: 0, cuda graph: False, "
            f"input throughput (token/s): {throughput:.2f}"
        )

    def decoded(self, running: list[Request], results: list[list[int]], queued: int, seconds: float) -> None:
        count = sum(len(tokens) for tokens in results)
        self.generated_tokens += count
        self._interval_tokens += count
        self.decode_steps += 1
        self._decode_times = (self._decode_times[0] + 1, self._decode_times[1] + seconds)
        if self.args.speculative_algorithm:
            self.verify_calls += len(running)
            self._interval_verified += len(running)
        if self.decode_steps % self.args.decode_log_interval == 0:
            self._log_decode(running, queued)

    def _log_decode(self, running: list[Request], queued: int) -> None:
        now = time.perf_counter()
        self.last_gen_throughput = self._interval_tokens / max(now - self._interval_start, 1e-9)
        held = sum(len(r.tokens) for r in running)
        acceptance = ""
        if self._interval_verified:
            length = self._interval_tokens / self._interval_verified
            rate = (length - 1) / self.args.speculative_num_steps
            acceptance = f"accept len: {length:.2f}, accept rate: {rate:.2f}, "
            self._accepted += self._interval_tokens
            self._verified += self._interval_verified
        logger.info(
            f"Decode batch, #running-req: {len(running)}, #token: {held}, "
            f"token usage: {held / self.args.max_total_tokens:.2f}, {acceptance}cuda graph: False, "
            f"gen throughput (token/s): {self.last_gen_throughput:.2f}, #queue-req: {queued}"
        )
        self._interval_start, self._interval_tokens, self._interval_verified = now, 0, 0

    def state(self, running: int, queued: int) -> dict[str, Any]:
        """What `/server_info` and `/metrics` show of the scheduler."""
        state: dict[str, Any] = {
            "last_gen_throughput": self.last_gen_throughput,
            "effective_max_running_requests_per_dp": self.args.max_running_requests,
            "step_time_dict": {
                "prefill_ms": self._prefill_times[1] * 1e3 / max(self._prefill_times[0], 1),
                "decode_ms": self._decode_times[1] * 1e3 / max(self._decode_times[0], 1),
            },
            "num_running_reqs": running,
            "num_queue_reqs": queued,
            "prompt_tokens_total": self.prompt_tokens,
            "cached_tokens_total": self.cached_tokens,
            "generation_tokens_total": self.generated_tokens,
            "spec_verify_calls_total": self.verify_calls,
            "decode_steps_total": self.decode_steps,
            "cache_hit_rate": self.cached_tokens / max(self.prompt_tokens, 1),
            "is_cuda_graph": 0,
        }
        if self._verified:
            length = self._accepted / self._verified
            state["avg_spec_accept_length"] = length
            state["spec_accept_rate"] = (length - 1) / self.args.speculative_num_steps
        return state
