"""What must hold between the keys of the manifest's `[python]` section.

Pure; must not read files.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterator

from pinner.model.manifest import Python, Source

_ADDRESS = ("https://", "http://", "file://")
# What an environment in place has none of: it is pinned as it is.
_RESOLVED = (
    "version",
    "requirements",
    "extras",
    "exclude-newer",
    "indexes",
    "find-links",
    "overrides",
    "excludes",
    "projects",
)


def python_problems(python: Python, source: Source) -> list[tuple[str, str]]:
    """Everything wrong with the section, as (key path, sentence)."""
    return list(_in_place(python, source) if python.path is not None else _resolved(python))


def _in_place(python: Python, source: Source) -> Iterator[tuple[str, str]]:
    for name in _RESOLVED:
        if getattr(python, name.replace("-", "_")):
            yield f"python.{name}", "does not go with `path`: an environment in place is pinned as it is"
    if source.git is not None:
        sentence = (
            "needs a `path` or `package` as engine `source`: nothing is installed into an environment in place"
        )
        yield "python.path", sentence


def _resolved(python: Python) -> Iterator[tuple[str, str]]:
    if python.version is None:
        yield "python.version", 'is missing; write for example version = "3.11"'
    if python.exclude_newer is not None and not _is_date(python.exclude_newer):
        yield "python.exclude-newer", f"{python.exclude_newer!r} is neither a date nor an RFC 3339 time"
    yield from _requirement_problems("requirements", python.requirements)
    yield from _requirement_problems("overrides", python.overrides)
    for index, address in enumerate(python.indexes):
        if not address.startswith(_ADDRESS) or re.search(r"\s", address):
            yield f"python.indexes[{index}]", f"{address!r} is not an https, http or file address"
    for index, link in enumerate(python.find_links):
        # uv takes them as one list, with commas between them.
        if not link.isprintable() or "," in link:
            yield f"python.find-links[{index}]", f"{link!r} is neither an address nor a folder without a comma"
    for index, path in enumerate(python.projects):
        if "\0" in path:
            yield f"python.projects[{index}]", "holds a NUL byte"


def _requirement_problems(key: str, requirements: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    for index, requirement in enumerate(requirements):
        if not requirement.isprintable():
            # A line break would begin a line of its own, which may be an option.
            yield f"python.{key}[{index}]", f"{requirement!r} is not one line of text"
        elif requirement.lstrip().startswith("-"):
            yield f"python.{key}[{index}]", f"{requirement!r} is an option, not a requirement"


def _is_date(text: str) -> bool:
    try:
        datetime.datetime.fromisoformat(text)
    except ValueError:
        return False
    return re.match(r"\d{4}-\d\d-\d\d(\Z|[T ]\d\d:\d\d:\d\d)", text) is not None
