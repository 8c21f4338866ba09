"""Records as one file: out of here, and in again with every byte verified.

Owns what an exported file holds. On the way in nothing is trusted: names, sizes and digests are checked before
anything counts as a record, and what is here already is never overwritten.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

from pinner.errors import RecordError, UsageError
from pinner.host import tarball
from pinner.host.home import Home
from pinner.host.tarball import Entry
from pinner.measure import records
from pinner.measure.records import Stored, digest_of
from pinner.model.record import RECORD_FILE, SIGNATURE_FILE, STATEMENT_FILE

SUFFIX = ".pinrec.tar"
# More than any record holds; an archive that claims more is not unpacked.
MAX_TOTAL_BYTES = 4 * 1024**3
_MAX_SIGNATURE_BYTES = 16 * 1024 * 1024


def export_record(stored: Stored, target: Path) -> Path:
    """Write a record with its files and signature to one file, in a directory to one of the record's name."""
    if stored.path.is_file():
        raise UsageError(f"{stored.path} is an exported file already", hint="copy it as it is")
    records.untouched(stored.path)
    path = target / f"{stored.name}{SUFFIX}" if target.is_dir() else target
    if not path.parent.is_dir():
        raise UsageError(f"{path.parent} is no directory")
    names = [RECORD_FILE, *sorted(stored.record.files)]
    names += [name for name in (STATEMENT_FILE, SIGNATURE_FILE) if (stored.path / SIGNATURE_FILE).is_file()]
    files = ((f"{stored.name}/{name}", stored.path / name) for name in names)
    tarball.write(path, files, mtime=int(stored.record.began))
    return path


def import_record(path: Path, home: Home) -> Stored:
    """Take in an exported file. RecordError naming the first thing that is not what record.json says."""
    with records.staging(home) as stage:
        contents = _Contents(path)
        digests = {}
        for entry in contents.others():
            digests[entry.name] = records.add_file(stage, entry.name, entry.stream)
        contents.judge(digests)
        _refuse_foreign_statement(contents, stage)
        return records.settle(stage, contents.data, home)


def read_exported(path: Path) -> Stored:
    """An exported file as a record, verified; nothing is written."""
    contents = _Contents(path)
    digests = {}
    for entry in contents.others():
        digests[entry.name] = digest_of(entry.stream)
    contents.judge(digests)
    return Stored(id=contents.id, path=path, record=contents.record)


def read_file(stored: Stored, name: str) -> bytes:
    """One of a record's files, wherever that lies. RecordError if it is not as it was written."""
    digest = stored.record.files.get(name)
    if digest is None:
        raise RecordError(f"{stored.path}: the record holds no {name}")
    data = _inside(stored.path, name) if stored.path.is_file() else _beside(stored.path / name)
    if f"sha256:{hashlib.sha256(data).hexdigest()}" != digest:
        raise RecordError(f"{stored.path}: {name} has been changed")
    return data


def _beside(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise RecordError(f"cannot read {path}: {error.strerror}") from None


def _inside(archive: Path, name: str) -> bytes:
    for entry in _Contents(archive).others():
        if entry.name == name:
            return entry.stream.read()
    raise RecordError(f"{archive}: {name} is missing")


class _Contents:
    """An archive whose record.json has been read and found good; the other files can be read once."""

    def __init__(self, path: Path) -> None:
        if not tarball.is_tarball(path):
            raise RecordError(f"{path}: is no exported record")
        self.path = path
        self._entries = tarball.entries(path)
        first = next(self._entries, None)
        if first is None or not first.name.endswith(f"/{RECORD_FILE}") or first.name.count("/") != 1:
            raise RecordError(f"{path}: does not begin with a {RECORD_FILE}, as every exported record does")
        if first.size > records.MAX_RECORD_BYTES:
            raise RecordError(f"{path}: {RECORD_FILE} is larger than any record")
        self.data = first.stream.read()
        self.record = records.decode(self.data, f"{path}: {RECORD_FILE}")
        self.id = hashlib.sha256(self.data).hexdigest()
        self._directory = first.name.removesuffix(RECORD_FILE)
        if not self._directory.endswith(f"-{self.id[:12]}/"):
            raise RecordError(
                f"{path}: {RECORD_FILE} has been changed: its digest is not the one that its name says"
            )

    def others(self) -> Iterator[Entry]:
        """Every further file, by its name in the record; RecordError at one that the record does not name."""
        total = 0
        for entry in self._entries:
            name = entry.name.removeprefix(self._directory)
            total += entry.size
            signature = name in (STATEMENT_FILE, SIGNATURE_FILE) and entry.size <= _MAX_SIGNATURE_BYTES
            if not entry.name.startswith(self._directory) or not (signature or name in self.record.files):
                raise RecordError(f"{self.path}: holds {entry.name!r}, which its {RECORD_FILE} does not name")
            if total > MAX_TOTAL_BYTES:
                raise RecordError(
                    f"{self.path}: holds more than {MAX_TOTAL_BYTES // 2**30} GiB, as no record does"
                )
            yield entry._replace(name=name)

    def judge(self, digests: dict[str, str]) -> None:
        """RecordError unless these are the record's files."""
        for name, digest in self.record.files.items():
            if digests.get(name) != digest:
                what = "has been changed" if name in digests else "is missing"
                raise RecordError(f"{self.path}: {name} {what}")


def _refuse_foreign_statement(contents: _Contents, stage: Path) -> None:
    """A signature that came along must be over this record; whose it is, `records verify` tells."""
    if (stage / STATEMENT_FILE).exists() != (stage / SIGNATURE_FILE).exists():
        raise RecordError(f"{contents.path}: holds half a signature")
    if (stage / STATEMENT_FILE).exists():
        from pinner.measure.signing import statement_problem  # noqa: PLC0415  # few records are signed

        problem = statement_problem((stage / STATEMENT_FILE).read_bytes(), contents.id)
        if problem:
            raise RecordError(f"{contents.path}: {STATEMENT_FILE} {problem}")
