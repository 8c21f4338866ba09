"""The engine's history: made the same anywhere, its good commit equal to engine/, its incident as told."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

QUICKSTART = Path(__file__).parents[2] / "deployments" / "quickstart"
CULPRIT = "Fix stale cache rows after a rejected draft"
BROKEN = "Read size limits from one module"
# Decodes with both models in this process and says what it computed; the same script for every commit.
DECODE = """
import json, sys
from pocket.layers import Segment
from pocket.model import Target
from pocket.model_config import read_config
from pocket.parallel import Group
from pocket.request import Request
from pocket.sampling import pick
from pocket.sampling_params import SamplingParams
from pocket.speculative import Draft, Speculator
from pocket.weights import read_weights

target = Target(read_config("model"), read_weights("model"), Group(), 1, 256)
target.captured_layers = tuple(read_config("draft")["eagle_config"]["eagle_aux_hidden_state_layer_ids"])
draft = Draft(read_config("draft"), read_weights("draft"), target.embedding, 1, 256)
speculator = Speculator(target, draft, 3)
prompt = [0, 275, 532]
request = Request("r", prompt, SamplingParams(temperature=0), 1, False, tokens=list(prompt), slot=0)
hidden, request.fused = target.forward(prompt, [Segment(0, 0, 3)])
request.tokens += pick(target.logits(hidden[-1:]), request.params, 1, 3)
steps, before = 0, target.positions_computed
while len(request.tokens) < 150:
    request.tokens += speculator.step([request])[0]
    steps += 1
print(json.dumps([request.tokens[:150], steps, target.positions_computed - before]))
"""


def git(*arguments: str, cwd: Path) -> str:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("GIT_")}
    environment |= {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}
    done = subprocess.run(
        ["git", *arguments], cwd=cwd, env=environment, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("bundle") / "clone"
    git("clone", "-q", str(QUICKSTART / "engine.bundle"), str(path), cwd=path.parent)
    return path


def commit_of(clone: Path, subject: str) -> str:
    lines = git("log", "--format=%H %s", "main", cwd=clone).splitlines()
    return next(line.split()[0] for line in lines if line.endswith(f" {subject}"))


def tree_of(clone: Path, commit: str, into: Path) -> Path:
    git("worktree", "add", "-q", "--detach", str(into), commit, cwd=clone)
    return into


def python(engine: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {
        "PYTHONPATH": str(engine),
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
    }
    command = [sys.executable, *arguments]
    return subprocess.run(
        command, cwd=QUICKSTART, env=environment, capture_output=True, text=True, timeout=60, check=False
    )


def test_the_script_makes_the_committed_bundle_whatever_the_configuration(tmp_path: Path) -> None:
    config = tmp_path / ".gitconfig"
    config.write_text(
        "[user]\nname = Somebody\nemail = somebody@example.com\n"
        "[commit]\ngpgSign = true\n[tag]\ngpgSign = true\n"
        "[core]\nautocrlf = true\nabbrev = 40\n[init]\ndefaultBranch = trunk\n[pack]\ncompression = 1\n"
    )
    variables = {
        "HOME": str(tmp_path), "GIT_CONFIG_GLOBAL": str(config), "TZ": "Asia/Tokyo", "LC_ALL": "C.UTF-8",
        "GIT_AUTHOR_DATE": "2001-01-01T00:00:00Z", "GIT_DIR": str(tmp_path / "nowhere"),
    }  # fmt: skip
    heads = []
    for number, extra in enumerate(({}, variables)):
        out = tmp_path / f"{number}.bundle"
        command = [sys.executable, str(QUICKSTART / "make_bundle.py"), str(out)]
        subprocess.run(command, env=os.environ | extra, cwd=tmp_path, check=True, capture_output=True)
        heads.append(git("bundle", "list-heads", str(out), cwd=tmp_path))
    committed = git("bundle", "list-heads", str(QUICKSTART / "engine.bundle"), cwd=tmp_path)
    assert heads == [committed, committed]
    assert (tmp_path / "0.bundle").read_bytes() == (tmp_path / "1.bundle").read_bytes()


def test_the_tagged_commit_is_the_engine_here(clone: Path, tmp_path: Path) -> None:
    assert git("tag", cwd=clone) == "v0.3.0"
    assert git("symbolic-ref", "--short", "HEAD", cwd=clone) == "main"
    tree = tree_of(clone, "v0.3.0", tmp_path / "good")
    ignored = {".git", "__pycache__"}

    def files(root: Path) -> dict[str, bytes]:
        found = [p for p in root.rglob("*") if p.is_file() and not ignored & set(p.relative_to(root).parts)]
        return {str(p.relative_to(root)): p.read_bytes() for p in found}

    assert files(tree) == files(QUICKSTART / "engine")


def test_the_history_holds_the_incident(clone: Path) -> None:
    subjects = git("log", "--reverse", "--format=%s", "v0.3.0..main", cwd=clone).splitlines()
    assert len(subjects) == 7 and subjects.index(CULPRIT) == 1 and subjects.index(BROKEN) == 4
    assert git("show", "--format=", "--name-only", commit_of(clone, CULPRIT), cwd=clone) == "pocket/speculative.py"
    emails = set(git("log", "--format=%ae %ce", cwd=clone).split())
    assert emails and all(e.endswith("@example.com") for e in emails)


def test_the_culprit_computes_what_was_cached_and_changes_nothing_else(clone: Path, tmp_path: Path) -> None:
    culprit = commit_of(clone, CULPRIT)
    results = {}
    for name, commit in (
        ("good", "v0.3.0"),
        ("before", f"{culprit}^"),
        ("culprit", culprit),
        ("tip", "main"),
    ):
        done = python(tree_of(clone, commit, tmp_path / name), "-c", DECODE)
        assert done.returncode == 0, done.stderr
        tokens, steps, positions = json.loads(done.stdout)
        results[name] = (tokens, steps)
        assert positions / steps == 4 if name in ("good", "before") else positions / steps > 16
    assert all(result == results["good"] for result in results.values())


def test_one_commit_does_not_start_and_the_tip_does(clone: Path, tmp_path: Path) -> None:
    arguments = ["-m", "pocket.launch_server", "--model-path", "model", "--port", "0"]
    broken = python(tree_of(clone, commit_of(clone, BROKEN), tmp_path / "broken"), *arguments)
    assert broken.returncode == 1 and "No module named 'pocket.limits'" in broken.stderr
    environment = os.environ | {"PYTHONPATH": str(tree_of(clone, "main", tmp_path / "tip"))}
    log = tmp_path / "log"
    with log.open("wb") as stream:
        tip = subprocess.Popen([sys.executable, *arguments], cwd=QUICKSTART, env=environment, stderr=stream)
    try:
        deadline = time.monotonic() + 30
        while "fired up" not in log.read_text():
            assert tip.poll() is None and time.monotonic() < deadline, log.read_text()
            time.sleep(0.02)
    finally:
        tip.terminate()
        assert tip.wait(10) == 0
