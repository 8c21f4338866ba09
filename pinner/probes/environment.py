"""The environment of every process of a run, against what it was launched with.

Owns the aspect "environment". Reading only the parent would be wrong: engines assign variables in code and
workers inherit the result, so each worker is read.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from pathlib import Path

import msgspec

from pinner.engines import engine_for
from pinner.host.procfs import ProcessInfo, Unreadable
from pinner.model.facts import ABSENT, Fact, Observation, Unknown, compare_facts
from pinner.model.lock import EnvironmentPin, Lock
from pinner.model.manifest import SECRET_VARIABLE, Manifest, PassedThrough, env_text
from pinner.probes.base import Captured, Findings, Judgement, LiveScene, RunningServer, Scene, Wish
from pinner.probes.environment_files import NCCL_CONF, digests, leads, settings

NAME = "environment"
HIDDEN = "(hidden)"


def pin(wish: Wish) -> EnvironmentPin:
    """Values as the process will see them, secrets and per-site values by name only; the files they lead to."""
    found = from_manifest(wish.manifest)
    engine = engine_for(wish.manifest.engine.kind)
    why = leads(found.set, wish.etc, with_nccl=engine.uses_gpus(engine.argv(wish.manifest)))
    files: dict[str, str] = {}
    for path, digest in digests(why, wish.memory).items():
        if isinstance(digest, str):
            files[path] = digest
            if path.startswith(f"{wish.etc}/"):
                wish.warn(f"env: {path} is pinned as it is here: {why[path]}")
        else:
            wish.warn(f"env: {path} is not pinned ({digest}): {why[path]}")
    return msgspec.structs.replace(found, files=files)


def from_manifest(manifest: Manifest) -> EnvironmentPin:
    """What the manifest alone decides: everything but the digests of files."""
    plain: dict[str, str] = {}
    secret: dict[str, str] = {}
    site: dict[str, str] = {}
    for name, value in sorted(manifest.env.items()):
        if not isinstance(value, PassedThrough):
            plain[name] = env_text(value)
        elif value.secret is not None:
            secret[name] = value.secret
        elif value.site is not None:
            site[name] = value.site
    return EnvironmentPin(set=plain, secret=secret, site=site)


def observe(scene: Scene) -> Observation | None:
    """Files that variables lead to or that set more of them; the environment itself is built only at launch."""
    found = Findings()
    pins = scene.lock.env
    engine = scene.lock.engine
    why = leads(pins.set, scene.etc, with_nccl=engine_for(engine.kind).uses_gpus(engine.argv))
    seen = digests(why, scene.memory, deep=scene.deep)
    for path in sorted(pins.files.keys() | seen.keys()):
        found.sealed[path] = pins.files.get(path, ABSENT)
        found.facts[path] = seen.get(path, ABSENT)
        if path not in pins.files:
            found.notes_by_key[path] = f"{why[path]}, and nobody listed it; `pinner lock` pins it as it is"
        elif path in why:
            found.notes_by_key[path] = f"{why[path]}; its bytes are not those that were locked"
        found.evidence[path] = _settings(Path(path), pins) if Path(path).name == NCCL_CONF else ()
    if scene.workspace is not None:
        _engine_home(scene.workspace.root / "home", pins, found)
    if seen:
        found.how.append(f"{len(seen)} files that the environment leads to")
    return found.observation(NAME)


def _engine_home(home: Path, pins: EnvironmentPin, found: Findings) -> None:
    """NCCL reads ~/.nccl.conf, and a workspace is built without one."""
    path = home / f".{NCCL_CONF}"
    if path.exists() or path.is_symlink():
        note = "NCCL takes variables from it, and nobody listed it"
        found.differs(f"~/{path.name}", ABSENT, "present", note, *_settings(path, pins))


def _settings(path: Path, pins: EnvironmentPin) -> tuple[str, ...]:
    """The variables that a file of NCCL's sets: first those that reach NCCL, for what is set already stays."""
    reach, lose = [], []
    for name, value in settings(path).items():
        if name in pins.set:
            lose.append(f"it also sets {name}={_shown(name, value)}, where the pinned {pins.set[name]!r} stays")
        else:
            reach.append(f"it sets {name}={_shown(name, value)}")
    return (*reach, *lose)


def observe_live(live: LiveScene) -> Observation | None:
    """Each launched variable in each process; what the engine changes beyond the pins is a note."""
    launched, pins = live.env, live.scene.lock.env
    pinned = pins.set.keys() | pins.secret.keys() | pins.site.keys()
    facts: dict[str, Fact] = dict(launched)
    evidence: dict[str, list[str]] = {}
    added: dict[str, str] = {}
    main = live.processes[0]
    for process in live.processes:
        seen = live.environ(process.pid)
        if seen is None:
            continue
        if isinstance(seen, Unreadable):
            facts[f"of {_title(process)}"] = Unknown(f"pid {process.pid}: {seen.reason}")
            continue
        for name in sorted(seen.keys() | launched.keys()):
            if seen.get(name) == launched.get(name):
                continue
            is_foreign = process.exe is not None and main.exe is not None and process.exe != main.exe
            if process is not main and (name not in pinned or (is_foreign and name not in seen)):
                # A program that the engine calls with an environment of its own computes nothing.
                added[name] = seen.get(name, "(unset)")
                continue
            if facts.get(name, ABSENT) == launched.get(name, ABSENT):
                facts[name] = seen.get(name, ABSENT)
            evidence.setdefault(name, []).append(_sentence(process, name, seen, name in pins.secret))
    sealed: dict[str, Fact] = dict(launched)
    for name in pins.secret.keys() & launched.keys():
        same = facts[name] == sealed[name]
        sealed[name], facts[name] = HIDDEN, HIDDEN if same else "another value (hidden)"
    return Observation(
        aspect=NAME,
        facts=facts,
        sealed=sealed,
        evidence={name: tuple(lines) for name, lines in evidence.items()},
        notes=_notes(added, engine_for(live.scene.lock.engine.kind).sets(live.scene.lock.engine.source)),
        how=f"{len(live.processes)} processes, {len(launched)} variables each",
    )


def compare(_lock: Lock, observation: Observation) -> Judgement:
    """Pure. What was launched stands in the observation's sealed side."""
    return compare_facts({}, observation)


def capture(server: RunningServer) -> Captured:
    """The variables that matter; secrets by name."""
    from pinner.probes import environment_capture  # noqa: PLC0415  # only `adopt` wants it

    return environment_capture.capture(server)


def _title(process: ProcessInfo) -> str:
    return process.title or process.comm


def _sentence(process: ProcessInfo, name: str, seen: Mapping[str, str], is_hidden: bool) -> str:
    who = f"pid {process.pid} ({_title(process)})"
    if name not in seen:
        return f"{who} lacks it"
    return f"{who} has another value" if is_hidden else f"{who} has {seen[name]}"


def _shown(name: str, value: str) -> str:
    return HIDDEN if SECRET_VARIABLE.search(name) else value


def _notes(added: Mapping[str, str], known: Set[str]) -> tuple[str, ...]:
    """What the engine set by itself: worth knowing, and drift only where it contradicts a pin."""
    notes = []
    for title, names in (
        ("set by engine", sorted(added.keys() & known)),
        ("set by engine, though it is not known to", sorted(added.keys() - known)),
    ):
        if names:
            notes.append(f"{title}: {', '.join(f'{name}={_shown(name, added[name])}' for name in names)}")
    return tuple(notes)
