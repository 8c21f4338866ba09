"""What is wrong with, or missing in, a manifest's arguments for the SGLang that it pins.

Pure. Must not decide what only the engine's own parser can tell: deploy/arguments.py asks it.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator

from pinner.engines import sglang_versions as versions
from pinner.engines.sglang_versions import Release
from pinner.model.lock import SourcePin
from pinner.model.manifest import OWNED_ARGS, Manifest

# Arguments left out, and what then decides. Each makes two starts, or two machines, differ.
_DERIVED = {
    "random-seed": "drawn anew at every start",
    "mem-fraction-static": "from the GPU's memory",
    "chunked-prefill-size": "from the GPU's memory",
    "sampling-defaults": "the model's generation_config.json",
}
_GPU_ONLY = ("mem-fraction-static", "chunked-prefill-size")
_SPECULATION = ("num_steps", "eagle_topk", "num_draft_tokens")
_CONFIG_FILE = "names a file that nothing pins, and its keys would override these: write them in [engine.args]"


def argument_problems(manifest: Manifest, source: SourcePin) -> list[tuple[str, str]]:
    """Arguments that the pinned version does not have by that name, as (key path, sentence)."""
    at = versions.version_of(source)
    found: list[tuple[str, str]] = []
    for flag, value in manifest.engine.args.items():
        sentence = _CONFIG_FILE if flag == "config" else _flag_problem(flag, at)
        if sentence is None and value is False and versions.has_flag(f"no-{flag}", at or versions.newest()):
            sentence = f"is on unless told otherwise, and false only leaves the flag out: write no-{flag} = true"
        if sentence is not None:
            found.append((f"engine.args.{flag}", sentence))
    return found


def _flag_problem(flag: str, at: Release | None) -> str | None:
    """None also where the table cannot tell: a newer engine may have what it does not know."""
    if at is None or versions.has_flag(flag, at) is not False:
        return None
    facts = versions.facts_of(flag)
    if facts is not None and facts.since is not None and at < facts.since:
        return f"came with SGLang {facts.since}; the pinned one is {at}"
    if facts is not None:
        instead = f"; write {facts.instead}" if facts.instead else ""
        return f"is gone since SGLang {facts.until}, and the pinned one is {at}{instead}"
    longer = versions.begins(flag, at)
    if len(longer) == 1:
        owner = OWNED_ARGS.get(longer[0])
        full = f"the key {owner} sets it" if owner else f"write {longer[0]}"
        return f"is only the beginning of a flag, which another release may take for another one: {full}"
    if longer:
        return f"is no flag of SGLang {at}, only the beginning of several: {', '.join(longer[:5])}"
    near = difflib.get_close_matches(flag, versions.names(at), n=1)
    return f"is no flag of SGLang {at}{f'; did you mean {near[0]}?' if near else ''}"


def notes(manifest: Manifest, source: SourcePin, *, uses_gpus: bool) -> Iterator[str]:
    """What is worth knowing of what the manifest leaves open; one sentence for each kind."""
    at = versions.version_of(source)
    known = at or versions.newest()
    left = [
        f"{flag} ({why})"
        for flag, why in _DERIVED.items()
        if flag not in manifest.engine.args
        and versions.has_flag(flag, known)
        and (uses_gpus or flag not in _GPU_ONLY)
    ]
    graphs = (
        "cuda-graph-max-bs-decode" if versions.has_flag("cuda-graph-max-bs-decode", known) else "cuda-graph-max-bs"
    )
    graph_flags = (graphs, graphs.replace("-max", ""), "cuda-graph-config", "disable-cuda-graph")
    if uses_gpus and not any(flag in manifest.engine.args for flag in graph_flags):
        left.append(f"{graphs} (from the GPU's memory)")
    left += _left_by_speculation(manifest, known)
    if left:
        whose = "" if at else f", as far as SGLang {known} goes"
        yield f"left to the engine, so that runs may differ{whose}: {', '.join(left)}; [engine.args] can pin them"
    yield from _variable_notes(manifest, at)


def _left_by_speculation(manifest: Manifest, at: Release) -> Iterator[str]:
    draft = manifest.draft
    if draft is None:
        return
    open_keys = [f"draft.{key.replace('_', '-')}" for key in _SPECULATION if getattr(draft, key) is None]
    # With topk 1 the steps decide the tokens.
    if open_keys == ["draft.num-draft-tokens"] and draft.eagle_topk == 1:
        open_keys = []
    if open_keys:
        by = "5, 4, 8" if at < Release((0, 5, 0)) else "5, 4, 8 or 3, 1, 4 by the model's architecture"
        yield f"{', '.join(open_keys)} ({by})"
    if "max-running-requests" not in manifest.engine.args and draft.algorithm.upper().startswith(
        ("EAGLE", "NEXTN")
    ):
        yield "max-running-requests (48 under speculation)"


def _variable_notes(manifest: Manifest, at: Release | None) -> Iterator[str]:
    if at is None:
        return
    names = sorted(name for name in manifest.env if versions.overwrites(name, at))
    if names:
        yield f"SGLang {at} overwrites what a launch sets in {', '.join(names)}: only its own value can be pinned"
    version_2 = "SGLANG_ENABLE_SPEC_V2"
    if Release((0, 5, 14)) <= at and version_2 in manifest.env:
        yield f"{version_2} is not read since SGLang 0.5.14, which always schedules speculation so"
    if manifest.draft and Release((0, 5, 5)) <= at < Release((0, 5, 11)) and version_2 not in manifest.env:
        yield f"speculation runs without overlap in SGLang {at} unless {version_2} = 1, and with it since 0.5.11"
