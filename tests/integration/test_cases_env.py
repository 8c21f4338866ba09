"""Case H06: the same version string, other contents; in a built environment and in one in place."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from pinner.errors import ManifestError
from pinner.host import hashing
from pinner.host.digest import DigestMemory
from pinner.model.facts import ABSENT, Unknown
from pinner.probes import python_env, python_in_place
from tests.integration.environments import MINOR, SITE, InPlace, Install, Sealed, SealedWithBase, run_uv

pytestmark = pytest.mark.usefixtures("short_racy_window")


@pytest.fixture(params=[Sealed, InPlace], ids=["built", "in place"])
def make(request: pytest.FixtureRequest) -> type[Sealed]:
    kind: type[Sealed] = request.param
    return kind


def edit_keeping_times(path: Path, text: str) -> None:
    before = path.stat()
    path.write_text(text)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def test_h06_installed_is_another_commit_of_the_same_version(
    tmp_path: Path, packages: tuple[Path, str, str], install: Install, make: type[Sealed]
) -> None:
    _, old, new = packages
    there = make(tmp_path)
    assert there.drift() == {}
    install(old)
    drift = there.drift()
    assert list(drift) == ["gpk"]
    said = " ".join((drift["gpk"].note, *drift["gpk"].evidence))
    assert old in said
    assert new in said
    assert "subdirectory python" in said
    assert drift["gpk"].pinned != drift["gpk"].observed
    install(new)
    assert there.drift(deep=True).keys() <= {"gpk"}  # uv notes the time of each installation


def test_h06_one_file_edited_by_hand(tmp_path: Path, env: Path, make: type[Sealed]) -> None:
    there = make(tmp_path)
    there.drift()
    edit_keeping_times(there.env / SITE / "gpk/part03.py", "part = 4\n")
    for deep in (False, True):
        drift = there.drift(deep=deep)
        assert list(drift) == [f"{SITE}/gpk/part03.py"]
        found = drift[f"{SITE}/gpk/part03.py"]
        assert found.note.startswith("gpk 0.1: ")
        assert str(found.pinned) != str(found.observed)


def test_additions_and_removals(tmp_path: Path, env: Path, make: type[Sealed]) -> None:
    there = make(tmp_path)
    site = there.env / SITE
    (site / "extra.pth").write_text("import os\n")
    (site / "sitecustomize.py").write_text("")
    (site / "ghost.pyc").write_bytes(b"x")
    (site / "gpk/part05.py").unlink()
    drift = there.drift()
    assert drift.keys() == {
        f"{SITE}/{name}" for name in ("extra.pth", "sitecustomize.py", "ghost.pyc", "gpk/part05.py")
    }
    assert "a .pth file" in drift[f"{SITE}/extra.pth"].note
    assert "runs at every start of the interpreter" in drift[f"{SITE}/sitecustomize.py"].note
    assert "belongs to no distribution" in drift[f"{SITE}/ghost.pyc"].note
    assert drift[f"{SITE}/gpk/part05.py"].observed == ABSENT
    assert drift[f"{SITE}/extra.pth"].pinned == ABSENT


def test_a_distribution_removed_and_one_added(tmp_path: Path, env: Path, make: type[Sealed], cache: Path) -> None:
    there = make(tmp_path)
    run_uv(cache, "pip", "uninstall", "-q", "--python", str(there.env / "bin/python"), "gpk")
    info = there.env / SITE / "intruder-1.0.dist-info"
    info.mkdir()
    (info / "RECORD").write_text("intruder-1.0.dist-info/RECORD,,\nintruder.py,,\n")
    (there.env / SITE / "intruder.py").write_text("")
    drift = there.drift()
    assert drift["gpk"].observed == ABSENT
    assert drift["intruder"].pinned == ABSENT
    assert drift.keys() == {"gpk", "intruder"}


def test_byte_code_of_an_environment_in_place_is_never_read(tmp_path: Path, env: Path) -> None:
    there = InPlace(tmp_path)
    (there.env / SITE / "gpk/__pycache__").mkdir()
    (there.env / SITE / "gpk/__pycache__/part01.pyc").write_bytes(b"x")
    assert there.drift() == {}


def test_byte_code_of_a_built_environment_counts(tmp_path: Path, env: Path) -> None:
    there = Sealed(tmp_path)
    (there.env / SITE / "gpk/__pycache__").mkdir()
    name = f"{SITE}/gpk/__pycache__/part01.cpython-{MINOR.replace('.', '')}.pyc"
    (there.env / name).write_bytes(b"x")
    drift = there.drift()
    assert list(drift) == [name]
    assert drift[name].note.startswith("gpk 0.1: compiled byte code")


def test_an_edit_that_was_there_when_locking_is_pinned_as_it_is(tmp_path: Path, env: Path) -> None:
    path = tmp_path / "env" / SITE / "gpk/part03.py"
    original = path.read_text()
    path.write_text("part = 33\n")
    there = InPlace(tmp_path)
    assert list(there.lock.python.distributions[0].edited) == [f"{SITE}/gpk/part03.py"]
    assert there.drift() == {}
    path.write_text(original)
    assert list(there.drift()) == [f"{SITE}/gpk/part03.py"]
    path.write_text("part = 34\n")
    (tmp_path / "env" / SITE / "gpk/part04.py").write_text("part = 44\n")
    assert there.drift().keys() == {f"{SITE}/gpk/part03.py", f"{SITE}/gpk/part04.py"}


def test_an_edited_file_with_a_forged_record_names_the_distribution(tmp_path: Path, env: Path) -> None:
    there = InPlace(tmp_path)
    site = there.env / SITE
    (site / "gpk/part03.py").write_text("part = 4\n")
    record = site / "gpk-0.1.dist-info/RECORD"
    record.write_text(
        "".join(line for line in record.read_text().splitlines(True) if "part03" not in line) + "gpk/part03.py,,\n"
    )
    drift = there.drift()
    assert list(drift) == ["gpk"]
    assert "reinstalled: version 0.1 → 0.1" in drift["gpk"].note


def test_a_console_script_in_bin_belongs_to_its_distribution(
    tmp_path: Path, env: Path, make: type[Sealed]
) -> None:
    there = make(tmp_path)
    (there.env / "bin/gpk").write_text("#!/bin/sh\n")
    drift = there.drift()
    assert list(drift) == ["bin/gpk"]
    assert drift["bin/gpk"].note.startswith("gpk 0.1: ")


def test_the_interpreter_is_gone_or_another(tmp_path: Path, env: Path, make: type[Sealed]) -> None:
    there = make(tmp_path)
    python = there.env / "bin/python"
    target = python.readlink()
    python.unlink()
    python.symlink_to("/nonexistent/python")
    observation = python_env.observe(there.scene())
    differences, _ = python_env.compare(there.lock, observation)
    found = {item.key: item for item in differences}
    assert found["interpreter"].observed == ABSENT
    assert "/nonexistent/python" in found["interpreter"].note
    python.unlink()
    fake = tmp_path / "python-fake"
    fake.write_text(f'#!/bin/sh\n"{target}" "$@" | sed "s/{MINOR}[.]/3.1./"\n')
    fake.chmod(0o755)
    python.symlink_to(fake)
    differences, _ = python_env.compare(there.lock, python_env.observe(there.scene()))
    found = {item.key: item for item in differences}
    assert (found["interpreter"].pinned, found["interpreter"].observed) == (MINOR, "3.1")


def test_the_patch_level_is_a_note(tmp_path: Path, env: Path) -> None:
    there = Sealed(tmp_path)
    seal = msgspec.json.decode((tmp_path / "seal.json").read_bytes())
    (tmp_path / "seal.json").write_bytes(msgspec.json.encode({**seal, "python": f"{MINOR}.99"}))
    assert there.drift() == {}
    observation = python_env.observe(there.scene())
    assert observation.notes == (f"the interpreter is {sys.version.split()[0]}; it was {MINOR}.99",)


def test_a_damaged_inventory_never_hides_a_difference(tmp_path: Path, env: Path) -> None:
    there = Sealed(tmp_path)
    (env / "added").touch()
    (tmp_path / "env.inventory").write_bytes(b"damaged")
    drift = there.drift()
    assert list(drift) == ["files"]
    assert "inventory" in drift["files"].note


def test_a_file_that_cannot_be_read_is_unknown(
    tmp_path: Path, env: Path, monkeypatch: pytest.MonkeyPatch, make: type[Sealed]
) -> None:
    there = make(tmp_path)
    blocked = env / SITE / "blocked.py"
    blocked.touch()
    real = os.open

    def refuse(path: bytes, *rest: int) -> int:
        if os.fsencode(path) == os.fsencode(blocked):
            raise PermissionError(13, "Permission denied")
        return real(path, *rest)

    monkeypatch.setattr(hashing.os, "open", refuse)
    _, unknown = python_env.compare(there.lock, python_env.observe(there.scene()))
    assert [(item.key, item.observed) for item in unknown] == [
        (f"{SITE}/blocked.py", Unknown("permission denied"))
    ]


def test_records_are_verified_right_after_building(tmp_path: Path, env: Path) -> None:
    memory = DigestMemory(None)
    python_env.seal(env, memory)
    (env / SITE / "gpk/part03.py").write_text("part = 4\n")
    (env / SITE / "gpk/part04.py").unlink()
    with pytest.raises(python_env.Damaged) as raised:
        python_env.seal(env, memory)
    problems = raised.value.message.splitlines()[1:]
    assert len(problems) == 2
    assert problems[0].startswith(f"  gpk 0.1: {SITE}/gpk/part03.py: its RECORD says sha256:")
    assert problems[1].startswith(f"  gpk 0.1: {SITE}/gpk/part04.py: its RECORD says sha256:")
    assert problems[1].endswith("the file is missing")


def test_an_interpreter_inside_the_environment_names_it_too(tmp_path: Path, env: Path) -> None:
    by_directory, by_interpreter = InPlace(tmp_path), InPlace(tmp_path, "env/bin/python")
    assert (
        by_directory.lock.python.distributions == by_interpreter.lock.python.distributions
        and by_directory.lock.python.distributions[0].name == "gpk"
    )
    assert by_interpreter.drift() == {}


def test_no_environment_to_pin(tmp_path: Path) -> None:
    with pytest.raises(ManifestError, match="no interpreter"):
        python_in_place.pin(tmp_path, "env", DigestMemory(None))


def test_many_edits_of_one_distribution_are_one_difference(tmp_path: Path, env: Path) -> None:
    there = Sealed(tmp_path)
    for number in range(21):
        (env / SITE / f"gpk/part{number:02d}.py").write_text("other")
    drift = there.drift()
    assert list(drift) == ["gpk"]
    assert "21 of its files differ" in drift["gpk"].note
    assert len(drift["gpk"].evidence) == 21


def test_byte_code_beside_the_environment(tmp_path: Path, env: Path) -> None:
    """What is compiled for code in place lies in the workspace and is sealed as well."""
    bytecode = tmp_path / "bytecode"
    (bytecode / "x").mkdir(parents=True)
    (bytecode / "x/a.pyc").write_bytes(b"compiled")
    there = Sealed(tmp_path)
    seal = msgspec.json.decode((tmp_path / "seal.json").read_bytes())
    seal["bytecode"] = python_env.seal(bytecode, there.memory)
    (tmp_path / "seal.json").write_bytes(msgspec.json.encode(seal))
    assert there.drift() == {}
    (bytecode / "x/a.pyc").write_bytes(b"replaced")
    assert list(there.drift()) == ["bytecode/x/a.pyc"]
    shutil.rmtree(bytecode)
    assert there.drift()["bytecode/files"].observed == ABSENT


def test_what_is_known_of_an_environment_in_place_serves_only_for_the_same_bytes(
    tmp_path: Path, env: Path
) -> None:
    there = InPlace(tmp_path)
    for _ in range(2):
        assert there.drift() == {}
    script = env / "bin/gpk"
    text = script.read_text()
    script.write_text("#!/bin/sh\n")
    assert list(there.drift()) == ["bin/gpk"]
    script.write_text(text)
    assert there.drift() == {}
    script.unlink()
    assert there.drift()["bin/gpk"].observed == ABSENT


def test_the_interpreter_beneath_a_built_environment(tmp_path: Path, env: Path, base: Path) -> None:
    there = SealedWithBase(tmp_path)
    assert there.drift() == there.drift(deep=True) == {}
    assert "of the interpreter, every byte read" in python_env.observe(there.scene(deep=True)).how
    subprocess.run([base / f"bin/python{MINOR}", "-I", "-c", "import decimal, json, csv"], check=True)
    assert list(base.rglob("*.pyc"))
    assert there.drift() == {}
    custom = base / f"lib/python{MINOR}/sitecustomize.py"
    custom.write_text("import os\n")
    drift = there.drift()
    assert list(drift) == [f"base/lib/python{MINOR}/sitecustomize.py"]
    assert "added: runs at every start" in drift[f"base/lib/python{MINOR}/sitecustomize.py"].note
    custom.unlink()
    with (base / f"bin/python{MINOR}").open("ab") as stream:
        stream.write(b"x")
    assert list(there.drift()) == [f"base/bin/python{MINOR}"]


def test_an_upgraded_interpreter_is_one_difference(tmp_path: Path, env: Path, base: Path) -> None:
    there = SealedWithBase(tmp_path)
    there.change_seal(python=f"{MINOR}.99")
    (base / f"lib/python{MINOR}/csv.py").write_text("")
    drift = there.drift()
    assert list(drift) == ["interpreter"]
    found = drift["interpreter"]
    assert (found.pinned, found.observed) == (f"{MINOR}.99", sys.version.split()[0])
    assert "was built and is" in found.note and "materialize --rebuild" in found.note
