"""The manifest: what a person wishes for, as typed and frozen data.

Owns the sections and keys of manifest format 1 and the rules between them that need no disk. Must not read
files: pinner/deploy/load.py does, and adds file, line and nearest key to what is wrong here.
"""

from __future__ import annotations

import datetime
import math
import re
from typing import Annotated, Any

import msgspec
from msgspec import Meta

FORMAT = 1

NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9_-]*$"
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
    "revision": "model.path",
    "speculative-draft-model-revision": "draft.path",
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
# Variables that bring in code which nothing pins.
CODE_VARIABLES = frozenset({"PYTHONPATH", "PYTHONHOME", "PYTHONSTARTUP"})

# Sections of the format whose checks come with a later version: naming one today must not look like a pin.
LATER_SECTIONS = ("hardware", "host", "bench")

Text = Annotated[str, Meta(min_length=1)]
Positive = Annotated[int, Meta(ge=1)]
Seconds = Annotated[float, Meta(gt=0)]
Port = Annotated[int, Meta(ge=1, le=65535)]


class Section(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="kebab", kw_only=True):
    """Base of every section: unknown keys are errors, keys are written with dashes."""


class Source(Section, frozen=True, kw_only=True):
    """Where the engine's code comes from: exactly one of `git`, `path` (both with `commit`) or `package`."""

    git: Text | None = None
    path: Text | None = None
    package: Text | None = None
    commit: Text | None = None
    version: Text | None = None
    subdirectory: str = ""


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


class Model(Section, frozen=True, kw_only=True):
    """The target model: a directory, pinned by size and sha256 of every file."""

    path: Text


class Draft(Section, frozen=True, kw_only=True):
    """The draft model and how speculation uses it."""

    path: Text
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
    """A whole manifest, format 1. `env` values are strings; 1 means "1", true means "1", false means "0"."""

    version: int
    engine: Engine
    python: Python
    model: Model
    draft: Draft | None = None
    env: dict[str, str | bool | int | PassedThrough] = {}
    serve: Serve = Serve()


def env_text(value: str | bool | int) -> str:
    """The one spelling of a variable's value: strings as they are, true "1", false "0", integers decimal."""
    if isinstance(value, bool):
        return "1" if value else "0"
    return str(value)


def problems(manifest: Manifest) -> list[tuple[str, str]]:
    """Everything wrong between the keys of a well-typed manifest, as (key path, sentence)."""
    return [
        *_source_problems(manifest.engine.source, bool(manifest.engine.patches)),
        *_args_problems(manifest.engine.args),
        *_python_problems(manifest.python, manifest.engine.source),
        *_draft_problems(manifest.draft),
        *_env_problems(manifest.env),
        *_serve_problems(manifest.serve),
        *_text_problems(manifest),
    ]


def _source_problems(source: Source, has_patches: bool) -> list[tuple[str, str]]:
    key = "engine.source"
    kinds = [name for name in ("git", "path", "package") if getattr(source, name) is not None]
    if len(kinds) != 1:
        found = " and ".join(f"`{kind}`" for kind in kinds) or "none"
        return [(key, f"needs exactly one of `git`, `path` or `package`, found {found}")]
    kind = kinds[0]
    found_problems: list[tuple[str, str]] = []
    needed, foreign = ("version", "commit") if kind == "package" else ("commit", "version")
    if getattr(source, needed) is None:
        found_problems.append((f"{key}.{needed}", f"is missing; `{kind}` needs `{needed}`"))
    if getattr(source, foreign) is not None:
        found_problems.append((f"{key}.{foreign}", f"does not go with `{kind}`"))
    if source.commit is not None and not is_safe_revision(source.commit):
        found_problems.append((f"{key}.commit", f"{source.commit!r} is not a branch, tag or commit id"))
    if kind == "package" and source.subdirectory:
        found_problems.append((f"{key}.subdirectory", "does not go with `package`"))
    if not is_inside(source.subdirectory):
        found_problems.append((f"{key}.subdirectory", f"{source.subdirectory!r} leaves the repository"))
    if has_patches and kind != "git":
        found_problems.append(("engine.patches", f"need a `git` source; nothing is ever written to a `{kind}`"))
    return found_problems


def is_safe_revision(text: str) -> bool:
    """Whether git can only take `text` as a name: no option, no range, no expression."""
    return re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_./+@-]*", text) is not None and not any(
        part in text for part in ("..", "@{", "//")
    )


def is_inside(relative: str) -> bool:
    """Whether a relative path with forward slashes stays below where it starts."""
    return not relative.startswith("/") and "\0" not in relative and ".." not in relative.split("/")


def _args_problems(args: dict[str, Any]) -> list[tuple[str, str]]:
    found_problems = []
    for flag, value in args.items():
        if FLAG.match(flag) is None:
            right = flag.lstrip("-").replace("_", "-").lower()
            found_problems.append(
                (f"engine.args.{flag}", f"write `{right}`: full flag names in lower case, no dashes in front")
            )
        elif flag in OWNED_ARGS:
            found_problems.append((f"engine.args.{flag}", f"is set by `{OWNED_ARGS[flag]}`"))
        elif SECRET_FLAG.match(flag):
            found_problems.append(
                (f"engine.args.{flag}", "is a secret, and arguments stand in the lock and in `ps` for all to read")
            )
        values = value if isinstance(value, list) else [value]
        if isinstance(value, list) and not value:
            found_problems.append((f"engine.args.{flag}", "is an empty list; leave the key out instead"))
        if any(isinstance(item, float) and not math.isfinite(item) for item in values):
            found_problems.append((f"engine.args.{flag}", "must be a finite number"))
    return found_problems


