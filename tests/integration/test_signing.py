"""Signatures over records by the real ssh-keygen."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from pinner.host.home import Home
from pinner.measure.carry import export_record, import_record
from tests.integration.command import Pinner
from tests.integration.records import stored

pytestmark = pytest.mark.skipif(shutil.which("ssh-keygen") is None, reason="there is no ssh-keygen here")


@pytest.fixture
def pinner(capsys: pytest.CaptureFixture[str]) -> Pinner:
    return Pinner(capsys)


def key(path: Path, passphrase: str = "") -> Path:
    command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", passphrase, "-C", "", "-f", str(path)]
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL)
    return path


def allowed(path: Path, principal: str, signer: Path) -> Path:
    path.write_text(f"{principal} {signer.with_suffix('.pub').read_text()}")
    return path


def test_a_signature_is_over_the_record_and_travels_with_it(state: Home, tmp_path: Path, pinner: Pinner) -> None:
    one = stored(state)
    own, other = key(tmp_path / "own"), key(tmp_path / "other")
    assert pinner.json("records", "verify", one.short).data["signer"] is None
    assert pinner("records", "verify", one.short, "--allowed-signers", own).code == 2, "it is not signed"
    assert pinner("records", "sign", one.short, "--key", own).code == 0
    statement = json.loads((one.path / "statement.json").read_text())
    subjects = {item["name"]: item["digest"]["sha256"] for item in statement["subject"]}
    assert subjects["record.json"] == one.id
    assert subjects.keys() == {"record.json", *one.record.files}
    assert pinner("records", "sign", one.short, "--key", own).code == 2, "it is signed already"

    signer = pinner.json("records", "verify", one.short).data["signer"]
    assert (signer["principal"], "SHA256:" in signer["key"]) == (None, True)
    good = allowed(tmp_path / "good", "ada@example.com", own)
    assert pinner.json("records", "verify", one.short, "--allowed-signers", good).data["signer"]["principal"] == (
        "ada@example.com"
    )
    bad = allowed(tmp_path / "bad", "ada@example.com", other)
    said = pinner("records", "verify", one.short, "--allowed-signers", bad)
    assert (said.code, "does not allow" in said.err) == (2, True)

    there = Home(tmp_path / "there")
    arrived = import_record(export_record(one, tmp_path), there)
    assert (arrived.path / "statement.json.sig").read_bytes() == (one.path / "statement.json.sig").read_bytes()
    assert "signed" in pinner("records", "show", one.short).out


def test_a_signature_over_something_else_is_none(state: Home, tmp_path: Path, pinner: Pinner) -> None:
    one, two = stored(state), stored(state, bench="other")
    own = key(tmp_path / "own")
    assert pinner("records", "sign", one.short, "--key", own).code == 0
    for name in ("statement.json", "statement.json.sig"):
        shutil.copy(one.path / name, two.path / name)
    said = pinner("records", "verify", two.short)
    assert (said.code, "another record" in said.err) == (2, True)
    exported = export_record(two, tmp_path)
    said = pinner("records", "import", exported)
    assert (said.code, "another record" in said.err) == (2, True)

    statement = one.path / "statement.json"
    statement.chmod(0o644)
    statement.write_text(statement.read_text().replace('"main"', '"best"'))
    said = pinner("records", "verify", one.short)
    assert (said.code, "signature is not good" in said.err) == (2, True)


def test_a_key_that_cannot_be_used_says_what_to_do(state: Home, tmp_path: Path, pinner: Pinner) -> None:
    one = stored(state)
    said = pinner("records", "sign", one.short, "--key", tmp_path / "none")
    assert (said.code, "there is no key" in said.err) == (2, True)
    said = pinner("records", "sign", one.short, "--key", key(tmp_path / "locked", passphrase="hush-hush"))
    assert (said.code, "ssh-add" in said.err) == (3, True)
    assert not (one.path / "statement.json").exists()
