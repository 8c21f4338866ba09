"""What each release of SGLang has: flags, and variables that it sets by itself.

Owns the facts by version, from the source in the wheels of 0.4.6 to 0.5.23. Must not read anything but its own
table, sglang_flags.tsv, which scripts/sglang_flags.py writes.
"""

from __future__ import annotations

import functools
import re
from pathlib import Path
from typing import Literal, NamedTuple

from pinner.model.lock import SourcePin

_TABLE = Path(__file__).with_name("sglang_flags.tsv")

# What replaces a flag that is gone, where the engine's own deprecations do not say it.
_INSTEAD = {
    "enable-beta-spec": "the variable SGLANG_ENABLE_SPEC_V2",
    "enable-deepep-moe": 'moe-a2a-backend = "deepep"',
    "enable-ep-moe": "ep-size",
    "enable-flashinfer-cutedsl-moe": 'moe-runner-backend = "flashinfer_cutedsl"',
    "enable-flashinfer-cutlass-moe": 'moe-runner-backend = "flashinfer_cutlass"',
    "enable-flashinfer-mla": 'attention-backend = "flashinfer"',
    "enable-flashinfer-mxfp4-moe": 'moe-runner-backend = "flashinfer_mxfp4"',
    "enable-flashinfer-trtllm-moe": 'moe-runner-backend = "flashinfer_trtllm"',
    "enable-flashmla": 'attention-backend = "flashmla"',
    "enable-piecewise-cuda-graph": 'cuda-graph-backend-prefill = "tc_piecewise"',
    "enable-triton-kernel-moe": 'moe-runner-backend = "triton_kernel"',
    "impl": "model-impl",
    "kt-amx-method": "kt-method",
    "kt-amx-weight-path": "kt-weight-path",
    "max-micro-batch-size": "pp-max-micro-batch-size",
    "nsa-decode": "nsa-decode-backend",
    "nsa-prefill": "nsa-prefill-backend",
    "oltp-traces-endpoint": "otlp-traces-endpoint",
}


class Release(NamedTuple):
    """A version: its three numbers, and whether it stands before (a candidate), at or after (a post) them."""

    numbers: tuple[int, ...]
    place: int = 0

    def __str__(self) -> str:
        return ".".join(map(str, self.numbers))


class FlagSpan(NamedTuple):
    """The releases that have a flag: from `since` (None: all that are known) up to but not `until` (None: on)."""

    since: Release | None
    until: Release | None
    alias_of: str
    instead: str


class Flags(NamedTuple):
    """The whole table."""

    releases: tuple[Release, ...]
    spans: dict[str, tuple[FlagSpan, ...]]


class SetVariable(NamedTuple):
    """A variable that SGLang sets in its own environment, which its workers inherit.

    "always": whatever the launch gave; "if-unset": a value of the launch stays; "by-argument": where an argument
    or the model asks for it.
    """

    name: str
    how: Literal["always", "if-unset", "by-argument"]
    since: str = ""
    until: str = ""


