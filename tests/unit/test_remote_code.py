"""What an `auto_map` names."""

from __future__ import annotations

import pytest

from pinner.model.remote_code import Reference, references


@pytest.mark.parametrize(
    ("auto_map", "found"),
    [
        ({"AutoModel": "modeling_x.Model"}, [Reference("modeling_x.Model", "modeling_x.py", None)]),
        (
            {"AutoConfig": "org/code--configuration_x.Config"},
            [Reference("org/code--configuration_x.Config", "configuration_x.py", "org/code")],
        ),
        (
            {"AutoTokenizer": ["tokenization_x.Slow", None]},
            [Reference("tokenization_x.Slow", "tokenization_x.py", None)],
        ),
        ({"AutoModel": "m.A", "AutoModelForCausalLM": "m.A"}, [Reference("m.A", "m.py", None)]),
        (None, []),
        (7, []),
    ],
)
def test_references(auto_map: object, found: list[Reference]) -> None:
    assert references({"auto_map": auto_map}) == found


def test_what_is_no_configuration_names_nothing() -> None:
    assert references([1]) == []
