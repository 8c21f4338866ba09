"""Control calls to a server on this machine.

Owns requests: no proxies, no redirects to elsewhere, no caller's netrc. Not for load; benchmarks have a client
of their own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec


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
        try:
            response = self._session.request(
                method, url, json=body, timeout=timeout_s, allow_redirects=False, stream=False
            )
        except self._errors.Timeout:
            raise HttpFailed(f"no answer within {timeout_s:g} s", timed_out=True) from None
        except self._errors.RequestException as error:
            raise HttpFailed(_short(error)) from None
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