# NCCL_CUMEM_ENABLE and NCCL_NVLS_ENABLE leave a launch's value alone since 0.5.5; NCCL_ALGO and the channels are
# those of --enable-deterministic-inference with more than one GPU.
SET_VARIABLES = (
    SetVariable("NCCL_CUMEM_ENABLE", "always", until="0.5.5"),
    SetVariable("NCCL_CUMEM_ENABLE", "if-unset", since="0.5.5"),
    SetVariable("NCCL_NVLS_ENABLE", "always", until="0.5.5"),
    SetVariable("NCCL_NVLS_ENABLE", "if-unset", since="0.5.5"),
    SetVariable("NCCL_MNNVL_ENABLE", "if-unset", since="0.5.17"),
    SetVariable("NCCL_GRAPH_MIXING_SUPPORT", "by-argument", since="0.5.15"),
    SetVariable("NCCL_GRAPH_REGISTER", "if-unset", since="0.5.20"),
    SetVariable("NCCL_ALGO", "by-argument", since="0.5.3"),
    SetVariable("NCCL_MIN_NCHANNELS", "by-argument", since="0.5.18"),
    SetVariable("NCCL_MAX_NCHANNELS", "by-argument", since="0.5.18"),
    SetVariable("CUDA_DEVICE_MAX_CONNECTIONS", "always"),
    SetVariable("CUDA_MODULE_LOADING", "always", until="0.5.19"),
    SetVariable("TORCH_NCCL_AVOID_RECORD_STREAMS", "always", until="0.5.1"),
    SetVariable("TRTLLM_ENABLE_PDL", "always", since="0.4.8"),
    SetVariable("CUTE_DSL_LOG_LEVEL", "if-unset", since="0.5.3"),
    SetVariable("CUTE_DSL_LOG_TO_CONSOLE", "if-unset", since="0.5.3"),
    SetVariable("TLLM_LOG_LEVEL", "if-unset", since="0.5.12"),
    SetVariable("TF_CPP_MIN_LOG_LEVEL", "always", until="0.5.6"),
    SetVariable("TOKENIZERS_PARALLELISM", "by-argument"),
    SetVariable("DG_CACHE_DIR", "always", until="0.4.7"),
    SetVariable("DG_JIT_CACHE_DIR", "always", since="0.4.7"),
    SetVariable("DG_JIT_USE_NVRTC", "always", since="0.4.7"),
    SetVariable("DG_USE_FP4_ACTS", "if-unset", since="0.5.12", until="0.5.19"),
    SetVariable("DG_USE_MXF4_KIND", "if-unset", since="0.5.12", until="0.5.19"),
    SetVariable("TRITON_CACHE_MANAGER", "always", until="0.4.10"),
    SetVariable("TRITON_CACHE_DIR", "by-argument", since="0.5.4", until="0.5.18"),
    SetVariable("TRITON_CACHE_DIR", "if-unset", since="0.5.18"),
    SetVariable("TORCHINDUCTOR_CACHE_DIR", "by-argument", since="0.5.4", until="0.5.18"),
    SetVariable("TORCHINDUCTOR_CACHE_DIR", "if-unset", since="0.5.18"),
    SetVariable("CUDA_CACHE_PATH", "if-unset", since="0.5.18"),
    SetVariable("FLASHINFER_WORKSPACE_BASE", "if-unset", since="0.5.18"),
    SetVariable("TILELANG_CACHE_DIR", "if-unset", since="0.5.21"),
    SetVariable("TORCH_CUDA_ARCH_LIST", "by-argument", until="0.5.5"),
    SetVariable("FLASHINFER_CUDA_ARCH_LIST", "by-argument", since="0.5.5"),
    SetVariable("FLASHINFER_DISABLE_VERSION_CHECK", "if-unset", since="0.5.10"),
    SetVariable("FMHA_SM100_ALLOW_JIT", "if-unset", since="0.5.23"),
    SetVariable("NVSHMEM_QP_DEPTH", "always", since="0.5.19"),
    SetVariable("NVSHMEM_REMOTE_TRANSPORT", "if-unset", since="0.5.23"),
    SetVariable("NVSHMEM_IB_ENABLE_IBGDA", "if-unset", since="0.5.23"),
    SetVariable("NVSHMEM_DISABLE_LOCAL_ONLY_PROXY", "if-unset", since="0.5.23"),
    SetVariable("PROMETHEUS_MULTIPROC_DIR", "by-argument"),
    SetVariable("LOCAL_SIZE", "always", since="0.4.9"),
    SetVariable("MASTER_ADDR", "if-unset", since="0.5.20"),
    SetVariable("MASTER_PORT", "if-unset", since="0.5.20"),
    SetVariable("SGLANG_RUN_ID", "always", since="0.5.1"),
    SetVariable("SGLANG_BLOCK_NONZERO_RANK_CHILDREN", "always", until="0.4.8"),
    SetVariable("SGLANG_ENABLE_TORCH_COMPILE", "always"),
    SetVariable("SGLANG_DISABLE_OUTLINES_DISK_CACHE", "always"),
    SetVariable("SGLANG_ENABLE_DETERMINISTIC_INFERENCE", "always", since="0.5.3"),
    SetVariable("SGLANG_USE_CUDA_IPC_TRANSPORT", "always", since="0.5.16"),
    SetVariable("SGLANG_USE_BREAKABLE_CUDA_GRAPH", "by-argument", since="0.5.11"),
    SetVariable("SGLANG_ENABLE_SPEC_V2", "by-argument", since="0.5.7", until="0.5.14"),
    SetVariable("SGLANG_SPEC_TP_SYNC", "by-argument", since="0.5.23"),
    SetVariable("SGLANG_MAMBA_SSM_DTYPE", "by-argument", since="0.5.2"),
    SetVariable("SGLANG_CHUNKED_PREFIX_CACHE_THRESHOLD", "by-argument", since="0.5.7"),
    SetVariable("SGLANG_FLASHINFER_WORKSPACE_SIZE", "by-argument", since="0.5.4"),
    SetVariable("SGLANG_FLASHINFER_MOE_FUSED_FINALIZE", "by-argument", since="0.5.18"),
    SetVariable("SGLANG_SCHEDULER_SKIP_ALL_GATHER", "by-argument", since="0.5.17"),
    SetVariable("SGLANG_SYMM_MEM_PREALLOC_GB_SIZE", "by-argument", since="0.5.9"),
    SetVariable("SGLANG_MOE_NVFP4_DISPATCH", "by-argument", since="0.5.9"),
    SetVariable("SGLANG_ENABLE_JIT_DEEPGEMM", "by-argument", since="0.5.4"),
    SetVariable("SGLANG_IN_DEEPGEMM_PRECOMPILE_STAGE", "by-argument", since="0.5.4"),
    SetVariable("SGLANG_VLM_CACHE_SIZE_MB", "by-argument", since="0.5.8"),
    SetVariable("SGLANG_MM_FEATURE_CACHE_MB", "by-argument", since="0.5.20"),
)


