"""What SGLang's log lines say, from 0.4.6 on; the small engine writes the same.

Owns reading lines that are given to it: batches, the accept rate's two definitions, warnings that cost speed.
Must not open a file.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Sequence

import msgspec

# "[2026-11-30 11:59:23 DP0 TP0] " before "Decode batch", which a counter "[12]" may follow.
_BATCH = re.compile(
    r"\[(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)((?: [A-Z_]+\d+)*)\] (Prefill|Decode) batch(?: \[(\d+)\])?[,.] (.*)"
)
_RANK = re.compile(r"([A-Z_]+)(\d+)")
_FIELD = re.compile(r"(?:^|, )([^,:]+(?:\([^)]*\))?): ([^,]*)")

# What a start that went well can say that costs speed, with what to make of it.
_WARNINGS = (
    (
        re.compile(r"Using default MoE (kernel )?config\. Performance"),
        "it has no tuned MoE kernels for this GPU and model, and says that performance might be sub-optimal",
    ),
    (
        re.compile(r"Max running requests is reset to 48"),
        "it set max-running-requests to 48 for speculative decoding, since the manifest leaves it open",
    ),
    (
        re.compile(r"[Cc]ustom ?[Aa]ll-?[Rr]educe(V2)? is disabled (because|due)"),
        "custom all-reduce is off, and NCCL does its work: the log says why",
    ),
    (re.compile(r"Ignoring the specified token map"), "it ignores speculative-token-map: EAGLE-3 drafts have one"),
)
_NCCL = re.compile(r"sglang is using nccl==([\w.]+)")
_ATTENTION = re.compile(r"Attention backend not (?:specified|set)\. Use (\w+) backend by default")


class Batch(msgspec.Struct, frozen=True, kw_only=True):
    """One line of a scheduler; what is not there is None. `ranks` are its parts as {"TP": 0}, `time` is local.

    `accept_len` counts the bonus token, in every version. `accept_rate` is as printed: see `accept_rate`.
    """

    phase: str
    time: datetime.datetime
    ranks: dict[str, int] = {}
    iteration: int | None = None
    running: int | None = None
    queued: int | None = None
    tokens: int | None = None
    accept_len: float | None = None
    accept_rate: float | None = None
    gen_throughput: float | None = None
    input_throughput: float | None = None


def batch(line: str) -> Batch | None:
    """A line as a batch; None for any other line."""
    found = _BATCH.search(line)
    if found is None:
        return None
    try:
        time = datetime.datetime.fromisoformat(found[1])
    except ValueError:
        return None  # a line that something else has torn or written
    fields = {key.strip(): value.strip() for key, value in _FIELD.findall(found[5])}
    return Batch(
        phase=found[3].lower(),
        time=time,
        ranks={name: int(number) for name, number in _RANK.findall(found[2])},
        iteration=int(found[4]) if found[4] else None,
        running=_whole(fields.get("#running-req")),
        queued=_whole(fields.get("#queue-req")),
        tokens=_whole(fields.get("#token", fields.get("#new-token"))),
        accept_len=_number(fields.get("accept len")),
        accept_rate=_number(fields.get("accept rate")),
        gen_throughput=_number(fields.get("gen throughput (token/s)")),
        input_throughput=_number(fields.get("input throughput (token/s)")),
    )


def accept_rate(accept_len: float, num_draft_tokens: int) -> float | None:
    """Accepted drafts of those proposed, as SGLang prints it since 0.5.11; None where nothing is proposed.

    From 0.5.4 to 0.5.10 it printed accept_len / num_draft_tokens instead, which counts the bonus token: of two
    versions only the accept length compares.
    """
    return (accept_len - 1) / (num_draft_tokens - 1) if num_draft_tokens > 1 else None


def accept_rate_from_older(printed: float, num_draft_tokens: int) -> float | None:
    """The rate since 0.5.11 for one that 0.5.4 to 0.5.10 printed."""
    return accept_rate(printed * num_draft_tokens, num_draft_tokens)


def summary(lines: Sequence[str]) -> str:
    """The last accept length and generation throughput, in a few words."""
    found = [one for one in map(batch, lines) if one is not None and one.phase == "decode"]
    if not found or found[-1].gen_throughput is None:
        return ""
    last = found[-1]
    length = "" if last.accept_len is None else f"accept length {last.accept_len:.2f}, "
    return f"{length}{last.gen_throughput:.0f} tok/s at {last.time:%H:%M:%S}"


def step_ms(lines: Sequence[str]) -> float | None:
    """How long a step of speculative decoding took, drafting included: the median over decode lines.

    Each running request gains the accept length by a step, and the throughput tells how fast. The first line is
    left out: its interval began before the others.
    """
    found = [
        1e3 * one.running * one.accept_len / one.gen_throughput
        for one in map(batch, lines)
        if one is not None and one.phase == "decode" and one.running and one.accept_len and one.gen_throughput
    ]
    ordered = sorted(found[1:])
    return ordered[len(ordered) // 2] if ordered else None


def notes(lines: Sequence[str]) -> tuple[str, ...]:
    """Each warning that costs speed, once, and what the engine chose by itself."""
    text = "\n".join(lines)
    found = [sentence for pattern, sentence in _WARNINGS if pattern.search(text)]
    chosen = _ATTENTION.findall(text)
    if chosen:
        found.append(f"it chose attention-backend {chosen[-1]}, since the manifest leaves it open")
    return tuple(found)


def nccl_version(lines: Sequence[str]) -> str | None:
    """The version of NCCL that a worker says it has loaded; only the library itself is proof of it."""
    found = _NCCL.findall("\n".join(lines))
    return found[-1] if found else None


def _number(text: str | None) -> float | None:
    try:
        return None if text is None else float(text)
    except ValueError:
        return None


def _whole(text: str | None) -> int | None:
    number = _number(text)
    return None if number is None else int(number)
