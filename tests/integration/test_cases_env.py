"""Case H06: the same version string, other contents; in a built environment and in one in place."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
import uv

from pinner.errors import ManifestError
from pinner.host import hashing
from pinner.host.digest import DigestMemory
from pinner.host.home import Home
from pinner.model.facts import ABSENT, Difference, Unknown
from pinner.model.lock import EnginePin, EnvironmentPin, Lock, PythonPin, ServePin, SourcePin, WeightsPin
from pinner.probes import python_env, python_in_place
from pinner.probes.base import Scene, Workspace
from tests.tiny import GIT_ENV

PYPROJECT = """\
[project]
name = "gpk"
version = "0.1"
scripts = { gpk = "gpk:main" }
[build-system]
requires = ["uv_build>=0.13.9,<0.14"]
build-backend = "uv_build"
[tool.uv.build-backend]
module-root = ""
"""
MINOR = f"{sys.version_info[0]}.{sys.version_info[1]}"
SITE = f"lib/python{MINOR}/site-packages"


@pytest.fixture(scope="session")
def packages(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str, str]:
    """A repository with gpk 0.1 in a subdirectory, at two commits of the same version."""
    repository = tmp_path_factory.mktemp("gpk")
    package = repository / "python/gpk"
    package.mkdir(parents=True)
    (repository / "python/pyproject.toml").write_text(PYPROJECT)
    for number in range(25):
        (package / f"part{number:02d}.py").write_text(f"part = {number}\n")
    commits = []
    git(repository, "init", "-q")
    for text in ("old", "new"):
        (package / "__init__.py").write_text(f"def main(): print({text!r})\n")
        git(repository, "add", "-A")
        git(repository, "commit", "-qm", text)
        commits.append(git(repository, "rev-parse", "HEAD").strip())
    return repository, commits[0], commits[1]


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("uv-cache")


def git(repository: Path, *arguments: str) -> str:
    return subprocess.run(
        ["git", *arguments], cwd=repository, check=True, env=GIT_ENV, capture_output=True, text=True
    ).stdout


Install = Callable[[str], None]


@pytest.fixture(scope="session")
def template(tmp_path_factory: pytest.TempPathFactory, packages: tuple[Path, str, str], cache: Path) -> Path:
    """An environment that holds gpk at the newer commit; copied for each test."""
    root = tmp_path_factory.mktemp("template") / "env"
    run_uv(cache, "venv", "-q", "--relocatable", "--no-project", "--python", sys.executable, str(root))
    install_commit(root, packages, packages[2], cache)
    return root


@pytest.fixture
def env(tmp_path: Path, template: Path) -> Path:
    shutil.copytree(template, tmp_path / "env", symlinks=True)
    return tmp_path / "env"


@pytest.fixture
def install(env: Path, packages: tuple[Path, str, str], cache: Path) -> Install:
    return lambda commit: install_commit(env, packages, commit, cache)


def install_commit(env: Path, packages: tuple[Path, str, str], commit: str, cache: Path) -> None:
    source = f"gpk @ git+file://{packages[0]}@{commit}#subdirectory=python"
    python = str(env / "bin/python")
    run_uv(cache, "pip", "install", "-q", "--offline", "--reinstall", "--python", python, source)


def run_uv(cache: Path, *arguments: str) -> None:
    environ = {**GIT_ENV, "UV_CACHE_DIR": str(cache), "UV_NO_CONFIG": "1", "UV_LINK_MODE": "copy"}
    done = subprocess.run(
        [uv.find_uv_bin(), *arguments], check=False, env=environ, capture_output=True, text=True, cwd=cache.parent
    )
    assert done.returncode == 0, done.stderr


@pytest.fixture(autouse=True)
def _short_racy_window(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hashing, "SAFE_AGE_NS", 20_000_000)


def lock_of(python: PythonPin) -> Lock:
    nothing = "sha256:" + "0" * 64
    return Lock(
        version=1,
        requires_pinner="0.1.0",
        manifest=nothing,
        engine=EnginePin(kind="pocket", source=SourcePin(type="git"), argv=()),
        python=python,
        model=WeightsPin(path="model", files=()),
        env=EnvironmentPin(),
        serve=ServePin(host="h", port=1, start_timeout_s=1, generate_timeout_s=1, stop_timeout_s=1),
    )


class Sealed:
    """A built environment, sealed, and what the probe says of it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.env = root / "env"
        self.memory = DigestMemory(root / "digests.sqlite")
        seal = {"env": python_env.seal(self.env, self.memory), "python": sys.version.split()[0]}
        (root / "seal.json").write_bytes(msgspec.json.encode(seal))
        self.lock = lock_of(PythonPin(version=MINOR, patch_level="3.0.0", pylock="sha256:0"))

    def scene(self, *, deep: bool = False) -> Scene:
        workspace = Workspace(
            root=self.root,
            tree=None,
            checkout=None,
            env=self.env,
            python=self.env / "bin/python",
            seal=self.root / "seal.json",
        )
        return Scene(
            lock=self.lock,
            directory=self.root,
            home=Home(self.root / "home"),
            memory=self.memory,
            workspace=workspace,
            deep=deep,
        )

    def drift(self, *, deep: bool = False) -> dict[str, Difference]:
        observation = python_env.observe(self.scene(deep=deep))
        differences, unknown = python_env.compare(self.lock, observation)
        assert not unknown
        return {item.key: item for item in differences}


