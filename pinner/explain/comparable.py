"""Whether two records can be compared at all, said before any verdict.

Owns the reasons against it: invalid measurements, another load, a warm cache against a cold one, another machine.
Pure. Must not look at how fast anything was.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

import msgspec

from pinner.explain import machine
from pinner.model.bench import Bench
from pinner.model.facts import Override, Unknown
from pinner.model.hardware import GPU_FACTS
from pinner.model.record import Record

# Keys of a benchmark that do not change what is measured, only how often and what is made of it.
_NOT_LOAD = frozenset({"starts", "repeats", "expect", "baseline", "allowed_errors", "timeout_s", "speculation"})
# Shares of input tokens from the prefix cache that differ by more than this are warm against cold.
CACHED_SHARE = 0.05
# What of the GPUs decides how fast they can be.
_GPU_LIMITS = ("name", "power-limit-watts", "mig")


class Obstacle(msgspec.Struct, frozen=True):
    """One reason why two records cannot be compared; `key` is what `--accept` takes, "" where nothing helps."""

    key: str
    sentence: str


class Comparability(msgspec.Struct, frozen=True, kw_only=True):
    """`obstacles` forbid a comparison; `accepted` would have, but for an override. `unknown` could not be told."""

    obstacles: tuple[Obstacle, ...] = ()
    accepted: tuple[Override, ...] = ()
    unknown: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def is_comparable(self) -> bool:
        return not self.obstacles


class _Found(msgspec.Struct):
    obstacles: list[Obstacle] = []
    unknown: list[str] = []
    notes: list[str] = []

    def against(self, sentence: str, key: str = "") -> None:
        self.obstacles.append(Obstacle(key, sentence))


def comparability(a: Record, b: Record, overrides: Sequence[Override] = ()) -> Comparability:
    """What stands against comparing B with A."""
    found = _Found()
    for side, record in (("A", a), ("B", b)):
        _judge_validity(side, record, found)
    _judge_cache(a, b, found)
    _judge_load(a, b, found)
    _judge_machine(a, b, found)
    reasons = {override.key: override for override in overrides}
    return Comparability(
        obstacles=tuple(one for one in found.obstacles if one.key not in reasons),
        accepted=tuple(reasons[one.key] for one in found.obstacles if one.key in reasons),
        unknown=tuple(found.unknown),
        notes=tuple(found.notes),
    )


def common_loads(a: Record, b: Record) -> list[str]:
    """The names of the loads that both were put under, in A's order."""
    theirs = {one.load.name for one in b.counting()}
    return [name for name in dict.fromkeys(one.load.name for one in a.counting()) if name in theirs]


def _judge_validity(side: str, record: Record, found: _Found) -> None:
    if record.is_valid:
        left_out = len(record.measurements) - len(record.counting())
        if left_out:
            count = f"{left_out} of {len(record.measurements)}"
            found.notes.append(f"{count} measurements of {side} are invalid and left out")
        return
    reasons = [*record.invalid]
    reasons += [reason for start in record.starts for reason in start.invalid]
    reasons += [reason for one in record.measurements for reason in one.invalid]
    said = "; ".join(dict.fromkeys(reasons)) or "nothing was measured"
    found.against(f"{side} is invalid: {said}")


def _judge_cache(a: Record, b: Record, found: _Found) -> None:
    """A prefix cache that has seen the prompts answers many times as fast."""
    if a.workload and b.workload and a.workload.cache != b.workload.cache:
        words = {"flush": "cold (flushed before every measurement)", "warm": "warm (declared so)"}
        found.against(
            f"warm against cold: the prefix cache was {words[a.workload.cache]} in A, "
            f"and {words[b.workload.cache]} in B"
        )
        return
    shares = [_cached_share(record) for record in (a, b)]
    before, after = shares
    if before is not None and after is not None and abs(after - before) > CACHED_SHARE:
        found.against(
            "warm against cold: of the input tokens "
            f"{before:.0%} came from the prefix cache in A, {after:.0%} in B"
        )
        return
    for side, record, share in (("A", a, before), ("B", b, after)):
        if any(one.is_flushed is False for one in record.counting()) and share is None:
            found.unknown.append(f"how much came from the prefix cache in {side}: flushing it failed")
    kernels = [{start.caches for start in record.starts if start.caches} for record in (a, b)]
    if all(kernels) and kernels[0] != kernels[1]:
        words_ = [" and ".join(sorted(caches)) for caches in kernels]
        found.notes.append(f"kernel caches were {words_[0]} in A and {words_[1]} in B at the start of the server")


