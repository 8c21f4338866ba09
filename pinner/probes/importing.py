"""Which file the launch interpreter takes the engine from.

Owns asking an interpreter, in the environment that a launch gives it, where it finds a package, and who put
that place on its path. The package is found, never imported. Must not judge: pinner/probes/source.py does.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from pinner.errors import CommandFailed, OperationFailed
from pinner.host import checkout, process, runs
from pinner.host.history import SHORT
from pinner.host.process import Started
from pinner.model.facts import Unknown
from pinner.model.lock import SourcePin

_TIMEOUT_S = 60.0
_MARK = "pinner-import:"
_MOST_PLACES = 3

# Runs in the engine's interpreter, whose version may be older than pinner's own. The finders are asked one by
# one, as `import` does, because the one that answers tells how the place came about. No import that Python has
# not done already: the json module alone would cost a fifth of the start.
_SCRIPT = f"""
import os, site, sys
name = sys.argv[1]
sys.path[:] = sys.argv[2:] + [entry for entry in sys.path if entry]
answer = {{"origin": "", "finder": "", "places": []}}
places = []
found = False
for finder in sys.meta_path:
    find = getattr(finder, "find_spec", None)
    spec = find(name, None) if find else None
    if spec is None:
        continue
    kind = finder if isinstance(finder, type) else type(finder)
    if kind.__module__ not in ("_frozen_importlib", "_frozen_importlib_external"):
        file = getattr(sys.modules.get(kind.__module__), "__file__", None)
        answer["finder"] = kind.__name__ + " of " + (file or kind.__module__)
    if spec.has_location:
        answer["origin"] = spec.origin
    places = list(spec.submodule_search_locations or [])
    found = True
    break
places = places or [answer["origin"] or os.sep]
files = []
for directory in site.getsitepackages():
    if os.path.isdir(directory):
        files += [os.path.join(directory, file) for file in sorted(os.listdir(directory)) if file.endswith(".pth")]
adds = {{}}
for path in files:
    with open(path, errors="replace") as stream:
        for line in stream:
            line = line.strip()
            if line and not line.startswith(("import ", "import\t", "#")):
                adds[os.path.realpath(os.path.join(os.path.dirname(path), line))] = path
for place in places:
    parent = os.path.realpath(os.path.dirname(place))
    entry = next((entry for entry in sys.path if os.path.realpath(entry) == parent), "")
    answer["places"] += [place, entry, adds.get(parent, "") if entry else ""]
fields = [answer["origin"], answer["finder"]] + (answer["places"] if found else [])
sys.stdout.flush()
sys.stdout.buffer.write(os.fsencode("\\n" + {_MARK!r} + "\\0".join(fields)))
"""


def source_root(source: SourcePin, directory: Path) -> Path:
    """The directory of a checkout in place that the engine is imported from; relative paths from `directory`."""
    return Path(os.path.normpath(directory / (source.path or "") / source.subdirectory))


class Place(msgspec.Struct, frozen=True):
    """A directory of the package, or its file; the path entry that it comes from, the .pth file that adds that."""

    path: str
    entry: str = ""
    put_by: str = ""

    def line(self) -> str:
        """Who put it there, for a person; "" where it cannot be told."""
        return (f"from the path entry {self.entry}" if self.entry else "") + (
            f", which {self.put_by} adds" if self.put_by else ""
        )


class Found(msgspec.Struct, frozen=True):
    """Where an interpreter finds a package.

    `origin` is the file that is run first (None for a namespace package), `locations` its directories, `finder`
    names a finder that is not Python's own.
    """

    origin: str | None
    locations: tuple[Place, ...]
    finder: str

    @property
    def places(self) -> tuple[str, ...]:
        """The file, or a namespace package's directories; empty if there is no such package."""
        return (self.origin,) if self.origin is not None else tuple(place.path for place in self.locations)

    def lines(self, strangers: Sequence[str] = ()) -> tuple[str, ...]:
        """Who put it there, and which checkout it is, for a person.

        A namespace package has several places: only `strangers` are told of, if any are given.
        """
        lines = [f"found by {self.finder}"] if self.finder else []
        wanted = self.locations
        if self.origin is None:
            wanted = tuple(place for place in wanted if not strangers or place.path in strangers)
        for place in wanted[:_MOST_PLACES]:
            text = place.line()
            if text:
                lines.append(text if len(wanted) == 1 else f"{place.path}: {text}")
        for path in [place.path for place in wanted[:_MOST_PLACES]] if self.origin is None else [self.origin]:
            state = checkout.find(Path(os.path.realpath(path)).parent)
            if state is not None:
                branch = f" (branch {state.branch})" if state.branch else ""
                lines.append(f"that is the checkout {state.toplevel} at {state.head[:SHORT]}{branch}")
        return tuple(lines)


def ask(python: Path, package: str, env: Mapping[str, str]) -> Started | Unknown:
    """Start asking an interpreter where it finds `package`; `answer` takes what it says.

    `env` are the deployment's own variables; those that steer an interpreter are given to it.
    """
    return _start(python, package, {**_steering(env), "PYTHONNOUSERSITE": "1"})


