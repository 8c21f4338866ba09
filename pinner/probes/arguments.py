"""The engine's argument list, as its main process and the server's own account show it.

Owns the aspect "arguments". At rest there is nothing to observe: the lock itself is what a launch will use.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pinner.engines import engine_for
from pinner.engines.sglang_account import reported
from pinner.errors import ManifestError
from pinner.model.facts import ABSENT, Fact, Observation, Unknown, compare_facts
from pinner.model.lock import Lock, SourcePin
from pinner.model.manifest import Manifest
from pinner.probes.base import Captured, Judgement, LiveScene, RunningServer, Scene, Wish

NAME = "arguments"


def pin(wish: Wish) -> tuple[str, ...]:
    """The whole argument list with placeholders for the paths of this machine."""
    return from_manifest(wish.manifest)


def advise(wish: Wish, source: SourcePin) -> None:
    """Warn of what the manifest leaves open. ManifestError for arguments that the source does not have."""
    engine = engine_for(wish.manifest.engine.kind)
    wrong = engine.argument_problems(wish.manifest, source)
    if wrong:
        raise ManifestError("; ".join(f"{key}: {sentence}" for key, sentence in wrong))
    for note in engine.notes(wish.manifest, source):
        wish.warn(note)


def from_manifest(manifest: Manifest) -> tuple[str, ...]:
    """The same from the manifest alone: nothing else decides it."""
    return engine_for(manifest.engine.kind).argv(manifest)


def by_flag(argv: tuple[str, ...]) -> dict[str, str]:
    """Flag to its values as one text; what stands before the first flag is the entry point."""
    flags: dict[str, list[str]] = {"entry-point": []}
    current = "entry-point"
    for argument in argv:
        if argument.startswith("--"):
            current, has_value, value = argument.partition("=")
            flags.setdefault(current, []).extend([value] if has_value else [])
        else:
            flags[current].append(argument)
    return {flag: " ".join(values) if values else "true" for flag, values in flags.items()}


def observe(_scene: Scene) -> Observation | None:
    """None: arguments exist only in a process."""
    return None


def observe_live(live: LiveScene) -> Observation | None:
    """The command line of the main process, argument by argument, and the server's account of each flag."""
    main = live.processes[0]
    facts: dict[str, Fact] = {}
    sealed: dict[str, Fact] = {}
    evidence: dict[str, tuple[str, ...]] = {}
    where = (f"pid {main.pid} ({main.comm})",)
    pinned_flags, seen_flags = by_flag(live.argv), by_flag(main.argv)
    if not main.argv or (len(main.argv) == 1 and len(live.argv) > 1):
        facts["command-line"] = Unknown("the main process has overwritten its command line")
        sealed["command-line"] = " ".join(live.argv[1:])
    else:
        for flag in pinned_flags.keys() | seen_flags.keys():
            sealed[flag] = pinned_flags.get(flag, ABSENT)
            facts[flag] = seen_flags.get(flag, ABSENT)
            evidence[flag] = where
    for flag, value in _account(pinned_flags, live.account or {}).items():
        sealed[f"server:{flag}"], facts[f"server:{flag}"] = value
        evidence[f"server:{flag}"] = ("as the server's own account says",)
    notes = () if live.account is not None else ("the server does not answer when asked for its own account",)
    return Observation(aspect=NAME, facts=facts, sealed=sealed, evidence=evidence, notes=notes)


def compare(_lock: Lock, observation: Observation) -> Judgement:
    """Pure. What was launched stands in the observation's sealed side."""
    return compare_facts({}, observation)


def capture(server: RunningServer) -> Captured:
    """The flags of the command line, and where it listens."""
    from pinner.probes import arguments_capture  # noqa: PLC0415  # only `adopt` wants it

    return arguments_capture.capture(server)


def _account(pinned: Mapping[str, str], account: Mapping[str, Any]) -> dict[str, tuple[str, str]]:
    """For each pinned flag of which the server says something: (pinned, reported)."""
    found = {flag: (value, reported(flag, value, account)) for flag, value in pinned.items()}
    return {flag: (value, said) for flag, (value, said) in found.items() if said is not None}
