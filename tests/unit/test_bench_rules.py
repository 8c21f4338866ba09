# ruff: noqa: E501  # a line a case
"""[bench.NAME] in a manifest: what is refused, with the key and what to do."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pinner.deploy.load import load_manifest
from pinner.errors import ManifestError

GOOD = """
version = 1
[engine]
kind = "sglang"
source = { git = "engine.bundle", commit = "good" }
[python]
version = "3.11"
[model]
path = "model"
[draft]
path = "draft"
algorithm = "EAGLE3"
[bench.decode]
concurrency = [1, 8]
[bench.decode.expect]
accept_length = { at-least = 2.5 }
output_throughput = { value = 94, tolerance = 0.03 }
[bench.plain]
concurrency = [1, 8]
speculation = false
"""


def load(tmp_path: Path, text: str) -> None:
    path = tmp_path / "d.toml"
    path.write_text(text)
    load_manifest(path)


def test_a_good_one(tmp_path: Path) -> None:
    load(tmp_path, GOOD)
    load(
        tmp_path,
        GOOD.replace(
            "concurrency = [1, 8]\n[bench.decode", 'concurrency = [1, 8]\nbaseline = "plain"\n[bench.decode'
        ),
    )


def test_what_is_measured_is_no_part_of_the_digest(tmp_path: Path) -> None:
    path = tmp_path / "d.toml"
    path.write_text(GOOD)
    before = load_manifest(path).digest
    path.write_text(GOOD.replace("at-least = 2.5", "at-least = 2.6"))
    assert load_manifest(path).digest == before
    path.write_text(GOOD.replace("commit", "commit ").replace('"good"', '"better"'))
    assert load_manifest(path).digest != before


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("concurrency = [1, 8]\n[bench.d", "concurency = [1]\n[bench.d", "bench.decode.concurency: unknown key; did you mean `concurrency`"),
        ("at-least = 2.5", "atleast = 2.5", "bench.decode.expect.accept_length.atleast: unknown key; did you mean `at-least`"),
        ("accept_length =", "acept_length =", "bench.decode.expect.acept_length: is no metric"),
        ("concurrency = [1, 8]\n[bench.d", "concurrency = [0]\n[bench.d", "bench.decode.concurrency"),
        ("concurrency = [1, 8]\n[bench.d", "concurrency = [1]\nrate = [2]\n[bench.d", "bench.decode.rate: does not go with `concurrency`"),
        ("concurrency = [1, 8]\n[bench.d", 'baseline = "plan"\n[bench.d', "bench.decode.baseline: there is no [bench.plan]"),
        ("concurrency = [1, 8]\n[bench.d", 'baseline = "decode"\n[bench.d', "bench.decode.baseline: names itself"),
        ("concurrency = [1, 8]\n[bench.d", 'concurrency = [1]\nbaseline = "plain"\n[bench.d', "bench.decode.baseline: [bench.plain] puts another load"),
        ("output_throughput = {", "speedup = {", "bench.decode.expect.speedup: needs `baseline`"),
        (", tolerance = 0.03", "", "bench.decode.expect.output_throughput: `value` and `tolerance`"),
        ("at-least = 2.5", "at-least = nan", "bench.decode.expect.accept_length: must be finite"),
        ("concurrency = [1, 8]\n[bench.d", "rate = [inf]\n[bench.d", "bench.decode.rate: must be a finite number"),
        ("concurrency = [1, 8]\n[bench.d", 'driver-args = { a = 1 }\n[bench.d', "bench.decode.driver-args: go with a `driver`"),
        ("concurrency = [1, 8]\n[bench.d", 'driver = "sglang.bench_serving"\ndriver-args = { seed = 1 }\n[bench.d', "bench.decode.driver-args.seed: is set by `seed`"),
        ("concurrency = [1, 8]\n[bench.d", 'driver = "sglang.bench_serving"\ndataset = "x"\n[bench.d', "bench.decode.dataset: is for pinner's own driver"),
        ("[bench.plain]", '[bench."pl ain"]', "a name is letters, digits, - and _"),
        ('[draft]\npath = "draft"\nalgorithm = "EAGLE3"\n', "", "bench.plain.speculation: there is no [draft] to leave out"),
        ('kind = "sglang"', 'kind = "pocket"', ""),
    ],
)  # fmt: skip
def test_refusals_name_the_key(tmp_path: Path, old: str, new: str, said: str) -> None:
    assert old in GOOD
    text = GOOD.replace(old, new, 1)
    if not said:
        load(tmp_path, text)
        return
    with pytest.raises(ManifestError, match=re.escape(said)):
        load(tmp_path, text)


def test_the_other_driver_is_part_of_sglang(tmp_path: Path) -> None:
    text = GOOD.replace('kind = "sglang"', 'kind = "pocket"').replace(
        "speculation = false", 'driver = "sglang.bench_serving"'
    )
    with pytest.raises(ManifestError, match=r"bench.plain.driver: is part of SGLang, and this engine is pocket"):
        load(tmp_path, text)
