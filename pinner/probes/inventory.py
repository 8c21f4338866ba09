"""What was there when something was sealed or locked, file by file.

Owns the file ENV.inventory beside a built environment, and what the memory of digests keeps for pins that have no
place of their own. Needed only to name what differs, once the digest of the whole says that something does. Its
own digest must be the pinned one, else it tells nothing.
"""

from __future__ import annotations

import contextlib
import os
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec

from pinner.host.digest import DigestMemory, tree_digest
from pinner.host.files import write_atomic
from pinner.probes.distributions import Distribution

_FORMAT = 1
_KIND = "entries"


class Origin(msgspec.Struct, frozen=True, array_like=True):
    """A distribution as it was: `info` is its .dist-info directory, `origin` what its direct_url.json said."""

    name: str
    version: str
    info: str
    origin: str

    @property
    def title(self) -> str:
        return f"{self.name} {self.version}"


class Inventory(msgspec.Struct, frozen=True, array_like=True):
    """`files` maps each path, as the file system spells it, to "<mode> <digest>" and its distribution's index."""

    files: dict[bytes, tuple[str, int | None]]
    distributions: list[Origin]

    @property
    def entries(self) -> dict[str, str]:
        """ "<mode> <digest>" by path."""
        return {os.fsdecode(path): entry for path, (entry, _) in self.files.items()}

    def owner(self, path: str) -> Origin | None:
        """The distribution that a file belonged to."""
        index = self.files.get(os.fsencode(path), ("", None))[1]
        return None if index is None else self.distributions[index]


def inventory_path(root: Path) -> Path:
    """Where the inventory of the tree at `root` lies."""
    return root.with_name(f"{root.name}.inventory")


def write_inventory(root: Path, entries: dict[str, str], distributions: list[Distribution]) -> None:
    """Store what was sealed."""
    owners = {path: index for index, one in enumerate(distributions) for path in one.files}
    inventory = Inventory(
        {os.fsencode(path): (entry, owners.get(path)) for path, entry in entries.items()},
        [Origin(one.name, one.version, one.info, one.origin) for one in distributions],
    )
    data = zlib.compress(msgspec.msgpack.encode((_FORMAT, inventory)), 1)
    write_atomic(inventory_path(root), data)


def read_inventory(root: Path, digest: str) -> Inventory | None:
    """What was sealed, if the file is there and its entries have the sealed digest."""
    with contextlib.suppress(OSError, zlib.error, msgspec.MsgspecError, UnicodeError):
        data = zlib.decompress(inventory_path(root).read_bytes())
        version, inventory = msgspec.msgpack.decode(data, type=tuple[int, Inventory])
        if version == _FORMAT and tree_digest(inventory.entries) == digest:
            return inventory
    return None


def remember_entries(memory: DigestMemory, pinned: Iterable[tuple[str, Mapping[str, str]]]) -> None:
    """Note which "<mode> <digest>" by path each (digest of all) stands for."""
    memory.remember(
        _KIND,
        {
            digest.encode(): zlib.compress(
                msgspec.msgpack.encode({os.fsencode(path): entry for path, entry in entries.items()}), 1
            )
            for digest, entries in pinned
        },
    )


def recall_entries(memory: DigestMemory, digest: str) -> dict[str, str] | None:
    """The entries that a digest stands for, if they are remembered."""
    data = memory.recall(_KIND, digest.encode())
    if data is not None:
        with contextlib.suppress(zlib.error, msgspec.MsgspecError, UnicodeError):
            stored = msgspec.msgpack.decode(zlib.decompress(data), type=dict[bytes, str])
            entries = {os.fsdecode(path): entry for path, entry in stored.items()}
            if tree_digest(entries) == digest:
                return entries
    return None
