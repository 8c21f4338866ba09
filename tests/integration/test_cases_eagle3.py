"""Case H12 and the EAGLE-3 table on real files: drafts that SGLang would start with, and accept nothing from."""

from __future__ import annotations

import hashlib
import json
import os
import pickle
from pathlib import Path
from typing import Any

import msgspec
import pytest

from pinner.cli import main
from pinner.errors import ManifestError
from pinner.host.digest import DigestMemory
from pinner.model.facts import Unknown
from pinner.model.lock import EnvironmentPin
from pinner.model.pair import DraftWeights, TokenMap, Verdict
from pinner.probes import draft, pair
from pinner.probes.base import Wish
from pinner.probes.safetensors_files import read_weights, weight_files
from tests import eagle_pair, tiny
from tests.eagle_pair import DRAFT, OFFSETS, SHAPES, TARGET, safetensors
from tests.integration.test_cases_weights import Site

LAUNCH = pair.Launch(kind="sglang", version=None, argv=("-m", "x"), env=EnvironmentPin())


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """The directory of a draft that fits."""
    eagle_pair.write(tmp_path / "draft", tmp_path / "model")
    return tmp_path / "draft"


def read(directory: Path) -> DraftWeights | Unknown:
    names = weight_files(directory)
    return names if isinstance(names, Unknown) else read_weights(directory, names)


def token_map(directory: Path, dtype: str, values: tuple[int, ...]) -> TokenMap:
    (directory / "model.safetensors").write_bytes(safetensors(SHAPES, {"d2t": (dtype, values)}))
    found = read(directory)
    assert isinstance(found, DraftWeights)
    assert found.token_map is not None
    return found.token_map


def configure(directory: Path, **changes: Any) -> None:
    config = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps({**config, **changes}))


def test_headers_and_map_are_read_from_a_file(files: Path) -> None:
    found = read(files)
    assert isinstance(found, DraftWeights)
    assert found.shapes == {**SHAPES, "d2t": (16,)}
    assert found.token_map == TokenMap(shape=(16,), lowest=0, highest=30)


@pytest.mark.parametrize("dtype", ["I64", "I32", "I16"])
def test_the_map_is_read_in_each_type(files: Path, dtype: str) -> None:
    found = token_map(files, dtype, (-1, 5, 4, 0))
    assert found == TokenMap(shape=(4,), lowest=-1, highest=6, repeated=1, is_rising=False)


def test_a_map_that_is_no_row_of_numbers(files: Path) -> None:
    for name, shape in (("d2t", (16,)), ("model.d2t", (2, 2))):
        (files / "model.safetensors").write_bytes(safetensors({**SHAPES, name: shape}))
        found = read(files)
        assert isinstance(found, DraftWeights)
        assert found.token_map is not None
        assert "is of BF16" in found.token_map.unreadable
    assert "not one row of numbers" in token_map(files, "I64", ()).unreadable


def test_a_file_that_ends_within_its_map(files: Path) -> None:
    data = (files / "model.safetensors").read_bytes()
    (files / "model.safetensors").write_bytes(data[:-1])
    found = read(files)
    assert isinstance(found, DraftWeights)
    assert found.token_map is not None
    assert found.token_map.unreadable == "ends before its file's header says"


def test_only_headers_and_map_are_read(files: Path) -> None:
    """A sparse file of 20 GB, as a repository is laid out while it is locked."""
    shape = {"x": (10_000_000_000,)}
    header = json.dumps(
        {"x": {"dtype": "BF16", "shape": shape["x"], "data_offsets": [0, 20_000_000_000]}}
    ).encode()
    with (files / "model.safetensors").open("wb") as stream:
        stream.write(len(header).to_bytes(8, "little") + header)
        stream.truncate(8 + len(header) + 20_000_000_000)
    assert read(files) == DraftWeights(shapes=shape)


def test_shards_and_what_is_no_shard(files: Path) -> None:
    (files / "model.safetensors").unlink()
    names = sorted(SHAPES)
    halves = {"a.safetensors": names[:7], "b.safetensors": names[7:], "stale.safetensors": ["stale"]}
    for name, held in halves.items():
        shapes = {key: SHAPES.get(key, (1,)) for key in held}
        (files / name).write_bytes(safetensors(shapes, {"d2t": ("I64", OFFSETS)} if name[0] == "b" else None))
    every = read(files)
    assert isinstance(every, DraftWeights)
    assert "stale" in every.shapes
    index = {"weight_map": {key: name for name, held in halves.items() if name[0] != "s" for key in held}}
    (files / "model.safetensors.index.json").write_text(json.dumps(index))
    found = read(files)
    assert isinstance(found, DraftWeights)
    assert found.shapes == {**SHAPES, "d2t": (16,)}
    (files / "model.safetensors.index.json").write_text("[]")
    assert isinstance(read(files), Unknown)


