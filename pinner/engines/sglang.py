"""SGLang."""

from __future__ import annotations

from collections.abc import Mapping

from pinner.engines import eagle, sglang_api, sglang_speculation
from pinner.model.manifest import Manifest
from pinner.model.pair import Pair, Verdict

NAME = "sglang"
PACKAGE = "sglang"
# Where commits that moved decode speed have touched, by the reports in the project's tracker.
HOT_PATHS: tuple[str, ...] = (
    "python/sglang/srt/speculative",
    "python/sglang/srt/distributed",
    "python/sglang/srt/layers/moe",
    "python/sglang/srt/layers/attention",
    "python/sglang/srt/layers/quantization",
    "python/sglang/srt/layers/communicator.py",
    "python/sglang/srt/model_executor",
    "python/sglang/srt/managers/scheduler.py",
    "python/sglang/srt/mem_cache",
    "python/sglang/srt/arg_groups",
    "python/sglang/srt/server_args.py",
    "python/sglang/srt/environ.py",
    "python/pyproject.toml",
    "sgl-kernel",
)
FAMILIES: tuple[str, ...] = sglang_api.FAMILIES
SETS = frozenset(
    {
        "NCCL_CUMEM_ENABLE",
        "NCCL_NVLS_ENABLE",
        "NCCL_MNNVL_ENABLE",
        "NCCL_GRAPH_MIXING_SUPPORT",
        "NCCL_ALGO",
        "NCCL_MIN_NCHANNELS",
        "NCCL_MAX_NCHANNELS",
        "CUDA_DEVICE_MAX_CONNECTIONS",
        "CUDA_MODULE_LOADING",
        "TORCH_NCCL_AVOID_RECORD_STREAMS",
        "TRTLLM_ENABLE_PDL",
        "DG_JIT_CACHE_DIR",
        "DG_JIT_USE_NVRTC",
        "FLASHINFER_CUDA_ARCH_LIST",
        "FLASHINFER_WORKSPACE_BASE",
        "PROMETHEUS_MULTIPROC_DIR",
        "SGLANG_RUN_ID",
        "TRITON_CACHE_DIR",
        "TORCHINDUCTOR_CACHE_DIR",
        "CUDA_CACHE_PATH",
        "TILELANG_CACHE_DIR",
        "TLLM_LOG_LEVEL",
    }
)
# SGLANG_CACHE_DIR moves most of them, since 0.5.18; what is named here besides it does not follow it, or did not
# before. FlashInfer appends ".cache/flashinfer" to its base by itself.
CACHES: Mapping[str, str] = {
    "SGLANG_CACHE_DIR": "sglang",
    "SGLANG_JIT_CACHE_DIR": "sglang-jit",
    "SGLANG_DG_CACHE_DIR": "deep-gemm",
    "DG_JIT_CACHE_DIR": "deep-gemm",
    "TRITON_CACHE_DIR": "triton",
    "TORCHINDUCTOR_CACHE_DIR": "inductor",
    "TORCH_EXTENSIONS_DIR": "torch-extensions",
    "CUDA_CACHE_PATH": "nv",
    "TILELANG_CACHE_DIR": "tilelang",
    "TVM_FFI_CACHE_DIR": "tvm-ffi",
    "CUTE_DSL_CACHE_DIR": "cute-dsl",
    "FLASHINFER_WORKSPACE_BASE": "flashinfer",
}

FORBIDDEN = sglang_api.FORBIDDEN

health = sglang_api.health
generate = sglang_api.generate
account = sglang_api.account


def argv(manifest: Manifest) -> tuple[str, ...]:
    """See pinner/engines/base.py."""
    return sglang_api.argv("sglang.launch_server", manifest)


def uses_gpus(argv: tuple[str, ...]) -> bool:
    """SGLang takes a GPU where it finds one, unless told to use another device."""
    return sglang_api.value_of("device", argv) != "cpu"


def judge_pair(pair: Pair) -> Verdict:
    """See pinner/engines/base.py."""
    opinion = eagle.judge(pair)
    sglang_speculation.judge_arguments(pair, opinion)
    return opinion.verdict()
