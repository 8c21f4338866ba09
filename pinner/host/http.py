"""Control calls to a server on this machine.

Owns requests: no proxies, no redirects to elsewhere, no caller's netrc. Not for load; benchmarks have a client
of their own.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Mapping
from typing import Any

import msgspec

# Beyond the deadline that the exchange itself keeps, so that its own words are told where they can be.
_GRACE_S = 0.25


class Answer(msgspec.Struct, frozen=True):
    """An HTTP status, and the body as parsed JSON (None where it is not JSON)."""

    status: int
    body: Any


class HttpFailed(Exception):
    """No answer: refused, timed out or broken off. The text says which."""

    def __init__(self, text: str, *, timed_out: bool = False) -> None:
        super().__init__(text)
        self.timed_out = timed_out


class Http:
    """A session that speaks to one server directly, whatever proxies the caller's environment names."""

    def __init__(self) -> None:
        import requests  # noqa: PLC0415  # 270 ms that only a launch has to pay

        self._errors = requests
        self._session = requests.Session()
        self._session.trust_env = False

    def get(self, url: str, *, timeout_s: float) -> Answer:
        """GET. Raises HttpFailed."""
        return self._call("GET", url, None, timeout_s)

    def post(self, url: str, body: Mapping[str, Any], *, timeout_s: float) -> Answer:
        """POST JSON. Raises HttpFailed."""
        return self._call("POST", url, body, timeout_s)

    def _call(self, method: str, url: str, body: Mapping[str, Any] | None, timeout_s: float) -> Answer:
        """One call under one deadline; requests' own timeout begins anew with every byte that comes."""
        results: queue.SimpleQueue[Answer | HttpFailed] = queue.SimpleQueue()
        work = threading.Thread(
            target=lambda: results.put(self._exchange(method, url, body, timeout_s)), daemon=True, name="http"
        )
        work.start()
        try:
            result = results.get(timeout=timeout_s + _GRACE_S)
        except queue.Empty:
            result = HttpFailed(f"no whole answer within {timeout_s:g} s", timed_out=True)
        if isinstance(result, HttpFailed):
            raise result
        return result

    def _exchange(
        self, method: str, url: str, body: Mapping[str, Any] | None, timeout_s: float
    ) -> Answer | HttpFailed:
        try:
            response = self._session.request(method, url, json=body, timeout=timeout_s, allow_redirects=False)
        except self._errors.Timeout:
            return HttpFailed(f"no answer within {timeout_s:g} s", timed_out=True)
        except self._errors.RequestException as error:
            return HttpFailed(_short(error))
        try:
            parsed = response.json()
        except ValueError:
            parsed = None
        return Answer(response.status_code, parsed)


def _short(error: Exception) -> str:
    """requests wraps urllib3, which wraps the system's error; a person wants the innermost."""
    text = str(error)
    for known in ("Connection refused", "Connection reset by peer", "Remote end closed connection"):
        if known in text:
            return known.lower()
    return text.splitlines()[0][:200]
