"""Plain tar archives of read-only files: the same bytes for the same content, and nothing else on the way in.

Owns the form of an archive. Must not know what the files mean, and never writes what an archive holds: it hands
out streams. Not compressed, because what is large in it is already, and no two libraries compress alike.
"""

from __future__ import annotations

import os
import tarfile
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, NamedTuple, Protocol

from pinner.errors import RecordError, UsageError
from pinner.host.files import sync_directory


class Readable(Protocol):
    """What bytes are read from."""

    def read(self, size: int = -1, /) -> bytes: ...


class Entry(NamedTuple):
    """One file of an archive, to be read before the next one is asked for; `stream` may raise RecordError too."""

    name: str
    size: int
    stream: Readable


def is_tarball(path: Path) -> bool:
    """Whether a file begins as an archive does."""
    with path.open("rb") as stream:
        return stream.read(512)[257:262] == b"ustar"


def write(path: Path, files: Iterable[tuple[str, Path]], *, mtime: int) -> None:
    """Write an archive whole or not at all. UsageError where `path` exists."""
    if path.exists() or path.is_symlink():
        raise UsageError(f"{path} exists already", hint="name another file; nothing is overwritten")
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name[:64]}.", dir=path.parent)
    temporary = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as out:
            with tarfile.open(fileobj=out, mode="w|", format=tarfile.PAX_FORMAT) as archive:
                for inside, source in files:
                    with source.open("rb") as stream:
                        info = tarfile.TarInfo(inside)
                        info.size, info.mode, info.mtime = os.fstat(stream.fileno()).st_size, 0o444, mtime
                        archive.addfile(info, stream)
            out.flush()
            os.fsync(out.fileno())
        temporary.chmod(0o644)
        temporary.rename(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_directory(path.parent)


def entries(path: Path) -> Iterator[Entry]:
    """The files of an archive in order. RecordError where it is cut short, or holds anything but plain files."""
    try:
        with tarfile.open(path, mode="r:") as archive:
            seen = set()
            for info in archive:
                if info.name in seen:
                    raise RecordError(f"{path}: holds {info.name!r} twice")
                seen.add(info.name)
                if info.type not in (tarfile.REGTYPE, tarfile.AREGTYPE) or info.issparse():
                    raise RecordError(f"{path}: {info.name!r} is no plain file")
                stream = archive.extractfile(info)
                assert stream is not None
                yield Entry(info.name, info.size, _Guarded(path, stream))
    except tarfile.TarError as error:
        raise _damaged(path, error) from None


class _Guarded:
    """A file of an archive that may be cut short within it."""

    def __init__(self, path: Path, stream: IO[bytes]) -> None:
        self._path, self._stream = path, stream

    def read(self, size: int = -1, /) -> bytes:
        try:
            return self._stream.read(size)
        except tarfile.TarError as error:
            raise _damaged(self._path, error) from None


def _damaged(path: Path, error: tarfile.TarError) -> RecordError:
    return RecordError(f"{path}: the archive is damaged or cut short: {error}")
