"""Cases H09 to H12: model and draft directories that are not what their names say."""

from __future__ import annotations

import json
import os
import struct
from pathlib import Path

import msgspec
import pytest

from pinner.errors import ArtifactError, ManifestError
from pinner.host import file_digests, hashing
from pinner.host.digest import DigestMemory
from pinner.host.home import Home
from pinner.model.facts import ABSENT, Difference, Unknown
from pinner.model.lock import DraftPin, EnginePin, EnvironmentPin, Lock, PythonPin, ServePin, SourcePin
from pinner.model.manifest import Draft, Engine, Manifest, Model, Python, Source
from pinner.probes import draft, target
from pinner.probes.base import Scene, Wish
from tests import eagle_pair

POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:{}\nsize 328\n"


def safetensors(floats: int = 64, held: int = 64, value: float = 1.0) -> bytes:
    header = json.dumps({"w": {"dtype": "F32", "shape": [floats], "data_offsets": [0, floats * 4]}}).encode()
    return struct.pack("<Q", len(header)) + header + struct.pack(f"<{held}f", *[value] * held)


def config(*architectures: str) -> str:
    return json.dumps({"architectures": list(architectures)})


class Site:
    """A model and a draft directory, their manifest and, once locked, what the probes say."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.memory = DigestMemory(root / "digests.sqlite")
        eagle_pair.write(root / "draft", root / "model")
        (root / "model/model.safetensors").write_bytes(safetensors())
        self.algorithm = "EAGLE3"
        self.lock: Lock | None = None

    @property
    def weights(self) -> Path:
        return self.root / "model/model.safetensors"

    def wish(self) -> Wish:
        manifest = Manifest(
            version=1,
            engine=Engine(kind="pocket", source=Source(git="x", commit="y")),
            python=Python(version="3.11"),
            model=Model(path="model"),
            draft=Draft(path="draft", algorithm=self.algorithm, num_steps=3),
        )
        return Wish(manifest=manifest, directory=self.root, home=Home(self.root / "home"), memory=self.memory)

    def pin(self) -> None:
        model, pinned = target.pin(self.wish()), draft.pin(self.wish())
        self.lock = Lock(
            version=1,
            requires_pinner="0.1.0",
            manifest="sha256:0",
            engine=EnginePin(kind="pocket", source=SourcePin(type="git"), argv=()),
            python=PythonPin(version="3.11", patch_level="3.11.7"),
            model=model,
            draft=pinned,
            env=EnvironmentPin(),
            serve=ServePin(host="h", port=1, start_timeout_s=1, generate_timeout_s=1, stop_timeout_s=1),
        )

    def pin_anyway(self, algorithm: str) -> None:
        """A lock as only a hand could write it: the pinned draft under another algorithm."""
        assert self.lock is not None
        assert self.lock.draft is not None
        changed = msgspec.structs.replace(self.lock.draft, algorithm=algorithm)
        self.lock = msgspec.structs.replace(self.lock, draft=changed)

    def scene(self, *, deep: bool = False) -> Scene:
        assert self.lock is not None
        return Scene(
            lock=self.lock,
            directory=self.root,
            home=Home(self.root / "home"),
            memory=self.memory,
            workspace=None,
            deep=deep,
        )

    def drift(self, *, deep: bool = False) -> dict[str, Difference]:
        scene = self.scene(deep=deep)
        found = {}
        for probe in (target, draft):
            observation = probe.observe(scene)
            assert observation is not None
            differences, unknown = probe.compare(scene.lock, observation)
            found.update({item.name: item for item in (*differences, *unknown)})
        return found


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


@pytest.fixture
def locked(site: Site) -> Site:
    site.pin()
    assert site.drift() == {}
    return site


@pytest.fixture
def no_hashing(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(paths: list[bytes], *_rest: object) -> list[object]:
        assert not [path for path in paths if path.endswith(b".safetensors") and b"/model/" in path]
        return [Unknown("not hashed") for _ in paths]

    monkeypatch.setattr(file_digests, "hash_files", refuse)


def test_h09_a_pointer_is_not_locked(site: Site) -> None:
    site.weights.write_text(POINTER.format("a" * 64))
    with pytest.raises(ArtifactError, match=r"model\.safetensors: Git LFS pointer, not weights"):
        site.pin()


def test_h09_a_pointer_is_told_as_one(locked: Site) -> None:
    locked.weights.write_text(POINTER.format("a" * 64))
    found = locked.drift()["model.model.safetensors"]
    assert found.note.startswith("Git LFS pointer, not weights")
    assert "never downloaded" not in found.note


def test_h09_the_right_file_was_never_downloaded(locked: Site) -> None:
    assert locked.lock is not None
    digest = next(file.sha256 for file in locked.lock.model.files if file.path == "model.safetensors")
    locked.weights.write_text(POINTER.format(digest.removeprefix("sha256:")))
    note = locked.drift()["model.model.safetensors"].note
    assert "Git LFS pointer, not weights" in note
    assert "the right file was never downloaded" in note


@pytest.mark.parametrize("name", ["tokenizer.model", "pytorch_model.bin", "sub/x.bin"])
def test_h09_a_pointer_by_any_name(site: Site, name: str) -> None:
    (site.root / "draft/sub").mkdir()
    (site.root / "draft" / name).write_text(POINTER.format("a" * 64))
    with pytest.raises(ArtifactError, match=f"draft.path: .*{name}: Git LFS pointer"):
        site.pin()


FAULTS = {
    "short": (safetensors(held=60), r"truncated: its header declares 3\d\d bytes, the file has 3\d\d"),
    "zero header": (bytes(8) + safetensors()[8:], "declared as 0 bytes long"),
    "huge header": (struct.pack("<Q", 1 << 60) + safetensors()[8:], "header is declared as"),
    "header longer than the file": (struct.pack("<Q", 9999) + safetensors()[8:], "truncated: its header alone"),
    "no JSON": (struct.pack("<Q", 8) + b"not json" + bytes(256), "not readable"),
    "empty": (b"", "truncated: 0 bytes"),
    "trailing": (safetensors() + b"xx", "too long"),
}


@pytest.mark.parametrize(("data", "wording"), FAULTS.values(), ids=FAULTS)
def test_h10_a_damaged_shard_is_not_locked(site: Site, data: bytes, wording: str) -> None:
    site.weights.write_bytes(data)
    with pytest.raises(ArtifactError, match=rf"model/model\.safetensors: .*{wording}"):
        site.pin()


@pytest.mark.parametrize(("data", "wording"), FAULTS.values(), ids=FAULTS)
def test_h10_a_damaged_shard_is_found_without_hashing(
    locked: Site, data: bytes, wording: str, no_hashing: None
) -> None:
    locked.weights.write_bytes(data)
    found = locked.drift()["model.model.safetensors"]
    with pytest.raises(AssertionError, match=wording):
        raise AssertionError(found.note)
    observation = target.observe(locked.scene())
    assert "1 not read" in observation.how
    assert "verified" not in observation.how


def test_h10_one_byte_flipped(locked: Site) -> None:
    data = bytearray(locked.weights.read_bytes())
    data[-1] ^= 1
    before = locked.weights.stat()
    locked.weights.write_bytes(data)
    os.utime(locked.weights, ns=(before.st_atime_ns, before.st_mtime_ns))
    found = locked.drift()["model.model.safetensors"]
    assert found.note == "same size, other bytes"
    assert str(found.pinned).startswith(f"{len(data)} bytes sha256:")


def test_a_quick_answer_never_says_that_every_byte_was_read(locked: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hashing, "SAFE_AGE_NS", -1_000_000_000)
    locked.drift()
    assert target.observe(locked.scene()).how == "2 files, all by remembered digest"
    assert target.observe(locked.scene(deep=True)).how == "2 files, every byte read"


def test_a_missing_shard_is_named_with_its_index(site: Site) -> None:
    names = [f"model-0000{number}-of-00002.safetensors" for number in (1, 2)]
    site.weights.rename(site.root / "model" / names[0])
    index = {"metadata": {}, "weight_map": {"a": names[0], "b": names[1]}}
    (site.root / "model/model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ArtifactError, match=rf"{names[1]} is missing, and model\.safetensors\.index\.json"):
        site.pin()
    (site.root / "model" / names[1]).write_bytes(safetensors())
    site.pin()
    (site.root / "model" / names[1]).unlink()
    found = site.drift()[f"model.{names[1]}"]
    assert found.observed == ABSENT
    assert "index.json names it" in found.note


def test_directories_that_are_missing_or_empty(locked: Site) -> None:
    (locked.root / "draft").rename(locked.root / "away")
    found = locked.drift()
    assert list(found) == ["draft.."]
    assert (found["draft.."].pinned, found["draft.."].observed) == ("2 files", ABSENT)
    assert "is missing" in found["draft.."].note
    with pytest.raises(ArtifactError, match=r"draft\.path: .* is not a directory"):
        locked.pin()
    (locked.root / "draft").mkdir()
    assert "holds no files" in locked.drift()["draft.."].note
    with pytest.raises(ArtifactError, match="holds no files"):
        locked.pin()


def test_every_difference_is_told(locked: Site) -> None:
    (locked.root / "model/config.json").write_text(config("Other"))
    (locked.root / "model/extra.json").write_text("{}")
    (locked.root / "model/model.safetensors").unlink()
    found = locked.drift()
    assert found.keys() == {"model.config.json", "model.extra.json", "model.model.safetensors"}
    assert found["model.extra.json"].note == "not in the lock"
    assert "shorter" in found["model.config.json"].note


def test_hidden_files_are_no_weights(locked: Site) -> None:
    (locked.root / "model/.git").mkdir()
    (locked.root / "model/.gitattributes").write_text("x")
    assert locked.drift() == {}
    assert target.observe(locked.scene()).notes == ("hidden, not looked at: .git, .gitattributes",)


def test_a_hub_cache_is_pinned_by_content(site: Site) -> None:
    blob = site.root / "blob"
    site.weights.rename(blob)
    site.weights.symlink_to(blob)
    site.pin()
    site.weights.unlink()
    site.weights.write_bytes(blob.read_bytes())
    assert site.drift() == {}
    site.weights.unlink()
    site.weights.symlink_to("nowhere")
    gone = site.drift()["model.model.safetensors"]
    assert gone.observed == ABSENT
    assert gone.note == "its symlink points to nothing: the blob it named is gone (nowhere)"
    with pytest.raises(ArtifactError, match="points to nothing"):
        site.pin()


def test_loops_and_fifos_end(site: Site) -> None:
    (site.root / "model/loop").symlink_to(".")
    with pytest.raises(ArtifactError, match=r"loop: a symlink to a directory that it lies in"):
        site.pin()
    (site.root / "model/loop").unlink()
    os.mkfifo(site.root / "model/fifo.safetensors")
    with pytest.raises(ArtifactError, match=r"fifo\.safetensors: not a regular file"):
        site.pin()


def test_h11_a_draft_of_another_commit_is_called_draft(locked: Site) -> None:
    (locked.root / "draft/model.safetensors").write_bytes(safetensors(value=2.0))
    found = locked.drift()
    assert list(found) == ["draft.model.safetensors"]
    assert found["draft.model.safetensors"].aspect == "draft"


def test_h11_both_are_pinned_separately(locked: Site) -> None:
    assert locked.lock is not None
    assert isinstance(locked.lock.draft, DraftPin)
    assert (locked.lock.draft.path, locked.lock.model.path) == ("draft", "model")
    assert locked.lock.draft.num_steps == 3


def test_h12_an_eagle3_draft_under_another_algorithm(site: Site) -> None:
    site.algorithm = "EAGLE"
    with pytest.raises(ManifestError, match=r"algorithm EAGLE with .*LlamaForCausalLMEagle3"):
        site.pin()


def test_h12_eagle3_with_the_target_as_its_own_draft(site: Site) -> None:
    (site.root / "draft/config.json").write_text(config("LlamaForCausalLM"))
    with pytest.raises(ManifestError, match=r"algorithm EAGLE3 with .*LlamaForCausalLM, the architecture of the"):
        site.pin()


def test_h12_check_says_it_too(locked: Site) -> None:
    assert draft.problems(locked.scene()) == []
    (locked.root / "draft/config.json").write_text(config("LlamaForCausalLM"))
    # The lock is right and the files are not: that is drift, not an invalid lock.
    assert draft.problems(locked.scene()) == []
    found = locked.drift()["draft.config.json"]
    assert found.evidence[0].startswith("draft and target do not fit: algorithm EAGLE3 with a draft whose")


def test_h12_a_changed_target_is_drift_too(locked: Site) -> None:
    (locked.root / "draft/config.json").unlink()
    assert "no readable config.json" in locked.drift()["draft.config.json"].evidence[0]
    locked.pin_anyway("EAGLE")
    assert draft.problems(locked.scene()) == []


def test_h12_a_pinned_pair_that_never_fitted_is_a_problem_of_the_lock(locked: Site) -> None:
    locked.pin_anyway("EAGLE")
    (said,) = draft.problems(locked.scene())
    assert "EAGLE3 is its algorithm" in said
    observation = draft.observe(locked.scene())
    assert observation is not None
    assert any(said in note for note in observation.notes)
    (locked.root / "model/config.json").write_text(config("Other"))
    assert draft.problems(locked.scene()) == []


def test_h12_algorithm_and_directory_are_judged_when_locked(site: Site) -> None:
    site.algorithm = "EAGEL3"
    with pytest.raises(ManifestError, match=r"draft\.algorithm: 'EAGEL3' is no algorithm .*mean EAGLE3"):
        site.pin()
    site.algorithm = "eagle3"
    site.pin()
    (site.root / "draft/config.json").unlink()
    with pytest.raises(ManifestError, match=r"no readable config\.json, for the target LlamaForCausalLM"):
        site.pin()
    (site.root / "draft/model.safetensors").unlink()
    (site.root / "draft").rmdir()
    (site.root / "draft").symlink_to("model")
    site.algorithm = "EAGLE"
    with pytest.raises(ManifestError, match="the directory of the target LlamaForCausalLM itself"):
        site.pin()


@pytest.mark.parametrize(
    ("data", "wording"),
    [
        (POINTER.format("a" * 64).replace("\n", "\r\n"), "Git LFS pointer, not weights"),
        ("<html>404 Not Found</html>", "an HTML or XML page, not weights"),
        ('{"error": "Repository not found"}', "JSON, not weights"),
    ],
)
def test_what_a_download_leaves_is_named(locked: Site, data: str, wording: str) -> None:
    locked.weights.write_text(data, newline="")
    assert wording in locked.drift()["model.model.safetensors"].note
    with pytest.raises(ArtifactError, match=wording):
        locked.pin()


def test_what_is_in_the_place_of_a_file(locked: Site) -> None:
    (locked.root / "model/config.json").unlink()
    (locked.root / "model/config.json").mkdir()
    (locked.root / "model/dangling").symlink_to("nowhere")
    os.mkfifo(locked.root / "model/fifo")
    (locked.root / os.fsdecode(b"model/bad\xff")).write_text("x")
    found = {name.removeprefix("model."): item for name, item in locked.drift().items()}
    assert found["config.json"].observed == ABSENT
    assert found["config.json"].note == "a directory is in its place"
    assert found["dangling"].observed == "a symlink to nowhere"
    assert (found["fifo"].observed, found["fifo"].note) == ("not a regular file", "not in the lock")
    assert found["bad\\xff"].observed == "its name is not UTF-8"
    msgspec.json.encode(tuple(found.values()))


def test_a_directory_that_cannot_be_listed_hides_its_files(locked: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    inner = locked.root / "model/sub"
    inner.mkdir()
    (inner / "x.bin").write_text("x")
    locked.pin()
    listdir = os.listdir

    def refuse(path: Path) -> list[str]:
        if path == inner:
            raise PermissionError(13, "Permission denied")
        return listdir(path)

    monkeypatch.setattr(os, "listdir", refuse)
    found = locked.drift()
    assert found.keys() == {"model.sub", "model.sub/x.bin"}
    assert all(isinstance(item.observed, Unknown) for item in found.values())


def test_without_a_draft(locked: Site) -> None:
    scene = locked.scene()
    lock = msgspec.structs.replace(scene.lock, draft=None)
    scene = msgspec.structs.replace(scene, lock=lock)
    assert (draft.observe(scene), draft.problems(scene)) == (None, [])
