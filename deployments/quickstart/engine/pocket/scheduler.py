"""Owns the scheduler process: it batches requests, runs the model and sends tokens on.

Must not know about HTTP; text only where a stop string asks for it.
"""

from __future__ import annotations

import select
import time
from collections import deque
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

from pocket import faults
from pocket.layers import Segment
from pocket.model import Target
from pocket.model_config import read_config
from pocket.parallel import Group
from pocket.prefix_cache import PrefixCache
from pocket.request import Request
from pocket.sampling import pick
from pocket.sampling_params import SamplingParams
from pocket.server_args import ServerArgs
from pocket.speculative import Draft, Speculator
from pocket.statistics import Statistics
from pocket.tokenizer import Tokenizer
from pocket.weights import read_weights

CACHED_SLOTS = 16
PREFILL_TOKENS = 2048


def load_target(args: ServerArgs, group: Group) -> Target:
    """This rank's part of the target, with room for the rows that a verify step writes past the end."""
    config = read_config(args.model_path)
    slots = args.max_running_requests + CACHED_SLOTS
    length = args.context_length + (args.speculative_num_steps or 0) + 1
    target = Target(config, read_weights(args.model_path), group, slots, length)
    if args.speculative_algorithm:
        draft = read_config(args.speculative_draft_model_path)
        target.captured_layers = tuple(draft["eagle_config"]["eagle_aux_hidden_state_layer_ids"])
    return target