def release(version: str | None) -> Release | None:
    """A version as a place among the releases; None for what is none, such as a development version.

    The version of a development install is that of the newest tag, whatever commit it is of.
    """
    found = re.fullmatch(r"v?(\d+)\.(\d+)\.(\d+)(rc\d+|\.post\d+)?", version or "")
    if found is None:
        return None
    place = 0 if found[4] is None else -1 if found[4].startswith("rc") else 1
    return Release((int(found[1]), int(found[2]), int(found[3])), place)


def version_of(source: SourcePin) -> Release | None:
    """The release that a pinned source is: a package's version, or the tag that the manifest names."""
    if source.type == "package":
        return release(source.version) if (source.name or "").lower() == "sglang" else None
    # A patch changes what a tag holds in places; which flags there are the engine itself tells.
    return release(source.wish)


@functools.cache
def flags() -> Flags:
    """The table of flags, read once."""
    lines = [line for line in _TABLE.read_text().splitlines() if not line.startswith("#")]
    releases = [release(word) for word in lines[0].split("\t")[1].split()]
    spans: dict[str, tuple[FlagSpan, ...]] = {}
    for line in lines[1:]:
        flag, since, until, alias_of, instead = line.split("\t")
        span = FlagSpan(release(since), release(until), alias_of, _INSTEAD.get(flag, instead))
        spans[flag] = (*spans.get(flag, ()), span)
    return Flags(tuple(one for one in releases if one is not None), spans)


def newest() -> Release:
    """The newest release that the table knows."""
    return flags().releases[-1]


def has_flag(flag: str, at: Release) -> bool | None:
    """Whether a release has a flag by that full name; None where the table cannot tell."""
    known = flags().releases
    before = max((one for one in known if one <= at), default=None)
    after = min((one for one in known if one >= at), default=None)
    if before is None:
        return None
    if after is None:
        # Later than the table: a flag does not come back, but a new one may have come.
        return None if _has(flag, before) or flag not in flags().spans else False
    answers = {_has(flag, before), _has(flag, after)}
    return answers.pop() if len(answers) == 1 else None


def _has(flag: str, at: Release) -> bool:
    return any(
        (span.since is None or span.since <= at) and (span.until is None or at < span.until)
        for span in flags().spans.get(flag, ())
    )


def facts_of(flag: str) -> FlagSpan | None:
    """When a flag came last and went, and what replaces it."""
    return flags().spans[flag][-1] if flag in flags().spans else None


def names(at: Release) -> list[str]:
    """Every flag of a release."""
    return [flag for flag in flags().spans if has_flag(flag, at)]


def begins(text: str, at: Release) -> list[str]:
    """The flags of a release that begin with `text`: what argparse would take it for."""
    return [flag for flag in names(at) if flag.startswith(text)]


def set_by_engine(at: Release | None) -> frozenset[str]:
    """The variables that a release sets by itself; of any release where it is not known which one it is."""
    return frozenset(one.name for one in SET_VARIABLES if at is None or _is_in(one, at))


def overwrites(name: str, at: Release) -> bool:
    """Whether a release overwrites a launch's value of a variable in every case."""
    return any(one.name == name and one.how == "always" and _is_in(one, at) for one in SET_VARIABLES)


def _is_in(variable: SetVariable, at: Release) -> bool:
    since, until = release(variable.since), release(variable.until)
    return (since is None or since <= at) and (until is None or at < until)
