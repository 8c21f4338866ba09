"""Owns reading the JSON files of a model directory. Loads nothing heavy: the main process uses it too."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def read_config(directory: str) -> dict[str, Any]:
    return json.loads((Path(directory) / "config.json").read_text(encoding="utf-8"))


def read_generation_config(directory: str) -> dict[str, Any]:
    path = Path(directory) / "generation_config.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
