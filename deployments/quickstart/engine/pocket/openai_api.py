"""Owns the OpenAI routes: their requests to prompts and sampling parameters, outputs to their answers.

Must not know about HTTP or processes.
"""

from __future__ import annotations

import time
from typing import Any

from pocket.sampling_params import SamplingParams

DEFAULTS = ("temperature", "top_p", "top_k")


def chat_prompt(messages: Any) -> str:
    """The template that the model was trained with."""
    if not isinstance(messages, list) or not messages:
        raise ValueError("messages must be a list that is not empty")
    text = ""
    for message in messages:
        if not isinstance(message, dict) or not isinstance(message.get("content"), str):
            raise ValueError("each message must be an object with a text as content")
        role = message.get("role")
        if role not in ("system", "user", "assistant"):
            raise ValueError(f"unknown role {role!r}")
        text += ("<|assistant|>" if role == "assistant" else "<|user|>") + message["content"]
    return text + "<|assistant|>"


def sampling(data: dict[str, Any], defaults: dict[str, Any]) -> SamplingParams:
    """The model's generation_config.json gives the defaults, as SGLang's `--sampling-defaults model` does."""
    params: dict[str, Any] = {"max_new_tokens": 128} | {k: defaults[k] for k in DEFAULTS if k in defaults}
    if data.get("n") not in (None, 1):
        raise ValueError("n must be 1")
    names = {
        "max_tokens": "max_new_tokens",
        "max_completion_tokens": "max_new_tokens",
        "seed": "sampling_seed",
    }
    for name in (*names, "temperature", "top_p", "top_k", "stop", "ignore_eos"):
        if data.get(name) is not None:
            params[names.get(name, name)] = data[name]
    return SamplingParams.parse(params)


def usage(outputs: list[dict[str, Any]]) -> dict[str, Any]:
    metas = [output["meta_info"] for output in outputs]
    prompt = sum(m["prompt_tokens"] for m in metas)
    completion = sum(m["completion_tokens"] for m in metas)
    cached = sum(m["cached_tokens"] for m in metas)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": cached},
    }


class Answer:
    """Shapes the answers of one request to one of the two routes."""

    def __init__(self, chat: bool, model: str) -> None:
        self.chat, self.model = chat, model
        self.created = int(time.time())

    def whole(self, outputs: list[dict[str, Any]]) -> dict[str, Any]:
        choices = []
        for index, output in enumerate(outputs):
            content = (
                {"message": {"role": "assistant", "content": output["text"]}}
                if self.chat
                else {"text": output["text"]}
            )
            finish = output["meta_info"]["finish_reason"]
            choices.append({"index": index, **content, "logprobs": None, "finish_reason": finish["type"]})
        kind = "chat.completion" if self.chat else "text_completion"
        return self._envelope(outputs[0], kind, choices) | {"usage": usage(outputs)}

    def chunk(self, output: dict[str, Any], index: int, sent: int) -> dict[str, Any]:
        """What `output` adds to the `sent` characters before it."""
        new = output["text"][sent:]
        delta: dict[str, Any] = {"content": new} if self.chat else {}
        if self.chat and sent == 0:
            delta["role"] = "assistant"
        content = {"delta": delta} if self.chat else {"text": new}
        finish = output["meta_info"]["finish_reason"]
        choice = {"index": index, **content, "logprobs": None, "finish_reason": finish and finish["type"]}
        return self._envelope(output, "chat.completion.chunk" if self.chat else "text_completion", [choice])

    def final_usage(self, outputs: list[dict[str, Any]]) -> dict[str, Any]:
        """The extra chunk that `stream_options.include_usage` asks for."""
        kind = "chat.completion.chunk" if self.chat else "text_completion"
        return self._envelope(outputs[0], kind, []) | {"usage": usage(outputs)}

    def _envelope(self, output: dict[str, Any], kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "id": output["meta_info"]["id"],
            "object": kind,
            "created": self.created,
            "model": self.model,
            "choices": choices,
        }
