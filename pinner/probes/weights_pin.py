"""What `lock` demands of a model's or draft's files, and their pins where they lie in a directory.

Owns the refusals. Must not fetch anything: probes/repository.py lays the files of a repository out for it.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec

from pinner.errors import ArtifactError
from pinner.host.digest import DigestMemory, file_digests
from pinner.model.artifacts import stray_weights
from pinner.model.facts import Unknown
from pinner.model.lock import FilePin
from pinner.model.remote_code import references
from pinner.probes.base import Wish
from pinner.probes.weights import Found, by_directory, fault, list_files, missing_shards


def pin_files(directory: Path, memory: DigestMemory, *, key: str) -> tuple[FilePin, ...]:
    """Size and sha256 of every file. ArtifactError, naming the file, for one that must not be pinned.

    `key` is the manifest's key for the directory, for the message.
    """
    if not directory.is_dir():
        raise ArtifactError(f"{key}: {directory} is not a directory")
    files = sound_files(directory, where=f"{key}: {directory}/")
    pins = []
    for file, digest in zip(files, file_digests([file.real for file in files], memory), strict=True):
        if isinstance(digest, Unknown):
            raise ArtifactError(f"{key}: {directory / file.path}: {digest.reason}")
        pins.append(FilePin(path=file.path, size=digest.size, sha256=digest.sha256))
    return tuple(pins)


def sound_files(directory: Path, *, where: str) -> list[Found]:
    """The files of a directory. ArtifactError for one that is not what its name says, by header and size.

    `where` goes before a file's name in the message.
    """
    files = list_files(directory).files
    if not files:
        raise ArtifactError(f"{where.rstrip('/')} holds no files")
    for file in files:
        reason = file.reason or fault(file)
        if reason is not None:
            raise ArtifactError(f"{where}{file.path}: {reason}")
    for index, shard in missing_shards(files):
        raise ArtifactError(f"{where}{shard} is missing, and {index} names it")
    for place in by_directory(files):
        here = [name for name in place.names if "/" not in name]
        for name, reason in stray_weights(here, frozenset().union(*place.indexes.values())).items():
            raise ArtifactError(
                f"{where}{place.prefix}{name}: {reason}",
                hint="an engine may load it beside the others or instead of them: leave one checkpoint there",
            )
    return files


def trusts_code(wish: Wish) -> bool:
    """Whether the engine is told to run code that models bring."""
    return wish.manifest.engine.args.get("trust-remote-code") is True


def judge_remote_code(
    directory: Path, files: list[Found], *, where: str, is_trusted: bool, warn: Callable[[str], None]
) -> None:
    """Code that a configuration names must be among the pinned files, if the engine is to run it.

    ArtifactError where it is not and `is_trusted`; otherwise a warning: nothing imports it then.
    """
    names = {file.path for file in files}
    for file in files:
        if "/" in file.path or not file.path.endswith("config.json"):
            continue
        try:
            config = msgspec.json.decode((directory / file.path).read_bytes())
        except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
            continue
        for reference in references(config):
            if reference.repo is not None:
                reason = f"takes code from another repository, {reference.text}, and nothing pins that one"
                hint = "put that code beside the weights and name it in auto_map, or leave trust-remote-code out"
            elif reference.file not in names:
                reason = f"takes code from {reference.file}, which is not among the pinned files"
                hint = "look at `include` and `exclude`, or leave trust-remote-code out"
            else:
                continue
            if is_trusted:
                raise ArtifactError(f"{where}{file.path}: auto_map {reason}", hint=hint)
            warn(f"{where}{file.path}: auto_map {reason}; without trust-remote-code no engine runs it")
