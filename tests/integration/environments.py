"""Environments for tests: built and sealed, or in place and pinned, upon an interpreter of their own."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
import uv

from pinner.host import hashing
from pinner.host.digest import DigestMemory
from pinner.host.home import Home
from pinner.model.facts import Difference
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


@pytest.fixture(scope="session")
def bare(tmp_path_factory: pytest.TempPathFactory, cache: Path) -> Path:
    """An environment with nothing in it."""
    root = tmp_path_factory.mktemp("bare") / "env"
    run_uv(cache, "venv", "-q", "--relocatable", "--no-project", "--python", sys.executable, str(root))
    return root


@pytest.fixture
def venv(tmp_path: Path, bare: Path) -> Path:
    shutil.copytree(bare, tmp_path / "env", symlinks=True)
    return tmp_path / "env"


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


@pytest.fixture
def short_racy_window(monkeypatch: pytest.MonkeyPatch) -> None:
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
    # Debian's is a link to a file in /etc, which is not the copy's to change.
    (root / f"lib/python{MINOR}/sitecustomize.py").unlink(missing_ok=True)
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
