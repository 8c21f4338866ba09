"""An environment in place: everything that it brings into the engine, beyond what is installed in it."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from pinner.deploy.check import built_part
from pinner.deploy.workspace import workspace_paths
from pinner.host.home import Home
from pinner.model.facts import ABSENT, Drift
from pinner.probes import python_env, python_in_place
from tests.integration.environments import MINOR, SITE, InPlace, Sealed
from tests.tiny import commit, git

pytestmark = pytest.mark.usefixtures("short_racy_window")


def notes(there: InPlace) -> tuple[str, ...]:
    return python_env.observe(there.scene()).notes


def test_the_interpreter_is_pinned_with_its_standard_library(tmp_path: Path, env: Path, base: Path) -> None:
    there = InPlace(tmp_path)
    assert there.drift() == there.drift(deep=True) == {}
    assert "of the interpreter, every byte read" in python_env.observe(there.scene(deep=True)).how
    custom = base / f"lib/python{MINOR}/sitecustomize.py"
    custom.write_text("import os\n")
    assert list(there.drift()) == [f"base/lib/python{MINOR}/sitecustomize.py"]
    custom.unlink()
    cache = base / f"lib/python{MINOR}/__pycache__"
    shutil.rmtree(cache, ignore_errors=True)
    cache.mkdir()
    (cache / f"os.{sys.implementation.cache_tag}.pyc").write_bytes(b"never read in place")
    with (base / f"bin/python{MINOR}").open("ab") as stream:
        stream.write(b"x")
    assert list(there.drift()) == [f"base/bin/python{MINOR}"]
    (tmp_path / "digests.sqlite").unlink()
    there.memory.close()
    drift = there.drift()
    assert list(drift) == ["base"]
    assert "which file differs cannot be told" in drift["base"].note


def test_another_interpreter_is_one_difference(tmp_path: Path, env: Path, base: Path) -> None:
    there = InPlace(tmp_path)
    fake = base / "bin/other"
    fake.write_text(f'#!/bin/sh\n{base}/bin/python{MINOR} "$@" | sed "s/{MINOR}[.]\\([0-9]*\\)/{MINOR}.99/"\n')
    fake.chmod(0o755)
    (env / "bin/python").unlink()
    (env / "bin/python").symlink_to(fake)
    drift = there.drift()
    assert drift["interpreter"].observed == f"{MINOR}.99"
    assert "when this was locked and is" in drift["interpreter"].note
    assert drift.keys() == {"interpreter", "bin/python", "bin/python3", f"bin/python{MINOR}"}
    assert "in place of the interpreter: added" in drift["bin/python"].note


def test_programs_and_configuration_are_pinned(tmp_path: Path, env: Path) -> None:
    there = InPlace(tmp_path)
    assert "bin/gpk" not in there.lock.python.loose
    assert "bin/python" not in there.lock.python.loose
    for _ in range(2):
        assert there.drift() == {}
    (env / "bin/ninja").write_text("#!/bin/sh\n")
    with (env / "pyvenv.cfg").open("a") as stream:
        stream.write("prompt = x\n")
    drift = there.drift()
    assert drift.keys() == {"bin/ninja", "pyvenv.cfg"}
    assert (
        drift["bin/ninja"].note == "a program of no distribution, in the first place of the engine's PATH: added"
    )
    assert drift["pyvenv.cfg"].note == "decides what the environment can import: changed"


def test_more_site_packages_are_one_difference(tmp_path: Path, env: Path, base: Path) -> None:
    there = InPlace(tmp_path)
    site = base / f"lib/python{MINOR}/site-packages"
    for number in range(30):
        info = site / f"stranger{number}-1.0.dist-info"
        info.mkdir(parents=True)
        (info / "RECORD").write_text(f"{info.name}/RECORD,,\n/etc/{number},,\n")
    config = env / "pyvenv.cfg"
    text = config.read_text()
    config.write_text(text.replace("packages = false", "packages = true"))
    drift = there.drift()
    assert drift.keys() == {"pyvenv.cfg", "site-packages"}
    assert str(site) in drift["site-packages"].note
    assert drift["site-packages"].evidence == (f"{config}: include-system-site-packages = true",)
    _, told = python_in_place.pin(tmp_path, "env", there.memory)
    assert len(told) == 6
    assert told[-1] == "and 25 more distributions of which the same is true"
    shared = InPlace(tmp_path)
    assert "stranger7" in {one.name for one in shared.lock.python.distributions}
    assert not any("stranger" in path for path in shared.lock.python.loose)
    assert shared.drift() == {}
    config.write_text(text)
    drift = shared.drift()
    assert drift.keys() == {"pyvenv.cfg", "site-packages"}
    assert "any more" in drift["site-packages"].note


def test_a_second_editable_package_is_pinned(tmp_path: Path, env: Path) -> None:
    library = tmp_path / "lib2"
    (library / "lib2").mkdir(parents=True)
    git(library, "init", "--quiet")
    head = commit(library, {"lib2/__init__.py": "V = 1\n", "README": ""}, "Start")
    (env / SITE / "lib2.pth").write_text(f"{library}\n")
    there = InPlace(tmp_path)
    assert list(there.lock.python.linked) == ["lib2"]
    for deep in (False, False, True):
        assert there.drift(deep=deep) == {}
    (library / "tiny.lock").write_text("beside the packages: nothing that an import reaches")
    (library / "README").write_text("other")
    assert there.drift() == {}
    (library / "lib2/__init__.py").write_text("V = 2\n")
    drift = there.drift()
    assert list(drift) == ["linked/lib2/lib2/__init__.py"]
    found = drift["linked/lib2/lib2/__init__.py"]
    assert found.note == f"lib2.pth leads to {library}: edited"
    assert f"that is the checkout {library}, now at {head[:10]} (branch main)" in found.evidence
    shutil.rmtree(library)
    assert there.drift()["linked/lib2"].observed == ABSENT


def test_symlinks_in_site_packages_count_by_what_they_lead_to(tmp_path: Path, env: Path) -> None:
    package, module = tmp_path / "opt/foo", tmp_path / "opt/single.py"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("1\n")
    module.write_text("1\n")
    (env / SITE / "foo").symlink_to(package)
    (env / SITE / "single.py").symlink_to(module)
    there = InPlace(tmp_path)
    assert list(there.lock.python.linked) == ["opt/foo"]
    assert there.drift() == there.drift() == {}
    (package / "data.json").write_text("2\n")
    module.write_text("2\n")
    drift = there.drift()
    assert drift.keys() == {"linked/opt/foo/data.json", f"{SITE}/single.py"}
    assert drift["linked/opt/foo/data.json"].note.startswith("the symlink foo leads to")


def test_editable_finders_are_followed_and_others_told(tmp_path: Path, env: Path) -> None:
    package = tmp_path / "src/kernels"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("1\n")
    site = env / SITE
    (site / "__editable___kernels_finder.py").write_text(f"MAPPING = {{'kernels': {str(package)!r}}}\n")
    (site / "__editable__.kernels-1.0.pth").write_text("import __editable___kernels_finder; 1\n")
    info = site / "odd-1.0.dist-info"
    info.mkdir()
    (info / "direct_url.json").write_text('{"url": "file:///src/odd%20one", "dir_info": {"editable": true}}')
    there = InPlace(tmp_path)
    _, told = python_in_place.pin(tmp_path, "env", there.memory)
    assert told == [
        "odd-1.0 is installed editable from /src/odd one, in a way that is not followed: not pinned",
    ]
    assert list(there.lock.python.linked) == ["src/kernels"]
    (package / "__init__.py").write_text("2\n")
    drift = there.drift()
    assert list(drift) == ["linked/src/kernels/__init__.py"]
    assert (
        "__editable___kernels_finder.py, which __editable__.kernels-1.0.pth runs"
        in next(iter(drift.values())).note
    )


def test_the_checkout_of_the_engine_is_left_to_the_probe_of_the_source(tmp_path: Path, env: Path) -> None:
    engine = tmp_path / "engine"
    for name in ("python/pocket/__init__.py", "kernel/kernel/__init__.py"):
        (engine / name).parent.mkdir(parents=True)
        (engine / name).write_text("")
    (env / SITE / "all.pth").write_text(f"{engine}/python\n{engine}/kernel\n")
    there = InPlace(tmp_path)
    pinned, _ = python_in_place.pin(tmp_path, "env", there.memory, engine=engine / "python")
    assert list(pinned.linked) == ["engine/kernel"]


@pytest.mark.parametrize("kind", [InPlace, Sealed])
@pytest.mark.parametrize("what", ["RECORD", "dist-info"])
def test_a_deleted_record_is_one_difference(tmp_path: Path, env: Path, what: str, kind: type[Sealed]) -> None:
    there = kind(tmp_path)
    delete_metadata(env, what)
    key = f"{SITE}/gpk-0.1.dist-info" + ("/RECORD" if what == "RECORD" else "")
    drift = there.drift()
    assert list(drift) == [key]
    assert drift[key].note == f"gpk 0.1: its {what} is gone; its other files are unchanged"
    (env / SITE / "gpk/part03.py").write_text("part = 4\n")
    drift = there.drift()
    assert drift.keys() == {key, f"{SITE}/gpk/part03.py"}
    assert drift[key].note == f"gpk 0.1: its {what} is gone; 1 of its other files differs"


@pytest.mark.parametrize("what", ["RECORD", "dist-info"])
def test_a_deleted_record_where_nothing_is_remembered(tmp_path: Path, env: Path, what: str) -> None:
    there = InPlace(tmp_path)
    delete_metadata(env, what)
    (tmp_path / "digests.sqlite").unlink()
    there.memory.close()
    drift = there.drift()
    assert "not checked against it" in drift["gpk"].note
    assert drift.keys() <= {"gpk", "bin/gpk"}


def delete_metadata(env: Path, what: str) -> None:
    info = env / SITE / "gpk-0.1.dist-info"
    shutil.rmtree(info) if what == "dist-info" else (info / "RECORD").unlink()


def test_what_differs_in_a_reinstalled_distribution_is_evidence(tmp_path: Path, env: Path) -> None:
    there = InPlace(tmp_path)
    (env / SITE / "gpk/part03.py").write_text("part = 4\n")
    record = env / SITE / "gpk-0.1.dist-info/RECORD"
    record.write_text(record.read_text().replace("gpk/part03.py,sha256=", "gpk/part03.py,md5="))
    drift = there.drift()
    assert f"changed {SITE}/gpk/part03.py" in drift["gpk"].evidence


def test_an_installation_that_is_no_virtual_environment(tmp_path: Path, env: Path, base: Path) -> None:
    (base / f"lib/python{MINOR}/site-packages").mkdir()
    pinned, told = python_in_place.pin(tmp_path, f"base/bin/python{MINOR}", InPlace(tmp_path).memory)
    assert pinned.loose == {}
    assert told == [f"{base} is no virtual environment: programs in its bin count only where a RECORD names them"]
    subprocess.run([base / f"bin/python{MINOR}", "-c", "pass"], check=True)


def test_the_interpreter_that_the_path_names_is_the_one_that_runs(tmp_path: Path, env: Path) -> None:
    """Pinned, asked for the engine and launched must be one interpreter, whatever lies beside it."""
    named = f"env/bin/python{MINOR}"
    lock = InPlace(tmp_path, named).lock
    (env / "bin/python").unlink()
    (env / "bin/python").symlink_to("/bin/false")
    workspace = workspace_paths(lock, tmp_path, Home(tmp_path / "home"))
    assert (workspace.env, workspace.python) == (env, tmp_path / named)


def test_byte_code_that_a_workspace_keeps_is_looked_at(tmp_path: Path, env: Path) -> None:
    there = InPlace(tmp_path)
    compiled = tmp_path / "bytecode/module.pyc"
    compiled.parent.mkdir()
    compiled.write_bytes(b"compiled")
    (tmp_path / "seal.json").write_bytes(
        msgspec.json.encode({"bytecode": python_env.seal(compiled.parent, there.memory)})
    )
    scene = Sealed.scene(there)

    def drift() -> Drift:
        differences, unknown = python_env.compare(there.lock, python_env.observe(scene))
        return Drift(differences=differences, unknown=unknown)

    assert drift() == Drift()
    compiled.write_bytes(b"other code")
    assert [item.key for item in drift().differences] == ["bytecode/module.pyc"]
    assert built_part(there.lock, drift()).differences == drift().differences
