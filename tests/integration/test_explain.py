"""compare and diff as a user calls them: stored records of real locks, real repositories, a real pull."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from pinner.deploy.load import load_manifest
from pinner.deploy.locks import load_lock
from pinner.host.home import Home
from pinner.measure.record_pins import deployment_files
from pinner.measure.records import Stored, store
from pinner.model.record import Load, Record
from tests import tiny
from tests.integration.command import Pinner
from tests.records import changed, measured, record

GOOD = {
    "output_throughput": [94.0, 95.0, 93.0],
    "accept_length": [3.1, 3.1, 3.1],
    "verify_step_ms": [19.0, 19.1, 18.9],
}
BAD = {
    "output_throughput": [60.0, 61.0, 59.0],
    "accept_length": [3.1, 3.1, 3.1],
    "verify_step_ms": [29.0, 29.1, 28.9],
}


def stored(manifest: Path, home: Home, metrics: dict[str, list[float]], **fields: Any) -> Stored:
    """A record of what a deployment is locked to now."""
    deployment = load_manifest(manifest)
    files = deployment_files(deployment, load_lock(deployment))
    one: Record = changed(
        record(measured(metrics)), deployment=deployment.name, manifest=str(deployment.path), machine={}, **fields
    )
    return store(one, files, home)


@pytest.fixture
def moved(tmp_path: Path, pinner: Pinner, state: Home) -> tuple[Path, Path, Stored, Stored]:
    """A deployment at a good commit, one beside it at a bad one that touches a hot path, a record of each."""
    good = tiny.deployment(tmp_path / "d", source='{ git = "engine", commit = "good" }')
    engine = tmp_path / "d" / "engine"
    tiny.commit(engine, {"README.md": "more"}, "Say more in the README")
    tiny.commit(engine, {"pocket/speculative.py": "# slower"}, "Verify the draft twice")
    tiny.git(engine, "tag", "bad")
    bad = good.with_name("later.toml")
    bad.write_text(good.read_text().replace('commit = "good"', 'commit = "bad"'))
    for manifest in (good, bad):
        assert pinner("lock", manifest).code == 0
    return good, bad, stored(good, state, GOOD), stored(bad, state, BAD, began=1_780_001_000.0)


def test_the_incident_compared(pinner: Pinner, moved: tuple[Path, Path, Stored, Stored]) -> None:
    _, _, a, b = moved
    said = pinner.json("compare", a.short, b.short)
    assert said.code == 1
    assert (said.json["status"], said.data["verdict"]) == ("worse", "worse")
    throughput = next(one for one in said.data["metrics"] if one["metric"] == "output_throughput")
    assert throughput["counts"]
    assert throughput["high"] < 0
    assert throughput["change"] == pytest.approx(-0.362, abs=0.01)
    first = said.data["diff"]["differences"][0]
    assert (first["group"], first["key"]) == ("source", "commit")
    assert any("2 commits came in, 1 of them on a hot path" in line for line in first["evidence"])
    headline = said.data["diff"]["headline"]
    assert headline.startswith("verify step 19 → 29 ms at concurrency=8; source moved ")
    assert "Verify the draft twice" in headline
    assert said.data["diff"]["suspects"] == [tiny.git(moved[0].parent / "engine", "rev-parse", "bad")]

    text = pinner("compare", a.short, b.short).out
    assert text.startswith("WORSE  A tiny-")
    assert "verify step 19 → 29 ms" in text
    assert text.index("WORSE") < text.index("DIFFERENT")


def test_back_is_better_and_itself_is_equivalent(pinner: Pinner, moved: tuple[Path, Path, Stored, Stored]) -> None:
    _, _, a, b = moved
    assert pinner.json("compare", b.short, a.short).code == 0
    said = pinner.json("compare", a.short, a.short, "--tolerance", "0.05")
    assert (said.code, said.data["verdict"]) == (0, "equivalent")
    assert said.data["diff"]["differences"] == []


def test_inconclusive_says_what_would_settle_it(
    pinner: Pinner, moved: tuple[Path, Path, Stored, Stored], state: Home
) -> None:
    good = moved[0]
    one = stored(good, state, {"output_throughput": [94.0]}, began=4.0)
    two = stored(good, state, {"output_throughput": [60.0]}, began=5.0)
    said = pinner.json("compare", one.short, two.short)
    assert (said.code, said.data["verdict"], said.data["more_starts"]) == (3, "inconclusive", 1)
    assert said.data["metrics"][0]["high"] is None
    assert "1 more start on each side would settle it" in pinner("compare", one.short, two.short).out


def test_locks_and_manifests_without_records(pinner: Pinner, moved: tuple[Path, Path, Stored, Stored]) -> None:
    good, bad, a, _ = moved
    for before, after in ((good, bad), (good.with_suffix(".lock"), bad.with_suffix(".lock")), (a.short, bad)):
        said = pinner.json("diff", before, after)
        assert said.code == 1
        assert said.data["differences"][0]["key"] == "commit"
        assert said.data["headline"] is None
    same = pinner.json("diff", good, a.short)
    assert (same.code, same.data["differences"]) == (0, [])
    alone = good.parent / "elsewhere"
    alone.mkdir()
    shutil.copy(bad.with_suffix(".lock"), alone / "copy.lock")
    said = pinner.json("diff", good, alone / "copy.lock")
    assert [one["key"] for one in said.data["differences"]] == ["commit"]
    assert said.data["unknown"] == []
    (alone / "copy.lock").write_text(
        (alone / "copy.lock").read_text().replace('pylock = "sha256:', 'pylock = "sha256:0')
    )
    unread = pinner.json("diff", good, alone / "copy.lock")
    assert unread.data["unknown"][0]["observed"] == {"unknown": "pylock.copy.toml: No such file or directory"}


def test_a_pull_between_two_records_is_told_with_who_and_when(tmp_path: Path, pinner: Pinner, state: Home) -> None:
    """A checkout in place: it was pulled, locked anew and measured again; the reflog knows the rest."""
    origin = tmp_path / "origin"
    tiny.engine_repository(origin)
    place = tmp_path / "d" / "engine"
    place.parent.mkdir()
    tiny.git(tmp_path, "clone", "--quiet", str(origin), str(place))
    manifest = tiny.deployment(tmp_path / "d", source='{ path = "engine", commit = "main" }')
    assert pinner("lock", manifest).code == 0
    a = stored(manifest, state, GOOD)
    tiny.commit(origin, {"pocket/speculative.py": "# slower"}, "Verify the draft twice")
    tiny.git(place, "pull", "--quiet", env={"GIT_COMMITTER_NAME": "Sam", "GIT_COMMITTER_EMAIL": "sam@example.com"})

    now = pinner.json("diff", manifest, "now")
    assert now.code == 1
    assert now.data["differences"][0]["key"] == "commit"
    assert "by `pull --quiet: Fast-forward`" in now.data["differences"][0]["evidence"][0]
    assert pinner.json("diff", "now", a.short).data["differences"] == now.data["differences"]

    assert pinner("lock", manifest, "--upgrade", "engine").code == 0
    b = stored(manifest, state, BAD, began=1_780_001_000.0)
    said = pinner.json("diff", a.short, b.short)
    assert said.code == 1
    headline = said.data["headline"]
    assert headline.startswith("verify step 19 → 29 ms at concurrency=8; source moved ")
    assert "by `pull --quiet: Fast-forward` at 2026-01-01T00:00:00+00:00 by Sam <sam@example.com>" in headline
    assert "Verify the draft twice" in headline
    # Wherever HEAD is by now.
    tiny.git(place, "reset", "--quiet", "--hard", "HEAD~1")
    assert pinner.json("diff", a.short, b.short).data["headline"] == headline


def sglang_log(path: Path, step_ms: float, backend: str) -> Path:
    """What a server wrote that ran one request with accept length 1.9, so many milliseconds a step."""
    arguments = f"model_path='/m', port=30000, moe_runner_backend='{backend}'"
    lines = [
        f"[2026-11-23 10:00:00] server_args=ServerArgs({arguments})",
        "[2026-11-23 10:00:30] The server is fired up and ready to roll!",
    ]
    for number in range(6):
        speed = 1000 * 1.9 / (step_ms + 0.1 * (number % 2))
        lines.append(
            f"[2026-11-23 10:01:{number:02d}] Decode batch, #running-req: 1, #token: 100, token usage: 0.00, "
            "accept len: 1.90, accept rate: 0.45, cuda graph: True, "
            f"gen throughput (token/s): {speed:.2f}, #queue-req: 0"
        )
    path.write_text("\n".join(lines) + "\n")
    return path


def test_last_week_s_log_meets_today_s(
    tmp_path: Path, pinner: Pinner, moved: tuple[Path, Path, Stored, Stored]
) -> None:
    """Foreign evidence has no pins: what is unknown is said, and what its server told of itself is compared."""
    ids = []
    for name, step_ms, backend in (("before", 19.0, "auto"), ("after", 29.0, "triton")):
        said = pinner.json("records", "import", sglang_log(tmp_path / f"{name}.log", step_ms, backend))
        assert said.code == 0, said.err
        ids.append(said.data["record"]["id"])
    said = pinner.json("compare", *ids)
    assert (said.code, said.data["verdict"], said.data["more_starts"]) == (3, "inconclusive", 1)
    assert said.data["diff"]["headline"] == (
        "verify step 19.1 → 29.1 ms at concurrency=1 (not certain yet); account moe-runner-backend auto → triton"
    )
    assert any("does not tell" in sentence for sentence in said.data["unknown"])
    assert any("it has no pins" in note for note in said.data["diff"]["notes"])
    assert pinner("diff", *ids).code == 1
    assert pinner("diff", ids[0], "now").code == 2


def test_a_log_s_speed_is_not_a_client_s(tmp_path: Path, pinner: Pinner, state: Home) -> None:
    imported = pinner.json("records", "import", sglang_log(tmp_path / "before.log", 19.0, "auto")).data["record"][
        "id"
    ]
    one = measured({**GOOD, "accept_length": [1.9] * 3}, load=Load(kind="concurrency", value=1.0))
    client = store(changed(record(one), machine={}, began=7.0), {}, state)
    said = pinner.json("compare", imported, client.short)
    assert (said.code, said.data["verdict"]) == (3, "unknown")
    throughput = next(row for row in said.data["metrics"] if row["metric"] == "output_throughput")
    assert throughput["reason"].startswith("A is a log, which tells the speed of decoding alone")


def test_what_cannot_be_explained_is_a_usage_error(
    pinner: Pinner, moved: tuple[Path, Path, Stored, Stored], tmp_path: Path
) -> None:
    good, _, a, _ = moved
    assert pinner("diff", "now", "now").code == 2
    assert pinner("diff", "nothing", good).code == 2
    assert pinner("compare", good, "feedfacefeed").code == 2
    assert pinner("compare", a.short, a.short, "--tolerance", "2").code == 2
    assert pinner("compare", a.short, a.short, "--alpha", "0").code == 2
    said = pinner("diff", tmp_path / "none.lock", good)
    assert said.code == 2
    assert "there is no lock at" in said.err
