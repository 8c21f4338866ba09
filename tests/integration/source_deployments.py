"""A deployment reduced to its source: a lock, an environment in place or a workspace, and the probe's answer."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from pinner.host.digest import DigestMemory
from pinner.host.files import remove_tree
from pinner.host.home import Home
from pinner.model.facts import Observation
from pinner.model.lock import (
    EnginePin,
    EnvironmentPin,
    Lock,
    PatchPin,
    PythonPin,
    ServePin,
    SourcePin,
    WeightsPin,
)
from pinner.model.manifest import Engine, Manifest, Model, Python, Source
from pinner.probes import source
from pinner.probes.base import Judgement, Scene, Wish, Workspace


class Deployment:
    """One manifest in `directory`, locked when made; its kind of engine is pocket."""

    def __init__(
        self, directory: Path, wished: Source, patches: Sequence[str] = (), hot: Sequence[str] = ()
    ) -> None:
        self.directory = directory
        self.home = Home(directory / "pinner-home")
        self.said: list[str] = []
        self.progress: list[str] = []
        self.hot = tuple(hot)
        self.manifest = Manifest(
            version=1,
            engine=Engine(kind="pocket", source=wished, patches=tuple(patches), hot_paths=tuple(hot)),
            python=Python(path="venv"),
            model=Model(path="model"),
        )
        self.env = directory / "venv"
        if not self.env.exists():
            make_environment(self.env)
        self.lock = self.locked(*self.pin())

    def wish(self, *, previous: Lock | None = None, upgrade: bool = False) -> Wish:
        return Wish(
            manifest=self.manifest,
            directory=self.directory,
            home=self.home,
            memory=DigestMemory(self.home.digests),
            previous=previous,
            upgrade=upgrade,
            say=self.progress.append,
            warn=self.said.append,
        )

    def pin(
        self, *, previous: Lock | None = None, upgrade: bool = False
    ) -> tuple[SourcePin, tuple[PatchPin, ...]]:
        return source.pin(self.wish(previous=previous, upgrade=upgrade))

    def relock(self, *, upgrade: bool = False) -> SourcePin:
        self.lock = self.locked(*self.pin(previous=self.lock, upgrade=upgrade))
        return self.lock.engine.source

    def locked(self, pin: SourcePin, patches: tuple[PatchPin, ...]) -> Lock:
        return Lock(
            version=1,
            requires_pinner="0.1.0",
            manifest="sha256:0",
            engine=EnginePin(kind="pocket", source=pin, patches=patches, hot_paths=self.hot, argv=()),
            python=PythonPin(version="3.11", patch_level="3.11.0", path="venv"),
            model=WeightsPin(path="model", files=()),
            env=EnvironmentPin(),
            serve=ServePin(
                host="127.0.0.1", port=1, start_timeout_s=1.0, generate_timeout_s=1.0, stop_timeout_s=1.0
            ),
        )

    def add_pth(self, name: str, text: str) -> Path:
        path = self.site_packages / name
        path.write_text(text)
        return path

    def add_finder(self, package: str, place: Path) -> None:
        """An editable install as setuptools makes it: a finder that a .pth file puts in."""
        (self.site_packages / f"__editable___{package}_finder.py").write_text(
            "import sys\nfrom importlib.util import spec_from_file_location\n"
            "class _EditableFinder:\n    @classmethod\n    def find_spec(cls, name, path=None, target=None):\n"
            f"        if name == {package!r}:\n"
            f"            return spec_from_file_location(name, {str(place / '__init__.py')!r})\n"
            "def install():\n    sys.meta_path.append(_EditableFinder)\n"
        )
        module = f"__editable___{package}_finder"
        self.add_pth(f"__editable__.{package}.pth", f"import {module}; {module}.install()\n")

    @property
    def site_packages(self) -> Path:
        return next(self.env.glob("lib/python3*/site-packages"))

    def scene(self, *, deep: bool = False, workspace: Workspace | None = None) -> Scene:
        return Scene(
            lock=self.lock,
            directory=self.directory,
            home=self.home,
            memory=DigestMemory(self.home.digests),
            workspace=workspace,
            deep=deep,
        )

    def observe(self, **options: Any) -> Observation:
        observation = source.observe(self.scene(**options))
        assert observation is not None
        # What a record or a run directory would hold must survive its format.
        assert msgspec.json.decode(msgspec.json.encode(observation), type=Observation).aspect == "source"
        return observation

    def check(self, **options: Any) -> Judgement:
        return source.compare(self.lock, self.observe(**options))

    def workspace(self) -> Workspace:
        root = self.directory / "workspace"
        return Workspace(
            root=root,
            tree=root / "tree",
            checkout=None,
            env=self.env,
            python=self.env / "bin" / "python",
            seal=root / "seal.json",
        )

    def materialize(self) -> Path:
        """The tree alone, in a fresh workspace; the package is made importable by the environment."""
        tree = self.directory / "workspace" / "tree"
        remove_tree(tree)
        patches = [self.directory / patch.file for patch in self.lock.engine.patches]
        source.export(self.lock.engine.source, patches, self.home, tree, directory=self.directory)
        package = self.site_packages / "pocket"
        package.mkdir(exist_ok=True)
        (package / "__init__.py").touch()
        return tree

    def check_tree(self, **options: Any) -> Judgement:
        return self.check(workspace=self.workspace(), **options)

    def forget_mirrors(self) -> None:
        remove_tree(self.home.mirrors)


def make_environment(path: Path) -> None:
    """An empty virtual environment, without the half second that the venv module takes."""
    base = Path(sys._base_executable)  # type: ignore[attr-defined]
    (path / "bin").mkdir(parents=True)
    (path / "bin" / "python").symlink_to(base)
    (path / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages").mkdir(
        parents=True
    )
    (path / "pyvenv.cfg").write_text(f"home = {base.parent}\n")


def deployment_of(
    directory: Path,
    *,
    patches: Sequence[str] = (),
    hot: Sequence[str] = (),
    importable: bool = False,
    **wished: Any,
) -> Deployment:
    """A locked deployment; `importable`: the environment imports the engine from the checkout in place."""
    deployment = Deployment(directory, Source(**wished), patches, hot)
    if importable:
        deployment.add_pth("engine.pth", f"{directory / wished['path'] / wished.get('subdirectory', '')}\n")
    return deployment
