"""What a GPU's fields mean: the facts that can be pinned, and the sentences about them.

Pure. Owns the judgement of what an idle GPU can tell. Must not compare with a lock: probes/hardware.py does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from pinner.model.expectations import UNSUPPORTED
from pinner.model.facts import Fact, Unknown
from pinner.model.gpus import NOT_OFFERED, Gpu
from pinner.model.hardware import GPU_FACTS

_IDLE_BIT = 0x1
# Bits of NVML's reasons that mean a fault, heat or missing power; a power cap at work is none of them.
_SLOWDOWNS = {0x8: "hw-slowdown", 0x20: "sw-thermal", 0x40: "hw-thermal", 0x80: "hw-power-brake"}
_FIRST_IDLE_PSTATE = 8

# Why a fact without a value has none.
_WORDS = {
    UNSUPPORTED: "unsupported: this GPU does not tell it",
    NOT_OFFERED: "the NVML of this driver has no function that tells it",
}


def observed(gpu: Gpu) -> dict[str, Fact]:
    """Every fact of pinner/model/hardware.py for one GPU."""
    derived = {
        "pcie-generation": _generation(gpu),
        "pcie-width": gpu.facts.get("pcie-width-now", UNSUPPORTED),
        "power-limit-watts": _power_limit(gpu),
        "slowdown": _slowdown(gpu),
    }
    return {key: derived.get(key, gpu.facts.get(key, UNSUPPORTED)) for key in GPU_FACTS}


def has_no_value(fact: Fact) -> bool:
    """Whether the machine has no such fact: not supported by the GPU, or by its driver."""
    return fact in (UNSUPPORTED, NOT_OFFERED)


def no_value(key: str, fact: Fact) -> Unknown:
    """A demanded fact that the machine does not have: never 0, never equal."""
    if key == "memory-total-bytes" and fact == UNSUPPORTED:
        return Unknown("unsupported: this GPU tells no memory of its own, as with unified memory")
    return Unknown(_WORDS[fact])


def is_at_work(gpu: Gpu) -> bool:
    """Whether it computes now, as far as it tells; only then do link, clocks and power show what they can."""
    utilisation, pstate = _number(gpu, "utilisation-percent"), _number(gpu, "pstate")
    is_idle = bool(int(_number(gpu, "reasons") or 0) & _IDLE_BIT) or (pstate or 0) >= _FIRST_IDLE_PSTATE
    return bool(utilisation) and not is_idle


def evidence(gpu: Gpu, key: str) -> tuple[str, ...]:
    """Lines for a person about a fact that differs."""
    who = f"{_shown(gpu, 'name')} {gpu.uuid or ''}".strip()
    if key.startswith("pcie-"):
        return (who, _link(gpu), _state(gpu))
    if key.startswith("power-limit"):
        limits = (f"{word} {_watts(gpu, f'power-limit-{word}-watts')}" for word in ("set", "enforced", "default"))
        return (who, f"{', '.join(limits)}; persistence mode {_persistence(gpu)}")
    if key in ("slowdown", "clock-sm-mhz", "clock-memory-mhz", "power-watts", "temperature-celsius"):
        more = f"{_shown(gpu, 'temperature-celsius')} °C, {_watts(gpu, 'power-watts')}"
        return (who, f"{_state(gpu)}, {more}, slowed down by: {_slowdown(gpu)}")
    return (who,)


def told(gpus: Iterable[Gpu], sentence: Callable[[Gpu], str | None]) -> list[str]:
    """One note for all GPUs of which the same is true."""
    by_text: dict[str, list[str]] = {}
    for gpu in gpus:
        text = None if gpu.broken else sentence(gpu)
        if text is not None:
            by_text.setdefault(text, []).append(gpu.title)
    return [f"{', '.join(titles)}: {text}" for text, titles in by_text.items()]


def idle_link(gpu: Gpu) -> str | None:
    """A link that has trained down while nothing uses it: no fault, and no proof of health either."""
    now, most = _number(gpu, "pcie-generation-now"), _number(gpu, "pcie-generation-max")
    if now is None or most is None or now >= most or is_at_work(gpu):
        return None
    return f"idle; current PCIe generation {now:g} is not conclusive, the link can do {most:g}"


def left_over_cap(gpu: Gpu) -> str | None:
    """A power limit that is not the default, and not kept either."""
    limit, default = _number(gpu, "power-limit-set-watts"), _number(gpu, "power-limit-default-watts")
    if limit is None or default is None or limit == default or gpu.facts.get("persistence") is not False:
        return None
    return (
        f"persistence mode is off: the power limit of {limit:g} W (default {default:g} W) is lost when the driver "
        "unloads"
    )


def slowed_down(gpu: Gpu) -> str | None:
    """Clocks held down by a fault, heat or missing power."""
    found = _slowdown(gpu)
    return (
        None if found == "none" or not isinstance(found, str) or has_no_value(found) else f"slowed down by {found}"
    )


def memory_errors(gpu: Gpu) -> str | None:
    """Errors that ECC could not correct since the driver was loaded."""
    errors = _number(gpu, "ecc-uncorrected-errors")
    return f"{errors:g} memory errors that ECC could not correct" if errors else None


def shared(gpu: Gpu) -> str | None:
    """A GPU that is not whole: what it says of itself is partly its host's or of all its parts."""
    if gpu.mig_uuids:
        return f"MIG is on, with {len(gpu.mig_uuids)} devices; what is told here is of the whole GPU"
    if gpu.facts.get("virtualization") == "vgpu":
        return "a vGPU: link, power and clocks belong to the host, and are not told here"
    return None


