"""What is laid out of a repository while it is locked, and what is chosen of it."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest
from huggingface_hub.utils import filter_repo_objects

from pinner.errors import OperationFailed
from pinner.host.digest import DigestMemory
from pinner.host.home import Home
from pinner.host.hub import Listing, RepoFile
from pinner.model.manifest import Draft, Engine, Manifest, Model, Python, Source
from pinner.probes import repository, target
from pinner.probes.base import Wish
from tests.integration.hub import FakeHub


class Asking:
    """A wish for `org/m`, and what was warned of."""

    def __init__(self, root: Path, **model: object) -> None:
        (root / "scratch").mkdir(exist_ok=True)
        self.warned: list[str] = []
        self.wish = Wish(
            manifest=Manifest(
                version=1,
                engine=Engine(kind="pocket", source=Source(git="x", commit="y")),
                python=Python(version="3.11"),
                model=Model(repo="org/m", **model),  # type: ignore[arg-type]
                draft=Draft(path="draft", algorithm="EAGLE3"),
            ),
            directory=root,
            home=Home(root / "home"),
            memory=DigestMemory(None),
            scratch=root / "scratch",
            warn=self.warned.append,
        )


def draft_weights(padding: int) -> tuple[bytes, bytes]:
    """A file with weights first and a map of the vocabulary after them; and the map."""
    d2t = struct.pack("<4q", 5, 6, 7, 8)
    tensors = {
        "w": {"dtype": "U8", "shape": [padding], "data_offsets": [0, padding]},
        "d2t": {"dtype": "I64", "shape": [4], "data_offsets": [padding, padding + 32]},
        "x": {"dtype": "U8", "shape": [9], "data_offsets": [padding + 32, padding + 41]},
    }
    # A header as long as that of many experts, so that one question does not bring all of it.
    tensors |= {f"e{n}": {"dtype": "U8", "shape": [0], "data_offsets": [padding + 41] * 2} for n in range(3000)}
    header = json.dumps(tensors).encode()
    return struct.pack("<Q", len(header)) + header + b"w" * padding + d2t + b"x" * 9, d2t


def test_a_large_file_has_its_header_its_size_and_its_maps(hub: FakeHub, tmp_path: Path) -> None:
    data, d2t = draft_weights(1 << 20)
    hub.push("org/m", {"config.json": "{}", "model.safetensors": data})
    asking = Asking(tmp_path)
    target.pin(asking.wish)
    shown = target.directory(asking.wish, asking.wish.manifest.model) / "model.safetensors"
    seen = shown.read_bytes()
    end = 8 + struct.unpack("<Q", data[:8])[0]
    assert len(seen) == len(data)
    assert seen[:end] == data[:end]
    assert seen[end + (1 << 20) :][: len(d2t)] == d2t
    assert seen.count(b"x" * 9) == 0
    assert sum(len(range(*map(int, one.range[6:].split("-")))) for one in hub.asked if one.range) < len(data)
    # Asked again, it is there.
    hub.asked.clear()
    assert target.directory(asking.wish, asking.wish.manifest.model) == shown.parent
    assert hub.asked == []


def listing(**sizes: int) -> Listing:
    files = tuple(
        RepoFile(path.replace("__", "/").replace("_", "."), size, None, None) for path, size in sizes.items()
    )
    return Listing("org/m", "a" * 40, files)


@pytest.mark.parametrize(
    ("include", "exclude", "left"),
    [
        ((), (), ["a.json", "b.bin", "sub/c.json"]),
        (("*.json",), (), ["a.json", "sub/c.json"]),
        (("sub/",), (), ["sub/c.json"]),
        (("*.json", "b.bin"), ("sub/*",), ["a.json", "b.bin"]),
    ],
)
def test_patterns_choose_as_those_of_the_library(
    tmp_path: Path, include: tuple[str, ...], exclude: tuple[str, ...], left: list[str]
) -> None:
    asking = Asking(tmp_path, include=include, exclude=exclude)
    files = listing(a_json=1, b_bin=2, sub__c_json=3)
    chosen = [file.path for file in repository._chosen(asking.wish, "model", asking.wish.manifest.model, files)]
    paths = [file.path for file in files.files]
    theirs = list(filter_repo_objects(paths, allow_patterns=include or None, ignore_patterns=exclude or None))
    assert chosen == left == theirs


def test_weights_in_formats_that_nothing_reads_are_told(tmp_path: Path) -> None:
    asking = Asking(tmp_path)
    files = listing(model_safetensors=1 << 31, original__all_pth=1 << 31)
    repository._chosen(asking.wish, "model", asking.wish.manifest.model, files)
    assert asking.warned == [
        "model: 2.1 GB in other formats beside safetensors are pinned and fetched too, such as original/all.pth; "
        "`exclude` leaves them out"
    ]
    files = listing(model_bin=1 << 31)
    repository._chosen(asking.wish, "model", asking.wish.manifest.model, files)
    assert len(asking.warned) == 1


def test_a_repository_that_was_renamed_is_told(hub: FakeHub, tmp_path: Path) -> None:
    hub.push("org/m", {"config.json": "{}"})
    hub.called["org/m"] = "org/new"
    asking = Asking(tmp_path)
    target.pin(asking.wish)
    assert asking.warned == ["model.repo: org/m is called org/new on the Hub now"]


def test_an_answer_without_a_commit_is_not_pinned(hub: FakeHub, tmp_path: Path) -> None:
    hub.push("org/m", {"config.json": "{}"})
    data = hub.commits["org/m"].popitem()[1]
    hub.commits["org/m"]["main"] = data
    hub.refs["org/m"].clear()
    with pytest.raises(OperationFailed, match=r"names no commit for main of org/m, but 'main'"):
        target.pin(Asking(tmp_path).wish)
