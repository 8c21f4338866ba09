"""What of a drift `materialize` answers for: what it built itself, differences and what cannot be told alike."""

from __future__ import annotations

import pytest

from pinner.deploy.check import built_part
from pinner.model.facts import Difference, Drift, Unknown
from pinner.model.lock import PythonPin
from tests.integration.environments import lock_of

LOCK = lock_of(PythonPin(version="3.11", patch_level="3.11.0", pylock="sha256:0"))


def item(aspect: str, key: str) -> Difference:
    return Difference(aspect=aspect, key=key, pinned="a", observed=Unknown("not readable"))


@pytest.mark.parametrize(
    ("aspect", "key", "is_built"),
    [
        ("python", "files", True),
        ("python", "basemap", True),
        ("python", "base", False),
        ("python", "base/lib/python3.11/os.py", False),
        ("source", "base.py", True),
        ("model", "model.safetensors", False),
    ],
)
def test_what_was_built(aspect: str, key: str, is_built: bool) -> None:
    one = item(aspect, key)
    kept = (one,) if is_built else ()
    assert built_part(LOCK, Drift(differences=(one,))).differences == kept
    assert built_part(LOCK, Drift(unknown=(one,))).unknown == kept
