"""Cases H14 and H22, live: every process of a run is read, and what cannot be read is never taken for empty."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pinner.host import procfs
from pinner.host.digest import DigestMemory
from pinner.host.home import Home
from pinner.model.facts import Unknown
from pinner.model.lock import PythonPin
from pinner.probes import environment
from pinner.probes.base import LiveScene, Scene
from tests import tiny
from tests.integration.command import Pinner, differences
from tests.integration.environments import MINOR, lock_of

TITLED = """
import setproctitle
setproctitle.setproctitle("sglang::scheduler_DP0_PP0_TP0_EP0")
print(1, flush=True); input()
"""


def test_h22_a_worker_that_has_left_its_parents_is_read_too(pinner: Pinner, tmp_path: Path) -> None:
    manifest = tiny.deployment(tmp_path / "d", env='STUB = "overwrite=NCCL_PROTO:LL;escape=3599"')
    said = pinner.json("up", manifest)
    assert said.code == 1, "the live check after the launch"
    found = differences(said)["environment.NCCL_PROTO"]
    assert (found["pinned"], found["observed"]) == ("Simple", "LL")
    assert any("sleep(float(sys.argv[1])) 3599" in line for line in found["evidence"]), found["evidence"]
    assert len(found["evidence"]) == 2


@pytest.mark.parametrize("keeps", [False, True], ids=["blanked", "SPT_NOENV"])
def test_h14_an_environment_blanked_by_a_title_is_unknown_never_empty(tmp_path: Path, keeps: bool) -> None:
    """What SGLang's workers do: setproctitle writes over the variables unless SPT_NOENV is set."""
    launched = {"PATH": "/usr/bin:/bin", "NCCL_PROTO": "Simple", **({"SPT_NOENV": "1"} if keeps else {})}
    with subprocess.Popen(
        [sys.executable, "-c", TITLED], env=launched, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as worker:
        assert worker.stdout is not None
        assert worker.stdout.readline() == b"1\n"
        seen = procfs.process(worker.pid)
        assert seen is not None
        assert seen.title == "sglang::scheduler_DP0_PP0_TP0_EP0"
        lock = lock_of(PythonPin(version=MINOR, patch_level="3.0.0", pylock="sha256:0"))
        live = LiveScene(
            scene=Scene(
                lock=lock, directory=tmp_path, home=Home(tmp_path), memory=DigestMemory(None), workspace=None
            ),
            processes=[seen],
            argv=(),
            env=launched,
            environ=procfs.environ,
        )
        observation = environment.observe_live(live)
        worker.communicate()
    assert observation is not None
    found, unknown = environment.compare(lock, observation)
    assert not found
    if keeps:
        assert not unknown
    else:
        assert isinstance(unknown[0].observed, Unknown)
        assert "blanked by setproctitle" in unknown[0].observed.reason


def test_h14_an_environment_that_may_not_be_read_is_unreadable(tmp_path: Path) -> None:
    """A directory in the file's place stands for any reason why it cannot be read."""
    folder = tmp_path / "7"
    folder.mkdir()
    (folder / "stat").write_text("7 (python) S 1 7 7 0 -1 0 " + " ".join(["0"] * 12) + " 42 0 0")
    (folder / "environ").mkdir()
    seen = procfs.environ(7, proc=tmp_path)
    assert isinstance(seen, procfs.Unreadable)
    assert not seen.gone
    assert os.strerror(21) in seen.reason
