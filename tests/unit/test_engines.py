"""What the engines know without asking anybody."""

from __future__ import annotations

import pytest

from pinner.engines import ENGINES, pocket, sglang


@pytest.mark.parametrize(
    ("argv", "uses"),
    [
        (("-m", "sglang.launch_server", "--model-path", "{model}"), True),
        (("-m", "sglang.launch_server", "--device", "cuda"), True),
        (("-m", "sglang.launch_server", "--device", "cpu", "--tp-size", "1"), False),
        (("-m", "sglang.launch_server", "--device=cpu"), False),
        # The name of a model must not be read as a device.
        (("-m", "sglang.launch_server", "--served-model-name", "cpu"), True),
    ],
)
def test_sglang_uses_gpus_unless_told_otherwise(argv: tuple[str, ...], uses: bool) -> None:
    assert sglang.uses_gpus(argv) is uses
    assert pocket.uses_gpus(argv) is False


def test_caches_lie_below_their_root_and_only_deep_gemm_has_two_names() -> None:
    for engine in ENGINES.values():
        assert all(place and not place.startswith("/") and ".." not in place for place in engine.CACHES.values())
    twice = [place for place in sglang.CACHES.values() if list(sglang.CACHES.values()).count(place) > 1]
    assert set(twice) == {"deep-gemm"}
