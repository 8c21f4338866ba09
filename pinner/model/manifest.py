"""The manifest: what a person wishes for, as typed and frozen data.

Owns the sections and keys of manifest format 1; the rules between them are in manifest_rules.py. Must not read
files: pinner/deploy/load.py does, and adds file, line and nearest key to what is wrong here.
"""

from __future__ import annotations

import re
from typing import Annotated

from msgspec import Meta

from pinner.model.bench import Bench
from pinner.model.expectations import Given
from pinner.model.hardware import Hardware
from pinner.model.sections import NAME_PATTERN as NAME_PATTERN  # noqa: PLC0414  # part of the format
from pinner.model.sections import Positive, Section, Text

FORMAT = 1

PACKAGE_PATTERN = r"^[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$"
FLAG = re.compile(r"[a-z0-9][a-z0-9-]*\Z")
# Arguments stand in the lock, and everybody on the machine can read them.
SECRET_FLAG = re.compile(r"(.*-)?(api-key|password|secret|token)\Z")
SECRET_VARIABLE = re.compile(r"(^|_)(API_?KEY|PASSWORD|SECRET|SECRET_ACCESS_KEY|TOKEN)\Z", re.IGNORECASE)
VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")

# Arguments that have a home of their own in the manifest, with the key that sets them.
OWNED_ARGS = {
    "model": "model.path",
    "model-path": "model.path",
    "revision": "model.revision",
    "speculative-draft-model-revision": "draft.revision",
    "tokenizer-path": "model.path",
    "host": "serve.host",
    "port": "serve.port",
    "speculative-algorithm": "draft.algorithm",
    "speculative-algo": "draft.algorithm",
    "speculative-draft-model-path": "draft.path",
    "speculative-draft-model": "draft.path",
    "speculative-num-steps": "draft.num-steps",
    "speculative-eagle-topk": "draft.eagle-topk",
    "speculative-num-draft-tokens": "draft.num-draft-tokens",
}

# Variables that pinner sets itself, so that the world stays closed.
RESERVED_VARIABLES = frozenset({"PINNER_RUN", "PYTHONSAFEPATH", "PYTHONNOUSERSITE", "PYTHONPYCACHEPREFIX"})
# With it no loader asks the Hub, nor takes another revision.
OFFLINE = "HF_HUB_OFFLINE"
# Variables that bring in code which nothing pins.
CODE_VARIABLES = frozenset({"PYTHONPATH", "PYTHONHOME", "PYTHONSTARTUP"})
# The order in which CUDA counts GPUs.
GPU_ORDER = "CUDA_DEVICE_ORDER"

Seconds = Annotated[float, Meta(gt=0)]
Port = Annotated[int, Meta(ge=1, le=65535)]


class Source(Section, frozen=True, kw_only=True):
    """Where the engine's code comes from: exactly one of `git`, `path` (both with `commit`) or `package`.

    `import-path` puts `subdirectory` of a `path` first on the import path, for an environment in place that the
    engine is not installed into. A `package` in an environment in place is the one that is installed there.
    """

    git: Text | None = None
    path: Text | None = None
    package: Text | None = None
    commit: Text | None = None
    version: Text | None = None
    subdirectory: str = ""
    import_path: bool = False


class Engine(Section, frozen=True, kw_only=True):
    """The server software, its patches and its arguments.

    `args` maps full flag names without leading dashes to a value: true gives the bare flag, false leaves it
    out, a list repeats the values after one flag. `hot-paths` are paths of the repository whose commits are
    marked when source has drifted; the engine's own list is always marked.
    """

    kind: Annotated[str, Meta(pattern=NAME_PATTERN)]
    source: Source
    patches: tuple[Text, ...] = ()
    args: dict[str, bool | int | float | str | list[int | float | str]] = {}
    hot_paths: tuple[Text, ...] = ()


class Python(Section, frozen=True, kw_only=True):
    """The Python environment: either resolved (`version` and so on) or an environment in place (`path`).

    `extras` are extras of the engine's own project. `exclude-newer` is a date (YYYY-MM-DD) or an RFC 3339
    time after which no release is considered. `indexes` are simple-API addresses, the first one the default, and
    `find-links` pages or folders with more files. `overrides` are requirements that take the place of what any
    package asks for, `excludes` names of packages that are left out whoever asks for them, and `projects`
    directories of projects of one's own, each built and installed in place of a package of its name.
    """

    version: Annotated[str, Meta(pattern=r"^3\.[0-9]{1,2}$")] | None = None
    requirements: tuple[Text, ...] = ()
    extras: tuple[Annotated[str, Meta(pattern=NAME_PATTERN)], ...] = ()
    exclude_newer: Text | None = None
    indexes: tuple[Text, ...] = ()
    find_links: tuple[Text, ...] = ()
    overrides: tuple[Text, ...] = ()
    excludes: tuple[Annotated[str, Meta(pattern=PACKAGE_PATTERN)], ...] = ()
    projects: tuple[Text, ...] = ()
    path: Text | None = None


class WeightsSection(Section, frozen=True, kw_only=True):
    """A directory of weights: `path`, or `repo` on the Hub at `revision` (branch, tag or commit).

    `include` and `exclude` are glob patterns that choose among the files of a repository.
    """

    path: Text | None = None
    repo: Text | None = None
    revision: Text | None = None
    include: tuple[Text, ...] = ()
    exclude: tuple[Text, ...] = ()


class Model(WeightsSection, frozen=True, kw_only=True):
    """The target model, pinned by size and sha256 of every file."""


class Draft(WeightsSection, frozen=True, kw_only=True):
    """The draft model and how speculation uses it."""

    algorithm: Text
    num_steps: Positive | None = None
    eagle_topk: Positive | None = None
    num_draft_tokens: Positive | None = None


class Serve(Section, frozen=True, kw_only=True):
    """Where the server listens and how long its steps may take, in seconds."""

    host: Text = "127.0.0.1"
    port: Port = 30000
    start_timeout_s: Seconds = 1800.0
    generate_timeout_s: Seconds = 120.0
    stop_timeout_s: Seconds = 30.0


class PassedThrough(Section, frozen=True, kw_only=True):
    """A variable whose value the caller's variable of the given name gives at launch; it is never stored.

    `secret`: must not be shown or kept anywhere. `site`: differs per machine.
    """

    secret: Text | None = None
    site: Text | None = None


class Manifest(Section, frozen=True, kw_only=True):
    """A whole manifest, format 1. `env` values are strings; 1 means "1", true means "1", false means "0".

    `host` are facts expected of the machine, by the names of pinner/model/hostfacts.py, `bench` what is measured.
    """

    version: int
    engine: Engine
    python: Python
    model: Model
    draft: Draft | None = None
    env: dict[str, str | bool | int | PassedThrough] = {}
    serve: Serve = Serve()
    hardware: Hardware | None = None
    host: dict[str, Given] = {}
    bench: dict[str, Bench] = {}


def env_text(value: str | bool | int) -> str:
    """The one spelling of a variable's value: strings as they are, true "1", false "0", integers decimal."""
    if isinstance(value, bool):
        return "1" if value else "0"
    return str(value)


def is_safe_revision(text: str) -> bool:
    """Whether git can only take `text` as a name: no option, no range, no expression."""
    return re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_./+@-]*", text) is not None and not any(
        part in text for part in ("..", "@{", "//")
    )


def is_inside(relative: str) -> bool:
    """Whether a relative path with forward slashes stays below where it starts."""
    return not relative.startswith("/") and "\0" not in relative and ".." not in relative.split("/")
