"""The memory of digests: an SQLite database that may be missing, deleted, damaged or locked at any time.

Owns storage only. Every failure means "not remembered", never an error; every value carries a checksum, so
that damage means the same. Must not decide whether a remembered digest may be trusted: see host/snapshot.py
and host/file_digests.py.
"""

from __future__ import annotations

import contextlib
import hashlib
import sqlite3
import threading
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

_SCHEMA = 2
_BUSY_S = 0.5
_CHECK_BYTES = 8
_DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


class DigestMemory:
    """Values by kind and key. Two processes may use one database at once; threads may share one object.

    Works without its database where that cannot be used: then nothing is remembered. A damaged database is
    removed, so that the next process starts a new one; one of a newer pinner is left alone.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._connection: sqlite3.Connection | None = None
        self._is_usable = path is not None
        self._lock = threading.Lock()

    def __del__(self) -> None:
        self.close()

    def recall(self, kind: str, key: bytes) -> bytes | None:
        """The value remembered under a key, or None."""
        with self._lock:
            try:
                connection = self._open(create=False)
                if connection is None:
                    return None
                row = connection.execute(
                    "SELECT value, checksum FROM digest WHERE kind = ? AND key = ?", (kind, key)
                ).fetchone()
            except (sqlite3.Error, OSError) as error:
                self._give_up(error)
                return None
        if row is None or not (isinstance(row[0], bytes) and row[1] == _checksum(kind, key, row[0])):
            return None
        return row[0]

    def remember(self, kind: str, values: Mapping[bytes, bytes]) -> None:
        """Store values, all or none; on any failure, none."""
        rows = [(kind, key, value, _checksum(kind, key, value)) for key, value in values.items()]
        self._write("INSERT OR REPLACE INTO digest (kind, key, value, checksum) VALUES (?, ?, ?, ?)", rows)

    def forget(self, kind: str, keys: Iterable[bytes]) -> None:
        """Drop values; on any failure they stay."""
        self._write("DELETE FROM digest WHERE kind = ? AND key = ?", [(kind, key) for key in keys])

    def keys(self, kind: str) -> list[bytes]:
        """The keys of one kind, in no order."""
        with self._lock:
            try:
                connection = self._open(create=False)
                if connection is None:
                    return []
                rows = connection.execute("SELECT key FROM digest WHERE kind = ?", (kind,)).fetchall()
            except (sqlite3.Error, OSError) as error:
                self._give_up(error)
                return []
        return [key for (key,) in rows if isinstance(key, bytes)]

    def close(self) -> None:
        """Let go of the database; the object may still be used."""
        with self._lock:
            self._close()

    def _write(self, statement: str, rows: Sequence[tuple[str | bytes, ...]]) -> None:
        if not rows:
            return
        with self._lock:
            try:
                connection = self._open(create=True)
                if connection is not None:
                    with connection:
                        connection.executemany(statement, rows)
            except (sqlite3.Error, OSError) as error:
                self._give_up(error)

    def _open(self, *, create: bool) -> sqlite3.Connection | None:
        if self._connection is not None or not self._is_usable or self._path is None:
            return self._connection
        if not self._path.exists():
            if not create:
                return None
            self._path.parent.mkdir(parents=True, exist_ok=True)
        connection = sqlite3.connect(self._path, timeout=_BUSY_S, check_same_thread=False)
        self._connection = connection
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        if version > _SCHEMA:
            self._is_usable = False
            self._close()
            return None
        # Losing the last writes to a power cut costs nothing here, waiting for the disk does.
        connection.execute("PRAGMA synchronous = OFF")
        if version < _SCHEMA:
            _create(connection)
        return connection

    def _give_up(self, error: Exception) -> None:
        """Work without the database from here on."""
        self._is_usable = False
        self._close()
        if getattr(error, "sqlite_errorcode", None) in _DAMAGED and self._path is not None:
            for name in (self._path, self._path.with_name(self._path.name + "-journal")):
                with contextlib.suppress(OSError):
                    name.unlink()

    def _close(self) -> None:
        if self._connection is not None:
            with contextlib.suppress(sqlite3.Error):
                self._connection.close()
            self._connection = None


def _create(connection: sqlite3.Connection) -> None:
    with connection:
        # A tree of 48,000 files is one value of 5 MB: large pages halve the time it takes to read.
        connection.execute("PRAGMA page_size = 65536")
        connection.execute("BEGIN IMMEDIATE")
        # Another process may have done it in between.
        if connection.execute("PRAGMA user_version").fetchone()[0] < _SCHEMA:
            connection.execute("DROP TABLE IF EXISTS digest")
            connection.execute(
                "CREATE TABLE digest (kind TEXT, key BLOB, checksum BLOB, value BLOB, PRIMARY KEY (kind, key))"
            )
            connection.execute(f"PRAGMA user_version = {_SCHEMA}")


def _checksum(kind: str, key: bytes, value: bytes) -> bytes:
    hasher = hashlib.sha256(kind.encode())
    hasher.update(len(key).to_bytes(4, "little") + key)
    hasher.update(value)
    return hasher.digest()[:_CHECK_BYTES]
