"""What an engine module knows about one kind of server software.

An engine is a module with these names; pinner/engines/__init__.py lists them. It holds facts and turns a
manifest into arguments; it must not start processes or touch files.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import msgspec

from pinner.host.http import Http
from pinner.model.lock import SourcePin
from pinner.model.manifest import Manifest
from pinner.model.pair import Pair, Verdict


class Health(msgspec.Struct, frozen=True):
    """A server's own word: `is_starting` while it does not listen yet or says so itself; `detail` for a person."""

    is_up: bool
    is_starting: bool = False
    detail: str = ""


class StepTime(msgspec.Struct, frozen=True):
    """Steps of one kind since the server started: how many, and how long all took."""

    count: int
    total_ms: float


class EngineState(msgspec.Struct, frozen=True, kw_only=True):
    """A server's own account of its state; `steps` by the names of pinner/model/bench.py."""

    version: str | None = None
    steps: Mapping[str, StepTime] = {}


class Engine(Protocol):
    """One kind of server software."""

    NAME: str
    # The top-level package whose import decides which code runs.
    PACKAGE: str
    # Paths of the repository whose commits are known to move performance.
    HOT_PATHS: tuple[str, ...]
    # Prefixes of the variables that change what the engine computes or how fast.
    FAMILIES: tuple[str, ...]
    # Variables that make its results a fake, with the reason why a deployment must not have them.
    FORBIDDEN: Mapping[str, str]
    # Variables that place kernel, autotune and compile caches, each with a directory below the caches' root.
    CACHES: Mapping[str, str]
    # The program of argument_question.py for this engine.
    ARGUMENT_QUESTION: str
    # Where a request is put whose answer streams.
    STREAM_PATH: str
    # Python that makes `parser`, the engine's own, in the engine's interpreter.
    PARSER: str
    # How a running server can have been started, the way in which pinner starts it first: "-m MODULE", "PROGRAM
    # SUBCOMMAND" or "package/file.py". The first word after a subcommand may be the model.
    ENTRIES: tuple[str, ...]
    # Short names of flags, for where the engine's own parser cannot be asked.
    ALIASES: Mapping[str, str]

    def argv(self, manifest: Manifest) -> tuple[str, ...]:
        """The whole argument list after the interpreter, with placeholders for the paths of this machine."""

    def judge_pair(self, pair: Pair) -> Verdict:
        """Whether a draft fits its target and the arguments, before anything is loaded."""

    def argument_problems(self, manifest: Manifest, source: SourcePin) -> list[tuple[str, str]]:
        """Arguments that the pinned source is known not to have by that name, as (key path, sentence)."""

    def notes(self, manifest: Manifest, source: SourcePin) -> tuple[str, ...]:
        """What is worth knowing of what the manifest leaves to the engine."""

    def sets(self, source: SourcePin) -> frozenset[str]:
        """Variables that the pinned source sets by itself."""

    def log_summary(self, lines: Sequence[str]) -> str:
        """What the last lines of a server's log say of its speed; "" where they say nothing."""

    def log_notes(self, lines: Sequence[str]) -> tuple[str, ...]:
        """What a log tells of a start that went well and is not as fast as it could be."""

    def uses_gpus(self, argv: tuple[str, ...]) -> bool:
        """Whether a server with these arguments computes on GPUs."""

    def health(self, http: Http, url: str, *, timeout_s: float) -> Health:
        """What the server says of itself; only a generation proves anything."""

    def generate(self, http: Http, url: str, *, timeout_s: float) -> int:
        """Generate a few tokens and count them. Raises HttpFailed, also for an answer that is none."""

    def request(self, prompt: str | list[int], params: Mapping[str, Any]) -> Mapping[str, Any]:
        """The body of a request whose answer streams; `params` are SGLang's sampling parameters."""

    def flush(self, http: Http, url: str) -> str | None:
        """Empty the prefix cache; None if that was done, else why not."""

    def state(self, http: Http, url: str) -> EngineState:
        """What the server says of itself beside its arguments. Raises HttpFailed."""

    def log_step_ms(self, lines: Sequence[str]) -> float | None:
        """How long a step of speculative decoding took, by lines of a log; None where they say nothing."""

    def without_draft(self, argv: tuple[str, ...]) -> tuple[str, ...]:
        """The same argument list without speculative decoding."""

    def account(self, http: Http, url: str) -> Mapping[str, Any]:
        """The server's own account of its arguments, by flag name with underscores; secrets left out."""
