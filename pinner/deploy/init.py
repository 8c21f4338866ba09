"""`init`: a commented manifest to start from. Owns its text; never overwrites a file."""

from __future__ import annotations

import re
from pathlib import Path

from pinner.errors import OperationFailed, UsageError
from pinner.model.manifest import NAME_PATTERN

TEMPLATE = """\
# {name}: what to deploy, as a person wishes for it. `pinner lock {name}.toml` pins every wish in {name}.lock.
# Relative paths start from this file. Every key: docs/manifest.md; for editors: docs/manifest.schema.json.
version = 1

[engine]
kind = "sglang"
# Exactly one source:
#   git + commit       pinner checks it out itself (commit: branch, tag, short or full id)
#   path + commit      your checkout, run in place; nothing is ever written in it
#   package + version  a release from the package index
source = {{ git = "https://github.com/sgl-project/sglang", commit = "v0.5.23", subdirectory = "python" }}
# patches = ["fix.patch"]            # applied in order, pinned by digest; needs git
# hot-paths = ["python/sglang/srt/distributed"]   # commits that touch these are marked when source drifts

# Full flag names without dashes. true gives the bare flag. Model, draft, host and port have sections of their own.
[engine.args]
tp-size = 1
random-seed = 42                     # the engine draws one otherwise, and no two starts are alike

[python]
version = "3.11"
requirements = []                    # beyond what the engine itself requires
# extras = ["all"]                   # extras of the engine's own project
# exclude-newer = 2026-01-31         # no release after this date is considered
# indexes = ["https://…/simple"]     # instead of the default package index
# path = "/opt/venvs/sglang"         # or: an environment in place, pinned by the content of every file

[model]
path = "models/target"               # a directory; every file is pinned by size and sha256
# repo = "OWNER/NAME"                # or: a repository on the Hub, pinned by commit and every file
# revision = "main"                  # branch, tag or commit; the lock holds the commit

# Leave the section out to serve without speculation.
# [draft]
# path = "models/draft"
# algorithm = "EAGLE3"
# num-steps = 3
# eagle-topk = 1
# num-draft-tokens = 4

# The engine's environment is built from nothing: what is not listed here does not reach it.
[env]
# NCCL_PROTO = "Simple"
# NCCL_SOCKET_IFNAME = {{ site = "NCCL_SOCKET_IFNAME" }}   # differs per machine: passed through, not pinned
# HF_TOKEN = {{ secret = "HF_TOKEN" }}                     # passed through, never stored or shown

[serve]
host = "127.0.0.1"
port = 30000
# start-timeout-s = 1800
# generate-timeout-s = 120
# stop-timeout-s = 30
"""


def init(name: str, directory: Path) -> Path:
    """Write NAME.toml into a directory and return its path. Raises UsageError, OperationFailed."""
    name = name.removesuffix(".toml")
    if re.fullmatch(NAME_PATTERN, name) is None:
        raise UsageError(f"{name!r} is not a name: letters, digits, - and _")
    path = directory / f"{name}.toml"
    try:
        with path.open("x") as stream:
            stream.write(TEMPLATE.format(name=name))
    except FileExistsError:
        raise UsageError(f"{path} exists already; nothing was written") from None
    except OSError as error:
        raise OperationFailed(f"cannot write {path}: {error.strerror}") from None
    return path