class Scheduler:
    """Rank 0: the queue, the running batch and the two models."""

    def __init__(self, args: ServerArgs, inbox: Connection, outbox: Connection, group: Group) -> None:
        self.args, self.inbox, self.outbox = args, inbox, outbox
        self.target = load_target(args, group)
        self.tokenizer = Tokenizer(Path(args.model_path) / "tokenizer.json")
        self.speculator: Speculator | None = None
        slots, length = self.target.caches[0].keys.shape[0], self.target.caches[0].keys.shape[3]
        if args.speculative_algorithm:
            path = args.speculative_draft_model_path
            draft = Draft(read_config(path), read_weights(path), self.target.embedding, slots, length)
            self.speculator = Speculator(self.target, draft, args.speculative_num_steps)
        self.prefixes = PrefixCache(slots, not args.disable_radix_cache)
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []
        self.statistics = Statistics(args)
        self.faults = faults.active()
        self._poll = select.poll()
        self._poll.register(inbox.fileno(), select.POLLIN)

    def loop(self) -> None:
        """Until the main process is gone."""
        while True:
            try:
                self._receive()
            except (EOFError, ConnectionError):
                return
            if self.waiting and len(self.running) < self.args.max_running_requests:
                self._emit(self._prefill())
            elif self.running:
                self._emit(self._decode())

    def _receive(self) -> None:
        block = not self.running and not self.waiting
        while block or self._poll.poll(0):
            block = False
            kind, rid, payload = self.inbox.recv()
            if kind == "generate":
                if "hang" not in self.faults:
                    self._admit(rid, payload)
            elif kind == "abort":
                self._abort(rid)
            elif kind == "flush":
                busy = bool(self.running or self.waiting)
                if not busy:
                    self.prefixes.flush()
                    self._reset_averages()
                self.outbox.send(("control", rid, {"flushed": not busy}))
            elif kind == "state":
                self.outbox.send(("control", rid, self._state()))

    def _reset_averages(self) -> None:
        self.statistics.reset_averages()
        if self.speculator:
            self.speculator.reset_times()

    def _admit(self, rid: str, payload: dict[str, Any]) -> None:
        params: SamplingParams = payload["params"]
        seed = params.sampling_seed
        if seed is None:
            seed = self.args.random_seed + self.statistics.requests
        self.statistics.requests += 1
        room = self.args.context_length - len(payload["input_ids"])
        params.max_new_tokens = min(params.max_new_tokens, room)
        self.waiting.append(Request(rid, payload["input_ids"], params, seed, payload["stream"]))

    def _abort(self, rid: str) -> None:
        self.waiting = deque(r for r in self.waiting if r.rid != rid)
        gone = [r for r in self.running if r.rid == rid]
        for request in gone:
            request.finish = {"type": "abort", "message": "the client went away"}
        self._emit(gone)

    def _prefill(self) -> list[Request]:
        """Start waiting requests in one flat batch, after what the prefix cache has of them."""
        begin = time.perf_counter()
        batch: list[Request] = []
        tokens: list[int] = []
        segments: list[Segment] = []
        while self.waiting and len(self.running) + len(batch) < self.args.max_running_requests:
            if batch and len(tokens) + len(self.waiting[0].prompt) > PREFILL_TOKENS:
                break
            request = self.waiting.popleft()
            source, cached = self.prefixes.match(request.prompt)
            request.slot = self.prefixes.take()
            if cached and source != request.slot:
                self.target.copy_rows(source, request.slot, cached)
                if self.speculator:
                    self.speculator.draft.cache.copy_rows(source, request.slot, cached)
            request.cached_tokens = request.draft_rows = cached
            tokens += request.prompt[cached:]
            segments.append(Segment(request.slot, cached, len(request.prompt) - cached))
            batch.append(request)
        hidden, fused = self.target.forward(tokens, segments)
        ends = np.cumsum([s.count for s in segments])
        logits = self.target.logits(hidden[ends - 1])
        for n, (request, segment) in enumerate(zip(batch, segments)):
            if fused is not None:
                request.fused = fused[ends[n] - segment.count : ends[n]]
            request.tokens = list(request.prompt)
            self._append(request, pick(logits[n : n + 1], request.params, request.seed, len(request.tokens)))
        self.statistics.prefilled(batch, len(self.running), len(self.waiting), time.perf_counter() - begin)
        self.running += batch
        return batch

    def _decode(self) -> list[Request]:
        """One step of the running batch."""
        begin = time.perf_counter()
        if self.speculator:
            results = self.speculator.step(self.running)
            for request, tokens in zip(self.running, results):
                correct = len(tokens) - 1
                request.verify_steps += 1
                request.correct_drafts += correct
                request.drafts_histogram += [0] * (correct + 1 - len(request.drafts_histogram))
                request.drafts_histogram[correct] += 1
        else:
            segments = [Segment(r.slot, len(r.tokens) - 1, 1) for r in self.running]
            hidden, _ = self.target.forward([r.tokens[-1] for r in self.running], segments)
            logits = self.target.logits(hidden)
            results = [
                pick(logits[n : n + 1], r.params, r.seed, len(r.tokens)) for n, r in enumerate(self.running)
            ]
        for request, tokens in zip(self.running, results):
            self._append(request, tokens)
        self.statistics.decoded(self.running, results, len(self.waiting), time.perf_counter() - begin)
        return list(self.running)

    def _append(self, request: Request, tokens: list[int]) -> None:
        """Take tokens one by one until one ends the request."""
        params = request.params
        for token in tokens:
            request.tokens.append(token)
            count = len(request.tokens) - len(request.prompt)
            if token == self.tokenizer.eos_id and not params.ignore_eos:
                request.finish = {"type": "stop", "matched": token}
            elif params.stop and (matched := self._stop_string(request)):
                request.finish = {"type": "stop", "matched": matched}
            elif count >= params.max_new_tokens:
                request.finish = {"type": "length", "length": count}
            elif count >= int(self.faults.get("early-stop", count + 1) or 5):
                request.finish = {"type": "stop", "matched": token}
            if request.finish:
                return

    def _stop_string(self, request: Request) -> str | None:
        longest = max(len(s) for s in request.params.stop)
        tail = self.tokenizer.decode(request.output[-longest - 1 :])
        return next((s for s in request.params.stop if s in tail), None)

    def _emit(self, requests: list[Request]) -> None:
        """Send new tokens of streams, and the end of every request; then free what ended."""
        batch = []
        for request in requests:
            if request.stream or request.finish:
                output = request.output
                batch.append((request.rid, output[request.reported :], request.finish, self._meta(request)))
                request.reported = len(output)
        if batch:
            self.outbox.send(("tokens", "", batch))
        self._retire()

    def _meta(self, request: Request) -> dict[str, Any]:
        meta: dict[str, Any] = {
            "prompt_tokens": len(request.prompt),
            "completion_tokens": len(request.tokens) - len(request.prompt),
            "cached_tokens": request.cached_tokens,
        }
        if self.speculator:
            proposed = request.verify_steps * self.speculator.num_steps
            steps = request.verify_steps
            meta |= {
                "spec_verify_ct": steps,
                "spec_accept_length": meta["completion_tokens"] / steps if steps else 0.0,
                "spec_accept_rate": request.correct_drafts / proposed if proposed else 0.0,
                "spec_num_correct_drafts": request.correct_drafts,
                "spec_num_proposed_drafts": proposed,
                "spec_correct_drafts_histogram": list(request.drafts_histogram),
            }
        return meta

    def _retire(self) -> None:
        for request in [r for r in self.running if r.finish]:
            # The last token was never computed, and the draft may lag behind the target.
            complete = len(request.tokens) - 1
            if self.speculator:
                complete = min(complete, request.draft_rows)
            self.prefixes.release(request.slot, request.tokens[:complete])
            self.running.remove(request)

    def _state(self) -> dict[str, Any]:
        state = self.statistics.state(len(self.running), len(self.waiting))
        caches = list(self.target.caches)
        if self.speculator:
            caches.append(self.speculator.draft.cache)
        per_token = sum(c.keys.nbytes / c.keys.shape[0] / c.keys.shape[3] * 2 for c in caches)
        capacity = self.args.max_total_tokens
        state["memory_usage"] = {
            "weight": round(self.target.weight_bytes / 1e9, 6),
            "kvcache": round(per_token * capacity / 1e9, 6),
            "token_capacity": capacity,
            "graph": {"decode": 0.0, "prefill": 0.0},
        }
        state["target_positions_computed"] = self.target.positions_computed
        held = self.prefixes.cached_token_count() + sum(len(r.tokens) for r in self.running)
        state["token_usage"] = held / capacity
        if self.speculator:
            steps = max(self.speculator.steps, 1)
            state["step_time_dict"]["draft_ms"] = self.speculator.draft_seconds * 1e3 / steps
            state["step_time_dict"]["verify_ms"] = self.speculator.verify_seconds * 1e3 / steps
        return state
