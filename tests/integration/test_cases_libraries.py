"""Case H07: which library is loaded, at rest and in living processes; with compiled stubs and the real linker."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import msgspec
import pytest

from pinner.host import hashing, procfs
from pinner.host.digest import DigestMemory
from pinner.host.home import Home
from pinner.host.maps import mapped_files
from pinner.model.facts import ABSENT, Difference, Observation
from pinner.model.lock import EnvironmentPin, PythonPin
from pinner.probes import environment, libraries
from pinner.probes.base import LiveScene, Scene, Workspace
from pinner.probes.environment_files import digests, leads
from pinner.probes.library_versions import versions
from tests import native, tiny
from tests.integration.command import Pinner, differences
from tests.integration.environments import MINOR, SITE, lock_of

OURS, THEIRS = "2.28.9", "2.18.5"


class Stubs:
    """An environment that ships NCCL 2.28.9 and two libraries that need it, and a site's own 2.18.5 beside it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.env = root / "work/env"
        (self.env / "bin").mkdir(parents=True)
        (self.env / "pyvenv.cfg").write_text(f"home = {Path(sys.base_prefix) / 'bin'}\n")
        (self.env / "bin/python").symlink_to(Path(sys.executable).resolve())
        site = self.env / SITE
        self.ours = native.nccl(site / "nvidia/nccl/lib/libnccl.so.2", 22809)
        self.by_runpath = native.torch(site / "torch/lib/libtorch_new.so", self.ours, is_old=False)
        self.by_rpath = native.torch(site / "torch/lib/libtorch_old.so", self.ours, is_old=True)
        self.theirs = native.nccl(root / "opt/libnccl.so.2", 21805)
        self.etc = root / "etc"
        self.etc.mkdir()
        self.variables: dict[str, str] = {}
        self.files: dict[str, str] = {}
        self.kind = "sglang"

    def scene(self) -> Scene:
        lock = lock_of(PythonPin(version=MINOR, patch_level="3.0.0", pylock="sha256:0"))
        engine = msgspec.structs.replace(lock.engine, kind=self.kind)
        lock = msgspec.structs.replace(
            lock, engine=engine, env=EnvironmentPin(set=self.variables, files=self.files)
        )
        workspace = Workspace(
            root=self.root / "work",
            tree=None,
            checkout=None,
            env=self.env,
            python=self.env / "bin/python",
            seal=self.root / "seal.json",
        )
        return Scene(
            lock=lock,
            directory=self.root,
            home=Home(self.root / "home"),
            memory=DigestMemory(self.root / "digests.sqlite"),
            workspace=workspace,
            etc=self.etc,
        )

    def pin_files(self) -> None:
        found = digests(leads(self.variables, self.etc, with_nccl=True), DigestMemory(None))
        self.files = {path: digest for path, digest in found.items() if isinstance(digest, str)}

    def drift(self) -> dict[str, Difference]:
        scene = self.scene()
        return judged(scene, libraries.observe(scene))

    def live(self, *loads: Path) -> Running:
        return Running(self, loads)


def judged(scene: Scene, observation: Observation | None) -> dict[str, Difference]:
    assert observation is not None
    found, unknown = libraries.compare(scene.lock, observation)
    assert not unknown
    return {item.key: item for item in found}


