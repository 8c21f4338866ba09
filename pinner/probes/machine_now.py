"""The machine as a record keeps it: every fact of hardware and host, demanded or not.

Owns how facts become plain data: one that could not be told is {"type": "unknown", "reason": …}, never left out.
"""

from __future__ import annotations

import os
from typing import Any

import msgspec

from pinner.host import gpus, machine
from pinner.model import hostfacts
from pinner.model.facts import ABSENT
from pinner.model.gpus import Gpus, NvmlFailure, visible_gpus
from pinner.model.lock import Lock
from pinner.probes import gpu_facts, hardware, host

# Besides the facts that can be pinned: what tells a cap that was left over.
_MORE = ("power-limit-default-watts", "power-limit-set-watts", "power-limit-enforced-watts")


def machine_now(lock: Lock) -> dict[str, dict[str, Any]]:
    """Facts by aspect and key, as `hardware` and `host` name them."""
    facts = machine.read(hostfacts.HOST_FACTS.keys() - hostfacts.BEFORE_LAUNCH)
    found = {host.NAME: {key: _plain(fact) for key, fact in facts.items() if fact != ABSENT}}
    seen = _gpus(lock)
    if seen is None:
        return found
    if not isinstance(seen, Gpus):
        return found | {hardware.NAME: {"nvml": {"type": "unknown", "reason": seen.sentence}}}
    told: dict[str, Any] = {key: _plain(fact) for key, fact in seen.machine.items()}
    visible = visible_gpus(hardware.visible_value(lock.env, os.environ), seen.gpus).gpus
    told["count"] = len(visible)
    for gpu in visible:
        facts = {"uuid": gpu.uuid, **gpu_facts.observed(gpu)}
        facts |= {key: gpu.facts[key] for key in _MORE if key in gpu.facts}
        told |= {f"gpu.{gpu.title}.{key}": _plain(fact) for key, fact in facts.items()}
    return found | {hardware.NAME: told}


def gpu_places(lock: Lock) -> frozenset[str]:
    """Bus ids of the GPUs that the engine uses; none where it uses none, or NVML does not tell."""
    seen = _gpus(lock)
    if not isinstance(seen, Gpus):
        return frozenset()
    visible = visible_gpus(hardware.visible_value(lock.env, os.environ), seen.gpus).gpus
    return frozenset(gpu.bus_id for gpu in visible if gpu.bus_id is not None)


def _gpus(lock: Lock) -> Gpus | NvmlFailure | None:
    asked = hardware.ask(lock)
    return None if asked is None else gpus.answer(asked)


def _plain(fact: Any) -> Any:
    return msgspec.to_builtins(fact)
