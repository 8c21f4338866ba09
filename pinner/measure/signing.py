"""A signature over a record: an in-toto statement, signed with a person's SSH key.

Owns what is signed. The record's id covers all of its files, so that a signature over the id covers them; it is no
part of the record, which is the same before and after.
"""

from __future__ import annotations

import json
from pathlib import Path

from pinner.errors import RecordError, UsageError
from pinner.host import ssh
from pinner.host.files import write_atomic
from pinner.host.ssh import Signer
from pinner.measure.records import Stored, untouched
from pinner.model.record import RECORD_FILE, SIGNATURE_FILE, STATEMENT_FILE, Record

STATEMENT_TYPE = "https://in-toto.io/Statement/v1"
PREDICATE_TYPE = "urn:pinner:record:1"
# What ssh-keygen calls the purpose: a signature for one is worth nothing for another.
NAMESPACE = "pinner-record"


def statement(record: Record, identity: str) -> bytes:
    """The statement over a record (application/vnd.in-toto+json)."""
    subjects = {RECORD_FILE: f"sha256:{identity}", **record.files}
    content = {
        "_type": STATEMENT_TYPE,
        "subject": [
            {"name": name, "digest": {"sha256": digest.removeprefix("sha256:")}}
            for name, digest in subjects.items()
        ],
        "predicateType": PREDICATE_TYPE,
        "predicate": {
            "deployment": record.deployment,
            "bench": record.bench,
            "origin": record.origin,
            "began": record.began,
            "ended": record.ended,
            "lock": record.lock,
        },
    }
    return (json.dumps(content, indent=1, ensure_ascii=True) + "\n").encode()


def statement_problem(data: bytes, identity: str) -> str | None:
    """Why a statement is not one over the record of that id; None where it is."""
    try:
        content = json.loads(data)
        subjects = {item["name"]: item["digest"]["sha256"] for item in content["subject"]}
        types = (content["_type"], content["predicateType"])
    except (ValueError, KeyError, TypeError, RecursionError):
        return "is no in-toto statement"
    if types != (STATEMENT_TYPE, PREDICATE_TYPE):
        return "is no statement over a record"
    return None if subjects.get(RECORD_FILE) == identity else "is over another record"


def sign_record(stored: Stored, key: Path) -> Path:
    """Sign a record that is whole; returns the signature's file. UsageError if it is signed already."""
    if stored.path.is_file():
        raise UsageError(f"{stored.path} is an exported file", hint="import it, and sign it here")
    untouched(stored.path)
    signature = stored.path / SIGNATURE_FILE
    if signature.exists():
        raise UsageError(
            f"{stored.name} is signed already", hint=f"`pinner records verify {stored.short}` says by whom"
        )
    data = statement(stored.record, stored.id)
    signed = ssh.sign(data, key, namespace=NAMESPACE)
    write_atomic(stored.path / STATEMENT_FILE, data, mode=0o444)
    write_atomic(signature, signed, mode=0o444)
    return signature


def signer(stored: Stored, allowed: Path | None) -> Signer | None:
    """Who signed a record, None if nobody did. RecordError if the signature is none, or not an allowed one."""
    signature = stored.path / SIGNATURE_FILE
    if not signature.is_file():
        return None
    try:
        data = (stored.path / STATEMENT_FILE).read_bytes()
    except OSError as error:
        raise RecordError(f"cannot read {stored.path / STATEMENT_FILE}: {error.strerror}") from None
    problem = statement_problem(data, stored.id)
    if problem:
        raise RecordError(f"{stored.path / STATEMENT_FILE}: {problem}")
    found = ssh.verify(data, signature, namespace=NAMESPACE, allowed=allowed)
    if isinstance(found, str):
        raise RecordError(f"{signature}: the signature is not good: {found}")
    return found