def _python_problems(python: Python, source: Source) -> list[tuple[str, str]]:
    if python.path is not None:
        others = [
            name
            for name in ("version", "requirements", "extras", "exclude-newer", "indexes")
            if getattr(python, name.replace("-", "_"))
        ]
        found_problems = [
            (f"python.{name}", "does not go with `path`: an environment in place is pinned as it is")
            for name in others
        ]
        if source.path is None:
            found_problems.append(
                (
                    "python.path",
                    "needs an engine `source` with `path`: nothing is installed into an environment in place",
                )
            )
        return found_problems
    found_problems = []
    if python.version is None:
        found_problems.append(("python.version", 'is missing; write for example version = "3.11"'))
    if python.exclude_newer is not None and not _is_date(python.exclude_newer):
        found_problems.append(
            (
                "python.exclude-newer",
                f"{python.exclude_newer!r} is neither a date nor an RFC 3339 time",
            )
        )
    for index, requirement in enumerate(python.requirements):
        if not requirement.isprintable():
            # A line break would begin a line of its own, which may be an option.
            found_problems.append((f"python.requirements[{index}]", f"{requirement!r} is not one line of text"))
        elif requirement.lstrip().startswith("-"):
            found_problems.append(
                (f"python.requirements[{index}]", f"{requirement!r} is an option, not a requirement")
            )
    for index, address in enumerate(python.indexes):
        if not address.startswith(("https://", "http://", "file://")) or re.search(r"\s", address):
            found_problems.append(
                (f"python.indexes[{index}]", f"{address!r} is not an https, http or file address")
            )
    return found_problems


def _is_date(text: str) -> bool:
    try:
        datetime.datetime.fromisoformat(text)
    except ValueError:
        return False
    return re.match(r"\d{4}-\d\d-\d\d(\Z|[T ]\d\d:\d\d:\d\d)", text) is not None


def _draft_problems(draft: Draft | None) -> list[tuple[str, str]]:
    if draft is None or draft.eagle_topk != 1 or draft.num_steps is None or draft.num_draft_tokens is None:
        return []
    if draft.num_draft_tokens != draft.num_steps + 1:
        return [
            (
                "draft.num-draft-tokens",
                f"is {draft.num_draft_tokens}, but with eagle-topk = 1 the engine uses num-steps + 1 = "
                f"{draft.num_steps + 1} whatever is asked",
            )
        ]
    return []


def _serve_problems(serve: Serve) -> list[tuple[str, str]]:
    found_problems = [
        (f"serve.{name.replace('_', '-')}", "must be a finite number of seconds")
        for name in ("start_timeout_s", "generate_timeout_s", "stop_timeout_s")
        if not math.isfinite(getattr(serve, name))
    ]
    if re.fullmatch(r"[A-Za-z0-9:][A-Za-z0-9.:%-]*", serve.host) is None:
        found_problems.append(("serve.host", f"{serve.host!r} is not an address or a name of a host"))
    return found_problems


def _env_problems(env: dict[str, Any]) -> list[tuple[str, str]]:
    found_problems = []
    for name, value in env.items():
        if VARIABLE.match(name) is None:
            found_problems.append((f"env.{name!r}", "is not a name of an environment variable"))
        elif name in RESERVED_VARIABLES:
            found_problems.append((f"env.{name}", "is set by pinner itself"))
        elif name in CODE_VARIABLES:
            found_problems.append((f"env.{name}", "brings in code that nothing pins: install it instead"))
        if isinstance(value, PassedThrough):
            given = value.secret or value.site
            if (value.secret is None) == (value.site is None):
                found_problems.append((f"env.{name}", "needs exactly one of `secret` and `site`"))
            elif name.startswith("PYTHON"):
                # `check` asks the launch interpreter what it imports, and must ask it as it will be started.
                found_problems.append((f"env.{name}", "steers the interpreter: only a value of its own pins it"))
            elif given is not None and VARIABLE.match(given) is None:
                found_problems.append((f"env.{name}", f"{given!r} is not a name of an environment variable"))
        elif isinstance(value, str) and value and SECRET_VARIABLE.search(name):
            found_problems.append(
                (f"env.{name}", f'is a secret, and values stand in the lock; write {{ secret = "{name}" }}')
            )
        elif isinstance(value, str) and "\0" in value:
            found_problems.append((f"env.{name}", "holds a NUL byte, which no environment can carry"))
    return found_problems


def _text_problems(manifest: Manifest) -> list[tuple[str, str]]:
    """Strings that no program or file system can carry."""
    texts = {
        "engine.source.git": manifest.engine.source.git,
        "engine.source.path": manifest.engine.source.path,
        "model.path": manifest.model.path,
        "draft.path": manifest.draft.path if manifest.draft else None,
        "python.path": manifest.python.path,
        "serve.host": manifest.serve.host,
        **{f"engine.patches[{index}]": patch for index, patch in enumerate(manifest.engine.patches)},
        **{f"engine.args.{flag}": str(value) for flag, value in manifest.engine.args.items()},
    }
    return [(key, "holds a NUL byte") for key, text in texts.items() if text is not None and "\0" in text]
