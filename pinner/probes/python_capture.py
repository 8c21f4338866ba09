"""The Python environment of a running server, as a manifest would say it.

Owns naming the environment and what of the server's import path `up` will not have. Must not pin:
pinner/probes/python_in_place.py does.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from pinner.engines import engine_for
from pinner.host import traces
from pinner.host.interpreter import Question, locate
from pinner.model.facts import Unknown
from pinner.probes.base import Captured, RunningServer
from pinner.probes.importing import Asker
from pinner.probes.source_capture import asker, changes_sentence

_SECTION = "python"
# What `up` does by itself, or what changes nothing that is computed.
_HARMLESS = ("-u", "-B", "-s", "-P", "-q", "-b")
_MOST_NAMES = 5


def capture(server: RunningServer) -> Captured:
    """The environment in place."""
    captured = Captured()
    root, _ = locate(server.python)
    whole = os.path.realpath(root / "bin" / "python") == os.path.realpath(server.python)
    captured.add(
        _SECTION,
        "path",
        server.spelled(root if whole else server.python),
        f"the interpreter of pid {server.main.pid}",
    )
    for option in server.entry.options:
        if option not in _HARMLESS:
            captured.missed.append(f"the interpreter was started with {option}; `up` starts it without")
    if root.is_relative_to(server.home.workspaces):
        captured.missed.append(
            f"the environment lies in pinner's own state ({root}), and goes when that is cleared or built anew: "
            "the manifest that it was built from is the better one to keep"
        )
    _tell_import_path(captured, server)
    answer = Question(server.python, root).answer()
    if server.started_s is not None and not isinstance(answer, Unknown):
        for place in answer.places:
            changed = traces.changed_since(Path(place), server.started_s, skip=("__pycache__",))
            if changed is not None:
                captured.missed.append(changes_sentence("the Python environment", Path(place), changed))
    return captured


def _tell_import_path(captured: Captured, server: RunningServer) -> None:
    """Places that the server imports from, and that the interpreter of `up` will not look at."""
    theirs = asker(server).import_path()
    ours = Asker(
        server.python, {"PYTHONSAFEPATH": "1", "PYTHONNOUSERSITE": "1"}, (), server.cwd, None
    ).import_path()
    if isinstance(theirs, Unknown) or isinstance(ours, Unknown):
        why = theirs.reason if isinstance(theirs, Unknown) else str(ours)
        captured.missed.append(f"the server's import path cannot be told: {why}")
        return
    known = {os.path.realpath(entry) for entry in ours}
    package = engine_for(server.kind).PACKAGE
    for entry in theirs:
        place = server.place(entry)
        if os.path.realpath(place) in known:
            continue
        known.add(os.path.realpath(place))
        names = _importable(place, package)
        if names:
            shown = ", ".join(names[:_MOST_NAMES]) + (", …" if len(names) > _MOST_NAMES else "")
            captured.missed.append(
                f"the server also looks for imports in {place}, and `up` does not; it holds {shown}: what of it "
                "the engine needs must be installed into the environment"
            )


def _importable(place: Path, package: str) -> Sequence[str]:
    """What an import would find in a directory, but the engine itself; the names only."""
    try:
        entries = sorted(place.iterdir())
    except OSError:
        return [place.name] if place.is_file() else []
    found = []
    for entry in entries:
        name = entry.name.partition(".")[0]
        is_module = entry.suffix in (".py", ".so", ".pyc") and name.isidentifier()
        is_package = (entry / "__init__.py").is_file()
        if (is_module or is_package) and name != package:
            found.append(name)
    return found
