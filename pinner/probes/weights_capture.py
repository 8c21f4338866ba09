"""The model and the draft of a running server, as a manifest would say them.

Owns telling a directory from a repository in the Hub's cache. Must not read the files: pinning does.
"""

from __future__ import annotations

import os
import re
from typing import NamedTuple

from pinner.errors import OperationFailed, UnknownFact
from pinner.host import hub_cache, traces
from pinner.host.hub_cache import Cached
from pinner.probes.base import Captured, RunningServer
from pinner.probes.source_capture import changes_sentence

_REPO = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*(/[A-Za-z0-9][A-Za-z0-9._-]*)?\Z")
_DRAFT = "speculative-draft-model-path"
_ALGORITHM = "speculative-algorithm"
_COUNTS = {
    "speculative-num-steps": "num-steps",
    "speculative-eagle-topk": "eagle-topk",
    "speculative-num-draft-tokens": "num-draft-tokens",
}
# Algorithms that take the layers of the target's own files where no draft is named.
_OF_THE_TARGET = ("EAGLE", "NEXTN")


class _Asked(NamedTuple):
    """A model as the command line names it, and the section of the manifest that it becomes."""

    section: str
    text: str
    revision: str | None
    flag: str


def one(server: RunningServer, flag: str) -> str | None:
    """The single value of a flag; None if it was not given."""
    values = server.given.get(flag)
    return values[-1] if values else None


def capture_model(server: RunningServer) -> Captured:
    """The target. OperationFailed if it cannot be told where it lies."""
    captured = Captured()
    text = one(server, "model-path")
    if text is None:
        raise UnknownFact("the server's command line names no model (--model-path)")
    _add(captured, server, _Asked("model", text, one(server, "revision"), "model-path"))
    tokenizer = one(server, "tokenizer-path")
    if tokenizer is not None and server.place(tokenizer) != server.place(text):
        captured.missed.append(
            f"--tokenizer-path {tokenizer}: pinner has no key for it, and `up` takes the model's own tokenizer: "
            "put the tokenizer's files into a directory with the model's"
        )
    return captured


def capture_draft(server: RunningServer) -> Captured:
    """The draft and how it is used; nothing where the server does not speculate."""
    captured = Captured()
    algorithm, text = one(server, _ALGORITHM), one(server, _DRAFT)
    given = [flag for flag in (_DRAFT, *_COUNTS) if flag in server.given]
    if algorithm is None:
        if given:
            captured.missed.append(f"--{given[0]}: no --speculative-algorithm goes with it, so it is left out")
        return captured
    if text is None and algorithm.upper() not in _OF_THE_TARGET:
        captured.missed.append(
            f"--speculative-algorithm {algorithm} without a draft model: pinner has no key for it, and `up` "
            "serves without speculation"
        )
        return captured
    text = text or one(server, "model-path") or ""
    _add(captured, server, _Asked("draft", text, one(server, "speculative-draft-model-revision"), _DRAFT))
    captured.add("draft", "algorithm", algorithm, f"--{_ALGORITHM}")
    counts = {flag: value for flag in _COUNTS if (value := one(server, flag)) is not None}
    steps, tokens = counts.get("speculative-num-steps"), counts.get("speculative-num-draft-tokens")
    if counts.get("speculative-eagle-topk") == "1" and steps and tokens and int(tokens) != int(steps) + 1:
        del counts["speculative-num-draft-tokens"]
        captured.missed.append(
            f"--speculative-num-draft-tokens {tokens}: with one branch the engine uses steps + 1 whatever is asked"
        )
    for flag, value in counts.items():
        captured.add("draft", _COUNTS[flag], int(value), f"--{flag}")
    return captured


def _add(captured: Captured, server: RunningServer, asked: _Asked) -> None:
    place = server.place(asked.text)
    cached = hub_cache.by_path(place) if place.exists() else _in_cache(captured, server, asked)
    said = f"--{asked.flag} {asked.text}"
    if cached is None and not place.is_dir():
        raise OperationFailed(
            f"--{asked.flag} {asked.text}: a single file; pinner pins directories and repositories on the Hub"
        )
    directory = cached.directory if cached is not None else place
    why = server.as_directories or (_other_cache(cached) if cached is not None else "")
    if cached is not None and not why:
        captured.add(asked.section, "repo", cached.repo, f"{said}, in the Hub's cache")
        captured.add(asked.section, "revision", cached.revision, f"the snapshot in {directory.parent.parent}")
    else:
        captured.add(asked.section, "path", server.spelled(directory), said)
        if cached is not None:
            captured.missed.append(
                f"{asked.section}: {cached.repo} at {cached.revision} is pinned as a directory: {why}"
            )
    changed = traces.changed_since(directory, server.started_s) if server.started_s else None
    if changed is not None:
        captured.missed.append(changes_sentence(f"the {asked.section}", directory, changed))


def _in_cache(captured: Captured, server: RunningServer, asked: _Asked) -> Cached | None:
    """A name that is no path is a repository, at the commit that the cache has for the revision."""
    cache = hub_cache.cache_of_another(server.env)
    revision = asked.revision or "main"
    if _REPO.match(asked.text) is None:
        raise OperationFailed(f"--{asked.flag} {asked.text}: there is no such directory (seen from {server.cwd})")
    cached = hub_cache.by_name(cache, asked.text, revision)
    if cached is None:
        raise OperationFailed(
            f"--{asked.flag} {asked.text}: neither a directory (seen from {server.cwd}), nor in the Hub's cache "
            f"{cache} at {revision}"
        )
    if revision != cached.revision and server.started_s is not None:
        moved = traces.changed_since(cached.reference(revision), server.started_s)
        if moved is not None:
            captured.missed.append(
                f"{asked.section}: the cache's {revision} of {cached.repo} moved at {moved.at}, after the server "
                f"had started; it may serve an older commit than {cached.revision}, which is pinned"
            )
    return cached


def _other_cache(cached: Cached) -> str:
    """Why a repository cannot be pinned as one: pinner would look for its files elsewhere."""
    mine, theirs = hub_cache.cache_directory(os.environ), cached.cache
    if os.path.realpath(mine) == os.path.realpath(theirs):
        return ""
    return (
        f"its cache is {theirs}, and that of this shell {mine}; with HF_HUB_CACHE={theirs} it becomes a repository"
    )