class Running:
    """A living process of the environment's interpreter that has opened libraries."""

    def __init__(self, stubs: Stubs, loads: tuple[Path, ...]) -> None:
        self.stubs = stubs
        code = "import ctypes, sys; all(map(ctypes.CDLL, sys.argv[1:])); print(1, flush=True); input()"
        self.process = subprocess.Popen(
            [stubs.env / "bin/python", "-I", "-S", "-c", code, *loads],
            env={"PATH": "/usr/bin:/bin", **stubs.variables},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == b"1\n"

    def observation(self) -> Observation:
        scene = self.stubs.scene()
        main = procfs.process(self.process.pid)
        assert main is not None

        def environ(pid: int) -> dict[str, str] | procfs.Unreadable | None:
            return procfs.environ(pid)

        live = LiveScene(
            scene=scene,
            processes=[main],
            argv=(),
            env=dict(self.stubs.variables),
            environ=environ,
            maps=mapped_files,
        )
        observation = libraries.observe_live(live)
        assert observation is not None
        return observation

    def drift(self) -> dict[str, Difference]:
        return judged(self.stubs.scene(), self.observation())

    def __enter__(self) -> Running:
        return self

    def __exit__(self, *_error: object) -> None:
        self.process.communicate()


@pytest.fixture
def stubs(tmp_path: Path) -> Stubs:
    return Stubs(tmp_path)


def test_h07_without_a_variable_there_is_nothing_to_evaluate(stubs: Stubs) -> None:
    assert stubs.drift() == {}


def test_h07_runpath_loses_to_the_variable(stubs: Stubs) -> None:
    stubs.by_rpath.unlink()
    stubs.variables = {"LD_LIBRARY_PATH": str(stubs.theirs.parent)}
    found = stubs.drift()["libnccl.so.2"]
    assert f"{stubs.ours} (NCCL {OURS}" in found.pinned
    assert f"{stubs.theirs} (NCCL {THEIRS}" in found.observed
    assert f"LD_LIBRARY_PATH={stubs.theirs.parent} makes libtorch_new.so load {stubs.theirs}" in found.note


def test_h07_rpath_beats_the_variable_and_setting_it_alone_is_no_drift(stubs: Stubs) -> None:
    stubs.by_runpath.unlink()
    stubs.variables = {"LD_LIBRARY_PATH": str(stubs.theirs.parent)}
    assert stubs.drift() == {}


@pytest.mark.parametrize("name", ["by_rpath", "by_runpath"])
def test_h07_a_preload_beats_both(stubs: Stubs, name: str) -> None:
    getattr(stubs, name).unlink()
    stubs.variables = {"LD_PRELOAD": str(stubs.theirs)}
    found = stubs.drift()["libnccl.so.2"]
    assert THEIRS in found.observed
    assert f"LD_PRELOAD={stubs.theirs}" in found.note


def test_h07_a_directory_for_newer_cpus_counts(stubs: Stubs) -> None:
    """glibc looks into glibc-hwcaps/ first; what this processor is good for, it knows better than pinner."""
    stubs.by_rpath.unlink()
    better = stubs.root / "site/glibc-hwcaps/x86-64-v2/libnccl.so.2"
    better.parent.mkdir(parents=True)
    shutil.copy(stubs.theirs, better)
    stubs.variables = {"LD_LIBRARY_PATH": str(stubs.root / "site")}
    flags = Path("/proc/cpuinfo").read_text()
    assert (set(stubs.drift()) == {"libnccl.so.2"}) == ("sse4_2" in flags and os.uname().machine == "x86_64")


def test_h07_a_name_that_a_package_takes_from_the_system_is_no_drift(stubs: Stubs) -> None:
    """Another package ships a library of that name; who needs it gets no shipped one without the variable, too."""
    for path in (stubs.by_rpath, stubs.by_runpath):
        path.unlink()
    elsewhere = native.nccl(stubs.root / "usr/libnccl.so.2", 21700)
    native.compile_library(
        stubs.env / SITE / "other/libother.so", native.TORCH, str(elsewhere), f"-Wl,-rpath,{elsewhere.parent}"
    )
    stubs.variables = {"LD_LIBRARY_PATH": str(stubs.theirs.parent)}
    assert stubs.drift() == {}


def test_h07_a_library_with_another_missing_is_still_evaluated(stubs: Stubs) -> None:
    """Such as a kernel package, which relies upon PyTorch having been loaded before."""
    stubs.by_rpath.unlink()
    stubs.by_runpath.unlink()
    gone = native.compile_library(
        stubs.root / "libgone.so", "int gone(void) { return 1; }\n", "-Wl,-soname,libgone.so"
    )
    site = stubs.env / SITE
    source = native.TORCH + "int gone(void); int use(void) { return gone(); }\n"
    native.compile_library(
        site / "torch/lib/libuse.so",
        source,
        str(gone),
        str(stubs.ours),
        "-Wl,-rpath,$ORIGIN/../../nvidia/nccl/lib",
    )
    gone.unlink()
    stubs.variables = {"LD_LIBRARY_PATH": str(stubs.theirs.parent)}
    assert "libuse.so" in stubs.drift()["libnccl.so.2"].note


def test_h07_a_library_that_nothing_ships_is_no_drift(stubs: Stubs) -> None:
    native.compile_library(stubs.root / "opt/libjemalloc.so.2", "int jemalloc;\n")
    stubs.variables = {"LD_PRELOAD": str(stubs.root / "opt/libjemalloc.so.2")}
    assert stubs.drift() == {}


def test_h07_a_variable_that_leads_into_the_environment_is_no_drift(stubs: Stubs) -> None:
    for path in (stubs.by_rpath, stubs.by_runpath):
        stubs.variables = {"LD_LIBRARY_PATH": str(stubs.ours.parent), "LD_PRELOAD": str(stubs.ours)}
        assert stubs.drift() == {}
        path.unlink()
    assert stubs.drift() == {}


def test_h07_a_library_that_is_opened_by_its_name_alone_counts(stubs: Stubs) -> None:
    """As engines open libnccl.so.2 by ctypes; where nothing of the environment needs it."""
    stubs.by_rpath.unlink()
    stubs.by_runpath.unlink()
    stubs.variables = {"LD_LIBRARY_PATH": str(stubs.theirs.parent)}
    assert "a program that opens it by name" in stubs.drift()["libnccl.so.2"].note


def test_h07_what_the_linker_cannot_load_is_unknown(stubs: Stubs) -> None:
    stubs.by_rpath.unlink()
    stubs.theirs.write_text("no library")
    stubs.variables = {"LD_LIBRARY_PATH": str(stubs.theirs.parent)}
    scene = stubs.scene()
    observation = libraries.observe(scene)
    assert observation is not None
    _, unknown = libraries.compare(scene.lock, observation)
    assert "cannot load" in str(unknown[0].observed)


def test_h07_a_process_that_loaded_its_own_is_clean(stubs: Stubs) -> None:
    with stubs.live(stubs.by_runpath) as running:
        observation = running.observation()
        assert judged(stubs.scene(), observation) == {}
        assert f"NCCL {OURS}" in observation.how
        assert observation.facts["libnccl.so.2"].startswith(f"{stubs.ours} (NCCL {OURS}, build id ")


def test_h07_a_process_that_loaded_anothers_is_drift(stubs: Stubs) -> None:
    stubs.variables = {"LD_LIBRARY_PATH": str(stubs.theirs.parent)}
    stubs.pin_files()
    with stubs.live(stubs.by_runpath) as running:
        found = running.drift()["libnccl.so.2"]
        assert f"NCCL {OURS}" in found.pinned
        assert f"NCCL {THEIRS}" in found.observed
        assert f"LD_LIBRARY_PATH={stubs.theirs.parent} leads there" in found.note
        assert f"pid {running.process.pid}" in found.evidence[0]


def test_h07_a_preload_that_is_pinned_and_hides_nothing_is_clean(stubs: Stubs) -> None:
    extra = native.compile_library(stubs.root / "opt/libextra.so", "int extra;\n")
    stubs.variables = {"LD_PRELOAD": str(extra)}
    with stubs.live() as running:
        unlisted = running.drift()["libextra.so"]
        assert unlisted.pinned == ABSENT
        assert f"LD_PRELOAD={extra} leads there" in unlisted.note
        stubs.pin_files()
        assert running.drift() == {}


def test_h07_a_library_replaced_while_it_runs_is_drift(stubs: Stubs) -> None:
    with stubs.live(stubs.by_runpath) as running:
        assert running.drift() == {}
        native.nccl(stubs.root / "new", 22809).rename(stubs.ours)
        found = running.drift()["libnccl.so.2"]
        assert found.observed == f"{stubs.ours} (deleted)"
        assert "what runs is not what lies there now" in found.note


def test_h07_a_plugin_of_nccl_that_nobody_listed_is_drift(stubs: Stubs) -> None:
    plugin = native.compile_library(stubs.root / "opt/libnccl-net-site.so", "int plugin;\n")
    with stubs.live(plugin) as running:
        assert running.drift()["libnccl-net-site.so"].pinned == ABSENT
        stubs.variables = {"NCCL_NET_PLUGIN": str(plugin)}
        stubs.pin_files()
        assert running.drift() == {}


def test_h07_the_drivers_own_library_is_told_and_not_judged(stubs: Stubs) -> None:
    """Containers find it where their runtime has put it; which driver it is, the hardware's pins say."""
    driver = native.compile_library(stubs.root / "nvidia/lib64/libcuda.so.590.48.01", "int cuda;\n")
    with stubs.live(driver) as running:
        observation = running.observation()
        assert judged(stubs.scene(), observation) == {}
        assert "driver libcuda.so.590.48.01" in observation.how


def test_h07_a_library_of_the_systems_directories_is_told(stubs: Stubs) -> None:
    """A library of the system that the environment ships is drift; one that it does not ship is a note."""
    (stubs.etc / "ld.so.conf").write_text(f"include {stubs.etc}/more/*.conf\n")
    (stubs.etc / "more").mkdir()
    (stubs.etc / "more/site.conf").write_text(f"{stubs.theirs.parent}  # the site's\n")
    only = native.compile_library(stubs.theirs.parent / "libcudnn_site.so", "int only;\n")
    with stubs.live(stubs.theirs, only) as running:
        observation = running.observation()
        drift = judged(stubs.scene(), observation)
        assert list(drift) == ["libnccl.so.2"]
        assert "no variable leads there" in drift["libnccl.so.2"].note
        assert any(f"{only}" in note and "no pin covers it" in note for note in observation.notes)


@pytest.fixture
def nccl_engine(tmp_path: Path) -> Path:
    """A deployment whose engine brings NCCL 2.28.9 and a library that needs it by RUNPATH, and opens that."""
    directory = tmp_path / "d"
    engine = directory / "engine"
    tiny.engine_repository(engine)
    nccl = native.nccl(engine / "pocket/nvidia/nccl/lib/libnccl.so.2", 22809)
    native.torch(engine / "pocket/torch/lib/libtorch_stub.so", nccl, is_old=False)
    opens = 'import ctypes\nctypes.CDLL(__file__.replace("__init__.py", "torch/lib/libtorch_stub.so"))\n'
    tiny.commit(engine, {"pocket/__init__.py": opens}, "Bring NCCL")
    tiny.git(engine, "tag", "--force", "good")
    return directory


def test_h07_the_callers_path_does_not_reach_the_engine(
    pinner: Pinner, nccl_engine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs = native.nccl(tmp_path / "opt/libnccl.so.2", 21805)
    monkeypatch.setenv("LD_LIBRARY_PATH", str(theirs.parent))
    manifest = tiny.deployment(nccl_engine)
    said = pinner.json("up", manifest)
    assert said.code == 0, said.err
    check = pinner.json("check", manifest)
    assert check.code == 0
    assert f"NCCL {OURS}" in json.dumps(check.data)
    assert THEIRS not in json.dumps(check.data)


def test_h07_a_pinned_path_that_hides_nccl_refuses_the_launch(
    pinner: Pinner, nccl_engine: Path, tmp_path: Path
) -> None:
    theirs = native.nccl(tmp_path / "opt/libnccl.so.2", 21805)
    manifest = tiny.deployment(nccl_engine, env=f'LD_LIBRARY_PATH = "{theirs.parent}"')
    said = pinner.json("up", manifest)
    assert said.code == 1
    found = differences(said)["libraries.libnccl.so.2"]
    assert OURS in found["pinned"]
    assert THEIRS in found["observed"]
    assert f"LD_LIBRARY_PATH={theirs.parent}" in found["note"]
    native.nccl(theirs, 21806)
    assert f"environment.{theirs}" in differences(pinner.json("check", manifest))


def test_h07_accepted_by_name_it_runs_and_stays_visible(pinner: Pinner, nccl_engine: Path, tmp_path: Path) -> None:
    theirs = native.nccl(tmp_path / "opt/libnccl.so.2", 21805)
    manifest = tiny.deployment(nccl_engine, env=f'LD_LIBRARY_PATH = "{theirs.parent}"')
    accept = ("--accept", "libraries.libnccl.so.2", "--reason", "the site's own build")
    said = pinner.json("up", manifest, *accept)
    assert said.code == 0, said.err
    found = differences(pinner.json("check", manifest))["libraries.libnccl.so.2"]
    assert THEIRS in found["observed"]


def environment_drift(scene: Scene) -> Mapping[str, Difference]:
    observation = environment.observe(scene)
    assert observation is not None
    found, unknown = environment.compare(scene.lock, observation)
    assert not unknown
    return {item.key: item for item in found}


def test_nccl_conf_of_the_machine_is_drift_until_it_is_locked(stubs: Stubs) -> None:
    conf = stubs.etc / "nccl.conf"
    stubs.variables = {"NCCL_PROTO": "Simple"}
    assert environment_drift(stubs.scene()) == {}
    topology = stubs.root / "topology.xml"
    topology.write_text("<system/>")
    conf.write_text(f"# ours\nNCCL_PROTO=LL\nNCCL_ALGO=Tree\nNCCL_TOPO_FILE={topology}\n")
    found = environment_drift(stubs.scene())
    assert set(found) == {str(conf), str(topology)}
    assert found[str(conf)].evidence[0] == "it sets NCCL_ALGO=Tree"
    assert "NCCL_PROTO=LL, where the pinned 'Simple' stays" in found[str(conf)].evidence[-1]
    other = stubs.root / "other.xml"
    other.write_text("<system/>")
    stubs.variables["NCCL_TOPO_FILE"] = str(other)
    assert set(environment_drift(stubs.scene())) == {str(conf), str(other)}, "what is set already stays"
    del stubs.variables["NCCL_TOPO_FILE"]
    stubs.pin_files()
    assert environment_drift(stubs.scene()) == {}
    conf.write_text("NCCL_ALGO=Ring\n")
    assert set(environment_drift(stubs.scene())) == {str(conf), str(topology)}
    conf.unlink()
    assert environment_drift(stubs.scene())[str(conf)].observed == ABSENT


def test_files_that_variables_name_are_pinned_by_their_bytes(stubs: Stubs) -> None:
    topology, plugin, preload = (stubs.root / name for name in ("t.xml", "libnccl-net.so", "libextra.so"))
    for path in (topology, plugin, preload):
        path.write_text("as it was")
    stubs.variables = {
        "NCCL_TOPO_FILE": str(topology),
        "NCCL_NET_PLUGIN": str(plugin),
        "LD_PRELOAD": f"{preload} {stubs.root}/missing.so",
        "LD_LIBRARY_PATH": str(stubs.theirs.parent),
        "NCCL_DEBUG_FILE": str(stubs.root / "written"),
    }
    stubs.pin_files()
    assert set(stubs.files) == {str(path) for path in (topology, plugin, preload, stubs.theirs)}
    assert environment_drift(stubs.scene()) == {}
    for path in (topology, plugin, preload, stubs.theirs):
        path.write_text("as it is")
    assert set(environment_drift(stubs.scene())) == set(stubs.files)


def test_a_plugin_that_nccl_finds_by_itself_is_drift(stubs: Stubs) -> None:
    (stubs.etc / "ld.so.conf").write_text(f"{stubs.root}/opt\n")
    plugin = stubs.root / "opt/libnccl-net.so"
    plugin.write_text("")
    found = environment_drift(stubs.scene())[str(plugin)]
    assert "NCCL loads it as NCCL_NET_PLUGIN where it finds it, and nobody listed it" in found.note
    stubs.variables = {"NCCL_NET_PLUGIN": "none"}
    assert environment_drift(stubs.scene()) == {}


def test_what_nccl_finds_here_is_no_business_of_an_engine_on_cpus(stubs: Stubs) -> None:
    stubs.kind = "pocket"
    (stubs.etc / "nccl.conf").write_text("NCCL_ALGO=Ring\n")
    (stubs.etc / "ld.so.conf").write_text(f"{stubs.root}/opt\n")
    (stubs.root / "opt/libnccl-net.so").write_text("")
    assert environment_drift(stubs.scene()) == {}


def test_a_preload_of_the_machine_is_drift(stubs: Stubs) -> None:
    listed = stubs.etc / "ld.so.preload"
    listed.write_text("")
    assert environment_drift(stubs.scene()) == {}
    listed.write_text(f"{stubs.theirs}\n")
    found = environment_drift(stubs.scene())
    assert set(found) == {str(listed), str(stubs.theirs)}
    assert "every program loads what it lists" in found[str(listed)].note


def test_a_version_is_asked_once_for_a_file_that_rests(stubs: Stubs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hashing, "SAFE_AGE_NS", 0)
    memory = DigestMemory(stubs.root / "versions.sqlite")
    path = str(stubs.ours)
    python = stubs.env / "bin/python"
    assert versions([path], python, memory) == {path: OURS}
    assert versions([path], Path("/nonexistent/python"), memory) == {path: OURS}, "remembered, so not asked"
    native.nccl(stubs.ours, 22810)
    assert versions([path], python, memory) == {path: "2.28.10"}
