"""What two servers said of their own arguments, where the locks do not tell it. Pure.

A release that chooses another backend by itself shows here and nowhere else; foreign evidence has only this.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pinner.explain.pins import facts
from pinner.explain.sides import Side
from pinner.model.facts import ABSENT, Difference

# What differs between two starts of the same thing.
_FLEETING = frozenset(
    {
        "host",
        "port",
        "nccl_port",
        "dist_init_addr",
        "model_path",
        "tokenizer_path",
        "served_model_name",
        "speculative_draft_model_path",
        "log_level",
        "log_level_http",
        "launch_command",
        "startup_time",
        "status",
        "pid",
        "internal_states",
        "last_gen_throughput",
        "avg_spec_accept_length",
        "memory_usage",
        "max_total_num_tokens",
        "max_req_input_len",
        "file_storage_path",
        "crash_dump_folder",
    }
)


def differences(a: Side, b: Side) -> list[Difference]:
    """Arguments that the servers told and that differ; those that both locks tell are left out."""
    before, after = _plain(a.account), _plain(b.account)
    if not before or not after:
        return []
    told = _told(a) | _told(b) if a.lock is not None and b.lock is not None else set()
    found = []
    for name in sorted(before.keys() | after.keys()):
        was, now = before.get(name, ABSENT), after.get(name, ABSENT)
        if was == now or name in told or name in _FLEETING or _is_default_of_one(was, now):
            continue
        note = "" if not told else "the servers' own account: no argument of the locks says so"
        found.append(Difference(aspect="account", key=name.replace("_", "-"), pinned=was, observed=now, note=note))
    return found


def _plain(account: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in account.items() if not isinstance(value, dict)}


def _told(side: Side) -> set[str]:
    """Names of arguments, as an account spells them, whose difference the pins have told already."""
    assert side.lock is not None
    names = {key for aspect, key in facts(side.lock) if aspect == "arguments"}
    return {name.replace("-", "_") for name in names}


def _is_default_of_one(was: object, now: object) -> bool:
    """A flag that only one version has, and has left off: nothing follows from it."""
    return (was == ABSENT and now in (None, False, "", 0)) or (now == ABSENT and was in (None, False, "", 0))
