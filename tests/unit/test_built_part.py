"""What `materialize` answers for: what it built itself, from the bytes that are locked."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from pinner.deploy.check import built_part
from pinner.deploy.init import init
from pinner.deploy.load import load_manifest
from pinner.deploy.materialize import materialize
from pinner.errors import LockError
from pinner.host.home import Home
from pinner.model.facts import Difference, Drift, Unknown
from pinner.model.lock import PythonPin, SourcePin
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


def test_a_pylock_that_changed_since_builds_nothing(tmp_path: Path, state: Home) -> None:
    manifest = init("one", tmp_path)
    (tmp_path / "pylock.one.toml").write_text("packages = []\n")
    source = SourcePin(type="package", name="pocket", version="1")
    lock = msgspec.structs.replace(LOCK, engine=msgspec.structs.replace(LOCK.engine, source=source))
    with pytest.raises(LockError, match="has changed since"):
        materialize(load_manifest(manifest), lock, state)
    assert [path for path in state.workspaces.iterdir() if path.is_dir()] == []
