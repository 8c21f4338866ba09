"""Owns requests in the main process: checks, tokenizes and sends them, and collects the answers.

Used by many HTTP threads at once. Must not know about HTTP.
"""

from __future__ import annotations

import queue
import threading
import time
import uuid
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from pocket import faults
from pocket.metrics import Latencies
from pocket.sampling_params import SamplingParams
from pocket.server_args import ServerArgs
from pocket.tokenizer import Tokenizer


class Unavailable(Exception):
    """The scheduler did not answer in time."""


class TokenizerManager:
    """One per server."""

    def __init__(self, args: ServerArgs, to_scheduler: Connection, from_detokenizer: Connection) -> None:
        self.args = args
        self.tokenizer = Tokenizer(Path(args.model_path) / "tokenizer.json")
        self.latencies = Latencies()
        self.faults = faults.active()
        self._to_scheduler, self._from_detokenizer = to_scheduler, from_detokenizer
        self._sending = threading.Lock()
        self._answers: dict[str, queue.SimpleQueue[Any]] = {}
        threading.Thread(target=self._collect, name="collect", daemon=True).start()

    def encode(self, prompt: Any) -> list[int]:
        """Token ids of a text or of checked ids; raises ValueError."""
        if isinstance(prompt, str):
            ids = self.tokenizer.encode(prompt)
        elif isinstance(prompt, list) and prompt and all(type(i) is int for i in prompt):
            ids = prompt
        else:
            raise ValueError("the prompt must be a text or a list of token ids that is not empty")
        if not all(0 <= i < len(self.tokenizer.vocab) for i in ids):
            raise ValueError(f"token ids must be between 0 and {len(self.tokenizer.vocab) - 1}")
        if len(ids) >= self.args.context_length:
            raise ValueError(
                f"{len(ids)} tokens of input; the context length {self.args.context_length} leaves no "
                "room for a new one"
            )
        return ids

    def generate(self, ids: list[int], params: SamplingParams, stream: bool) -> Generation:
        """Start a request; its outputs come from iterating over the result."""
        return Generation(self, ids, params, stream)

    def control(self, kind: str, timeout: float = 10.0) -> dict[str, Any]:
        """Ask the scheduler for its state or to flush."""
        rid = uuid.uuid4().hex
        answers = self.open(rid)
        try:
            self.send(kind, rid, None)
            return answers.get(timeout=timeout)
        except queue.Empty:
            raise Unavailable(f"the scheduler did not answer within {timeout:g} s") from None
        finally:
            self.close(rid)

    def open(self, rid: str) -> queue.SimpleQueue[Any]:
        answers: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._answers[rid] = answers
        return answers

    def close(self, rid: str) -> None:
        self._answers.pop(rid, None)

    def send(self, kind: str, rid: str, payload: Any) -> None:
        with self._sending:
            self._to_scheduler.send((kind, rid, payload))

    def _collect(self) -> None:
        """Hand each answer to the thread that waits for it; answers nobody waits for are dropped."""
        while True:
            try:
                kind, rid, payload = self._from_detokenizer.recv()
            except (EOFError, OSError):
                return
            for key, value in payload if kind == "tokens" else [(rid, payload)]:
                if answers := self._answers.get(key):
                    answers.put(value)


class Generation:
    """One request on its way. Iterating gives the outputs so far, each containing the one before; only the
    last one where `stream` is false. `close` must be called; it aborts what has not ended."""

    def __init__(
        self, manager: TokenizerManager, ids: list[int], params: SamplingParams, stream: bool
    ) -> None:
        self.manager, self.rid, self.done = manager, uuid.uuid4().hex, False
        self._start, self._stream = time.perf_counter(), stream
        self._answers = manager.open(self.rid)
        manager.send("generate", self.rid, {"input_ids": ids, "params": params, "stream": stream})

    def __iter__(self) -> Iterator[dict[str, Any]]:
        observe = self.manager.latencies.observe
        last, tokens = self._start, 0
        while not self.done:
            output = self._answers.get()
            meta, now = output["meta_info"], time.perf_counter()
            new = meta["completion_tokens"] - tokens
            if not self._stream:
                pass  # nobody saw when the tokens came
            elif not tokens:
                observe("time_to_first_token_seconds", now - self._start)
            elif new:
                observe("inter_token_latency_seconds", (now - last) / new)
            last, tokens = now, tokens + new
            meta["weight_version"] = "default"
            if meta["finish_reason"] is not None:
                self.done = True
                meta["e2e_latency"] = now - self._start
                observe("e2e_request_latency_seconds", now - self._start)
            yield output

    def close(self) -> None:
        self.manager.close(self.rid)
        if not self.done:
            self.done = True
            self.manager.send("abort", self.rid, None)
