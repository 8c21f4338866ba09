"""Whether a draft and its target fit, from their files and from how the engine would be started.

Owns gathering what the rules need, and the memory of it: weights are looked into once for each content that they
have. The rules are the engine's (engines/eagle.py). Must not decide which files are the pinned ones.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

import msgspec

from pinner.engines import engine_for
from pinner.host.digest import DigestMemory
from pinner.model.facts import Unknown
from pinner.model.lock import EnvironmentPin
from pinner.model.pair import DraftWeights, Pair, Verdict
from pinner.probes.safetensors_files import read_weights, weight_files
from pinner.probes.weights import read_config

# Raise it when what is remembered, or how it is found, changes.
_KIND = "draft-weights-1"


class Launch(msgspec.Struct, frozen=True, kw_only=True):
    """How the engine would be started: its kind, version if it is a release, arguments, environment."""

    kind: str
    version: str | None
    argv: tuple[str, ...]
    env: EnvironmentPin


class Sides(msgspec.Struct, frozen=True, kw_only=True):
    """The directories of a draft and its target, and the known digests of the draft's files by name."""

    draft: Path
    target: Path
    digests: Mapping[str, str] = {}


def judge(launch: Launch, algorithm: str, sides: Sides, memory: DigestMemory) -> Verdict:
    """The verdict on a draft and its target as they lie there."""
    draft, target = sides.draft, sides.target
    return engine_for(launch.kind).judge_pair(
        Pair(
            algorithm=algorithm,
            draft=read_config(draft),
            target=read_config(target),
            weights=_weights(sides, memory),
            flags=flags_of(launch.argv),
            env=launch.env.set,
            version=launch.version,
            is_target=draft.is_dir() and target.is_dir() and draft.samefile(target),
        )
    )


def flags_of(argv: tuple[str, ...]) -> dict[str, str]:
    """The arguments by full flag name without dashes; "" for a flag alone."""
    flags: dict[str, str] = {}
    current = None
    for argument in argv:
        if argument.startswith("--"):
            current, _, value = argument[2:].partition("=")
            flags[current] = value
        elif current is not None:
            flags[current] = f"{flags[current]} {argument}".strip()
    return flags


def _weights(sides: Sides, memory: DigestMemory) -> DraftWeights | Unknown:
    """What the draft's files hold; remembered where the digest of each of them is known."""
    names = weight_files(sides.draft)
    if isinstance(names, Unknown):
        return names
    if not all(name in sides.digests for name in names):
        return read_weights(sides.draft, names)
    listing = "\n".join(f"{sides.digests[name]} {name}" for name in names)
    key = hashlib.sha256(listing.encode()).digest()
    value = memory.recall(_KIND, key)
    if value is not None:
        try:
            return msgspec.msgpack.decode(value, type=DraftWeights)
        except msgspec.MsgspecError:
            pass
    found = read_weights(sides.draft, names)
    if isinstance(found, DraftWeights):
        memory.remember(_KIND, {key: msgspec.msgpack.encode(found)})
    return found