def test_a_name_in_two_files(files: Path) -> None:
    (files / "more.safetensors").write_bytes(safetensors({"fc.weight": (8, 24)}))
    found = read(files)
    assert isinstance(found, DraftWeights)
    assert found.repeated == ("fc.weight",)


def test_consolidated_weights_beside_the_models_are_not_loaded(files: Path) -> None:
    (files / "consolidated.safetensors").write_bytes(b"")
    assert weight_files(files) == ["model.safetensors"]


class Bomb:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, ("exploded",)


def test_a_pickle_is_never_opened(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(files)
    (files / "model.safetensors").rename(files.parent / "away")
    (files / "pytorch_model.bin").write_bytes(pickle.dumps(Bomb()))
    sides = pair.Sides(draft=files, target=files.parent / "model")
    verdict = pair.judge(LAUNCH, "EAGLE3", sides, DigestMemory(None))
    assert verdict.problems == ()
    assert "pytorch_model.bin is a pickle, and to open one is to run the code in it" in verdict.unread[0]
    assert not (files / "exploded").exists()
    (files / "pytorch_model.bin").unlink()
    assert "no .safetensors file" in pair.judge(LAUNCH, "EAGLE3", sides, DigestMemory(None)).unread[0]


def test_a_content_that_is_known_is_not_read_again(files: Path) -> None:
    memory = DigestMemory(files.parent / "digests.sqlite")
    digests = {"model.safetensors": "sha256:one"}
    sides = pair.Sides(draft=files, target=files.parent / "model", digests=digests)
    assert pair.judge(LAUNCH, "EAGLE3", sides, memory) == Verdict()
    (files / "model.safetensors").write_bytes(b"not looked at")
    assert pair.judge(LAUNCH, "EAGLE3", sides, memory) == Verdict()
    other = msgspec.structs.replace(sides, digests={"model.safetensors": "sha256:two"})
    assert pair.judge(LAUNCH, "EAGLE3", other, memory).unread
    assert pair.judge(LAUNCH, "EAGLE3", msgspec.structs.replace(sides, digests={}), memory).unread


def test_h12_lock_names_all_that_does_not_fit(site: Site) -> None:
    configure(site.root / "model", vocab_size=20, hidden_size=16)
    with pytest.raises(ManifestError) as caught:
        site.pin()
    assert caught.value.exit_code == 2
    message = caught.value.message
    assert message.startswith("draft and target do not fit:\n  the draft's hidden_size is 8, and the target's")
    assert "the draft's vocab_size is 32, and the target's is 20" in message
    assert "d2t leads to tokens 0 to 30, and the target's are 0 to 19" in message


def test_h12_lock_warns_of_what_it_cannot_tell(site: Site) -> None:
    configure(site.root / "draft", quantization_config={"quant_method": "awq"}, eagle_config=None)
    warned: list[str] = []
    wish: Wish = msgspec.structs.replace(site.wish(), warn=warned.append)
    assert draft.pin(wish) is not None
    assert [line.startswith("draft: ") for line in warned] == [True, True]
    assert "quantized (awq)" in warned[0]
    assert "takes layers 2, 5, 7 without a word" in warned[1]


def test_h12_a_swapped_draft_is_told_beside_the_file(site: Site) -> None:
    site.pin()
    shapes = {name: shape for name, shape in SHAPES.items() if name != "norm.weight"}
    weights = site.root / "draft/model.safetensors"
    weights.write_bytes(safetensors(shapes, {"d2t": ("I64", OFFSETS)}))
    # Drift of the files, not an invalid lock.
    assert draft.problems(site.scene()) == []
    (found,) = site.drift().values()
    assert found.name == "draft.model.safetensors"
    assert found.evidence[0].startswith("draft and target do not fit: the draft's files lack norm.weight")
    weights.unlink()
    assert draft.problems(site.scene()) == []
    assert list(site.drift()) == ["draft.model.safetensors"]


def test_h12_a_draft_changed_in_place_or_added_to_is_drift(site: Site) -> None:
    site.pin()
    weights = site.root / "draft/model.safetensors"
    good = weights.read_bytes()
    weights.write_bytes(safetensors(SHAPES, {"d2t": ("I64", (*OFFSETS[:-1], 17))}))
    assert len(good) == weights.stat().st_size
    assert draft.problems(site.scene()) == []
    assert "d2t leads to tokens 0 to 32" in site.drift()["draft.model.safetensors"].evidence[0]
    weights.write_bytes(good)
    assert site.drift() == {}
    (site.root / "draft/more.safetensors").write_bytes(safetensors({"more": (1,)}))
    assert draft.problems(site.scene()) == []
    assert "hold more, which its class" in site.drift()["draft.more.safetensors"].evidence[0]


def test_h12_a_locked_pair_that_does_not_fit_is_refused_by_check(site: Site) -> None:
    site.pin()
    assert site.lock is not None
    assert draft.problems(site.scene()) == []
    engine = msgspec.structs.replace(site.lock.engine, argv=("-m", "x", "--context-length", "65"))
    site.lock = msgspec.structs.replace(site.lock, engine=engine)
    (said,) = draft.problems(site.scene())
    assert "the draft's context is 64 positions, and engine.args.context-length is 65" in said
    env = EnvironmentPin(set={"SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN": "1"})
    site.lock = msgspec.structs.replace(site.lock, env=env)
    assert draft.problems(site.scene()) == []


def test_h12_check_says_what_it_could_not_tell(site: Site) -> None:
    configure(site.root / "draft", quantization_config={"quant_method": "awq"})
    site.pin()
    observation = draft.observe(site.scene())
    assert observation is not None
    assert any("could not be told: names and shapes" in note for note in observation.notes)


def manifest_with(tmp_path: Path, change: dict[str, Any]) -> Path:
    """A whole deployment with a pair, the target's config.json changed."""
    manifest = tiny.deployment(tmp_path)
    eagle_pair.write(tmp_path / "draft", tmp_path / "target")
    (tmp_path / "model/config.json").write_text(json.dumps({**TARGET, **change}))
    manifest.write_text(manifest.read_text() + '\n[draft]\npath = "draft"\nalgorithm = "EAGLE3"\n')
    return manifest


def test_h12_from_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    home = tmp_path / "home"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PINNER_HOME", str(home))
        manifest = manifest_with(tmp_path / "one", {"num_hidden_layers": 7, "vocab_size": 16})
        assert main(["lock", str(manifest)]) == 2
        error = capsys.readouterr().err
        assert f"{manifest}: draft and target do not fit:" in error
        assert "7 would never be captured" in error
        assert "leads to tokens 0 to 30" in error
        assert not manifest.with_suffix(".lock").exists()
        (manifest.parent / "model/config.json").write_text(json.dumps(TARGET))
        assert main(["lock", str(manifest)]) == 0
        capsys.readouterr()
        assert main(["check", str(manifest)]) == 3  # nothing is materialized
        assert "do not fit" not in "".join(capsys.readouterr())
        # As an older pinner would have locked it: the pinned draft never fitted.
        lock, weights = manifest.with_suffix(".lock"), manifest.parent / "draft/model.safetensors"
        before = hashlib.sha256(weights.read_bytes()).hexdigest()
        weights.write_bytes(safetensors(SHAPES, {"d2t": ("I64", (*OFFSETS[:-1], 17))}))
        assert before in lock.read_text()
        lock.write_text(lock.read_text().replace(before, hashlib.sha256(weights.read_bytes()).hexdigest()))
        assert main(["check", str(manifest)]) == 2
        assert "d2t leads to tokens 0 to 32" in capsys.readouterr().err


def test_the_quickstarts_pair_fits() -> None:
    root = Path(__file__).parents[2] / "deployments/quickstart"
    sides = pair.Sides(draft=root / "draft", target=root / "model")
    for kind in ("pocket", "sglang"):
        launch = msgspec.structs.replace(LAUNCH, kind=kind)
        assert pair.judge(launch, "EAGLE3", sides, DigestMemory(None)) == Verdict()


def test_a_draft_whose_config_lies_is_found_by_its_weights(site: Site) -> None:
    configure(site.root / "draft", **{**DRAFT, "draft_vocab_size": 8})
    with pytest.raises(ManifestError) as caught:
        site.pin()
    assert "lm_head.weight is [16, 8], and [8, 8] is needed" in caught.value.message
    assert "d2t has the shape [16], and draft_vocab_size is 8" in caught.value.message
