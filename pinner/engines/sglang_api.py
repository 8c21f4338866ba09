"""What SGLang and the servers that speak its surface have in common: flags, endpoints, families of variables.

Facts are from SGLang's source, versions 0.4.6 to 0.5.23. Must not hold what only one engine does.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from pinner.engines.base import EngineState, Health, StepTime
from pinner.host.http import Http, HttpFailed
from pinner.model.lock import DRAFT_PLACEHOLDER, MODEL_PLACEHOLDER
from pinner.model.manifest import SECRET_FLAG, Manifest

FAMILIES: tuple[str, ...] = (
    "NCCL_",
    "CUDA_",
    "SGLANG_",
    "SGL_",
    "TORCH",
    "PYTORCH_",
    "TRITON_",
    "FLASHINFER_",
    "FLASH_ATTENTION_",
    "CUTE_DSL_",
    "TILELANG_",
    "TVM_FFI_",
    "DG_",
    "TRTLLM_",
    "OMP_",
    "MKL_",
    "GLOO_",
    "NVSHMEM_",
    "CUBLAS_",
    "CUDNN_",
    # Without a prefix in 0.4; see FORBIDDEN.
    "SIMULATE_ACC",
)

# The short names that every version has taken, by themselves or as the beginning of the full name.
ALIASES: Mapping[str, str] = {
    "model": "model-path",
    "tp": "tp-size",
    "tensor-parallel-size": "tp-size",
    "pp": "pp-size",
    "pipeline-parallel-size": "pp-size",
    "dp": "dp-size",
    "data-parallel-size": "dp-size",
    "ep": "ep-size",
    "expert-parallel-size": "ep-size",
    "nccl-init-addr": "dist-init-addr",
    "speculative-algo": "speculative-algorithm",
    "speculative-draft-model": "speculative-draft-model-path",
    "mem-frac": "mem-fraction-static",
}

_FAKES_ACCEPTANCE = (
    "fakes how many drafted tokens are accepted: no speed and no text of such a server means anything"
)
_FAKES_ROUTING = "fakes which experts a token is sent to: no speed and no text of such a server means anything"

FORBIDDEN: Mapping[str, str] = {
    f"{prefix}{name}": reason
    # The engine reads the older prefix SGL_ as SGLANG_.
    for prefix in ("SGLANG_", "SGL_", "")
    for name, reason in {
        "SIMULATE_ACC_LEN": _FAKES_ACCEPTANCE,
        "SIMULATE_ACC_METHOD": _FAKES_ACCEPTANCE,
        "SIMULATE_ACC_TOKEN_MODE": _FAKES_ACCEPTANCE,
        "SIMULATE_ACC_GREEDY": _FAKES_ACCEPTANCE,
        "DSPARK_SIMULATE_FOLD": _FAKES_ACCEPTANCE,
        "SIMULATE_UNIFORM_EXPERTS": _FAKES_ROUTING,
        "SIMULATE_ROUND_ROBIN_EXPERTS": _FAKES_ROUTING,
    }.items()
}
# What SGLang tells besides its arguments. Before 0.5 the internal state's own entries stand among them.
_NOT_ARGUMENTS = frozenset(
    {
        "env_vars",
        "frontend",
        "hicache_object_layout",
        "internal_states",
        "last_gen_throughput",
        "avg_spec_accept_length",
        "launch_command",
        "max_req_input_len",
        "max_total_num_tokens",
        "memory_usage",
        "startup_time",
        "status",
        "step_time_dict",
        "version",
    }
)

# Seconds for calls that a healthy server answers at once.
QUICK_S = 5.0
# A server is asked to empty its cache when the last request has just ended, and may still be tidying up.
FLUSH_TRIES = 20
FLUSH_PAUSE_S = 0.1
STREAM_PATH = "/generate"


def argv(module: str, manifest: Manifest) -> tuple[str, ...]:
    """`-m MODULE` and every argument by its full flag name, in an order that the manifest's does not change."""
    flags: dict[str, Any] = {
        "model-path": MODEL_PLACEHOLDER,
        "host": manifest.serve.host,
        "port": manifest.serve.port,
    }
    draft = manifest.draft
    if draft is not None:
        flags["speculative-algorithm"] = draft.algorithm
        flags["speculative-draft-model-path"] = DRAFT_PLACEHOLDER
        flags["speculative-num-steps"] = draft.num_steps
        flags["speculative-eagle-topk"] = draft.eagle_topk
        flags["speculative-num-draft-tokens"] = draft.num_draft_tokens
    rendered = ["-m", module]
    for flag, value in [*flags.items(), *sorted(manifest.engine.args.items())]:
        rendered += _flag(flag, value)
    return tuple(rendered)


def _flag(flag: str, value: Any) -> list[str]:
    if value is None or value is False:
        return []
    if value is True:
        return [f"--{flag}"]
    values = value if isinstance(value, list) else [value]
    texts = [str(item).lower() if isinstance(item, bool) else str(item) for item in values]
    # A value that starts with a dash would be read as a flag.
    if len(texts) == 1 and texts[0].startswith("-"):
        return [f"--{flag}={texts[0]}"]
    return [f"--{flag}", *texts]


def value_of(flag: str, argv: tuple[str, ...]) -> str | None:
    """The last value that an argument list gives a flag; "" for a bare flag, None without it."""
    found = None
    for index, argument in enumerate(argv):
        name, has_value, value = argument.partition("=")
        if name != f"--{flag}":
            continue
        following = argv[index + 1] if index + 1 < len(argv) else "--"
        found = value if has_value else "" if following.startswith("--") else following
    return found


