"""Where a running server's engine comes from, as a manifest would say it.

Owns asking the server's interpreter, in the server's environment and directory, which file it imports. Must not
pin: pinner/probes/source_pin.py does, and gives what differs from the commit.
"""

from __future__ import annotations

import os
from pathlib import Path

from pinner.engines import engine_for
from pinner.errors import OperationFailed, UnknownFact
from pinner.host import checkout, traces
from pinner.host.checkout import CheckoutState
from pinner.host.interpreter import Question
from pinner.model.facts import Unknown
from pinner.probes import importing
from pinner.probes.base import Captured, RunningServer
from pinner.probes.distributions import read_distributions
from pinner.probes.importing import Asker

_SECTION = "engine"


def capture(server: RunningServer) -> Captured:
    """The source's key. UnknownFact if the interpreter gives no answer, OperationFailed if nothing can pin it."""
    captured = Captured()
    package = engine_for(server.kind).PACKAGE
    origin = _origin(server, package)
    root = Path(origin).parent
    root = root.parent if Path(origin).name == "__init__.py" else root
    answer = Question(server.python, _environment(server.python)).answer()
    if isinstance(answer, Unknown):
        raise UnknownFact(f"the server's interpreter: {answer.reason}")
    said = f"its interpreter imports {origin}"
    if os.path.realpath(root) in answer.places:
        _add_package(captured, origin, Path(answer.prefix), [Path(place) for place in answer.places], said)
    else:
        state = _checkout(root, package)
        _add_checkout(captured, server, state, root, (origin, said))
    top = root / package
    _tell_changes(captured, server, top if top.is_dir() else Path(origin))
    return captured


def _origin(server: RunningServer, package: str) -> str:
    found = asker(server).find(package)
    if isinstance(found, Unknown):
        raise UnknownFact(f"where the server takes {package} from: {found.reason}")
    if found.origin is None:
        where = ", ".join(found.places) or "nowhere"
        raise OperationFailed(
            f"the server's interpreter finds {package} {where} and not as one package",
            hint="was the environment or the checkout removed since the server was started?",
        )
    return str(server.place(found.origin))


def asker(server: RunningServer) -> Asker:
    """The server's interpreter, to be asked as the server was started."""
    return Asker(server.python, server.env, server.entry.options, server.cwd, _first(server))


def _first(server: RunningServer) -> Path | None:
    """The directory that `python -m` puts first on the import path."""
    is_safe = any(option in ("-P", "-I") for option in server.entry.options) or server.env.get("PYTHONSAFEPATH")
    return server.cwd if server.entry.is_module and not is_safe else None


def _environment(python: Path) -> Path:
    return python.parent.parent


def _add_package(captured: Captured, origin: str, prefix: Path, places: list[Path], said: str) -> None:
    relative = os.path.relpath(os.path.realpath(origin), prefix)
    owner = next((one for one in read_distributions(prefix, places) if relative in one.files), None)
    if owner is None:
        raise OperationFailed(
            f"{origin} belongs to no installed distribution, so nothing says which one to pin",
            hint="install the engine into the environment, or start it from a checkout, and adopt again",
        )
    name = owner.name.partition("==")[0]
    captured.add(_SECTION, "source", {"package": name, "version": owner.version}, said)


def _checkout(root: Path, package: str) -> CheckoutState:
    for parent in (root, *root.parents):
        if os.path.lexists(parent / ".git"):
            return checkout.inspect(parent)
    raise OperationFailed(
        f"the server takes {package} from {root}, which is neither installed nor in a git checkout: there is no "
        "commit to pin it by",
        hint="put it under git there (git init, git add, git commit), or install it, and adopt again",
    )


def _add_checkout(
    captured: Captured, server: RunningServer, state: CheckoutState, root: Path, found: tuple[str, str]
) -> None:
    origin, said = found
    # The checkout by the name that the server reaches it by, so that links on the way stay.
    top = next((one for one in (root, *root.parents) if one.samefile(state.toplevel)), state.toplevel)
    source: dict[str, object] = {"path": server.spelled(top), "commit": state.head}
    if root != top:
        source["subdirectory"] = str(root.relative_to(top))
    branch = f" (branch {state.branch})" if state.branch else ""
    said = f"{said}; HEAD of that checkout{branch}"
    clean = importing.answer(importing.ask(server.python, engine_for(server.kind).PACKAGE, {}))
    if isinstance(clean, Unknown) or clean.origin is None or not Path(clean.origin).samefile(origin):
        # The server found it through its directory or PYTHONPATH, which `up` does not have.
        source["import-path"] = True
        said += "; nothing in the environment leads there"
    captured.add(_SECTION, "source", source, said)


def _tell_changes(captured: Captured, server: RunningServer, top: Path) -> None:
    changed = (
        traces.changed_since(top, server.started_s, skip=("__pycache__", ".git")) if server.started_s else None
    )
    if changed is not None:
        captured.missed.append(changes_sentence("the engine's source", top, changed))


def changes_sentence(what: str, top: Path, changed: traces.Changed) -> str:
    """That files are younger than the process which has read them."""
    files = "1 file" if changed.files == 1 else f"{changed.files:,} files"
    return (
        f"{what}: {files} below {top} changed after the server had started (last {changed.last} at {changed.at}), "
        "so that it may run what was there before: restart it and adopt again to be sure"
    )
