"""Which program runs, and where a living process's own variables and directory make it import the engine from."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from pinner.host import procfs
from pinner.host.digest import DigestMemory
from pinner.host.home import Home
from pinner.model.facts import Difference, Observation
from pinner.model.lock import PythonPin, SourcePin
from pinner.probes import source
from pinner.probes.base import LiveScene, Scene, Workspace
from tests.integration.environments import MINOR, SITE, lock_of

LAUNCHED = {"PATH": "/usr/bin:/bin", "PYTHONSAFEPATH": "1", "PYTHONNOUSERSITE": "1"}
WAIT = "print(1, flush=True); input()"


class Engine:
    """An environment with the package pocket, and what the probe says of a process of it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.env = root / "env"
        (self.env / "bin").mkdir(parents=True)
        (self.env / "pyvenv.cfg").write_text(f"home = {Path(sys.base_prefix) / 'bin'}\n")
        self.python = self.env / "bin/python"
        self.python.symlink_to(Path(sys.executable).resolve())
        self.package(self.env / SITE)
        self.launched = LAUNCHED
        self.type = "package"

    def package(self, place: Path) -> Path:
        (place / "pocket").mkdir(parents=True)
        (place / "pocket/__init__.py").write_text("")
        return place

    def start(self, environ: dict[str, str], cwd: Path, program: Path | None = None) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            [program or self.python, "-c", WAIT],
            env=environ,
            cwd=cwd,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert process.stdout is not None
        assert process.stdout.readline() == b"1\n"
        return process

    def observe(self, *processes: subprocess.Popen[bytes]) -> tuple[Observation, dict[str, Difference]]:
        lock = lock_of(PythonPin(version=MINOR, patch_level="3.0.0", pylock="sha256:0"))
        pinned = SourcePin(type=self.type, path="checkout" if self.type == "path" else None, commit="c" * 40)
        lock = msgspec.structs.replace(lock, engine=msgspec.structs.replace(lock.engine, source=pinned))
        workspace = Workspace(
            root=self.root,
            tree=None,
            checkout=None,
            env=self.env,
            python=self.python,
            seal=self.root / "seal.json",
        )
        scene = Scene(
            lock=lock,
            directory=self.root,
            home=Home(self.root / "home"),
            memory=DigestMemory(None),
            workspace=workspace,
        )
        told = [procfs.process(process.pid) for process in processes]
        live = LiveScene(
            scene=scene,
            processes=[one for one in told if one is not None],
            argv=(),
            env=self.launched,
            environ=procfs.environ,
            cwd=procfs.cwd,
        )
        observation = source.observe_live(live)
        assert observation is not None
        found, unknown = source.compare(lock, observation)
        assert not unknown
        return observation, {item.key: item for item in found}


@pytest.fixture
def engine(tmp_path: Path) -> Engine:
    return Engine(tmp_path)


@pytest.mark.parametrize("kind", ["package", "path"])
def test_processes_as_they_were_launched_need_no_second_question(engine: Engine, kind: str) -> None:
    engine.type = kind
    with engine.start(LAUNCHED, Path("/")) as main, engine.start(LAUNCHED, engine.root) as worker:
        observation, drift = engine.observe(main, worker)
        main.communicate()
        worker.communicate()
    assert drift == {}
    assert observation.how == "2 processes would import it from there"


def test_a_worker_whose_path_leads_elsewhere_is_drift(engine: Engine) -> None:
    shadow = engine.package(engine.root / "shadow")
    steered = {**LAUNCHED, "PYTHONPATH": str(shadow)}
    with engine.start(LAUNCHED, Path("/")) as main, engine.start(steered, Path("/")) as worker:
        _, drift = engine.observe(main, worker)
        main.communicate()
        worker.communicate()
    found = drift["imported-from"]
    assert str(found.observed).startswith(str(shadow))
    assert f"pid {worker.pid}" in found.evidence[0]


def test_a_directory_that_shadows_the_package_is_drift_only_without_safe_path(engine: Engine) -> None:
    shadow = engine.package(engine.root / "shadow")
    unsafe = {name: value for name, value in LAUNCHED.items() if name != "PYTHONSAFEPATH"}
    with engine.start(LAUNCHED, shadow) as safe, engine.start(unsafe, shadow) as worker:
        assert engine.observe(safe)[1] == {}
        observation, drift = engine.observe(safe, worker)
        safe.communicate()
        worker.communicate()
    assert str(drift["imported-from"].observed).startswith(str(shadow))
    assert "1 of them asked anew" in observation.how


def test_another_program_and_a_replaced_one_are_drift(engine: Engine) -> None:
    other = engine.root / "sleep"
    other.write_bytes(Path("/bin/sleep").resolve().read_bytes())
    other.chmod(0o755)
    with subprocess.Popen([other, "600"]) as process:
        try:
            _, drift = engine.observe(process)
            assert drift["executable"].observed == str(other)
            assert drift["executable"].pinned == str(engine.python.resolve())
            other.unlink()
            assert engine.observe(process)[1]["executable"].observed == f"{other} (deleted)"
        finally:
            process.kill()
