"""Owns what tensor-parallel ranks say to each other, over pipes. Must not know what is computed."""

from __future__ import annotations

from multiprocessing.connection import Connection
from typing import Any

import numpy as np


class Group:
    """One rank's view of the group: rank 0 holds a pipe to each other rank, the others one pipe to rank 0."""

    def __init__(self, rank: int = 0, pipes: list[Connection] | None = None) -> None:
        self.rank = rank
        self.pipes = pipes or []
        self.size = 1
        if self.pipes:
            self.size = self.pipes[0].recv() if rank else len(self.pipes) + 1
        if rank == 0:
            for pipe in self.pipes:
                pipe.send(self.size)

    def lead(self, name: str, *args: Any) -> None:
        """On rank 0: have the other ranks run the same method. Elsewhere nothing."""
        if self.rank == 0:
            for pipe in self.pipes:
                pipe.send((name, args))

    def follow(self, model: Any) -> None:
        """On the other ranks: run what rank 0 says, until it is gone."""
        while True:
            try:
                name, args = self.pipes[0].recv()
            except (EOFError, ConnectionError):
                return
            getattr(model, name)(*args)

    def all_reduce(self, part: np.ndarray) -> np.ndarray:
        """The sum of all ranks' parts, the same bits on every rank."""
        if self.size == 1:
            return part
        if self.rank:
            self.pipes[0].send_bytes(np.ascontiguousarray(part))
            return np.frombuffer(self.pipes[0].recv_bytes()).reshape(part.shape)
        total = part
        for pipe in self.pipes:
            total = total + np.frombuffer(pipe.recv_bytes()).reshape(part.shape)
        for pipe in self.pipes:
            pipe.send_bytes(total)
        return total
