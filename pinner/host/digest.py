"""Digests of files and trees: the names that the rest of pinner uses.

Reading and hashing are in host/hashing.py, what is remembered in host/memory.py, trees in host/snapshot.py,
single files in host/file_digests.py.
"""

from pinner.host.file_digests import FileDigest, file_digests, recall_digest
from pinner.host.hashing import Progress
from pinner.host.memory import DigestMemory
from pinner.host.snapshot import Snapshot, take_snapshot, tree_digest
from pinner.host.tree import Scope

__all__ = [
    "DigestMemory",
    "FileDigest",
    "Progress",
    "Scope",
    "Snapshot",
    "file_digests",
    "recall_digest",
    "take_snapshot",
    "tree_digest",
]
