"""SGLang's plugin: lets `--attention-backend intel_amx` stand on a processor without AMX."""

from __future__ import annotations


def register() -> None:
    """Tell SGLang that the backend's operations are there. They are: `attention` has registered them."""
    from sglang.srt import runtime_context  # noqa: PLC0415  # SGLang is complete only once it loads its plugins

    runtime_context._PLATFORM._install(has_amx=True)
