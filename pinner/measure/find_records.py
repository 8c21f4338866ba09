"""Which record a person means, and which there are.

Owns the words that name a record: the beginning of its id, its directory, an exported file, a manifest. It only
reads.
"""

from __future__ import annotations

import datetime
import re
import time
from pathlib import Path

import msgspec

from pinner.errors import RecordError, UsageError
from pinner.host.home import Home
from pinner.measure.records import Stored, load
from pinner.model.record import RECORD_FILE

_ID = re.compile(r"[0-9a-f]{4,64}\Z")
_AGO = re.compile(r"(\d+)\s*(min|h|d|w)\Z")
_SECONDS = {"min": 60, "h": 3600, "d": 86400, "w": 7 * 86400}


class Damaged(msgspec.Struct, frozen=True):
    """A directory that should be a record, and why it is none."""

    path: Path
    reason: str


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """What a list of records is narrowed to; `since` in Unix seconds."""

    deployment: str | None = None
    bench: str | None = None
    since: float | None = None
    valid: bool = False

    def holds(self, stored: Stored) -> bool:
        """Whether a record is wanted."""
        record = stored.record
        return (
            self.deployment in (None, record.deployment)
            and self.bench in (None, record.bench)
            and (self.since is None or record.began >= self.since)
            and (not self.valid or record.is_valid)
        )


def all_records(home: Home, wanted: Wanted | None = None) -> tuple[list[Stored], list[Damaged]]:
    """The records here that are wanted, newest first, and what should be one and cannot be read."""
    found, damaged = [], []
    for path in sorted(home.records.iterdir()) if home.records.is_dir() else []:
        if path.name.startswith("."):
            continue
        try:
            stored = load(path)
        except RecordError as error:
            damaged.append(Damaged(path, error.message))
            continue
        if wanted is None or wanted.holds(stored):
            found.append(stored)
    # A bench and its baseline began together; the bench itself is written last, and is what a manifest means.
    return sorted(found, key=lambda one: (-one.record.began, -one.record.ended, one.id)), damaged


def find_record(text: str, home: Home, wanted: Wanted | None = None) -> Stored:
    """The record that a command line names: the beginning of an id, a directory's name, a path to a record or to
    an exported file, or a manifest, which means its newest record, with pins if it has one. `wanted` narrows what
    an id or a manifest can mean.

    UsageError if there is none or more than one; RecordError if it is damaged. Files beside record.json are not
    verified (see `records.damage`).
    """
    path = Path(text)
    if not text:
        raise UsageError("no record is named", hint="`pinner records` lists them all")
    if (path / RECORD_FILE).is_file():
        return load(path.absolute())
    if path.is_file() and path.suffix not in (".toml", ".lock"):
        from pinner.measure.carry import read_exported  # noqa: PLC0415  # tarfile, which few calls need

        return read_exported(path.absolute())
    if (home.records / text).is_dir() and path.name == text and not text.startswith("."):
        return load(home.records / text)
    return _among(text, *all_records(home, wanted))


def _among(text: str, records: list[Stored], damaged: list[Damaged]) -> Stored:
    meant = [stored for stored in records if _ID.match(text) and stored.id.startswith(text)]
    of_manifest = _of_manifest(Path(text), records)
    meant += of_manifest[:1] if of_manifest and of_manifest[0] not in meant else []
    if len(meant) == 1:
        return meant[0]
    if meant:
        lines = "".join(f"\n  {stored.short}  {stored.name}" for stored in meant)
        raise UsageError(f"{text} may mean {len(meant)} records:{lines}", hint="give more of the id")
    for broken in damaged:
        if _ID.match(text) and f"-{text[:12]}" in broken.path.name:
            raise RecordError(broken.reason)
    if records:
        hint = "`pinner records` lists them all"
    else:
        hint = "there are none here yet: `pinner bench` makes one, `pinner records import` takes one"
    raise UsageError(
        f"there is no record {text}: no id begins so, and no manifest of that name has one", hint=hint
    )


def _of_manifest(path: Path, records: list[Stored]) -> list[Stored]:
    """The records of a manifest, newest first. Where it is there, and has records of its own, only those: another
    directory may hold a deployment of the same name."""
    name = path.stem if path.suffix in (".toml", ".lock") else path.name
    named = [stored for stored in records if stored.record.deployment == name]
    named = [stored for stored in named if stored.record.origin == "pinner"] or named
    places = [path.with_suffix(".toml"), Path("deployments") / f"{name}.toml"]
    here = {str(place.absolute()) for place in places if place.is_file()}
    return [stored for stored in named if stored.record.manifest in here] or named


def moment(text: str, *, now: float | None = None) -> float:
    """A time as people write it, in Unix seconds: 2026-11-23, 2026-11-23T14:05, or 90min, 12h, 7d, 2w ago.

    Without a zone it is UTC, as in what pinner prints.
    """
    ago = _AGO.match(text.strip())
    if ago:
        return (time.time() if now is None else now) - int(ago[1]) * _SECONDS[ago[2]]
    try:
        given = datetime.datetime.fromisoformat(text.strip())
    except ValueError:
        hint = "write 2026-11-23, 2026-11-23T14:05 (UTC), or 90min, 12h, 7d, 2w"
        raise UsageError(f"{text!r} is no time", hint=hint) from None
    return (given if given.tzinfo else given.replace(tzinfo=datetime.UTC)).timestamp()
