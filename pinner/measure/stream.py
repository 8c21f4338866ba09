"""What a streamed answer of `/generate` says: when tokens came, how many, and whether it is an answer at all.

Pure: takes an answer with its times, as measure/framing.py has kept it, and decodes it after the measuring. Counts
come from the engine's own account in each event: a chunk may hold several tokens.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

from pinner.measure.framing import Answer

# Within a string of the answer its quotes would be escaped, so that generated text cannot look like it.
_TOKENS = b'"completion_tokens":'
_DIGITS = re.compile(rb" ?(\d+)")
_STATUS = re.compile(rb"HTTP/1\.[01] (\d{3})")
_META = b'"meta_info":'
_DECODER = json.JSONDecoder()
_DATA = b"data: "
_STOP = b"\n\n"
_NEXT = _STOP + _DATA
_DONE = b"data: [DONE]\n\n"


class Failure(NamedTuple):
    """Why a request does not count: its kind, and what was said."""

    kind: str
    detail: str = ""


class Reply(msgspec.Struct, frozen=True, kw_only=True):
    """A decoded answer.

    `arrivals` are (time, tokens so far) for each event that brought tokens. `cached_tokens` and `verify_calls` are
    None where the engine does not tell them.
    """

    arrivals: tuple[tuple[float, int], ...] = ()
    output_tokens: int = 0
    input_tokens: int = 0
    cached_tokens: int | None = None
    verify_calls: int | None = None
    failure: Failure | None = None


class _Meta(msgspec.Struct):
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int | None = None
    spec_verify_ct: int | None = None
    spec_accept_length: float | None = None

    @property
    def verify_calls(self) -> int | None:
        """As told; of versions that tell only their quotient, what it follows from."""
        if self.spec_verify_ct is None and self.spec_accept_length:
            return round(self.completion_tokens / self.spec_accept_length)
        return self.spec_verify_ct


class _Event(msgspec.Struct):
    error: Any = None


def decode(answer: Answer, *, wanted: int | None) -> Reply:
    """The reply that an answer is. `wanted` is how many tokens must have come; None where fewer are fine."""
    status = _STATUS.match(answer.head)
    if status is None:
        return _failed("no answer", "not HTTP" if answer.head or answer.is_broken else "the connection was closed")
    if status[1] != b"200":
        return _failed(f"status {status[1].decode()}", _text(b"".join(data for _, data in answer.fragments)))
    return _reply(answer, wanted)


def _reply(answer: Answer, wanted: int | None) -> Reply:
    data = b"".join(fragment for _, fragment in answer.fragments)
    counts = _counts(data)
    arrivals = _arrivals(answer, counts)
    so_far = arrivals[-1][1] if arrivals else 0
    is_done = data.endswith(_DONE)
    strange = _strange(data, len(counts) + is_done)
    if strange is not None:
        return _error(strange, so_far)
    meta = _meta(data[: counts[-1][0]]) if counts else None
    if not arrivals or meta is None:
        return _failed("empty stream", "a 200 answer that brought no token")
    failure = None
    if not (answer.is_whole and is_done):
        failure = Failure("truncated", f"the stream broke off after {so_far} tokens")
    elif wanted is not None and meta.completion_tokens != wanted:
        failure = Failure("early stop", f"{meta.completion_tokens} tokens came where {wanted} were asked for")
    return Reply(
        arrivals=tuple(arrivals),
        output_tokens=meta.completion_tokens,
        input_tokens=meta.prompt_tokens,
        cached_tokens=meta.cached_tokens,
        verify_calls=meta.verify_calls,
        failure=failure,
    )


def _counts(data: bytes) -> list[tuple[int, int]]:
    """Where each whole event with a count ends, and the count."""
    counts = []
    at = data.find(_TOKENS)
    while at >= 0 and (stop := data.find(_STOP, at)) >= 0:
        found = _DIGITS.match(data, at + len(_TOKENS))
        if found is not None:
            counts.append((stop + len(_STOP), int(found[1])))
        at = data.find(_TOKENS, stop)
    return counts


def _arrivals(answer: Answer, counts: Sequence[tuple[int, int]]) -> list[tuple[float, int]]:
    """When the tokens had come that each event tells of, which is complete with its last byte."""
    arrivals: list[tuple[float, int]] = []
    fragments = iter(answer.fragments)
    at, end, so_far = 0.0, 0, 0
    for offset, count in counts:
        while end < offset:
            at, fragment = next(fragments)
            end += len(fragment)
        if count > so_far:
            arrivals.append((at, count))
            so_far = count
    return arrivals


def _strange(data: bytes, expected: int) -> bytes | None:
    """The first event without a count, where there are more events than those that are `expected`."""
    if data.count(_NEXT) + data.startswith(_DATA) == expected:
        return None
    events = data.split(_STOP)[:-1]  # what follows the last end is no event yet
    told = (event for event in events if event.startswith(_DATA) and event + _STOP != _DONE)
    return next((event for event in told if _TOKENS not in event), None)


def _meta(event: bytes) -> _Meta | None:
    """The counts of an event, of whose text the middle may be missing: they stand in an object of their own."""
    start = event.rfind(_META)
    if start < 0:
        return None
    try:
        text = event[start + len(_META) :].decode()
        return msgspec.convert(_DECODER.raw_decode(text.lstrip())[0], _Meta)
    except (ValueError, msgspec.MsgspecError):
        return None


def _error(event: bytes, so_far: int) -> Reply:
    """An event without a count: an error under status 200, or something that is no answer."""
    try:
        error = msgspec.json.decode(event.removeprefix(_DATA), type=_Event).error
    except msgspec.MsgspecError:
        error = None
    after = f"after {so_far} tokens: "
    if error is None:
        return _failed("unknown event", after + _text(event))
    return _failed("error in stream", after + _text(msgspec.json.encode(error)))


def _failed(kind: str, detail: str) -> Reply:
    return Reply(failure=Failure(kind, detail))


def _text(data: bytes) -> str:
    return data[:300].decode(errors="replace").strip()