class InPlace(Sealed):
    """An environment in place, pinned, and what the probe says of it."""

    def __init__(self, root: Path, path: str = "env") -> None:
        self.root = root
        self.env = root / "env"
        self.memory = DigestMemory(root / "digests.sqlite")
        pinned, _ = python_in_place.pin(root, path, self.memory)
        self.lock = msgspec.json.decode(msgspec.json.encode(lock_of(pinned)), type=Lock)

    def scene(self, *, deep: bool = False) -> Scene:
        scene = super().scene(deep=deep)
        return msgspec.structs.replace(scene, workspace=None)


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


@pytest.fixture(scope="session")
def installation(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A private copy of the interpreter that runs the tests, with what it takes to start."""
    root = tmp_path_factory.mktemp("installation")
    library = f"lib/python{MINOR}"
    left_out = ("site-packages", "test", "__pycache__", "config-*", "idlelib", "tkinter", "ensurepip", "lib2to3")
    shutil.copytree(
        Path(sys.base_prefix) / library, root / library, symlinks=True, ignore=shutil.ignore_patterns(*left_out)
    )
    (root / "bin").mkdir()
    real = Path(sys._base_executable).resolve()  # type: ignore[attr-defined]
    shutil.copy2(real, root / f"bin/python{MINOR}")
    return root


@pytest.fixture
def base(tmp_path: Path, installation: Path, env: Path) -> Path:
    """The environment `env`, upon an installation of its own."""
    root = tmp_path / "base"
    shutil.copytree(installation, root, symlinks=True)
    (env / "bin/python").unlink()
    (env / "bin/python").symlink_to(root / f"bin/python{MINOR}")
    config = env / "pyvenv.cfg"
    lines = config.read_text().splitlines()
    config.write_text(
        "".join(f"home = {root}/bin\n" if line.startswith("home") else f"{line}\n" for line in lines)
    )
    return root


class SealedWithBase(Sealed):
    """A built environment whose seal covers the interpreter beneath it."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        workspace = self.scene().workspace
        assert workspace is not None
        base = python_env.seal_base(workspace, self.memory, byte_code=True)
        self.change_seal(base=base)

    def change_seal(self, **fields: str) -> None:
        path = self.root / "seal.json"
        path.write_bytes(msgspec.json.encode({**msgspec.json.decode(path.read_bytes()), **fields}))


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
