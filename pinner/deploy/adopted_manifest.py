"""The text of a manifest that `adopt` writes: what was captured, each with where it was read.

Pure: takes what the probes captured, gives text.
"""

from __future__ import annotations

from collections.abc import Sequence

import tomlkit
from tomlkit.items import Table

from pinner.probes.base import CapturedKey, RunningServer

# The order in which a person reads a manifest, and what is said of a whole section.
_SECTIONS = {
    "engine": "",
    "engine.args": "The command line of pid {pid}; flags that were not given are left to the engine.",
    "python": "",
    "model": "",
    "draft": "",
    "env": "The environment that pid {pid} was started with, as far as it is of a family that matters.",
    "serve": "",
}


def render(name: str, server: RunningServer, keys: Sequence[CapturedKey], missed: Sequence[str], when: str) -> str:
    """The manifest."""
    document = tomlkit.document()
    for line in (
        f"{name}: adopted {when} from pid {server.main.pid}, which `{server.entry.name}` had started.",
        "Above each key stands where it was read. What could not be captured stands at the end.",
    ):
        document.add(tomlkit.comment(line))
    document.add("version", 1)
    engine = _table(server, "engine", keys)
    arguments = _table(server, "engine.args", keys)
    if arguments.value:
        engine.add("args", arguments)
    document.add("engine", engine)
    for section in _SECTIONS:
        if "." not in section and section != "engine" and any(key.section == section for key in keys):
            document.add(section, _table(server, section, keys))
    text = tomlkit.dumps(document)
    if missed:
        text += "\n# Not captured, or not certain, when this was adopted:\n"
        text += "".join(f"# - {one_line(sentence)}\n" for sentence in missed)
    return text


def one_line(text: str) -> str:
    """Text that can stand in a comment."""
    return "".join(letter if letter.isprintable() else letter.encode("unicode_escape").decode() for letter in text)


def _table(server: RunningServer, section: str, keys: Sequence[CapturedKey]) -> Table:
    table = tomlkit.table()
    if _SECTIONS[section]:
        table.add(tomlkit.comment(_SECTIONS[section].format(pid=server.main.pid)))
    if section == "engine":
        table.add("kind", server.kind)
    for key in keys:
        if key.section != section:
            continue
        if key.origin:
            table.add(tomlkit.comment(one_line(key.origin)))
        table.add(key.name, _item(key.value))
    return table


def _item(value: object) -> object:
    if isinstance(value, dict):
        table = tomlkit.inline_table()
        table.update(value)
        return table
    return value
