"""Where the launch interpreter takes a package from, and who put it there."""

from __future__ import annotations

from pathlib import Path

from pinner.probes import importing
from pinner.probes.importing import Found
from tests.integration.environments import SITE
from tests.tiny import commit, git


def found(env: Path, package: str) -> Found:
    answer = importing.answer(importing.ask(env / "bin/python", package, {}))
    assert isinstance(answer, Found)
    return answer


def test_a_stranger_in_a_namespace_package_is_told_by_its_own_entry(tmp_path: Path, env: Path) -> None:
    own, stranger = tmp_path / "engine", tmp_path / "N"
    for place in (own, stranger):
        (place / "pocket").mkdir(parents=True)
    git(own, "init", "--quiet")
    commit(own, {"pocket/launch_server.py": ""}, "Start")
    (env / SITE / "pocket.pth").write_text(f"{own}\n")
    (env / SITE / "zzz.pth").write_text(f"{stranger}\n")
    seen = found(env, "pocket")
    assert seen.places == (str(own / "pocket"), str(stranger / "pocket"))
    assert seen.lines([str(stranger / "pocket")]) == (
        f"from the path entry {stranger}, which {env / SITE / 'zzz.pth'} adds",
    )
    everything = seen.lines()
    assert everything[0].startswith(f"{own}/pocket: from the path entry {own}, which ")
    assert everything[1].startswith(f"{stranger}/pocket: from the path entry {stranger}, which ")
    assert everything[2].startswith(f"that is the checkout {own} at ")


def test_a_package_that_is_not_there_has_no_place(env: Path) -> None:
    assert found(env, "nowhere").places == ()


def test_a_module_and_a_package(env: Path) -> None:
    (env / SITE / "single.py").write_text("")
    for name, file in (("single", "single.py"), ("gpk", "gpk/__init__.py")):
        seen = found(env, name)
        assert seen.places == (str(env / SITE / file),)
        assert seen.lines() == (f"from the path entry {env / SITE}",)
