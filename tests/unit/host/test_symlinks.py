"""Following symlinks by their texts."""

from __future__ import annotations

import pytest

from pinner.host.symlinks import follow


@pytest.mark.parametrize(
    ("links", "expected"),
    [
        ({"a/x": "y"}, "a/y"),
        ({"a/x": "../b/./y"}, "b/y"),
        ({"a/x": "../../y"}, None),
        ({"a/x": "../../tree/y"}, None),
        ({"a/x": "/etc/passwd"}, None),
        ({"a/x": "/tree/b"}, "b"),
        ({"a/x": "/tree"}, ""),
        ({"a/x": "/treehouse/b"}, None),
        ({"a/x": "../b/y", "b": "c"}, "c/y"),
        ({"a/x": "../b/y", "b": ".."}, None),
        ({"a": "b"}, "b/x"),
        ({"a/x": "x"}, "a/x"),
    ],
)
def test_where_a_path_leads(links: dict[str, str], expected: str | None) -> None:
    assert follow("a/x", links, "/tree") == expected


def test_without_a_place_every_absolute_target_leaves() -> None:
    assert follow("a", {"a": "/tree/b"}) is None
