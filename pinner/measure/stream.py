"""What a streamed answer of `/generate` says: when tokens came, how many, and whether it is an answer at all.

Pure: takes an answer with its times, as measure/framing.py has kept it, and decodes it after the measuring. Counts
come from the engine's own account in each event: a chunk may hold several tokens.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
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
_DONE = b"data: [DONE]"


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
    arrivals: list[tuple[float, int]] = []
    last, so_far, is_done = b"", 0, False
    for at, whole in _completed(answer):
        # Mostly one event with a count; else the end, several at once, or something that is no answer.
        is_one = whole.find(_STOP) == len(whole) - len(_STOP)
        for event in (whole,) if is_one else whole.split(_STOP)[:-1]:
            place = event.rfind(_TOKENS)
            if place < 0:
                if event.startswith(_DONE):
                    is_done = True
                elif event.startswith(_DATA):
                    return _error(event, so_far)
                continue
            last, count = event, _number(event, place + len(_TOKENS))
            if count > so_far:
                arrivals.append((at, count))
                so_far = count
    meta = _meta(last)
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


def _completed(answer: Answer) -> Iterator[tuple[float, bytes]]:
    """Whole events, mostly one at a time, with when the last byte came."""
    pending = b""
    for at, fragment in answer.fragments:
        whole = pending + fragment if pending else fragment
        if whole.endswith(_STOP):
            yield at, whole
            pending = b""
        elif (stop := whole.rfind(_STOP)) >= 0:
            yield at, whole[: stop + len(_STOP)]
            pending = whole[stop + len(_STOP) :]
        else:
            pending = whole


def _number(whole: bytes, start: int) -> int:
    found = _DIGITS.match(whole, start)
    return int(found[1]) if found else 0


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
