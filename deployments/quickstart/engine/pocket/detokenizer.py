"""Owns the detokenizer process: tokens of each request to text, cut at the stop string.

Must not decide when a request ends; the scheduler did.
"""

from __future__ import annotations

from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from pocket.server_args import ServerArgs
from pocket.tokenizer import Tokenizer


class Detokenizer:
    """Holds what each running request has produced so far."""

    def __init__(self, args: ServerArgs, inbox: Connection, outbox: Connection) -> None:
        self.tokenizer = Tokenizer(Path(args.model_path) / "tokenizer.json")
        self.inbox, self.outbox = inbox, outbox
        self.outputs: dict[str, tuple[list[int], bytearray]] = {}

    def loop(self) -> None:
        while True:
            try:
                kind, rid, payload = self.inbox.recv()
                if kind == "tokens":
                    payload = [self._update(*item) for item in payload]
                self.outbox.send((kind, rid, payload))
            except (EOFError, ConnectionError):
                return

    def _update(self, rid: str, new: list[int], finish: dict[str, Any] | None, meta: dict[str, Any]) -> tuple:
        ids, raw = self.outputs.setdefault(rid, ([], bytearray()))
        ids += new
        raw += self.tokenizer.decode_bytes(new)
        text = raw.decode("utf-8", "replace")
        if finish is None:
            # A character may still lack its last bytes.
            text = text.rstrip("\ufffd")
        else:
            del self.outputs[rid]
            if isinstance(finish.get("matched"), str):
                text = text.partition(finish["matched"])[0]
        return rid, {
            "text": text,
            "output_ids": list(ids),
            "meta_info": {"id": rid, "finish_reason": finish} | meta,
        }
