"""The facts of a host that can be expected: which there are, their units, how each is compared by default.

Must not read them: pinner/probes/host.py does.
"""

from __future__ import annotations

from pinner.model.expectations import FactSpec
from pinner.model.facts import Class

HOST_FACTS: dict[str, FactSpec] = {
    "kernel": FactSpec(str, "release of the kernel", Class.RECORD_ONLY),
    "cpu-model": FactSpec(str, "model of the processors"),
    "cpu-count": FactSpec(int, "logical processors", Class.AT_LEAST),
    "memory-total-bytes": FactSpec(int, "memory", Class.AT_LEAST),
    "shm-size-bytes": FactSpec(int, "size of /dev/shm", Class.AT_LEAST),
}