def _generation(gpu: Gpu) -> Fact:
    now, most = gpu.facts.get("pcie-generation-now"), gpu.facts.get("pcie-generation-max", UNSUPPORTED)
    if is_at_work(gpu) and isinstance(now, int):
        return now
    if has_no_value(most) and isinstance(now, int):
        return Unknown(f"idle at generation {now}, and the highest is not told")
    return most


def _power_limit(gpu: Gpu) -> Fact:
    """What caps it in fact: something else than the setting may enforce a lower limit."""
    both = [gpu.facts.get(f"power-limit-{word}-watts", UNSUPPORTED) for word in ("set", "enforced")]
    numbers = [fact for fact in both if isinstance(fact, float)]
    return min(numbers) if numbers else both[0]


def _slowdown(gpu: Gpu) -> Fact:
    reasons = gpu.facts.get("reasons", UNSUPPORTED)
    if not isinstance(reasons, int):
        return reasons
    return ", ".join(word for bit, word in _SLOWDOWNS.items() if reasons & bit) or "none"


def _link(gpu: Gpu) -> str:
    now, most = (
        f"Gen{_shown(gpu, f'pcie-generation-{when}')} x{_shown(gpu, f'pcie-width-{when}')}"
        for when in ("now", "max")
    )
    return f"link now {now}, at most {most}"


def _state(gpu: Gpu) -> str:
    state = f"P{_shown(gpu, 'pstate')}, utilisation {_shown(gpu, 'utilisation-percent')} %"
    return f"{'at work' if is_at_work(gpu) else 'idle'}: {state}"


def _persistence(gpu: Gpu) -> str:
    fact = gpu.facts.get("persistence")
    return ("on" if fact else "off") if isinstance(fact, bool) else "unknown"


def _watts(gpu: Gpu, key: str) -> str:
    number = _number(gpu, key)
    return "unknown" if number is None else f"{number:g} W"


def _shown(gpu: Gpu, key: str) -> str:
    fact = gpu.facts.get(key, UNSUPPORTED)
    return "?" if isinstance(fact, Unknown) or has_no_value(fact) else str(fact)


def _number(gpu: Gpu, key: str) -> float | None:
    fact = gpu.facts.get(key)
    return fact if isinstance(fact, (int, float)) and not isinstance(fact, bool) else None
