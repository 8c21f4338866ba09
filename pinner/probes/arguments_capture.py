"""The arguments of a running server, as a manifest would say them.

Owns turning flags into values, and what may not stand in a manifest: secrets are named, never shown.
"""

from __future__ import annotations

import re
from typing import Any

from pinner.engines import engine_for
from pinner.model.manifest import FLAG, OWNED_ARGS, SECRET_FLAG
from pinner.probes.base import Captured, RunningServer
from pinner.probes.weights_capture import one

_SECTION = "engine.args"
_CREDENTIALS = re.compile(r"://[^/\s@]+:[^/\s@]*@")
_NAME = "served-model-name"


def capture(server: RunningServer) -> Captured:
    """`engine.args`, and `serve` where it was given."""
    captured = Captured()
    for flag, values in server.given.items():
        if flag not in OWNED_ARGS:
            _add(captured, server, flag, values)
    _add_served_name(captured, server)
    _add_address(captured, server)
    first = engine_for(server.kind).ENTRIES[0]
    if server.entry.name != first:
        captured.missed.append(
            f"it was started by `{server.entry.name}`; `up` starts `python {first}` with the same arguments"
        )
    return captured


def _add(captured: Captured, server: RunningServer, flag: str, values: list[str] | None) -> None:
    if SECRET_FLAG.match(flag):
        captured.missed.append(
            f"--{flag}: a secret, which everybody on the machine can read in `ps`; `up` starts the server without "
            "it, and it then asks nobody for a key: let something in front of it do that"
        )
    elif any(_CREDENTIALS.search(value) for value in values or ()):
        captured.missed.append(f"--{flag}: holds a password in an address, which no lock may hold; it is left out")
    elif FLAG.match(flag) is None or not all(map(is_text, values or ())):
        captured.missed.append(f"--{flag}: nothing that a manifest can hold; it is left out")
    else:
        captured.add(_SECTION, flag, _value(captured, server, flag, values), "")


def is_text(value: str) -> bool:
    """Whether a manifest, and another process, can hold a string."""
    return "\0" not in value and not any("\ud800" <= letter <= "\udfff" for letter in value)


def _value(captured: Captured, server: RunningServer, flag: str, values: list[str] | None) -> Any:
    if values is None:
        return True
    found = [_number(_as_path(captured, server, flag, value)) for value in values]
    return found[0] if len(found) == 1 else found


def _number(text: str) -> int | float | str:
    """A number where its spelling comes out the same; else the text."""
    for kind in (int, float):
        try:
            value = kind(text)
        except ValueError:
            continue
        if str(value) == text and text not in ("inf", "nan", "-inf"):
            return value
    return text


def _as_path(captured: Captured, server: RunningServer, flag: str, text: str) -> str:
    """A file that an argument names, by its whole path: `up` starts in another directory."""
    place = server.place(text)
    if not text or not (place.is_file() or ("/" in text and place.exists())):
        return text
    captured.missed.append(f"--{flag} names {place}, whose content is not pinned")
    return str(place)


def _add_served_name(captured: Captured, server: RunningServer) -> None:
    """The name that clients see is the model's path by default, and `up` names it by another one."""
    text, said = one(server, "model-path"), (server.account or {}).get("served_model_name")
    if _NAME in server.given or text is None or text.startswith("/") or said not in (None, text):
        return
    if server.account is None or said is not None:
        captured.add(_SECTION, _NAME, text, "the name that clients see by default; `up` starts it on a whole path")


def _add_address(captured: Captured, server: RunningServer) -> None:
    host, port = one(server, "host"), one(server, "port")
    if host is not None:
        captured.add("serve", "host", host, "--host")
    if port is not None and port != "0":
        captured.add("serve", "port", int(port), "--port")
    elif server.port is not None:
        captured.add("serve", "port", server.port, "the port that it listens on")
