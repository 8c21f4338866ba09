"""The lock: every pin as typed and frozen data.

Owns the format of NAME.lock. Must not read files or judge the machine; pinner/deploy/locks.py reads it,
pinner/deploy/resolve.py makes it. The distributions of a resolved environment stand in pylock.NAME.toml
(PEP 751); the lock holds that file's digest.
"""

from __future__ import annotations

from pinner.model.expectations import FactPin
from pinner.model.hardware import HardwarePin
from pinner.model.sections import Part

FORMAT = 1
# The oldest pinner that reads this format; an older one names it in its refusal.
READS_FORMAT = "0.1.0"

# Placeholders in a locked argument list; `up` puts the paths of this machine in their place.
MODEL_PLACEHOLDER = "{model}"
DRAFT_PLACEHOLDER = "{draft}"


class FilePin(Part, frozen=True, kw_only=True):
    """One file: path below its directory, size in bytes, `sha256:<hex>`."""

    path: str
    size: int
    sha256: str


class PatchPin(Part, frozen=True, kw_only=True):
    """A patch as written in the manifest, with its digest."""

    file: str
    sha256: str


class SourcePin(Part, frozen=True, kw_only=True):
    """The engine's code.

    `type` is "git" (pinner checks it out), "path" (a checkout in place) or "package".
    git and path: `commit` and `tree` are full ids; `wish` is what the manifest asked for.
    git with patches: `patched-tree` is the tree that results.
    path: `differs` maps files whose bytes are not those of the commit's tree to "<mode> <blob id>", or
    "deleted"; files that only the checkout has are listed too where the interpreter could import them. A submodule
    that is not at the commit that the tree names is "160000 <commit>", and "deleted" where it is not checked out.
    With `import-path` the directory is put first on the import path.
    package: `name` and `version`; its hashes stand in the pylock, or its content among the distributions of an
    environment in place.
    """

    type: str
    url: str | None = None
    path: str | None = None
    wish: str | None = None
    commit: str | None = None
    tree: str | None = None
    patched_tree: str | None = None
    subdirectory: str = ""
    import_path: bool = False
    name: str | None = None
    version: str | None = None
    differs: dict[str, str] = {}


class EnginePin(Part, frozen=True, kw_only=True):
    """Source, patches and the full argument list (after the interpreter) with placeholders for paths."""

    kind: str
    source: SourcePin
    patches: tuple[PatchPin, ...] = ()
    hot_paths: tuple[str, ...] = ()
    argv: tuple[str, ...]


class DistributionPin(Part, frozen=True, kw_only=True):
    """A distribution of an environment in place.

    `content` is the digest of all its installed files but byte code; `edited` are the files whose bytes
    do not match the distribution's own RECORD, with their sha256 (or "missing"). `origin` is what its
    direct_url.json said, to tell two builds of one version apart; it proves nothing.
    """

    name: str
    version: str
    content: str
    edited: dict[str, str] = {}
    origin: str = ""


class ProjectPin(Part, frozen=True, kw_only=True):
    """A project of the user's own that is built and installed: its directory, the name of its package, and the
    digest of its source files."""

    path: str
    name: str
    content: str


class PythonPin(Part, frozen=True, kw_only=True):
    """The Python environment.

    `version` is the minor version, `patch-level` what was used when locking (recorded, not demanded).
    Resolved: `pylock` is the digest of pylock.NAME.toml, `exclude-newer`, `indexes` and `find-links` as in the
    manifest, without credentials, and `projects` are installed besides. In place: `path`, `distributions`, and
    `loose`, the files that belong to no distribution: below site-packages, in a virtual environment's `bin`, and
    its pyvenv.cfg. `interpreter` is the digest of the interpreter's binary, libpython and standard library,
    `site-packages` are the directories that it installs to, and `linked` has the digest of each tree or file that
    .pth files, editable finders or symlinks to directories add to the import path; paths are relative to the
    manifest, or absolute.
    """

    version: str
    patch_level: str
    pylock: str | None = None
    exclude_newer: str | None = None
    indexes: tuple[str, ...] = ()
    find_links: tuple[str, ...] = ()
    projects: tuple[ProjectPin, ...] = ()
    path: str | None = None
    distributions: tuple[DistributionPin, ...] = ()
    loose: dict[str, str] = {}
    interpreter: str | None = None
    site_packages: tuple[str, ...] = ()
    linked: dict[str, str] = {}


class WeightsPin(Part, frozen=True, kw_only=True):
    """A model or draft with every file: a directory `path`, or a repository `repo` on the Hub.

    Of a repository `wish` is the revision that the manifest asked for and `revision` the full commit id that it
    was; `include` and `exclude` chose among its files.
    """

    path: str | None = None
    repo: str | None = None
    wish: str | None = None
    revision: str | None = None
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    files: tuple[FilePin, ...]


class DraftPin(WeightsPin, frozen=True, kw_only=True):
    """The draft's files and how speculation uses it."""

    algorithm: str
    num_steps: int | None = None
    eagle_topk: int | None = None
    num_draft_tokens: int | None = None


class EnvironmentPin(Part, frozen=True, kw_only=True):
    """The engine's environment: values as the process sees them, and names of what is passed through.

    `files` are the digests of what variables name by a path (libraries to preload or to search for, NCCL's
    configuration, topology and plugins), and of NCCL's and the linker's own files on the machine.
    """

    set: dict[str, str] = {}
    secret: dict[str, str] = {}
    site: dict[str, str] = {}
    files: dict[str, str] = {}


class ServePin(Part, frozen=True, kw_only=True):
    """Where the server listens, and its timeouts in seconds."""

    host: str
    port: int
    start_timeout_s: float
    generate_timeout_s: float
    stop_timeout_s: float


class BenchPin(Part, frozen=True, kw_only=True):
    """The dataset of a benchmark: its file, digest and number of rows."""

    dataset: str
    sha256: str
    rows: int


class Lock(Part, frozen=True, kw_only=True):
    """A whole lock. `manifest` is the digest of the manifest's data, comments and order left out.

    `hardware` and `host` are what is demanded of the machine, from the manifest or by `lock --capture`.
    `bench` pins the dataset of each benchmark that has one; `manifest` leaves [bench] out.
    """

    version: int
    requires_pinner: str
    manifest: str
    engine: EnginePin
    python: PythonPin
    model: WeightsPin
    draft: DraftPin | None = None
    env: EnvironmentPin = EnvironmentPin()
    serve: ServePin
    hardware: HardwarePin | None = None
    host: dict[str, FactPin] = {}
    bench: dict[str, BenchPin] = {}