def ask_as(python: Path, package: str, environ: Mapping[str, str], cwd: str) -> Started | Unknown:
    """The same question for a process with these variables, which looks into `cwd` first unless that is empty."""
    steering = _steering(environ)
    if cwd:
        # `-m` and `-c` look there first; the question itself is put in a directory with nothing in it.
        steering["PYTHONPATH"] = os.pathsep.join(filter(None, (cwd, steering.get("PYTHONPATH"))))
    return _start(python, package, {"HOME": environ.get("HOME", "/"), **steering})


def _steering(env: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in env.items() if name.startswith("PYTHON")}


def _start(python: Path, package: str, steering: Mapping[str, str]) -> Started | Unknown:
    clean = {
        "PATH": f"{python.parent}:/usr/bin:/bin",
        "LANG": "C.UTF-8",
        **steering,
        "PYTHONSAFEPATH": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    try:
        return process.start([str(python), "-c", _SCRIPT, package], env=clean, cwd=Path("/"))
    except OperationFailed as error:
        return Unknown(error.message)


# Runs in the engine's interpreter, as above.
_PATH_SCRIPT = f"""
import os, sys
sys.stdout.flush()
entries = sys.argv[1:] + [entry for entry in sys.path if entry]
sys.stdout.buffer.write(os.fsencode("\\n" + {_MARK!r} + "\\0".join(entries)))
"""


class Asker(NamedTuple):
    """An interpreter as a running server is one: its environment, its options, the directory it was started in.

    `first` is the directory that goes first on its import path, if there is one.
    """

    python: Path
    env: Mapping[str, str]
    options: Sequence[str]
    cwd: Path
    first: Path | None

    def find(self, package: str) -> Found | Unknown:
        """Where it finds a package."""
        return answer(self._start(_SCRIPT, package))

    def import_path(self) -> list[str] | Unknown:
        """Its import path."""
        asked = self._start(_PATH_SCRIPT)
        if isinstance(asked, Unknown):
            return asked
        try:
            completed = process.collect(asked, timeout_s=_TIMEOUT_S)
        except CommandFailed as error:
            return Unknown(f"the interpreter gave no answer: {error.stderr}")
        _, mark, text = os.fsdecode(completed.stdout).rpartition(f"\n{_MARK}")
        return text.split("\0") if mark else Unknown("the interpreter did not tell its import path")

    def run(self, script: str, *, timeout_s: float) -> str | Unknown:
        """What a script prints that imports the engine; the caches it makes go with a home of its own."""
        import tempfile  # noqa: PLC0415  # loads random; only `adopt` asks this

        with tempfile.TemporaryDirectory(prefix="pinner-ask-") as scratch:
            user = self.env.get("PYTHONUSERBASE") or f"{self.env.get('HOME', '')}/.local"
            env = {**self.env, "HOME": scratch, "TMPDIR": scratch, "PYTHONUSERBASE": user}
            asked = self._replace(env=env)._start(script)
            if isinstance(asked, Unknown):
                return asked
            try:
                completed = process.collect(asked, timeout_s=timeout_s)
            except CommandFailed as error:
                return Unknown(error.stderr)
        said = process.redact(completed.stderr.decode("utf-8", "replace"), self.env).strip().splitlines()
        return os.fsdecode(completed.stdout) if completed.code == 0 else Unknown(said[-1] if said else "no word")

    def _start(self, script: str, *words: str) -> Started | Unknown:
        first = [str(self.first)] if self.first is not None else []
        # It writes nothing into the server's directories, sees no GPU, and is no process of a run.
        quiet = {name: value for name, value in self.env.items() if name != runs.RUN_MARKER}
        quiet |= {"PYTHONDONTWRITEBYTECODE": "1", "CUDA_VISIBLE_DEVICES": ""}
        try:
            argv = [str(self.python), *self.options, "-c", script, *words, *first]
            return process.start(argv, env=quiet, cwd=self.cwd)
        except OperationFailed as error:
            return Unknown(error.message)


def answer(asked: Started | Unknown) -> Found | Unknown:
    """What the interpreter said, or why it could not say."""
    if isinstance(asked, Unknown):
        return asked
    try:
        completed = process.collect(asked, timeout_s=_TIMEOUT_S)
    except CommandFailed as error:
        return Unknown(f"the launch interpreter gave no answer: {error.stderr}")
    rows = os.fsdecode(completed.stdout).split(f"\n{_MARK}")
    if completed.code != 0 or len(rows) != 2 or rows[1].count("\0") % 3 != 1:
        said = completed.stderr.decode("utf-8", "replace").strip().splitlines()
        return Unknown(f"the launch interpreter failed ({completed.code}): {said[-1] if said else 'no word'}")
    origin, finder, *fields = rows[1].split("\0")
    places = tuple(Place(*three) for three in zip(fields[::3], fields[1::3], fields[2::3], strict=True))
    return Found(origin=origin or None, locations=places, finder=finder)
