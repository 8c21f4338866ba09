"""The files of a commit as a plain directory: the committed bytes, patches applied, nothing else.

Owns turning a tree of a mirror into files: what is refused (paths and symlinks that leave the tree, paths
into .git), patches applied by git on an index, and what is worth telling (LFS pointers, submodules, names
that differ only by case). Must not fetch. The directory has no .git, so nothing can be pulled into it.
"""

from __future__ import annotations

import contextlib
import posixpath
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from pinner.errors import CommandFailed, OperationFailed
from pinner.host import files, history
from pinner.host.git import Git, error_text
from pinner.host.symlinks import follow

_LFS_POINTER = b"version https://git-lfs.github.com/spec/"
_LFS_POINTER_SIZE = 1024  # bytes; the specification's limit
_SYMLINK, _SUBMODULE = "120000", "160000"
_HFS_IGNORED = re.compile("[\u200c-\u200f\u202a-\u202e\u2060-\u206f\ufeff]")


class Patch(msgspec.Struct, frozen=True):
    """A patch: the name that errors give it, and its bytes."""

    name: str
    data: bytes


class ExportedTree(msgspec.Struct, frozen=True, kw_only=True):
    """What was written. `notes` are worth telling; `lfs_pointers` are files without their content."""

    tree: str
    patched_tree: str | None
    files: int
    lfs_pointers: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def patched_tree(git: Git, commit: str, patches: Sequence[Patch]) -> str:
    """The id of the tree that results from a commit and patches, applied in order.

    Raises OperationFailed naming patch, file and hunk if one does not apply or would leave the tree.
    """
    with _index() as env:
        return _apply(git, commit, patches, env)


def export(git: Git, commit: str, destination: Path, patches: Sequence[Patch] = ()) -> ExportedTree:
    """Write the files of a commit, patches applied, into `destination`, which must not exist or be empty.

    Modes are 644 and 755 whatever the umask. Raises OperationFailed, with nothing left in `destination`, if
    the tree is missing or holds what must not be written, or a patch does not apply.
    """
    if destination.is_symlink() or (destination.exists() and any(destination.iterdir())):
        raise OperationFailed(f"{destination} is not empty")
    peeled = history.peel(git, commit)
    if peeled is None:
        raise OperationFailed(f"commit {commit} is not in the mirror")
    tree = peeled[1]
    with _index() as env:
        result = _apply(git, commit, patches, env) if patches else None
        entries = history.tree_entries(git, result or tree)
        refuse_unsafe(entries, links := _link_targets(git, entries))
        if result is None:
            _run(git, commit, env, "read-tree", tree)
        destination.mkdir(parents=True, exist_ok=True)
        try:
            # Workers: zero means as many as there are processors.
            into = Git((*git.place, "--work-tree", str(destination.absolute()), "-c", "checkout.workers=0"))
            _run(into, commit, env, "checkout-index", "--all")
            destination.chmod(0o755)
        except BaseException:
            files.remove_tree(destination)
            raise
    return ExportedTree(
        tree=tree,
        patched_tree=result,
        files=sum(not entry.startswith(_SUBMODULE) for entry in entries.values()),
        lfs_pointers=_lfs_pointers(destination, entries, links),
        notes=_notes(entries),
    )


def refuse_unsafe(entries: Mapping[str, str], links: Mapping[str, str]) -> None:
    """Raise OperationFailed naming the first path, or symlink with its target, that must not be written."""
    for path in entries:
        if path.startswith("/") or any(_is_unsafe(part) for part in path.split("/")):
            raise OperationFailed(f"the repository holds the path {path!r}, which must not be written")
    for path, target in links.items():
        if target.startswith("/"):
            raise OperationFailed(f"the repository's symlink {path} is absolute: {target}")
        if follow(path, links) is None:
            raise OperationFailed(f"the repository's symlink {path} leaves the tree: {target}")


def _is_unsafe(part: str) -> bool:
    """Whether a path's part is special, or is .git for a file system that folds or ignores characters."""
    folded = _HFS_IGNORED.sub("", part).rstrip(". ").casefold()
    return part in ("", ".", "..") or folded.split(":")[0] in (".git", "git~1") or "\\" in part


