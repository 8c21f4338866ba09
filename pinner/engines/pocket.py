"""The small engine that ships with pinner, in deployments/quickstart/engine."""

from __future__ import annotations

from collections.abc import Mapping

from pinner.engines import eagle, sglang_api
from pinner.model.manifest import Manifest
from pinner.model.pair import Pair, Verdict

NAME = "pocket"
PACKAGE = "pocket"
# What computes; the rest of the repository serves, counts and logs.
HOT_PATHS: tuple[str, ...] = ("pocket/speculative.py", "pocket/model.py", "pocket/layers.py", "pocket/parallel.py")
FAMILIES: tuple[str, ...] = ("POCKET_", "OPENBLAS_", *sglang_api.FAMILIES)
SETS = frozenset(
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

FORBIDDEN = sglang_api.FORBIDDEN

health = sglang_api.health
generate = sglang_api.generate
account = sglang_api.account


def argv(manifest: Manifest) -> tuple[str, ...]:
    """See pinner/engines/base.py."""
    return sglang_api.argv("pocket.launch_server", manifest)


def uses_gpus(_argv: tuple[str, ...]) -> bool:
    """Never: it computes with numpy."""
    return False


def judge_pair(pair: Pair) -> Verdict:
    """See pinner/engines/base.py. It takes the drafts that SGLang takes, but its targets are its own."""
    return eagle.judge(pair, is_sglang=False).verdict()
