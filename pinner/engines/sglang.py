"""SGLang."""

from __future__ import annotations

from collections.abc import Mapping

from pinner.engines import eagle, sglang_api, sglang_log, sglang_rules, sglang_speculation
from pinner.engines.argument_question import program
from pinner.engines.sglang_versions import set_by_engine, version_of
from pinner.model.lock import SourcePin
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
# The launch loads plugins before it parses, and a plugin may add to the parser. ServerArgs is never made: that
# looks for GPUs. Some variables are read without being in the registry, so that the source has the last word.
_BUILD = """
def build():
    import argparse
    try:
        from sglang.srt.plugins import load_plugins
    except ModuleNotFoundError:
        pass
    else:
        load_plugins()
    from sglang.srt.server_args import ServerArgs
    parser = argparse.ArgumentParser(allow_abbrev=False)
    ServerArgs.add_cli_args(parser)
    return parser


def version():
    import sglang
    return getattr(sglang, "__version__", "")


def unread(names):
    import pathlib, sglang
    left = {name for name in names if name.startswith("SGLANG_")}
    for path in pathlib.Path(sglang.__file__).parent.rglob("*.py"):
        if not left:
            break
        text = path.read_text(errors="replace")
        left = {name for name in left if name not in text}
    return sorted(left)
"""
ARGUMENT_QUESTION = program(_BUILD, "sglang.srt.server_args")

ENTRIES: tuple[str, ...] = (
    "-m sglang.launch_server",
    "sglang serve",
    "-m sglang.cli.main serve",
    "sglang/launch_server.py",
)
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
argument_problems = sglang_rules.argument_problems
log_summary = sglang_log.summary
log_step_ms = sglang_log.step_ms
log_notes = sglang_log.notes


def argv(manifest: Manifest) -> tuple[str, ...]:
    """See pinner/engines/base.py."""
    return sglang_api.argv("sglang.launch_server", manifest)


def judge_pair(pair: Pair) -> Verdict:
    """See pinner/engines/base.py."""
    opinion = eagle.judge(pair)
    sglang_speculation.judge_arguments(pair, opinion)
    return opinion.verdict()


def uses_gpus(argv: tuple[str, ...]) -> bool:
    """SGLang takes a GPU where it finds one, unless told to use another device."""
    return sglang_api.value_of("device", argv) != "cpu"


def notes(manifest: Manifest, source: SourcePin) -> tuple[str, ...]:
    """See pinner/engines/base.py."""
    return tuple(sglang_rules.notes(manifest, source, uses_gpus=uses_gpus(argv(manifest))))


def sets(source: SourcePin) -> frozenset[str]:
    """As the source of that version shows; of all versions where it is not known which one it is."""
    return set_by_engine(version_of(source))
