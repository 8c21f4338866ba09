"""The probes, in the order in which a person should read their findings. A new one is a module and a line here."""

from __future__ import annotations

from pinner.probes import (
    arguments,
    caches,
    draft,
    environment,
    hardware,
    host,
    libraries,
    python_env,
    source,
    target,
)
from pinner.probes.base import Probe

PROBES: dict[str, Probe] = {
    source.NAME: source,
    python_env.NAME: python_env,
    draft.NAME: draft,
    target.NAME: target,
    arguments.NAME: arguments,
    environment.NAME: environment,
    libraries.NAME: libraries,
    hardware.NAME: hardware,
    caches.NAME: caches,
    host.NAME: host,
}
