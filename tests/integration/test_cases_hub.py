"""Cases H08 to H11 with models and drafts from the Hub, by the commands that a person runs."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from pinner.host.home import Home
from tests import eagle_pair, tiny
from tests.integration.command import Pinner, differences, unknowns
from tests.integration.hub import FakeHub
from tests.integration.test_cases_weights import FAULTS, POINTER, config, safetensors

MODEL = {
    "config.json": json.dumps(eagle_pair.TARGET),
    "generation_config.json": "{}",
    "tokenizer.json": '{"model": {}}',
    "model.safetensors": safetensors(),
    ".gitattributes": "*.safetensors filter=lfs",
}
OFFSETS = {"d2t": ("I64", eagle_pair.OFFSETS)}
DRAFT = {
    "config.json": json.dumps(eagle_pair.DRAFT),
    "model.safetensors": eagle_pair.safetensors(eagle_pair.SHAPES, OFFSETS),
}


class Site:
    """A deployment whose model, and draft, come from the Hub."""

    def __init__(self, root: Path, hub: FakeHub, pinner: Pinner) -> None:
        self.manifest = tiny.deployment(root / "site")
        self.hub = hub
        self.pinner = pinner
        self.cache = root / "hf/hub"
        self.write(model="")

    def write(self, *, model: str = "", draft: str | None = None, args: str = "") -> None:
        text = re.sub(r"\[model\].*?\[env\]", "[env]", self.manifest.read_text(), flags=re.DOTALL)
        text = re.sub(r"\[draft\].*?\[env\]", "[env]", text, flags=re.DOTALL)
        text = re.sub(r"\[engine.args\].*?\[python\]", f"[engine.args]\n{args}\n[python]", text, flags=re.DOTALL)
        sections = f'[model]\nrepo = "org/m"\n{model}\n'
        if draft is not None:
            sections += f'[draft]\nrepo = "org/d"\nalgorithm = "EAGLE3"\n{draft}\n'
        self.manifest.write_text(text.replace("[env]", f"{sections}[env]"))

    @property
    def lock_text(self) -> str:
        return self.manifest.with_suffix(".lock").read_text()

    def snapshot(self, commit: str, path: str, repo: str = "org--m") -> Path:
        return self.cache / f"models--{repo}/snapshots/{commit}" / path

    def blob(self, commit: str, path: str, repo: str = "org--m") -> Path:
        return self.snapshot(commit, path, repo).resolve(strict=True)


@pytest.fixture
def site(tmp_path: Path, hub: FakeHub, pinner: Pinner) -> Site:
    return Site(tmp_path, hub, pinner)


def test_locking_reads_configurations_and_headers_only(site: Site) -> None:
    commit = site.hub.push("org/m", MODEL)
    said = site.pinner("lock", site.manifest)
    assert said.code == 0, said.err
    assert f'revision = "{commit}"' in site.lock_text
    assert 'wish = "main"' in site.lock_text
    for path, data in MODEL.items():
        raw = data if isinstance(data, bytes) else data.encode()
        is_pinned = f"sha256:{hashlib.sha256(raw).hexdigest()}" in site.lock_text
        assert is_pinned == (not path.startswith("."))
    assert all(one.range for one in site.hub.asked if "model.safetensors" in one.path)
    assert not site.snapshot(commit, "model.safetensors").exists()
    assert str(site.hub.port) not in site.lock_text


def test_a_large_model_is_locked_by_its_headers(site: Site) -> None:
    floats = 500_000
    site.hub.push("org/m", {**MODEL, "model.safetensors": safetensors(floats, 0) + bytes(4 * floats)})
    site.hub.asked.clear()
    assert site.pinner("lock", site.manifest).code == 0
    assert [one.range for one in site.hub.asked if "/cdn/" in one.path and one.range] == ["bytes=0-131071"]


def test_check_says_that_nothing_is_materialized(site: Site) -> None:
    site.hub.push("org/m", MODEL)
    site.pinner("lock", site.manifest)
    said = site.pinner.json("check", site.manifest)
    assert said.code == 3
    assert unknowns(said)["model.."]["observed"] == {"unknown": "nothing is materialized to look at"}
    assert any("pinner materialize" in hint for hint in said.data["hints"])


def test_a_view_holds_exactly_the_pinned_files(site: Site, state: Home) -> None:
    commit = site.hub.push("org/m", {**MODEL, "original/params.json": "{}", "extra/big.bin": b"x" * 100})
    site.write(model='exclude = ["extra/"]')
    site.pinner("lock", site.manifest)
    assert site.pinner("materialize", site.manifest).code == 0
    (view,) = (path for path in state.models.iterdir() if path.is_dir())
    found = {str(path.relative_to(view)) for path in view.rglob("*") if not path.is_dir()}
    assert found == {path for path in MODEL if not path.startswith(".")} | {"original/params.json"}
    assert os.path.realpath(view / "model.safetensors") == str(site.blob(commit, "model.safetensors"))
    assert "extra/big.bin" not in site.hub.fetched()
    assert site.pinner("check", site.manifest).code == 0
    # Everything is there: nothing is asked any more.
    site.hub.asked.clear()
    assert site.pinner("materialize", site.manifest).code == 0
    assert site.hub.asked == []
    shutil.move(view, view.with_name("away"))
    said = site.pinner.json("check", site.manifest)
    assert (said.code, list(unknowns(said))) == (3, ["model.."])
    assert any("pinner materialize" in hint for hint in said.data["hints"])
    shutil.move(view.with_name("away"), view)
    (view / "stale.safetensors").write_bytes(b"")
    assert differences(site.pinner.json("check", site.manifest))["model.stale.safetensors"]["pinned"] is None
    assert site.pinner("materialize", site.manifest).code == 0
    assert site.pinner("check", site.manifest).code == 0


def test_h08_a_revision_that_is_gone_is_never_replaced(site: Site, state: Home) -> None:
    first = site.hub.push("org/m", MODEL)
    site.pinner("lock", site.manifest)
    second = site.hub.push("org/m", {**MODEL, "model.safetensors": safetensors(value=3.0)})
    site.hub.gone.add(first)
    shutil.rmtree(site.cache)
    said = site.pinner("materialize", site.manifest)
    assert said.code == 3
    assert f"revision {first} no longer offered by org/m" in said.err
    assert "model.safetensors" in said.err
    assert "--upgrade model" in said.err
    assert not site.snapshot(second, "model.safetensors").exists()
    assert not state.models.exists() or not [path for path in state.models.iterdir() if path.is_dir()]


def test_h08_files_that_are_here_serve_and_are_told_to_be_the_last(site: Site, state: Home) -> None:
    first = site.hub.push("org/m", MODEL)
    site.pinner("lock", site.manifest)
    assert site.pinner("materialize", site.manifest).code == 0
    site.hub.push("org/m", {**MODEL, "model.safetensors": safetensors(value=3.0)})
    site.hub.gone.add(first)
    shutil.rmtree(state.models)
    said = site.pinner.json("materialize", site.manifest)
    assert said.code == 0
    assert any("not re-fetchable" in note and first in note for note in said.data["notes"])
    assert "not re-fetchable" in said.err
    assert site.pinner("check", site.manifest).code == 0


def test_h08_an_offline_machine_with_the_files_is_enough(
    site: Site, state: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.hub.push("org/m", MODEL)
    site.pinner("lock", site.manifest)
    assert site.pinner("materialize", site.manifest).code == 0
    shutil.rmtree(state.models)
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    said = site.pinner.json("materialize", site.manifest)
    assert (said.code, said.data["notes"]) == (0, [])
    assert site.pinner("check", "--deep", site.manifest).code == 0
    shutil.rmtree(state.models)
    shutil.rmtree(site.cache)
    said = site.pinner("materialize", site.manifest)
    assert said.code == 3
    assert "cannot be reached" in said.err
    assert "config.json, generation_config.json, model.safetensors, tokenizer.json" in said.err


def test_h08_a_branch_stays_where_it_was_until_it_is_upgraded(site: Site) -> None:
    first = site.hub.push("org/m", MODEL)
    site.pinner("lock", site.manifest)
    second = site.hub.push("org/m", {**MODEL, "config.json": config("LlamaForCausalLM", "B")})
    site.hub.asked.clear()
    assert "unchanged" in site.pinner("lock", site.manifest).out
    assert site.hub.asked == []
    assert first in site.lock_text
    said = site.pinner("lock", "--upgrade", "model", site.manifest)
    assert f"model.revision: {first} → {second}" in said.out
    assert first not in site.lock_text
    assert site.pinner("lock", "--check", site.manifest).code == 0


@pytest.mark.parametrize("change", ['revision = "v1"', 'include = ["*.json", "*.safetensors"]'])
def test_h08_another_wish_is_asked_anew(site: Site, change: str) -> None:
    first = site.hub.push("org/m", MODEL, "v1")
    site.hub.push("org/m", MODEL)
    site.pinner("lock", site.manifest)
    site.write(model=change)
    assert site.pinner("lock", "--check", site.manifest).code == 1
    site.hub.asked.clear()
    assert site.pinner("lock", site.manifest).code == 0
    assert site.hub.asked
    assert first in site.lock_text


def test_h08_a_lock_edited_by_hand_is_not_believed(site: Site) -> None:
    commit = site.hub.push("org/m", MODEL)
    site.pinner("lock", site.manifest)
    path = site.manifest.with_suffix(".lock")
    good = site.lock_text
    for old, new, wording in (
        (commit, "main", "model.revision: 'main' is not a full commit id"),
        ("org/m", "../../m", "model.repo: '../../m' is not OWNER/NAME"),
        ('wish = "main"', 'wish = "v2"', "model is not what tiny.toml says"),
        ('path = "config.json"', 'path = "../config.json"', "leaves its directory"),
    ):
        path.write_text(good.replace(old, new))
        said = site.pinner("check", site.manifest)
        assert said.code == 2
        assert wording in said.err


@pytest.mark.parametrize("path", ["tokenizer.model", "model.safetensors"])
def test_h09_a_pointer_in_the_repository_is_not_locked(site: Site, path: str) -> None:
    site.hub.push("org/m", {**MODEL, path: POINTER.format("a" * 64)})
    said = site.pinner("lock", site.manifest)
    assert said.code == 2
    assert re.search(rf"model\.repo: org/m@\w+: {path}: Git LFS pointer, not weights", said.err)
    assert not site.manifest.with_suffix(".lock").exists()


def test_h09_a_pointer_in_the_cache_is_told_as_one(site: Site) -> None:
    commit = site.hub.push("org/m", MODEL)
    site.pinner("lock", site.manifest)
    site.pinner("materialize", site.manifest)
    digest = hashlib.sha256(safetensors()).hexdigest()
    blob = site.blob(commit, "model.safetensors")
    blob.write_text(POINTER.format(digest))
    said = site.pinner.json("check", site.manifest)
    assert said.code == 1
    found = differences(said)["model.model.safetensors"]
    assert "the right file was never downloaded" in found["note"]
    assert str(blob) in found["evidence"][0]


@pytest.mark.parametrize(("data", "wording"), FAULTS.values(), ids=FAULTS)
def test_h10_a_damaged_shard_of_the_hub_is_not_locked(site: Site, data: bytes, wording: str) -> None:
    site.hub.push("org/m", {**MODEL, "model.safetensors": data})
    said = site.pinner("lock", site.manifest)
    assert said.code == 2
    assert re.search(rf"model\.safetensors: .*{wording}", said.err)


def test_h10_a_damaged_file_of_the_cache_is_named_and_left(site: Site) -> None:
    commit = site.hub.push("org/m", MODEL)
    site.pinner("lock", site.manifest)
    assert site.pinner("materialize", site.manifest).code == 0
    blob = site.blob(commit, "model.safetensors")
    data = bytearray(blob.read_bytes())
    data[-1] ^= 1
    blob.write_bytes(data)
    found = differences(site.pinner.json("check", site.manifest))["model.model.safetensors"]
    assert found["note"] == "same size, other bytes"
    assert str(blob) in found["evidence"][0]
    said = site.pinner("materialize", "--rebuild", site.manifest)
    assert said.code == 3
    assert "1 of 4 files in the cache are not what the lock pins" in said.err
    assert str(blob) in said.err
    assert blob.read_bytes() == data
    blob.unlink()
    said = site.pinner.json("check", site.manifest)
    assert differences(said)["model.model.safetensors"]["observed"] is None
    assert any("pinner materialize" in hint for hint in said.data["hints"])
    assert site.pinner("materialize", site.manifest).code == 0
    assert site.pinner("check", site.manifest).code == 0


def test_h10_a_hub_that_sends_other_bytes_is_refused(site: Site) -> None:
    commit = site.hub.push("org/m", MODEL)
    site.pinner("lock", site.manifest)
    files = site.hub.commits["org/m"][commit]
    files["generation_config.json"] = b"[]"
    shutil.rmtree(site.cache)
    said = site.pinner("materialize", site.manifest)
    assert said.code == 3
    assert re.search(r"generation_config\.json: same size, other bytes", said.err)


def test_h11_model_and_draft_have_commits_of_their_own(site: Site, state: Home) -> None:
    model, draft = site.hub.push("org/m", MODEL, "v2"), site.hub.push("org/d", DRAFT)
    site.hub.push("org/m", {**MODEL, "config.json": "{}"})
    site.write(model='revision = "v2"', draft="num-steps = 2")
    said = site.pinner("up", site.manifest)
    assert said.code == 0, said.err
    assert f'revision = "{model}"' in site.lock_text
    assert f'revision = "{draft}"' in site.lock_text
    url = said.out.strip().splitlines()[-1]
    with urllib.request.urlopen(f"{url}/env") as answer:
        told = json.load(answer)
    argv, env = told["argv"], told["env"]
    target = Path(argv[argv.index("--model-path") + 1])
    beside = Path(argv[argv.index("--speculative-draft-model-path") + 1])
    assert (target.parent, beside.parent) == (state.models, state.models)
    assert (target / "config.json").resolve() == site.blob(model, "config.json")
    assert (beside / "config.json").resolve() == site.blob(draft, "config.json", "org--d")
    assert "main" not in argv
    assert env["HF_HUB_OFFLINE"] == "1"
    assert not {"HF_ENDPOINT", "HF_HOME", "HF_TOKEN"} & env.keys()


def test_h11_drift_of_the_draft_is_called_draft(site: Site) -> None:
    site.hub.push("org/m", MODEL)
    draft = site.hub.push("org/d", DRAFT)
    site.write(draft="")
    site.pinner("lock", site.manifest)
    site.pinner("materialize", site.manifest)
    blob = site.blob(draft, "model.safetensors", "org--d")
    blob.write_bytes(blob.read_bytes()[:-1] + b"\x01")
    assert list(differences(site.pinner.json("check", site.manifest))) == ["draft.model.safetensors"]


def test_h11_only_the_draft_is_upgraded(site: Site) -> None:
    model, first = site.hub.push("org/m", MODEL), site.hub.push("org/d", DRAFT)
    site.write(draft="")
    site.pinner("lock", site.manifest)
    site.hub.push("org/m", {**MODEL, "generation_config.json": "[]"})
    second = site.hub.push("org/d", {**DRAFT, "generation_config.json": "{}"})
    said = site.pinner("lock", "--upgrade", "draft", site.manifest)
    assert f"draft.revision: {first} → {second}" in said.out
    assert model in site.lock_text


def test_h11_a_draft_that_is_the_target_is_refused(site: Site) -> None:
    site.hub.push("org/m", MODEL)
    site.hub.push("org/d", {**DRAFT, "config.json": config("LlamaForCausalLM")})
    site.write(draft="")
    said = site.pinner("lock", site.manifest)
    assert said.code == 2
    assert "algorithm EAGLE3 with a draft whose config.json names LlamaForCausalLM" in said.err


def test_h11_a_map_that_leads_out_of_the_vocabulary_is_refused_before_any_download(site: Site) -> None:
    offsets = {"d2t": ("I64", (*eagle_pair.OFFSETS[:-1], 100))}
    site.hub.push("org/m", MODEL)
    site.hub.push("org/d", {**DRAFT, "model.safetensors": eagle_pair.safetensors(eagle_pair.SHAPES, offsets)})
    site.write(draft="num-steps = 2")
    said = site.pinner("lock", site.manifest)
    assert said.code == 2
    assert "d2t" in said.err
    assert not list(site.cache.rglob("model.safetensors"))


@pytest.mark.parametrize(
    ("auto_map", "wording"),
    [
        ({"AutoModel": "org/code--modeling_x.Model"}, "another repository, org/code--modeling_x.Model"),
        ({"AutoModel": "modeling_y.Model"}, "takes code from modeling_y.py, which is not among the pinned files"),
    ],
)
def test_code_that_nothing_pins_is_refused(site: Site, auto_map: dict[str, str], wording: str) -> None:
    text = json.dumps({"architectures": ["X"], "auto_map": auto_map})
    site.hub.push("org/m", {**MODEL, "config.json": text, "modeling_x.py": "pass"})
    said = site.pinner("lock", site.manifest)
    assert said.code == 0
    assert wording in said.err
    # The pins stay, and the question is another one now.
    site.write(args="trust-remote-code = true")
    said = site.pinner("lock", site.manifest)
    assert said.code == 2
    assert wording in said.err


def test_code_of_the_repository_is_pinned(site: Site) -> None:
    text = json.dumps({"architectures": ["X"], "auto_map": {"AutoModel": "modeling_x.Model"}})
    site.hub.push("org/m", {**MODEL, "config.json": text, "modeling_x.py": "pass"})
    site.write(args="trust-remote-code = true")
    said = site.pinner("lock", site.manifest)
    assert said.code == 0, said.err
    assert hashlib.sha256(b"pass").hexdigest() in site.lock_text


def test_stale_shards_are_refused(site: Site) -> None:
    names = [f"model-0000{number}-of-00002.safetensors" for number in (1, 2)]
    files = {**MODEL, names[0]: safetensors(), names[1]: safetensors(), "model.safetensors.index.json": ""}
    del files["model.safetensors"]
    files["model.safetensors.index.json"] = json.dumps({"weight_map": {"a": names[0], "b": names[1]}})
    stale = "model-00003-of-00004.safetensors"
    site.hub.push("org/m", {**files, stale: safetensors()})
    said = site.pinner("lock", site.manifest)
    assert said.code == 2
    assert f"{stale}: a shard of another checkpoint: no index names it" in said.err
    site.write(model=f'exclude = ["{stale}"]')
    assert site.pinner("lock", site.manifest).code == 0


def test_patterns_that_leave_out_too_much(site: Site) -> None:
    site.hub.push("org/m", MODEL)
    site.write(model='include = ["*.safetensors", "*.gguf", "config.json"]')
    said = site.pinner("lock", site.manifest)
    assert said.code == 0
    assert "leave out generation_config.json, tokenizer.json, which engines load" in said.err
    assert "model.include: '*.gguf' matches no file of org/m" in said.err
    site.write(model='include = ["*.gguf"]')
    said = site.pinner("lock", site.manifest)
    assert said.code == 2
    assert "`include` and `exclude` leave no file of org/m" in said.err


def test_what_the_hub_does_not_have_is_an_error_of_the_manifest(site: Site) -> None:
    said = site.pinner("lock", site.manifest)
    assert said.code == 2
    assert "tiny.toml: model.repo: " in said.err
    assert "has no repository org/m" in said.err
    site.hub.push("org/m", MODEL)
    site.write(model='revision = "v9"')
    said = site.pinner("lock", site.manifest)
    assert said.code == 2
    assert "model.revision: " in said.err
    assert "has no revision v9 of org/m" in said.err


def test_a_token_is_stored_nowhere(site: Site, state: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    site.hub.push("org/m", MODEL)
    site.hub.gated.add("org/m")
    monkeypatch.setenv("HF_TOKEN", "hf_bad")
    said = site.pinner("lock", site.manifest)
    assert said.code == 3
    assert "org/m is gated, and the token that is set has no access to it" in said.err
    assert "hf_bad" not in said.err + said.out
    monkeypatch.setenv("HF_TOKEN", "hf_good")
    assert site.pinner("up", site.manifest).code == 0
    for root in (state.root, site.manifest.parent, site.cache):
        for path in root.rglob("*"):
            if path.is_file() and not path.is_symlink():
                assert b"hf_good" not in path.read_bytes(), path


def test_what_stays_pinned_is_judged_without_the_hub(
    site: Site, state: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.hub.push("org/m", MODEL)
    draft = site.hub.push("org/d", DRAFT)
    site.write(draft="num-steps = 2")
    site.pinner("lock", site.manifest)
    site.pinner("materialize", site.manifest)
    site.hub.asked.clear()
    site.write(draft="num-steps = 3")
    # The views serve; and without them the cache.
    assert site.pinner("lock", site.manifest).code == 0
    shutil.rmtree(state.models)
    site.write(draft="num-steps = 4")
    assert site.pinner("lock", site.manifest).code == 0
    assert site.hub.asked == []
    site.hub.gone.add(draft)
    shutil.rmtree(site.cache)
    site.write(draft="num-steps = 5")
    said = site.pinner("lock", site.manifest)
    assert said.code == 3
    assert f"draft: what the lock pins is gone: the Hub's mirror 127.0.0.1:{site.hub.port}" in said.err
    assert "pinner lock --upgrade draft" in said.err


def test_a_damaged_small_file_of_the_cache_is_not_locked(site: Site) -> None:
    commit = site.hub.push("org/m", MODEL)
    site.pinner("lock", site.manifest)
    site.manifest.with_suffix(".lock").unlink()
    blob = site.blob(commit, "generation_config.json")
    blob.write_bytes(b"[]")
    said = site.pinner("lock", site.manifest)
    assert said.code == 3
    assert f"the file in the cache is not the Hub's: {blob}" in said.err
    assert blob.read_bytes() == b"[]"


def test_a_kill_while_fetching_leaves_nothing_that_counts(site: Site, state: Home) -> None:
    big = safetensors(4 << 20, 4 << 20)
    site.hub.push("org/m", {**MODEL, "model.safetensors": big})
    site.pinner("lock", site.manifest)
    site.hub.held["model.safetensors"] = 10 << 20
    command = [sys.executable, "-m", "pinner", "materialize", str(site.manifest)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        assert site.hub.is_holding.wait(60)
    finally:
        process.kill()
        process.wait()
    assert site.pinner("check", site.manifest).code == 3
    site.hub.release.set()
    site.hub.held.clear()
    site.hub.asked.clear()
    assert site.pinner("materialize", site.manifest).code == 0
    assert site.hub.fetched() == ["model.safetensors"]
    assert site.pinner("check", "--deep", site.manifest).code == 0
    assert not [path for path in state.models.iterdir() if path.is_dir() and path.name.startswith(".")]
