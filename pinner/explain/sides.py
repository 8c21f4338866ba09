"""What a command line names to be explained: a record, a lock, or a manifest, which means its lock.

Owns reading it into one form. It only reads, and looks at nothing beyond these files but where a record's manifest
lay.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from pinner.deploy.load import find_manifest, load_manifest
from pinner.deploy.locks import lock_of, relock_hint
from pinner.deploy.tomlfile import bytes_digest, read_toml
from pinner.errors import LockError, UsageError
from pinner.explain.machine import fact_of
from pinner.explain.pins import Package, packages
from pinner.host.home import Home
from pinner.measure.carry import read_file
from pinner.measure.find_records import find_record
from pinner.measure.record_pins import lock_data
from pinner.measure.records import Stored
from pinner.model.facts import Difference, Unknown
from pinner.model.lock import Lock
from pinner.model.record import Record

NOW = "now"


class Side(msgspec.Struct, frozen=True, kw_only=True):
    """One of two things that are compared.

    `lock` is None for foreign evidence. `directory` is where the lock's relative paths start, if that is known
    here; `packages` are what its pylock names, None where it has none. `account` is what the server itself
    said of its arguments. `stored` is the record that it is. `notes` are what could not be read.
    """

    title: str
    lock: Lock | None = None
    directory: Path | None = None
    packages: Mapping[str, Package] | Unknown | None = None
    account: Mapping[str, Any] = {}
    stored: Stored | None = None
    notes: tuple[str, ...] = ()

    @property
    def record(self) -> Record | None:
        return self.stored.record if self.stored is not None else None

    @property
    def accepted(self) -> dict[str, Difference]:
        """See `accepted`; nothing where this is no record."""
        return accepted(self.record) if self.record is not None else {}

    @property
    def commit(self) -> str | None:
        """The commit that ran: the pinned one, unless another was accepted."""
        if self.lock is None:
            return None
        moved = self.accepted.get("source.commit")
        seen = moved.observed if moved is not None else None
        return seen if isinstance(seen, str) else self.lock.engine.source.commit


def accepted(record: Record) -> dict[str, Difference]:
    """What of the lock was not so when a record was made, and was accepted, by aspect.key."""
    said = (record.before or {}).get("accepted")
    found = [_difference(item) for item in said if isinstance(item, dict)] if isinstance(said, list) else []
    return {item.name: item for item in found}


def side(text: str, home: Home) -> Side:
    """What a word of the command line names. UsageError if it is nothing, LockError or RecordError if damaged."""
    path = Path(text)
    if path.suffix == ".lock":
        if not path.is_file():
            raise UsageError(f"there is no lock at {text}")
        return of_lock(path.absolute())
    if path.suffix == ".toml":
        return of_manifest(text)
    try:
        stored = find_record(text, home)
    except UsageError as no_record:
        try:
            return of_manifest(text)
        except UsageError:
            hint = "name a record (`pinner records` lists them), a manifest or a lock"
            raise UsageError(
                f"{text} is neither a record nor a manifest: {no_record.message}", hint=hint
            ) from None
    return of_record(stored)


def of_manifest(text: str) -> Side:
    """The lock beside a manifest, current or not."""
    deployment = load_manifest(find_manifest(text))
    if not deployment.lock_path.exists():
        raise LockError(f"{deployment.lock_path} does not exist", hint=relock_hint(deployment))
    return of_lock(deployment.lock_path)


def of_lock(path: Path) -> Side:
    """A lock by itself; the pylock beside it has its packages."""
    lock = lock_of(path, read_toml(path, LockError))
    beside = path.with_name(f"pylock.{path.stem}.toml")
    named: Mapping[str, Package] | Unknown | None = None
    if lock.python.pylock is not None:
        try:
            data = beside.read_bytes()
        except OSError as error:
            named = Unknown(f"{beside.name}: {error.strerror}")
        else:
            is_its_own = bytes_digest(data) == lock.python.pylock
            named = _packages(data) if is_its_own else Unknown(f"{beside.name} is not the one that it names")
    return Side(title=_shown(path), lock=lock, directory=path.parent, packages=named)


def of_record(stored: Stored) -> Side:
    """A record with its pins, where it has any."""
    record = stored.record
    data = lock_data(stored)
    title = f"record {stored.short}"
    account = record.arguments or next((start.account for start in record.starts if start.account), {})
    if data is None:
        note = (
            f"{title} is foreign ({record.source}): it has no pins"
            if record.origin == "foreign"
            else (f"{title} holds no lock")
        )
        return Side(title=title, stored=stored, account=account, notes=(note,))
    lock = lock_of(stored.path / record.lock_file, data)
    named: Mapping[str, Package] | Unknown | None = None
    if lock.python.pylock is not None:
        named = _packages(read_file(stored, record.pylock_file))
    place = Path(record.manifest).parent if record.manifest else None
    return Side(
        title=title,
        lock=lock,
        directory=place if place is not None and place.is_dir() else None,
        packages=named,
        account=account,
        stored=stored,
    )


def manifest_of(one: Side) -> str:
    """The manifest on this machine that a side belongs to, as `now` needs it."""
    if one.stored is not None:
        path = Path(one.stored.record.manifest) if one.stored.record.manifest else None
    else:
        path = one.directory / f"{Path(one.title).stem}.toml" if one.directory else None
    if path is None or not path.is_file():
        where = f"{path} is not here" if path is not None else "it does not say which that was"
        raise UsageError(
            f"{one.title}: its manifest is needed to look at the machine, and {where}",
            hint="`pinner diff MANIFEST now` looks at the machine as a manifest says",
        )
    return str(path)


def _difference(item: Mapping[str, Any]) -> Difference:
    """A difference as `check --output json` words it."""
    return Difference(
        aspect=str(item.get("aspect", "")),
        key=str(item.get("key", "")),
        pinned=fact_of(item.get("pinned")),
        observed=fact_of(item.get("observed")),
        evidence=tuple(map(str, item.get("evidence") or ())),
        note=str(item.get("note", "")),
    )


def _packages(data: bytes) -> Mapping[str, Package] | Unknown:
    try:
        return packages(tomllib.loads(data.decode()))
    except (ValueError, KeyError, TypeError):
        return Unknown("its pylock is damaged")


def _shown(path: Path) -> str:
    try:
        return str(path.relative_to(Path.cwd()))
    except (ValueError, OSError):
        return str(path)
