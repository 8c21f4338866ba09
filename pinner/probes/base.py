"""The protocol of a probe and what a probe is given to look at.

A probe is a module that knows one aspect of a deployment. It has five parts: `pin`, `observe`, `observe_live`,
`compare` and `capture`; a part that does not apply returns None and its docstring says why.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import msgspec

from pinner.engines.command_line import Entry
from pinner.host.digest import DigestMemory
from pinner.host.home import Home
from pinner.host.maps import MappedFile
from pinner.host.process import Started
from pinner.host.procfs import ProcessInfo, Unreadable
from pinner.model.facts import Difference, Expectation, Fact, Observation, Unknown
from pinner.model.gpus import NvmlFailure
from pinner.model.lock import Lock
from pinner.model.manifest import Manifest

ETC = Path("/etc")
# Why nothing can be told of what `materialize` makes, before it has.
NOT_MATERIALIZED = "nothing is materialized to look at"

Judgement = tuple[tuple[Difference, ...], tuple[Difference, ...]]


class Workspace(msgspec.Struct, frozen=True, kw_only=True):
    """Where a lock has been materialized.

    `root` is the workspace directory, `tree` the engine's tree (only where pinner checked it out), `checkout`
    the checkout in place, `env` the virtual environment, `python` its interpreter, `seal` what was built, by
    digest. `import_path` is the directory that goes first on the import path, where the lock asks for one.
    """

    root: Path
    tree: Path | None
    checkout: Path | None
    env: Path
    python: Path
    seal: Path
    import_path: Path | None = None


class Wish(msgspec.Struct, frozen=True, kw_only=True):
    """What `pin` starts from: the manifest, where its relative paths start, the previous lock.

    `upgrade` asks for the newest of the engine's source, `upgrade_weights` for that of `model`, `draft` or both.
    `scratch` is a directory that goes when locking is done. `capture` asks for pins of the machine as it is now;
    `etc` is where its configuration lies. `say` takes progress, `warn` what the user should know of the pins.
    """

    manifest: Manifest
    directory: Path
    home: Home
    memory: DigestMemory
    previous: Lock | None = None
    upgrade: bool = False
    upgrade_weights: frozenset[str] = frozenset()
    scratch: Path | None = None
    capture: bool = False
    etc: Path = ETC
    say: Callable[[str], None] = lambda _line: None
    warn: Callable[[str], None] = lambda _line: None


class Scene(msgspec.Struct, frozen=True, kw_only=True):
    """What a check looks at: the lock, where it lies, what was built from it, and how hard to look.

    `deep` re-reads every byte; otherwise a remembered digest serves while the file's identity is unchanged.
    `manifest` is how a command line would name the deployment. `asked` is the question that the probe `source` has
    put to the launch interpreter already, `nvml` the one of the probe `hardware` to the driver. `etc` is where the
    machine's configuration lies.
    """

    lock: Lock
    directory: Path
    home: Home
    memory: DigestMemory
    workspace: Workspace | None
    deep: bool = False
    manifest: str = "MANIFEST"
    asked: Started | Unknown | None = None
    etc: Path = ETC
    nvml: Started | NvmlFailure | None = None


class LiveScene(msgspec.Struct, frozen=True, kw_only=True):
    """A run as a live check sees it: its processes, the main one first, and what it was launched with.

    `environ` gives a process's environment, the reason why it cannot be read, or None if it is gone. `account`
    is what the server itself says of its arguments, by flag name with underscores; None if it does not answer.
    `maps` gives the files that a process has mapped, or the reason why they cannot be told; `cwd` its directory,
    None if that is hidden.
    """

    scene: Scene
    processes: Sequence[ProcessInfo]
    argv: tuple[str, ...]
    env: dict[str, str]
    environ: Callable[[int], dict[str, str] | Unreadable | None]
    account: Mapping[str, Any] | None = {}
    maps: Callable[[int], Sequence[MappedFile] | Unreadable] = lambda _pid: ()
    cwd: Callable[[int], str | None] = lambda _pid: "/"


class Findings(msgspec.Struct):
    """What a probe has found so far; the fields are those of an Observation."""

    facts: dict[str, Fact] = {}
    sealed: dict[str, Fact] = {}
    evidence: dict[str, tuple[str, ...]] = {}
    notes_by_key: dict[str, str] = {}
    notes: list[str] = []
    how: list[str] = []
    expectations: dict[str, Expectation] = {}

    def differs(self, key: str, pinned: Fact, observed: Fact, note: str, *evidence: str) -> None:
        """Add one difference."""
        self.sealed[key] = pinned
        self.facts[key] = observed
        self.notes_by_key[key] = note
        if evidence:
            self.evidence[key] = evidence

    def observation(self, aspect: str) -> Observation:
        """The whole as a probe's answer."""
        return Observation(
            aspect=aspect,
            facts=self.facts,
            sealed=self.sealed,
            evidence=self.evidence,
            notes_by_key=self.notes_by_key,
            notes=tuple(self.notes),
            how="; ".join(self.how),
            expectations=self.expectations,
        )


class RunningServer(msgspec.Struct, frozen=True, kw_only=True):
    """A server that runs now, as `adopt` reads it.

    `main` is its main process, called as `entry` says, by `python` in the directory `cwd`, with the flags `given`
    by full name (None: bare) and the environment `env`. `started_s` is when, since the epoch. `account` is what it
    says of its arguments itself; None if it does not answer. `directory` is where the manifest will lie.
    `as_directories`: weights are to be pinned as directories also where they are in the Hub's cache.
    """

    kind: str
    main: ProcessInfo
    entry: Entry
    given: Mapping[str, list[str] | None]
    python: Path
    cwd: Path
    env: Mapping[str, str]
    started_s: float | None
    port: int | None
    account: Mapping[str, Any] | None
    directory: Path
    home: Home
    memory: DigestMemory
    as_directories: str = ""

    def place(self, text: str) -> Path:
        """What a path on the command line means."""
        return Path(os.path.normpath(self.cwd / text))

    def spelled(self, path: Path) -> str:
        """A path as the manifest names it: relative where it lies below the manifest's directory."""
        return str(path.relative_to(self.directory) if path.is_relative_to(self.directory) else path)


class CapturedKey(NamedTuple):
    """A key of a manifest, the section it belongs to, its value, and where that was read."""

    section: str
    name: str
    value: Any
    origin: str


class Captured(msgspec.Struct):
    """What a probe gives to the manifest of a running server, and what it could not: sentences for a person."""

    keys: list[CapturedKey] = []
    missed: list[str] = []

    def add(self, section: str, name: str, value: Any, origin: str) -> None:
        self.keys.append(CapturedKey(section, name, value, origin))


class Probe(Protocol):
    """One aspect. A module with these names satisfies it; pinner/probes/__init__.py lists them."""

    NAME: str

    def pin(self, wish: Wish) -> Any:
        """The part of the lock that this probe owns, resolved from the manifest (None: nothing to pin)."""

    def observe(self, scene: Scene) -> Observation | None:
        """What is on the machine now, nothing running being looked at. No network, no side effects."""

    def observe_live(self, live: LiveScene) -> Observation | None:
        """What the processes of a run show."""

    def compare(self, lock: Lock, observation: Observation) -> Judgement:
        """Pure: (differences, unknown), pinned before observed."""

    def capture(self, server: RunningServer) -> Captured | None:
        """What a running server's aspect is in a manifest, for `adopt`. None: `lock --capture` pins it."""
