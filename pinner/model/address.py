"""Addresses of indexes and repositories, as a lock may hold them."""

from __future__ import annotations

from urllib.parse import urlsplit, urlunsplit


def without_credentials(address: str) -> str:
    """An address without user and password."""
    parts = urlsplit(address)
    if "@" not in parts.netloc:
        return address
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))