def health(http: Http, url: str, *, timeout_s: float) -> Health:
    """What /health says; a server that does not offer it may still be up, as only a generation can tell.

    SGLang 0.4 answers 200 whatever happens, 0.5 503 until its warm-up has generated; both listen only after the
    weights are loaded.
    """
    try:
        status = http.get(f"{url}/health", timeout_s=timeout_s).status
    except HttpFailed as error:
        return Health(False, is_starting="refused" in str(error), detail=f"/health: {error}")
    if status == 503:
        return Health(False, is_starting=True, detail="/health answers 503")
    return Health(status in (200, 404), detail=f"/health answers {status}")


def generate(http: Http, url: str, *, timeout_s: float) -> int:
    """Generate up to 8 tokens greedily; returns how many came. Raises HttpFailed."""
    body = {"text": "The", "sampling_params": {"max_new_tokens": 8, "temperature": 0}}
    answer = http.post(f"{url}/generate", body, timeout_s=timeout_s)
    if answer.status != 200:
        raise HttpFailed(f"/generate answered {answer.status}: {_message(answer.body)}")
    reply = answer.body[0] if isinstance(answer.body, list) and answer.body else answer.body
    if not isinstance(reply, dict) or "error" in reply:
        raise HttpFailed(f"/generate answered: {_message(answer.body)}")
    meta = reply.get("meta_info")
    counted = meta.get("completion_tokens") if isinstance(meta, dict) else None
    if isinstance(counted, int) and not isinstance(counted, bool):
        return counted
    text = reply.get("text")
    return len(text.split()) if isinstance(text, str) else 0


def request(prompt: str | list[int], params: Mapping[str, Any]) -> Mapping[str, Any]:
    """A body for /generate, as text or as token ids."""
    key = "text" if isinstance(prompt, str) else "input_ids"
    return {key: prompt, "sampling_params": dict(params), "stream": True}


def flush(http: Http, url: str) -> str | None:
    """Empty the prefix cache. 400 means that something is still under way."""
    why = ""
    for attempt in range(FLUSH_TRIES):
        if attempt:
            time.sleep(FLUSH_PAUSE_S)
        try:
            status = http.post(f"{url}/flush_cache", {}, timeout_s=QUICK_S).status
        except HttpFailed as error:
            return f"/flush_cache: {error}"
        if status == 200:
            return None
        why = f"/flush_cache answers {status}"
        if status != 400:
            break
    return why


def state(http: Http, url: str) -> EngineState:
    """Version and step times; the latter only where the engine was told to keep them. Raises HttpFailed."""
    for path in ("/server_info", "/get_server_info"):
        answer = http.get(f"{url}{path}", timeout_s=QUICK_S)
        if answer.status == 200 and isinstance(answer.body, dict):
            version = answer.body.get("version")
            inner = answer.body.get("internal_states", answer.body)
            first = inner[0] if isinstance(inner, list) and inner else inner
            steps = _steps(first) if isinstance(first, dict) else {}
            return EngineState(version=version if isinstance(version, str) else None, steps=steps)
    return EngineState()


def _steps(inner: Mapping[str, Any]) -> dict[str, StepTime]:
    """SGLang keeps seconds of whole steps by batch size; the small engine keeps means, of both parts apart."""
    times = inner.get("step_time_dict")
    if not isinstance(times, dict):
        return {}
    lists = [one for value in times.values() if isinstance(value, list) for one in value]
    if lists and all(isinstance(one, (int, float)) for one in lists):
        return {"verify_step_ms": StepTime(len(lists), sum(lists) * 1e3)}
    count = inner.get("decode_steps_total")
    names = {"verify_ms": "verify_step_ms", "draft_ms": "draft_step_ms"}
    return {
        name: StepTime(count, times[key] * count)
        for key, name in names.items()
        if isinstance(count, int) and isinstance(times.get(key), (int, float))
    }


def without_draft(argv: tuple[str, ...]) -> tuple[str, ...]:
    """An argument list without every flag of speculative decoding and its values."""
    kept: list[str] = []
    is_skipped = False
    for argument in argv:
        if argument.startswith("--"):
            is_skipped = argument.startswith("--speculative-")
        if not is_skipped:
            kept.append(argument)
    return tuple(kept)


def account(http: Http, url: str) -> Mapping[str, Any]:
    """The arguments that the server itself says it runs with. Keys never leave this function. Raises HttpFailed.

    The second path is that of SGLang before 0.5.6.
    """
    for path in ("/server_info", "/get_server_info"):
        answer = http.get(f"{url}{path}", timeout_s=QUICK_S)
        if answer.status == 200 and isinstance(answer.body, dict):
            return public(answer.body)
    return {}


def public(info: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments in a server's answer: no secrets, no state, nothing that repeats the command line.

    Besides fields of their own, keys stand in `launch_command`, in each of `internal_states` and in `env_vars`.
    """
    return {
        key: value
        for key, value in info.items()
        if key not in _NOT_ARGUMENTS
        and not key.startswith("watermark_")
        and SECRET_FLAG.match(key.replace("_", "-").lower()) is None
    }


def _message(body: Any) -> str:
    """The text of an error reply, cut short."""
    if isinstance(body, dict):
        error = body.get("error", body.get("message", body))
        body = error.get("message", error) if isinstance(error, dict) else error
    return str(body)[:200]
