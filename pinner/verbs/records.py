"""The commands that keep records: list, show, export, import, sign, verify.

Must not decide anything: pinner/measure does.
"""

from __future__ import annotations

from pathlib import Path

from pinner import render_records
from pinner.errors import ExitCode, RecordError, UsageError
from pinner.host.home import home
from pinner.measure import records
from pinner.measure.find_records import Wanted, all_records, find_record, moment
from pinner.measure.record_pins import lock_data, moved
from pinner.model.record import SIGNATURE_FILE
from pinner.terminal import Output


def list_(out: Output, *, deployment: str | None, bench: str | None, since: str | None, valid: bool) -> ExitCode:
    """All records that are wanted."""
    wanted = Wanted(
        deployment=deployment, bench=bench, since=None if since is None else moment(since), valid=valid
    )
    found, damaged = all_records(home(), wanted)
    rows = [(stored, moved(stored)) for stored in found]
    render_records.list_text(out, rows, damaged)
    out.envelope(ExitCode.OK, render_records.list_data(rows, damaged))
    return ExitCode.OK


def show(out: Output, which: str) -> ExitCode:
    """One record. 2 if it is damaged."""
    stored = find_record(which, home())
    exported = stored.path.is_file()
    damage = [] if exported else records.damage(stored)
    try:
        lock = lock_data(stored)
    except RecordError:
        lock = None
    page = render_records.Page(
        stored=stored,
        moved=moved(stored),
        damage=damage,
        extras=[] if exported else records.extras(stored),
        lock=lock,
        is_signed=not exported and (stored.path / SIGNATURE_FILE).is_file(),
    )
    render_records.page_text(out, page)
    code = ExitCode.INVALID if damage else ExitCode.OK
    out.envelope(code, render_records.page_data(page))
    return code


def export(out: Output, which: str, target: Path) -> ExitCode:
    """One file of a record."""
    from pinner.measure.carry import export_record

    stored = find_record(which, home())
    path = export_record(stored, target)
    render_records.written_text(out, "wrote", path)
    out.envelope(ExitCode.OK, {"record": render_records.stored_data(stored), "file": str(path)})
    return ExitCode.OK


def import_(out: Output, path: Path, *, kind: str | None, deployment: str | None, ended: str | None) -> ExitCode:
    """A record from a file of any kind."""
    from pinner.measure.foreign import Asked, take_in

    asked = Asked(kind=kind, deployment=deployment, ended=None if ended is None else moment(ended))
    stored = take_in(path, home(), asked)
    what = "imported" if stored.is_new else "already here:"
    foreign = " (foreign: no pins)" if stored.record.origin == "foreign" else ""
    render_records.written_text(out, what, f"{stored.short}  {stored.path}{foreign}")
    for note in stored.record.notes if stored.record.origin == "foreign" else ():
        out.note(note)
    out.envelope(ExitCode.OK, {"record": render_records.stored_data(stored), "new": stored.is_new})
    return ExitCode.OK


def sign(out: Output, which: str, key: Path) -> ExitCode:
    """Sign a record with an SSH key."""
    from pinner.measure.signing import sign_record

    stored = find_record(which, home())
    path = sign_record(stored, key.expanduser())
    render_records.written_text(out, "signed", path)
    out.envelope(ExitCode.OK, {"record": render_records.stored_data(stored), "signature": str(path)})
    return ExitCode.OK


def verify(out: Output, which: str, allowed_signers: Path | None) -> ExitCode:
    """Every digest of a record and, if it has one, its signature."""
    from pinner.measure.signing import signer

    stored = find_record(which, home())
    if stored.path.is_file():
        raise UsageError(f"{stored.path} is an exported file", hint="import verifies it; then verify what is here")
    records.untouched(stored.path)
    who = signer(stored, allowed_signers.expanduser() if allowed_signers else None)
    if who is None and allowed_signers is not None:
        raise RecordError(f"{stored.name} is not signed", hint="`pinner records sign` signs it")
    extras = records.extras(stored)
    render_records.verified_text(out, stored, who, extras)
    data = {
        "record": render_records.stored_data(stored),
        "extras": extras,
        "signer": None if who is None else {"key": who.key, "principal": who.principal},
    }
    out.envelope(ExitCode.OK, data)
    return ExitCode.OK
