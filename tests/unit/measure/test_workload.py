"""What a benchmark sends: the same for the same seed, another prompt for each measurement, exact lengths."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from pinner.engines import sglang_api
from pinner.errors import ManifestError, OperationFailed
from pinner.measure import dataset
from pinner.measure.workload import Workload, ordinary_tokens
from pinner.model.bench import Bench
from pinner.model.lock import BenchPin
from pinner.model.record import Load

LOAD = Load(kind="concurrency", value=4.0)
RATE = Load(kind="rate", value=50.0)


def workload(rows: tuple[dataset.Row, ...] = (), **keys: Any) -> Workload:
    bench = Bench(**({"requests": 6, "input_tokens": 9, "output_tokens": 5, "concurrency": (4,)} | keys))
    return Workload(bench=bench, rows=rows, tokens=tuple(range(10, 500)), request=sglang_api.request)


def bodies(one: Workload, *, start: int = 0, repeat: int = 0) -> list[Any]:
    return [json.loads(call.body) for call in one.calls(LOAD, start=start, repeat=repeat)]


def test_synthetic_prompts_have_exactly_the_tokens_that_were_asked_for() -> None:
    found = bodies(workload())
    assert len(found) == 6
    assert all(len(body["input_ids"]) == 9 and min(body["input_ids"]) >= 10 for body in found)
    assert found[0]["sampling_params"] == {"max_new_tokens": 5, "temperature": 0.0, "ignore_eos": True}
    assert found[0]["stream"] is True
    assert len({json.dumps(body) for body in found}) == 6


def test_the_same_seed_gives_the_same_bytes_and_another_one_others() -> None:
    assert bodies(workload()) == bodies(workload())
    assert bodies(workload()) != bodies(workload(seed=2))


def test_each_measurement_has_prompts_of_its_own_unless_the_cache_is_declared_warm() -> None:
    cold = workload()
    told = [bodies(cold), bodies(cold, repeat=1), bodies(cold, start=1), bodies(cold, start=1, repeat=1)]
    assert all(one != other for at, one in enumerate(told) for other in told[at + 1 :])
    warm = workload(cache="warm")
    assert bodies(warm) == bodies(warm, start=1, repeat=1)
    assert [call.body for call in warm.warmup(LOAD, start=0)] == [
        call.body for call in warm.calls(LOAD, start=0, repeat=0)
    ]
    assert len(cold.warmup(LOAD, start=0)) == 4


def test_a_request_that_may_stop_early_is_not_held_to_a_number_of_tokens() -> None:
    assert {call.wanted for call in workload().calls(LOAD, start=0, repeat=0)} == {5}
    assert {call.wanted for call in workload(ignore_eos=False).calls(LOAD, start=0, repeat=0)} == {None}


def test_rows_of_a_dataset_are_drawn_without_leaving_one_out() -> None:
    rows = tuple(dataset.Row(prompt=f"p{number}", output_tokens=3 if number else None) for number in range(4))
    found = bodies(workload(rows))
    assert sorted(body["text"] for body in found[:4]) == ["p0", "p1", "p2", "p3"]
    lengths = {body["text"]: body["sampling_params"]["max_new_tokens"] for body in found}
    assert lengths["p0"] == 5 and lengths["p1"] == 3


def test_schedules_begin_at_once_and_keep_the_rate() -> None:
    constant = workload(rate=(50.0,), arrival="constant").schedule(RATE, start=0, repeat=0)
    assert constant == pytest.approx([0, 0.02, 0.04, 0.06, 0.08, 0.1])
    drawn = workload(rate=(50.0,), requests=4000)
    at = drawn.schedule(RATE, start=0, repeat=0)
    assert at == drawn.schedule(RATE, start=0, repeat=0) != drawn.schedule(RATE, start=1, repeat=0)
    assert at[0] == 0.0 and at == sorted(at)
    assert at[-1] / 3999 == pytest.approx(0.02, rel=0.1)


def test_the_digest_is_that_of_the_load_and_of_nothing_else() -> None:
    digest = workload().digest()
    for same in ({"starts": 9}, {"repeats": 9}, {"speculation": False}, {"timeout_s": 1.0}, {"warmup": 0}):
        assert workload(**same).digest() == digest, same
    for other in ({"seed": 2}, {"requests": 7}, {"output_tokens": 6}, {"concurrency": (8,)}, {"temperature": 1.0}):
        assert workload(**other).digest() != digest, other


def test_special_tokens_are_no_text(tmp_path: Path) -> None:
    for name, content in {
        "config.json": {"vocab_size": 8, "bos_token_id": 0, "eos_token_id": [1, 2]},
        "tokenizer.json": {"added_tokens": [{"id": 7, "content": "<pad>"}]},
        "tokenizer_config.json": {"added_tokens_decoder": {"6": {}}},
    }.items():
        (tmp_path / name).write_text(json.dumps(content))
    assert ordinary_tokens(tmp_path) == (3, 4, 5)
    (tmp_path / "config.json").write_text('{"text_config": {"vocab_size": 4}}')
    assert ordinary_tokens(tmp_path) == (0, 1, 2, 3)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(OperationFailed, match="no vocab_size"):
        ordinary_tokens(tmp_path)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{", "line 2: is no row"),
        ('{"promt": "x"}', "promt"),
        ("{}", "exactly one of `prompt` and `input_ids`"),
        ('{"prompt": ""}', "not empty"),
        ('{"prompt": "x", "input_ids": [1]}', "exactly one"),
        ('{"prompt": "x", "output_tokens": 0}', "must be 1 or more"),
    ],
)
def test_a_wrong_row_is_named(tmp_path: Path, line: str, said: str) -> None:
    with pytest.raises(ManifestError, match=said):
        dataset.parse(b'{"prompt": "fine"}\n' + line.encode() + b"\n", tmp_path / "d.jsonl")


def test_a_dataset_that_has_changed_makes_the_lock_stale(tmp_path: Path) -> None:
    path = tmp_path / "d.jsonl"
    path.write_text('{"prompt": "a"}\n\n{"prompt": "b"}\n')
    benches = {"x": Bench(dataset="d.jsonl"), "y": Bench()}
    pins = dataset.pins(benches, tmp_path)
    assert pins == {"x": BenchPin(dataset="d.jsonl", sha256=dataset.digest(path.read_bytes()), rows=2)}
    assert dataset.stale_reason(benches, pins, tmp_path) is None
    assert dataset.stale_reason(benches, {}, tmp_path) == "bench.x.dataset is not the one that the lock pins"
    path.write_text('{"prompt": "c"}\n')
    assert dataset.stale_reason(benches, pins, tmp_path) == "the dataset d.jsonl has changed since"
    path.unlink()
    assert "cannot be read" in (dataset.stale_reason(benches, pins, tmp_path) or "")


def test_a_bench_may_be_written_with_dashes() -> None:
    bench = msgspec.convert({"output-tokens": 3, "ignore-eos": False, "rate": [1, 2.5]}, Bench)
    assert bench.loads == (("rate", 1.0), ("rate", 2.5))
