"""What is known of SGLang by version, and what a lock says of a manifest's arguments."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from pinner.engines import pocket, sglang
from pinner.engines import sglang_versions as versions
from pinner.engines.sglang_rules import argument_problems, notes
from pinner.model.lock import SourcePin
from pinner.model.manifest import Manifest

EAGLE3 = {
    "path": "draft",
    "algorithm": "EAGLE3",
    "num-steps": 3,
    "eagle-topk": 1,
    "num-draft-tokens": 4,
}
PINNED = {
    "random-seed": 1,
    "mem-fraction-static": 0.8,
    "chunked-prefill-size": 8192,
    "sampling-defaults": "openai",
    "cuda-graph-max-bs-decode": 16,
    "max-running-requests": 16,
}


def manifest(args: dict[str, Any], **sections: Any) -> Manifest:
    data = {
        "version": 1,
        "engine": {"kind": "sglang", "source": {"package": "sglang", "version": "0.5.23"}, "args": args},
        "python": {"version": "3.12"},
        "model": {"path": "model"},
        **sections,
    }
    return msgspec.convert(data, Manifest)


def package(version: str, name: str = "sglang") -> SourcePin:
    return SourcePin(type="package", name=name, version=version)


def at(text: str) -> versions.Release:
    found = versions.release(text)
    assert found is not None
    return found


def problems(version: str, **args: Any) -> dict[str, str]:
    given = {name.replace("_", "-"): value for name, value in args.items()}
    return dict(argument_problems(manifest(given), package(version)))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0.5.23", ((0, 5, 23), 0)),
        ("v0.5.9", ((0, 5, 9), 0)),
        ("0.5.10.post1", ((0, 5, 10), 1)),
        ("0.5.11rc2", ((0, 5, 11), -1)),
        # An editable install carries the newest tag, whatever commit it is of.
        ("0.5.21.dev797+ge0f76063c", None),
        ("0.0.0.dev0", None),
        ("main", None),
        (None, None),
    ],
)
def test_only_a_release_is_a_version(text: str | None, expected: tuple[Any, ...] | None) -> None:
    assert versions.release(text) == expected


def test_a_source_is_a_release_by_its_package_or_its_tag() -> None:
    assert versions.version_of(package("0.5.9")) == at("0.5.9")
    assert versions.version_of(SourcePin(type="git", wish="v0.5.9", commit="a" * 40)) == at("0.5.9")
    assert versions.version_of(SourcePin(type="git", wish="main", commit="a" * 40)) is None
    assert versions.version_of(SourcePin(type="path", wish="bba2fc4", commit="a" * 40)) is None
    assert versions.version_of(package("0.7.2", name="sglang-kt")) is None, "a fork counts for itself"


@pytest.mark.parametrize(
    ("flag", "since", "until"),
    [
        ("pp-size", "0.4.7", None),
        ("nccl-port", "0.4.9", None),
        ("moe-runner-backend", "0.5.1", None),
        ("speculative-draft-model-revision", "0.5.2", None),
        ("enable-deterministic-inference", "0.5.3", None),
        ("sampling-defaults", "0.5.4", None),
        ("enable-ep-moe", None, "0.5.5"),
        ("disable-flashinfer-autotune", "0.5.7", None),
        ("speculative-draft-attention-backend", "0.5.7", None),
        ("model-checksum", "0.5.8", None),
        ("incremental-streaming-output", "0.5.10", None),
        ("speculative-adaptive", "0.5.11", None),
        ("flashinfer-allreduce-fusion-backend", "0.5.14", None),
        ("cuda-graph-max-bs-decode", "0.5.14", None),
        ("cuda-graph-bs", None, "0.5.20"),
        ("stream-output", None, "0.5.20"),
        ("attn-dp-size", "0.5.22", None),
        ("model-path", None, None),
        ("speculative-eagle-topk", None, None),
    ],
)
def test_when_flags_came_and_went(flag: str, since: str | None, until: str | None) -> None:
    known = list(versions.flags().releases)
    first = at(since) if since else known[0]
    end = known.index(at(until)) if until else len(known)
    has = [versions.has_flag(flag, one) for one in known]
    assert has == [index in range(known.index(first), end) for index in range(len(known))]


def test_a_release_between_two_of_the_table_is_told_only_where_both_agree() -> None:
    assert versions.has_flag("model-checksum", at("0.5.7.post1")) is None
    assert versions.has_flag("model-checksum", at("0.5.8rc1")) is None
    assert versions.has_flag("model-checksum", at("0.5.8.post1")) is True
    assert versions.has_flag("model-checksum", at("0.5.6.post2")) is False


def test_outside_the_table_only_what_is_gone_is_known() -> None:
    assert versions.has_flag("cuda-graph-bs", at("0.6.0")) is False
    assert versions.has_flag("brand-new", at("0.6.0")) is None
    assert versions.has_flag("tp-size", at("0.6.0")) is None
    assert versions.has_flag("tp-size", at("0.4.0")) is None


def test_lock_names_the_replacement_of_a_flag_that_is_gone() -> None:
    said = problems("0.5.23", cuda_graph_max_bs=16)["engine.args.cuda-graph-max-bs"]
    assert said == "is gone since SGLang 0.5.20, and the pinned one is 0.5.23; write cuda-graph-max-bs-decode"
    assert (
        'moe-a2a-backend = "deepep"' in problems("0.5.9", enable_deepep_moe=True)["engine.args.enable-deepep-moe"]
    )
    assert problems("0.5.19", cuda_graph_max_bs=16) == {}


def test_lock_names_the_version_that_a_flag_came_with() -> None:
    said = problems("0.5.9", attn_dp_size=2)["engine.args.attn-dp-size"]
    assert said == "came with SGLang 0.5.22; the pinned one is 0.5.9"


@pytest.mark.parametrize(
    ("flag", "full"),
    [
        ("tp", "write tp-size"),
        ("dp", "write dp-size"),
        ("mem-frac", "write mem-fraction-static"),
        ("speculative-num-s", "the key draft.num-steps sets it"),
    ],
)
def test_the_beginning_of_a_flag_is_none(flag: str, full: str) -> None:
    said = dict(argument_problems(manifest({flag: 1}), package("0.5.23")))[f"engine.args.{flag}"]
    assert "only the beginning of a flag" in said
    assert said.endswith(full)


def test_the_beginning_of_several_flags_lists_them_and_a_typo_finds_the_nearest() -> None:
    assert "pp-max-micro-batch-size, pp-size" in problems("0.5.23", pp=2)["engine.args.pp"]
    assert "did you mean tp-size?" in problems("0.5.23", tp_sise=2)["engine.args.tp-sise"]


def test_full_names_pass_also_the_second_one_of_a_flag() -> None:
    assert problems("0.5.23", tp_size=2, data_parallel_size=2, ep=2, enable_metrics=True) == {}
    assert problems("0.4.6", tp_size=2, cuda_graph_bs=[1, 2]) == {}


def test_a_version_that_is_not_known_refuses_nothing() -> None:
    source = SourcePin(type="git", wish="main", commit="a" * 40)
    assert argument_problems(manifest({"cuda-graph-max-bs": 1, "brand-new": 1}), source) == []


def test_a_configuration_file_would_bring_in_what_nothing_pins() -> None:
    assert "nothing pins" in problems("0.5.23", config="server.yaml")["engine.args.config"]


def test_false_for_a_flag_that_is_on_by_default_would_change_nothing() -> None:
    said = problems("0.5.23", lora_strict_loading=False)["engine.args.lora-strict-loading"]
    assert said.endswith("write no-lora-strict-loading = true")
    assert problems("0.5.23", enable_metrics=False) == {}


def test_what_is_left_to_the_engine_is_one_sentence() -> None:
    said = list(notes(manifest({}, draft={"path": "d", "algorithm": "EAGLE3"}), package("0.5.23"), uses_gpus=True))
    assert len(said) == 1
    for word in (
        "random-seed (drawn anew at every start)",
        "mem-fraction-static",
        "chunked-prefill-size",
        "cuda-graph-max-bs-decode",
        "max-running-requests (48 under speculation)",
        "draft.num-steps, draft.eagle-topk, draft.num-draft-tokens (5, 4, 8 or 3, 1, 4",
    ):
        assert word in said[0]
    assert list(notes(manifest(PINNED, draft=EAGLE3), package("0.5.23"), uses_gpus=True)) == []


def test_notes_know_the_device_and_the_version() -> None:
    seed = {key: PINNED[key] for key in ("random-seed", "sampling-defaults")}
    assert list(notes(manifest(seed), package("0.5.23"), uses_gpus=False)) == []
    older = list(notes(manifest({"random-seed": 1}), package("0.4.6"), uses_gpus=True))
    assert "cuda-graph-max-bs (" in older[0]
    assert "sampling-defaults" not in older[0], "it came with 0.5.4"
    unknown = SourcePin(type="git", wish="main", commit="a" * 40)
    assert "as far as SGLang 0.5.23 goes" in next(iter(notes(manifest({}), unknown, uses_gpus=True)))


@pytest.mark.parametrize(
    ("version", "env", "word"),
    [
        ("0.5.3", {"NCCL_NVLS_ENABLE": "1"}, "overwrites what a launch sets in NCCL_NVLS_ENABLE"),
        ("0.5.9", {"NCCL_NVLS_ENABLE": "1", "SGLANG_ENABLE_SPEC_V2": "1"}, ""),
        ("0.5.9", {}, "without overlap in SGLang 0.5.9 unless SGLANG_ENABLE_SPEC_V2 = 1"),
        ("0.5.11", {}, ""),
        ("0.5.14", {"SGLANG_ENABLE_SPEC_V2": "1"}, "not read since SGLang 0.5.14"),
    ],
)
def test_variables_that_would_be_overwritten_or_not_read(version: str, env: dict[str, str], word: str) -> None:
    said = " ".join(
        notes(
            manifest({**PINNED, "cuda-graph-max-bs": 1}, draft=EAGLE3, env=env), package(version), uses_gpus=True
        )
    )
    assert (word in said) if word else ("SPEC_V2" not in said and "overwrites" not in said), said


# What the scheduler of 0.5.23 had and its parent did not, on a CPU, started with SPT_NOENV=1.
SEEN_SET = {
    "CUDA_CACHE_PATH", "CUDA_DEVICE_MAX_CONNECTIONS", "CUTE_DSL_LOG_LEVEL", "CUTE_DSL_LOG_TO_CONSOLE",
    "DG_JIT_CACHE_DIR", "DG_JIT_USE_NVRTC", "FLASHINFER_WORKSPACE_BASE", "NCCL_CUMEM_ENABLE", "NCCL_NVLS_ENABLE",
    "PROMETHEUS_MULTIPROC_DIR", "SGLANG_DISABLE_OUTLINES_DISK_CACHE", "SGLANG_ENABLE_DETERMINISTIC_INFERENCE",
    "SGLANG_ENABLE_TORCH_COMPILE", "SGLANG_RUN_ID", "SGLANG_USE_CUDA_IPC_TRANSPORT", "TILELANG_CACHE_DIR",
    "TLLM_LOG_LEVEL", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "TRTLLM_ENABLE_PDL",
}  # fmt: skip


def test_what_the_engine_sets_depends_on_the_version() -> None:
    assert sglang.sets(package("0.5.23")) >= SEEN_SET
    assert "CUDA_MODULE_LOADING" in sglang.sets(package("0.5.9"))
    assert "CUDA_MODULE_LOADING" not in sglang.sets(package("0.5.23"))
    assert "TRITON_CACHE_DIR" not in sglang.sets(package("0.4.6"))
    assert "NCCL_PROTO" not in sglang.sets(SourcePin(type="git", wish="main"))
    assert sglang.sets(SourcePin(type="git", wish="main")) >= SEEN_SET | {"CUDA_MODULE_LOADING"}
    assert "NCCL_CUMEM_ENABLE" in pocket.sets(SourcePin(type="git"))
    assert versions.overwrites("NCCL_CUMEM_ENABLE", at("0.5.4"))
    assert not versions.overwrites("NCCL_CUMEM_ENABLE", at("0.5.5"))
