"""What a streamed answer of `/generate` says: when tokens came, how many, and whether it is an answer at all.

Pure: takes the pieces of a connection with their times, as measure/client.py has kept them, and decodes them after
the measuring. Counts come from the engine's own account in each event: a chunk may hold several tokens.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import msgspec

# Bytes with the time at which they arrived, in seconds of one clock.
Piece = tuple[float, bytes]

# Within a string of the answer its quotes would be escaped, so that generated text cannot look like it.
_TOKENS = b'"completion_tokens":'
_DIGITS = re.compile(rb" ?(\d+)")
_STATUS = re.compile(rb"HTTP/1\.[01] (\d{3})")
_DATA = b"data: "
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
    meta_info: _Meta | None = None
    error: Any = None


def decode(pieces: Sequence[Piece], *, wanted: int | None) -> Reply:
    """The answer that these pieces are. `wanted` is how many tokens must have come; None where fewer are fine."""
    raw = b"".join(data for _, data in pieces)
    head, separator, _ = raw.partition(b"\r\n\r\n")
    status = _STATUS.match(head)
    if not separator or status is None:
        return _failed("no answer", "the connection was closed before an answer" if not raw else "not HTTP")
    if status[1] != b"200":
        return _failed(f"status {status[1].decode()}", _text(raw[len(head) + 4 :]))
    body, is_whole = _body(raw, len(head) + 4, is_chunked=b"transfer-encoding: chunked" in head.lower())
    return _reply(body, _ends(pieces), wanted, is_whole=is_whole)


def _reply(body: list[tuple[int, bytes]], ends: _Ends, wanted: int | None, *, is_whole: bool) -> Reply:
    arrivals: list[tuple[float, int]] = []
    last, so_far, is_done = b"", 0, False
    for offset, event in _events(body):
        at = event.rfind(_TOKENS)
        if at < 0:
            if event.startswith(_DONE):
                is_done = True
                continue
            return _error(event, arrivals)
        last, count = event, _number(event, at + len(_TOKENS))
        if count > so_far:
            arrivals.append((ends.time_of(offset), count))
            so_far = count
    meta = _meta(last)
    if not arrivals or meta is None:
        return _failed("empty stream", "a 200 answer that brought no token")
    failure = None
    if not (is_whole and is_done):
        failure = Failure("truncated", f"the stream broke off after {arrivals[-1][1]} tokens")
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


def _events(parts: list[tuple[int, bytes]]) -> Iterator[tuple[int, bytes]]:
    """Each event with where the part ends that completes it; a part is mostly one event."""
    pending = b""
    for offset, part in parts:
        whole = pending + part if pending else part
        if not whole.endswith(b"\n\n"):
            pending = whole
            continue
        pending = b""
        if whole.find(b"\n\n") == len(whole) - 2 and whole.startswith(_DATA):
            yield offset, whole
            continue
        for event in whole.split(b"\n\n"):
            if event.startswith(_DATA):
                yield offset, event


def _number(event: bytes, start: int) -> int:
    found = _DIGITS.match(event, start)
    return int(found[1]) if found else 0


class _Ends(NamedTuple):
    """Where each piece ends in the whole, and when it came."""

    offsets: list[int]
    times: list[float]

    def time_of(self, offset: int) -> float:
        """When the byte before `offset` arrived."""
        return self.times[min(bisect_left(self.offsets, offset), len(self.times) - 1)]


def _ends(pieces: Sequence[Piece]) -> _Ends:
    offsets, total = [], 0
    for _, data in pieces:
        total += len(data)
        offsets.append(total)
    return _Ends(offsets, [at for at, _ in pieces])


def _body(raw: bytes, start: int, *, is_chunked: bool) -> tuple[list[tuple[int, bytes]], bool]:
    """The parts of a body with where each ends, and whether it is whole."""
    if not is_chunked:
        return [(len(raw), raw[start:])], True
    parts: list[tuple[int, bytes]] = []
    while (line_end := raw.find(b"\r\n", start)) >= 0:
        try:
            size = int(raw[start:line_end].partition(b";")[0], 16)
        except ValueError:
            return parts, False
        start = line_end + 2 + size
        if size == 0:
            return parts, True
        if start + 2 > len(raw):
            break
        parts.append((start, raw[line_end + 2 : start]))
        start += 2
    return parts, False


def _meta(event: bytes) -> _Meta | None:
    try:
        return msgspec.json.decode(event.removeprefix(_DATA), type=_Event).meta_info
    except msgspec.MsgspecError:
        return None


def _error(event: bytes, arrivals: Sequence[tuple[float, int]]) -> Reply:
    """An event without a count: an error under status 200, or something that is no answer."""
    try:
        error = msgspec.json.decode(event.removeprefix(_DATA), type=_Event).error
    except msgspec.MsgspecError:
        error = None
    after = f"after {arrivals[-1][1] if arrivals else 0} tokens: "
    if error is None:
        return _failed("unknown event", after + _text(event))
    return _failed("error in stream", after + _text(msgspec.json.encode(error)))


def _failed(kind: str, detail: str) -> Reply:
    return Reply(failure=Failure(kind, detail))


def _text(data: bytes) -> str:
    return data[:300].decode(errors="replace").strip()
