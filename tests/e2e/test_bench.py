"""The load client against the real SGLang, beside SGLang's own benchmark on the same server."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.e2e.conftest import Box

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def served(box: Box) -> Iterator[Box]:
    """The deployment, up."""
    box.needs("up", box.manifest)
    yield box
    box("down", box.manifest)


def test_both_clients_find_the_same(served: Box) -> None:
    found = {}
    for name in ("random", "published"):
        data = served.needs("bench", served.manifest, name, "--attach")
        assert data["valid"], data
        (found[name],) = data["metrics"].values()
        # What is not measured is not told, and what failed is not measured.
        assert found[name]["accept_length"] > 1.2, found
    ours, theirs = found["random"], found["published"]
    assert ours["accept_length"] == pytest.approx(theirs["accept_length"], rel=0.05)
    # Two cores shared by client and server; a quiet machine shows them within a few percent.
    assert ours["output_throughput"] == pytest.approx(theirs["output_throughput"], rel=0.3)


def test_the_records_are_there_and_say_what_drove(served: Box) -> None:
    records = served.needs("records")["records"]
    assert [one["bench"] for one in records] == ["published", "random"]
    shown = served("records", "show", records[0]["id"]).out
    assert "sglang.bench_serving" in shown
    assert served("records", "verify", records[1]["id"]).code == 0
