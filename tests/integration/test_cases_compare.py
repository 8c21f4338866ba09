"""Cases H19, H20 and H24 by the command line: a comparison that would mislead ends with 2 and no verdict."""

from __future__ import annotations

from typing import Any

from pinner.host.home import Home
from pinner.measure.records import Stored, store
from tests.integration.command import Pinner
from tests.records import capped, measured, record


def stored(home: Home, began: float, *throughput: float, machine: Any = None, **fields: Any) -> Stored:
    """A record of output throughputs, one a start; `fields` are those of its measurements."""
    one = record(measured({"output_throughput": throughput}, **fields), machine=machine or {}, began=began)
    return store(one, {}, home)


def test_h24_warm_against_cold_is_not_improved(pinner: Pinner, state: Home) -> None:
    cold = stored(state, 1.0, 94.0, 95.0, 93.0, cached_share=0.0)
    warm = stored(state, 2.0, 180.0, 181.0, 182.0, cached_share=0.95)
    said = pinner.json("compare", cold.short, warm.short)
    assert (said.code, said.data["verdict"], said.json["status"]) == (2, "not-comparable", "not-comparable")
    assert said.data["metrics"] == []
    assert "warm against cold" in said.json["errors"][0]["message"]
    assert "BETTER" not in pinner("compare", cold.short, warm.short).out


def test_h20_a_client_at_its_limit_is_no_baseline_and_no_result(pinner: Pinner, state: Home) -> None:
    fine = stored(state, 1.0, 94.0, 95.0, 93.0)
    limited = stored(state, 2.0, 5.0, 5.0, invalid=("client limit: too many open files",))
    for one, other, side in ((fine, limited, "B"), (limited, fine, "A")):
        said = pinner("compare", one.short, other.short)
        assert said.code == 2
        assert f"{side} is invalid: client limit: too many open files" in said.out


def test_h19_another_cap_is_said_before_any_verdict(pinner: Pinner, state: Home) -> None:
    full = stored(state, 1.0, 94.0, 95.0, 93.0, machine=capped(370.0))
    low = stored(state, 2.0, 78.0, 78.5, 77.5, machine=capped(230.0))
    said = pinner.json("compare", low.short, full.short)
    assert (said.code, said.data["metrics"]) == (2, [])
    assert said.data["not_comparable"] == [
        {
            "key": "hardware.power-limit-watts",
            "reason": "different GPUs or caps: power limit 8 × 230 W in A, 8 × 370 W in B",
        }
    ]
    accepted = ("--accept", "hardware.power-limit-watts", "--reason", "the cap is what I ask about")
    said = pinner.json("compare", low.short, full.short, *accepted)
    assert (said.code, said.data["verdict"]) == (0, "better")
    assert said.data["accepted"][0]["key"] == "hardware.power-limit-watts"
    keys = [one["key"] for one in said.data["diff"]["differences"]]
    assert keys[0] == "gpu.0000:00:00.0.power-limit-watts" and len(keys) == 8
    assert (
        "accepted hardware.power-limit-watts: the cap" in pinner("compare", low.short, full.short, *accepted).out
    )