def _link_targets(git: Git, entries: Mapping[str, str]) -> dict[str, str]:
    blobs = {path: entry.split(" ")[1] for path, entry in entries.items() if entry.startswith(_SYMLINK)}
    if not blobs:
        return {}
    output = git.run("cat-file", "--batch", input="".join(f"{blob}\n" for blob in blobs.values()).encode()).stdout
    targets = {}
    for path in blobs:
        head, _, output = output.partition(b"\n")
        fields = head.split()
        if len(fields) != 3:
            raise OperationFailed(f"the mirror lacks the content of {path}")
        size = int(fields[2])
        targets[path] = output[:size].decode("utf-8", "surrogateescape")
        output = output[size + 1 :]
    return targets


@contextlib.contextmanager
def _index() -> Iterator[dict[str, str]]:
    """The environment that gives git an index of its own, outside every repository."""
    import tempfile  # noqa: PLC0415  # `check` exports nothing

    with tempfile.TemporaryDirectory(prefix="pinner-index-") as directory:
        yield {"GIT_INDEX_FILE": f"{directory}/index"}


def _run(git: Git, commit: str, env: Mapping[str, str], *args: str) -> None:
    """Run a step of the export; its failure names the commit."""
    try:
        git.run(*args, env=env, umask=0o022)
    except CommandFailed as error:
        raise OperationFailed(f"cannot write the files of commit {commit}: {error.stderr}") from None


def _apply(git: Git, commit: str, patches: Sequence[Patch], env: Mapping[str, str]) -> str:
    _run(git, commit, env, "read-tree", f"{commit}^{{tree}}")
    for patch in patches:
        applied = git.run("apply", "--cached", "--whitespace=nowarn", "-", env=env, input=patch.data, check=False)
        if applied.code != 0:
            raise OperationFailed(f"patch {patch.name} does not apply: {_where(patch, error_text(applied))}")
    return git.run("write-tree", env=env).stdout.decode().strip()


def _where(patch: Patch, said: str) -> str:
    """What git said, with the number of the hunk where it names a line."""
    failed = re.search(r"^error: patch failed: (.+):(\d+)$", said, re.MULTILINE)
    if failed is None:
        return said
    path, line = failed[1], int(failed[2])
    hunk, current = 0, ""
    for text in patch.data.decode("utf-8", "replace").splitlines():
        if text.startswith("--- "):
            current, hunk = posixpath.normpath(text[4:].split("\t")[0]), 0
        elif header := re.match(r"@@ -(\d+)", text):
            hunk += 1
            if int(header[1]) == line and current.endswith(path):
                return f"file {path}, hunk {hunk} (line {line})\n{said}"
    return f"file {path}, line {line}\n{said}"


def _lfs_pointers(destination: Path, entries: Mapping[str, str], links: Mapping[str, str]) -> tuple[str, ...]:
    """Files that are Git LFS pointers, looked for where an attributes file speaks of LFS."""
    attributes = (path for path in entries if posixpath.basename(path) == ".gitattributes" and path not in links)
    if not any(b"lfs" in (destination / path).read_bytes() for path in attributes):
        return ()
    return tuple(
        path for path, entry in entries.items() if entry.startswith("100") and _is_lfs_pointer(destination / path)
    )


def _is_lfs_pointer(path: Path) -> bool:
    if path.stat().st_size > _LFS_POINTER_SIZE:
        return False
    return path.read_bytes().startswith(_LFS_POINTER)


def _notes(entries: Mapping[str, str]) -> tuple[str, ...]:
    notes = [
        f"submodule {files.escaped(path)} is not checked out: pinner leaves submodules out"
        for path, entry in entries.items()
        if entry.startswith(_SUBMODULE)
    ]
    by_folded: dict[str, str] = {}
    for path in entries:
        other = by_folded.setdefault(path.casefold(), path)
        if other != path:
            names = f"{files.escaped(other)} and {files.escaped(path)}"
            notes.append(f"{names} differ only by case; some file systems keep only one")
    return tuple(notes)
