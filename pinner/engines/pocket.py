"""The small engine that ships with pinner, in deployments/quickstart/engine."""

from __future__ import annotations

from collections.abc import Mapping

from pinner.engines import sglang_api
from pinner.model.manifest import Manifest

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

health = sglang_api.health
generate = sglang_api.generate
account = sglang_api.account


def argv(manifest: Manifest) -> tuple[str, ...]:
    """See pinner/engines/base.py."""
    return sglang_api.argv("pocket.launch_server", manifest)


def uses_gpus(_argv: tuple[str, ...]) -> bool:
    """Never: it computes with numpy."""
    return False
