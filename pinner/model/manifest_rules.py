"""The rules between the keys of a well-typed manifest, which need no disk.

Pure: takes the manifest, gives (key path, sentence) pairs; pinner/deploy/load.py makes errors of them.
"""

from __future__ import annotations

import math
import re
from typing import Any

from pinner.model.bench import bench_problems
from pinner.model.expectations import expected_problems
from pinner.model.gpus import VARIABLE as VISIBLE_GPUS
from pinner.model.gpus import malformed
from pinner.model.hardware import hardware_problems
from pinner.model.hostfacts import HOST_FACTS
from pinner.model.manifest import (
    CODE_VARIABLES,
    FLAG,
    GPU_ORDER,
    OFFLINE,
    OWNED_ARGS,
    RESERVED_VARIABLES,
    SECRET_FLAG,
    SECRET_VARIABLE,
    VARIABLE,
    Draft,
    Manifest,
    PassedThrough,
    Serve,
    Source,
    WeightsSection,
    env_text,
    is_inside,
    is_safe_revision,
)
from pinner.model.python_rules import python_problems


def problems(manifest: Manifest) -> list[tuple[str, str]]:
    """Everything wrong between the keys of a well-typed manifest, as (key path, sentence)."""
    return [
        *_source_problems(manifest.engine.source, bool(manifest.engine.patches)),
        *_import_path_problems(manifest),
        *_args_problems(manifest.engine.args),
        *python_problems(manifest.python, manifest.engine.source),
        *_weights_problems("model", manifest.model),
        *(_weights_problems("draft", manifest.draft) if manifest.draft else []),
        *_draft_problems(manifest.draft),
        *_env_problems(manifest.env),
        *_serve_problems(manifest.serve),
        *_machine_problems(manifest),
        *_bench_problems(manifest),
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


def _import_path_problems(manifest: Manifest) -> list[tuple[str, str]]:
    source, key = manifest.engine.source, "engine.source.import-path"
    if source.import_path and source.path is None:
        return [(key, "goes with `path`: it names a directory of a checkout in place")]
    if source.import_path and manifest.python.path is None:
        return [(key, "goes with `python.path`: what pinner builds imports the engine anyway")]
    return []


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


# As the Hub has them: an owner and a name, or the name alone of its oldest repositories.
REPO = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*(/[A-Za-z0-9][A-Za-z0-9._-]*)?\Z")


def _weights_problems(section: str, weights: WeightsSection) -> list[tuple[str, str]]:
    if weights.path is None and weights.repo is None:
        return [(f"{section}.path", "is missing; or name a repository on the Hub: `repo` and `revision`")]
    if weights.path is not None and weights.repo is not None:
        return [(f"{section}.repo", "does not go with `path`: weights come from one place")]
    found_problems = []
    if weights.repo is None:
        found_problems = [
            (f"{section}.{name}", "goes with `repo`: of a directory every file is pinned")
            for name in ("revision", "include", "exclude")
            if getattr(weights, name)
        ]
    elif REPO.match(weights.repo) is None:
        found_problems.append(
            (f"{section}.repo", f"{weights.repo!r} is not OWNER/NAME, as a repository on the Hub is")
        )
    if weights.revision is not None and not is_safe_revision(weights.revision):
        found_problems.append((f"{section}.revision", f"{weights.revision!r} is not a branch, tag or commit id"))
    return found_problems


def _machine_problems(manifest: Manifest) -> list[tuple[str, str]]:
    return [*expected_problems("host", HOST_FACTS, manifest.host), *hardware_problems(manifest.hardware)]


def _bench_problems(manifest: Manifest) -> list[tuple[str, str]]:
    found = bench_problems(manifest.bench, has_draft=manifest.draft is not None)
    kind = manifest.engine.kind
    found += [
        (f"bench.{name}.driver", f"is part of SGLang, and this engine is {kind}")
        for name, bench in manifest.bench.items()
        if bench.driver == "sglang.bench_serving" and kind != "sglang"
    ]
    return found


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
        elif (fixed := _contradiction(name, value)) is not None:
            found_problems.append((f"env.{name}", fixed))
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
        elif name == VISIBLE_GPUS and (problem := malformed(env_text(value))) is not None:
            found_problems.append((f"env.{name}", problem))
    return found_problems


def _contradiction(name: str, value: Any) -> str | None:
    """Why a variable that pinner sets on purpose must not have another value."""
    text = None if isinstance(value, PassedThrough) else env_text(value)
    if name == OFFLINE and text != "1":
        return "is 1 always: the engine loads what is pinned, not the Hub's"
    if name == GPU_ORDER and text != "PCI_BUS_ID":
        # The other order, fastest first, is CUDA's own secret: no index could be told from outside.
        return "must be PCI_BUS_ID, which pinner sets, so that indexes mean a card"
    return None


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
