"""Asking a Python interpreter what it is and where it installs to.

Owns one question, put in isolated mode and without `site`, so that nothing of the environment runs: no .pth
file, no sitecustomize, no variable of the caller.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from pinner.errors import OperationFailed
from pinner.host import process
from pinner.model.facts import Unknown

_TIMEOUT_S = 60.0

# `site` is imported, not run. In a virtual environment its answers depend on sys.prefix, which -S leaves at
# the base; Debian's variant looks at both prefixes.
_QUESTION = """
import json, os, site, sys
root = sys.argv[1]
prefixes = [sys.prefix, sys.exec_prefix]
try:
    with open(os.path.join(root, "pyvenv.cfg"), encoding="utf-8") as stream:
        lines = [line.partition("=") for line in stream]
    settings = {key.strip().lower(): value.strip().lower() for key, _, value in lines}
    sys.prefix = sys.exec_prefix = root
    shared = settings.get("include-system-site-packages") == "true"
    prefixes = [root, *prefixes] if shared else [root]
except OSError:
    root = sys.prefix
places = []
for place in site.getsitepackages(prefixes):
    place = os.path.realpath(place)
    if place not in places and os.path.isdir(place):
        places.append(place)
executable = "/proc/self/exe" if os.path.exists("/proc/self/exe") else sys.executable
libraries = set()
try:
    with open("/proc/self/maps", errors="surrogateescape") as stream:
        for line in stream:
            path = line.rstrip("\\n").partition("/")[2]
            if os.path.basename(path).startswith("libpython"):
                libraries.add("/" + path)
except OSError:
    pass
answer = {
    "version": ".".join(map(str, sys.version_info[:3])),
    "prefix": os.path.realpath(root),
    "places": places,
    "executable": os.path.realpath(executable),
    "base": os.path.realpath(sys.base_prefix),
    "path": [os.path.realpath(entry) for entry in sys.path if entry],
    "libraries": sorted(libraries),
    "tag": sys.implementation.cache_tag or "",
}
print(json.dumps(answer))
"""


def locate(place: Path) -> tuple[Path, Path]:
    """(environment, interpreter) for a path to either."""
    if place.parent.name == "bin" and not place.is_dir():
        return place.parent.parent, place
    return place, place / "bin" / "python"


class Interpreter(msgspec.Struct, frozen=True):
    """An interpreter: full version, such as "3.11.7", its environment, its site-packages that exist.

    `executable` is the file that runs in the end, `libraries` are its libpythons; `base` is the installation that
    they belong to, and `path` where it has its standard library, whether there or not. `tag` is in the names of
    its byte code files.
    """

    version: str
    prefix: str
    places: tuple[str, ...]
    executable: str = ""
    base: str = ""
    path: tuple[str, ...] = ()
    libraries: tuple[str, ...] = ()
    tag: str = ""

    @property
    def minor(self) -> str:
        return ".".join(self.version.split(".")[:2])


class Question:
    """A question put to an interpreter; other work can go on until `answer` is called."""

    def __init__(self, python: Path, root: Path) -> None:
        """`root` is the environment that the interpreter is to speak of."""
        self._python = python
        self._started: process.Started | None = None
        self._reason = ""
        try:
            argv = (str(python), "-I", "-S", "-B", "-c", _QUESTION, str(root))
            self._started = process.start(argv, env={"LANG": "C.UTF-8"})
        except OperationFailed as error:
            self._reason = error.message

    def answer(self) -> Interpreter | Unknown:
        """What it said; Unknown with the reason where it does not run."""
        if self._started is None:
            return Unknown(self._reason)
        try:
            done = process.collect(self._started, timeout_s=_TIMEOUT_S)
            return msgspec.json.decode(done.stdout, type=Interpreter)
        except OperationFailed as error:
            return Unknown(error.message)
        except msgspec.MsgspecError:
            return Unknown(f"{self._python} does not answer as a Python interpreter does")
