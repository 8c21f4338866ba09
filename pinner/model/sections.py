"""The bases of what stands in a manifest (sections, written by a person) and in a lock (parts).

Owns only how keys are spelt and that unknown ones are errors.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9_-]*$"

Text = Annotated[str, Meta(min_length=1)]
Positive = Annotated[int, Meta(ge=1)]


class Section(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="kebab", kw_only=True):
    """Base of every section: unknown keys are errors, keys are written with dashes."""


class Part(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, rename="kebab", kw_only=True
):
    """Base of every table of the lock."""
