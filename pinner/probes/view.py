"""Views: directories of symlinks into the cache of the Hub, with exactly the files that a lock pins.

Owns their names and what makes one complete. Must not make them (deploy/views.py does) nor judge their bytes.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import msgspec

from pinner.host.home import Home
from pinner.model.lock import WeightsPin


def view(home: Home, pin: WeightsPin) -> Path:
    """Where the files of a pinned repository lie once they are materialized; equal pins share one view."""
    text = msgspec.json.encode([pin.repo, pin.revision, pin.files])
    return home.models / hashlib.sha256(text).hexdigest()[:24]


def is_complete(directory: Path, pin: WeightsPin) -> bool:
    """Whether a view has all pinned files and no other, whatever their bytes."""
    wanted = {file.path for file in pin.files}
    found = {
        os.path.relpath(os.path.join(above, name), directory)  # noqa: PTH118
        for above, _, names in os.walk(directory)
        for name in names
    }
    return found == wanted and all((directory / path).is_file() for path in wanted)
