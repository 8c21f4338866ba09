"""HTTP/1.1 answers as they arrive: the framing is read at once, so that little need be kept.

Owns where a body begins, which bytes are its own, and where it ends. Works on the receive buffer without copying
it. SGLang streams all of the text so far in every event; of a long fragment only its two ends are kept, where an
event's counts and its end stand. Must not know what a body means: stream.py does.
"""

from __future__ import annotations

import re

# Bytes kept of a long fragment's beginning and end; the counts of an event take some 600, at its end.
_BEGINNING, _END = 128, 1024
_HEAD_BYTES = 64 * 1024
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_CHUNKED = re.compile(rb"\r\ntransfer-encoding: *chunked", re.IGNORECASE)
# A chunk's size in hexadecimal with room for an extension.
_SIZE_LINE_BYTES = 256

# Bytes of a body with the time at which they arrived, in seconds of one clock.
Fragment = tuple[float, bytes]


class Answer:
    """One answer under way.

    `head` is the status line with the header, `fragments` the body. `is_whole` once all of it has come; of an
    answer that declares no length, only the end of the connection tells (`ended`). `is_broken`: it is not HTTP.
    """

    def __init__(self) -> None:
        self.head = b""
        self.fragments: list[Fragment] = []
        self.is_whole = False
        self.is_broken = False
        self._pending = b""  # of the head, or of a chunk's size line
        self._left = 0  # bytes until the end of the body or of its chunk, with the line end behind that
        self._is_chunked = False
        self._has_end = True

    def feed(self, buffer: bytearray, count: int, now: float) -> None:
        """Take the first `count` bytes of the buffer, which came at `now`."""
        view = memoryview(buffer)
        start = 0 if self.head else self._read_head(view, count)
        while start < count and not self.is_whole and not self.is_broken:
            if not self._is_chunked or self._left:
                start = self._read_body(view, start, count, now)
            elif (whole := self._whole_chunk(buffer, start, count)) is not None:
                self._keep(view[whole[0] : whole[1]], now)
                start = whole[1] + 2
            else:
                start = self._read_size(view, start, count)

    def _whole_chunk(self, buffer: bytearray, start: int, count: int) -> tuple[int, int] | None:
        """Where the data of a chunk lie that is all in the buffer: the usual case, and so the quick one."""
        line_end = buffer.find(b"\r\n", start, min(count, start + 10))
        if line_end < 0 or self._pending:
            return None
        try:
            size = int(buffer[start:line_end], 16)
        except ValueError:
            return None
        stop = line_end + 2 + size
        return (line_end + 2, stop) if size and stop + 2 <= count else None

    def ended(self) -> None:
        """The connection has been closed."""
        if self.head and not self._has_end:
            self.is_whole = True

    def _read_head(self, buffer: memoryview, count: int) -> int:
        """Where the body begins; `count` while it has not come."""
        before = len(self._pending)
        self._pending += buffer[:count].tobytes()
        end = self._pending.find(b"\r\n\r\n")
        if end < 0:
            self.is_broken = len(self._pending) > _HEAD_BYTES
            return count
        self.head, self._pending = self._pending[:end], b""
        length = _LENGTH.search(self.head)
        self._is_chunked = _CHUNKED.search(self.head) is not None
        self._has_end = self._is_chunked or length is not None
        if not self._is_chunked and length is not None:
            self._left = int(length[1])
            self.is_whole = self._left == 0
        return end + 4 - before

    def _read_size(self, buffer: memoryview, start: int, count: int) -> int:
        """Read a chunk's size; 0 ends the body."""
        line = self._pending + buffer[start : min(count, start + _SIZE_LINE_BYTES)].tobytes()
        end = line.find(b"\r\n")
        if end < 0:
            self._pending = line
            self.is_broken = len(line) > _SIZE_LINE_BYTES
            return count
        start += end + 2 - len(self._pending)
        self._pending = b""
        try:
            size = int(line[:end].partition(b";")[0], 16)
        except ValueError:
            self.is_broken = True
            return count
        self.is_whole = size == 0
        self._left = size + 2
        return start

    def _read_body(self, buffer: memoryview, start: int, count: int, now: float) -> int:
        """Keep what of the buffer belongs to the body."""
        if not self._has_end:
            self._keep(buffer[start:count], now)
            return count
        stop = min(count, start + self._left)
        self._left -= stop - start
        # The line end behind a chunk is none of the body's.
        inside = stop - max(0, 2 - self._left) if self._is_chunked else stop
        if inside > start:
            self._keep(buffer[start:inside], now)
        if not self._is_chunked:
            self.is_whole = self._left == 0
        return stop

    def _keep(self, data: memoryview, now: float) -> None:
        if len(data) > 2 * _END:
            self.fragments.append((now, data[:_BEGINNING].tobytes() + data[-_END:].tobytes()))
        else:
            self.fragments.append((now, data.tobytes()))
