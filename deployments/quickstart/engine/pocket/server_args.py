"""Owns the command line: SGLang's flag names for what is supported, full names only, and their defaults."""

from __future__ import annotations

import argparse
import logging
import random
from dataclasses import asdict, dataclass, fields
from typing import Any

from pocket.model_config import read_config

logger = logging.getLogger(__name__)


@dataclass
class ServerArgs:
    """Every argument, resolved."""

    model_path: str
    host: str
    port: int
    tp_size: int
    served_model_name: str
    context_length: int
    speculative_algorithm: str | None
    speculative_draft_model_path: str | None
    speculative_num_steps: int | None
    speculative_eagle_topk: int | None
    speculative_num_draft_tokens: int | None
    max_running_requests: int
    random_seed: int
    decode_log_interval: int
    enable_metrics: bool
    disable_radix_cache: bool
    skip_server_warmup: bool
    log_level: str
    max_total_tokens: int = 0

    def public(self) -> dict[str, Any]:
        return asdict(self)


def parser() -> argparse.ArgumentParser:
    parse = argparse.ArgumentParser(prog="pocket.launch_server", allow_abbrev=False)
    add = parse.add_argument
    add("--model-path", required=True)
    add("--host", default="127.0.0.1")
    add("--port", type=int, default=30000)
    add("--tp-size", type=int, default=1)
    add("--served-model-name", help="default: the model path")
    add("--context-length", type=int, help="default: max_position_embeddings of the model")
    add("--speculative-algorithm", help="EAGLE3; without it there is no speculation")
    add("--speculative-draft-model-path")
    add("--speculative-num-steps", type=int, help="default 3")
    add("--speculative-eagle-topk", type=int, help="1, the only value supported")
    add("--speculative-num-draft-tokens", type=int, help="always steps + 1")
    add("--max-running-requests", type=int, help="default 48 with speculation, else 64")
    add("--random-seed", type=int, help="default: random")
    add("--decode-log-interval", type=int, default=40)
    add("--enable-metrics", action="store_true")
    add("--disable-radix-cache", action="store_true")
    add("--skip-server-warmup", action="store_true")
    add("--log-level", default="info", choices=["debug", "info", "warning", "error"])
    return parse


def parse_args(argv: list[str]) -> ServerArgs:
    """Parsed and resolved arguments; ends the program with status 2 on a wrong one, as argparse does."""
    parse = parser()
    raw = vars(parse.parse_args(argv))
    try:
        return resolve(raw)
    except (ValueError, OSError, KeyError) as error:
        parse.error(str(error))


def resolve(raw: dict[str, Any]) -> ServerArgs:
    """Fill in what depends on other arguments and on the model's config."""
    config = read_config(raw["model_path"])
    if config.get("architectures") != ["LlamaForCausalLM"]:
        raise ValueError(f"unsupported architectures {config.get('architectures')} in {raw['model_path']}")
    trained = config["max_position_embeddings"]
    raw["context_length"] = raw["context_length"] or trained
    if not 1 < raw["context_length"] <= trained:
        raise ValueError(f"--context-length must be between 2 and the model's {trained}")
    raw["served_model_name"] = raw["served_model_name"] or raw["model_path"]
    _resolve_speculation(raw)
    default_running = 48 if raw["speculative_algorithm"] else 64
    raw["max_running_requests"] = raw["max_running_requests"] or default_running
    if raw["random_seed"] is None:
        raw["random_seed"] = random.randint(0, 1 << 30)
    for name in ("tp_size", "max_running_requests", "decode_log_interval"):
        if raw[name] < 1:
            raise ValueError(f"--{name.replace('_', '-')} must be at least 1")
    raw["max_total_tokens"] = raw["max_running_requests"] * raw["context_length"]
    return ServerArgs(**{f.name: raw[f.name] for f in fields(ServerArgs)})


def _resolve_speculation(raw: dict[str, Any]) -> None:
    """EAGLE3 with a chain of drafts, or nothing at all."""
    algorithm, path = raw["speculative_algorithm"], raw["speculative_draft_model_path"]
    if algorithm is None:
        given = [n for n in raw if n.startswith("speculative_") and raw[n] is not None]
        if given:
            raise ValueError(f"--{given[0].replace('_', '-')} needs --speculative-algorithm")
        return
    raw["speculative_algorithm"] = algorithm = algorithm.upper()
    if algorithm != "EAGLE3":
        raise ValueError(f"--speculative-algorithm {algorithm} is not supported, only EAGLE3")
    if path is None:
        raise ValueError("--speculative-algorithm EAGLE3 needs --speculative-draft-model-path")
    draft = read_config(path)
    if draft.get("architectures") != ["LlamaForCausalLMEagle3"]:
        raise ValueError(f"{path} does not hold a LlamaForCausalLMEagle3")
    if draft["max_position_embeddings"] < raw["context_length"]:
        raise ValueError(
            f"the draft's {draft['max_position_embeddings']} positions are fewer than the context"
        )
    raw["speculative_num_steps"] = steps = raw["speculative_num_steps"] or 3
    raw["speculative_eagle_topk"] = raw["speculative_eagle_topk"] or 1
    if raw["speculative_eagle_topk"] != 1:
        raise ValueError("--speculative-eagle-topk must be 1")
    if not 1 <= steps <= 16:
        raise ValueError(f"--speculative-num-steps must be between 1 and 16, got {steps}")
    if raw["speculative_num_draft_tokens"] not in (None, steps + 1):
        # With topk 1 the drafts are a chain, so that the count follows from the steps, as in SGLang.
        logger.warning(f"speculative_num_draft_tokens is set to {steps + 1}, the steps and one")
    raw["speculative_num_draft_tokens"] = steps + 1
