"""Write the JSON Schemas in docs/ from the types that read the files. A test holds them current."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec

from pinner.model.lock import Lock
from pinner.model.manifest import Manifest
from pinner.model.record import Record

DOCS = Path(__file__).parent.parent / "docs"


def schemas() -> dict[str, dict[str, Any]]:
    """File name to schema."""
    found = {}
    for name, title, struct in (
        ("manifest.schema.json", "pinner manifest, format 1", Manifest),
        ("lock.schema.json", "pinner lock, format 1", Lock),
        ("record.schema.json", "pinner record, format 1", Record),
    ):
        schema = msgspec.json.schema(struct)
        found[name] = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": title, **schema}
    return found


def render(schema: dict[str, Any]) -> str:
    """The text of a schema file."""
    return json.dumps(schema, indent=2, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    for file_name, content in schemas().items():
        (DOCS / file_name).write_text(render(content))