def _cached_share(record: Record) -> float | None:
    told = [one.cached_share for one in record.counting()]
    known = [share for share in told if share is not None]
    return fmean(known) if known and len(known) == len(told) else None


def _judge_load(a: Record, b: Record, found: _Found) -> None:
    differing = _differing_keys(a.workload, b.workload)
    if a.workload_digest and b.workload_digest:
        only_cache = differing == ["cache"]
        if a.workload_digest != b.workload_digest and not only_cache:
            what = ", ".join(_key_words(key, a.workload, b.workload) for key in differing if key != "cache")
            found.against(f"different workloads: {what or 'other prompts'}")
            return
    else:
        sides = [(side, record) for side, record in (("A", a), ("B", b)) if not record.workload_digest]
        which = " and ".join(f"{side} ({_origin(record)})" for side, record in sides)
        found.unknown.append(f"whether the prompts and their lengths are the same: {which} does not tell")
    if a.is_valid and b.is_valid and not common_loads(a, b):
        loads = [", ".join(dict.fromkeys(one.load.name for one in record.counting())) for record in (a, b)]
        found.against(f"no load in common: A has {loads[0]}; B has {loads[1]}")


def _origin(record: Record) -> str:
    return f"foreign: {record.source}" if record.origin == "foreign" else record.bench


def _differing_keys(a: Bench | None, b: Bench | None) -> list[str]:
    if a is None or b is None:
        return []
    return [
        field
        for field in Bench.__struct_fields__
        if field not in _NOT_LOAD and getattr(a, field) != getattr(b, field)
    ]


def _key_words(key: str, a: Bench | None, b: Bench | None) -> str:
    return f"{key.replace('_', '-')} {_value(getattr(a, key))} in A, {_value(getattr(b, key))} in B"


def _value(value: object) -> str:
    return " ".join(map(str, value)) or "none" if isinstance(value, tuple) else str(value)


def _judge_machine(a: Record, b: Record, found: _Found) -> None:
    """Other GPUs, or other caps on them, make another speed: what is compared would be the hardware."""
    has_gpus = [bool(machine.by_gpu(record.machine)) for record in (a, b)]
    if any(has_gpus):
        if not all(has_gpus):
            found.unknown.append(f"on which GPUs {'B' if has_gpus[0] else 'A'} was measured")
            return
        _judge_gpus(a, b, found)
        return
    models = [machine.fact_of(record.machine.get(machine.HOST, {}).get("cpu-model")) for record in (a, b)]
    if not all(isinstance(model, str) for model in models):
        sides = [side for side, model in zip("AB", models, strict=True) if not isinstance(model, str)]
        found.unknown.append(f"on which machine {' and '.join(sides)} was measured")
    elif models[0] != models[1]:
        found.against(f"different processors: {models[0]} in A, {models[1]} in B", "host.cpu-model")


def _judge_gpus(a: Record, b: Record, found: _Found) -> None:
    for fact in _GPU_LIMITS:
        before, after = (machine.of_all_gpus(record.machine, fact) for record in (a, b))
        if machine.are_same(fact, before, after):
            continue
        about = GPU_FACTS[fact].about.partition(":")[0]
        if not before or not after or any(isinstance(value, Unknown) for value in (*before, *after)):
            found.unknown.append(f"whether the GPUs' {about} is the same")
            continue
        unit = " W" if fact.endswith("-watts") else ""
        found.against(
            f"different GPUs or caps: {about} {machine.summary(before)}{unit} in A, "
            f"{machine.summary(after)}{unit} in B",
            f"hardware.{fact}",
        )
