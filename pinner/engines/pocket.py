"""The small engine that ships with pinner, in deployments/quickstart/engine."""

from __future__ import annotations

from collections.abc import Mapping

from pinner.engines import eagle, sglang_api, sglang_log
from pinner.engines.argument_question import program
from pinner.model.lock import SourcePin
from pinner.model.manifest import Manifest
from pinner.model.pair import Pair, Verdict

NAME = "pocket"
PACKAGE = "pocket"
# What computes; the rest of the repository serves, counts and logs.
HOT_PATHS: tuple[str, ...] = ("pocket/speculative.py", "pocket/model.py", "pocket/layers.py", "pocket/parallel.py")
FAMILIES: tuple[str, ...] = ("POCKET_", "OPENBLAS_", *sglang_api.FAMILIES)
_SETS = frozenset(
    {
        "NCCL_CUMEM_ENABLE",
        "NCCL_NVLS_ENABLE",
        "CUDA_DEVICE_MAX_CONNECTIONS",
        "OMP_NUM_THREADS",
        "OPENBLAS_NUM_THREADS",
        "POCKET_RUN_ID",
    }
)
# It compiles nothing.
CACHES: Mapping[str, str] = {}
_BUILD = """
def build():
    from pocket.server_args import parser
    return parser()


def version():
    return ""


def unread(names):
    return []
"""
ARGUMENT_QUESTION = program(_BUILD, "pocket.server_args")

ENTRIES: tuple[str, ...] = ("-m pocket.launch_server", "pocket/launch_server.py")
ALIASES: Mapping[str, str] = sglang_api.ALIASES
PARSER = f"{_BUILD}\nparser = build()\n"

FORBIDDEN = sglang_api.FORBIDDEN

STREAM_PATH = sglang_api.STREAM_PATH

health = sglang_api.health
generate = sglang_api.generate
account = sglang_api.account
request = sglang_api.request
flush = sglang_api.flush
state = sglang_api.state
without_draft = sglang_api.without_draft
# It writes SGLang's lines.
log_summary = sglang_log.summary
log_step_ms = sglang_log.step_ms
log_notes = sglang_log.notes


def argv(manifest: Manifest) -> tuple[str, ...]:
    """See pinner/engines/base.py."""
    return sglang_api.argv("pocket.launch_server", manifest)


def judge_pair(pair: Pair) -> Verdict:
    """See pinner/engines/base.py. It takes the drafts that SGLang takes, but its targets are its own."""
    return eagle.judge(pair, is_sglang=False).verdict()


def uses_gpus(_argv: tuple[str, ...]) -> bool:
    """Never: it computes with numpy."""
    return False


def argument_problems(_manifest: Manifest, _source: SourcePin) -> list[tuple[str, str]]:
    """None: only its parser knows its flags, and `materialize` asks that."""
    return []


def notes(manifest: Manifest, _source: SourcePin) -> tuple[str, ...]:
    """See pinner/engines/base.py."""
    if "random-seed" in manifest.engine.args:
        return ()
    return ("left to the engine, so that runs may differ: random-seed (drawn anew at every start)",)


def sets(_source: SourcePin) -> frozenset[str]:
    """The same in every version."""
    return _SETS
