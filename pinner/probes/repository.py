"""Models and drafts from the Hub while they are locked: their pins, and a sketch of their files.

Owns what is asked of the Hub to lock a repository. Must not judge files: probes/weights.py and
probes/weights_pin.py do, as for any directory.

To lock 600 GB they need not be here. The Hub's own sha256 of a large file is pinned as it is told: if it is wrong,
`materialize`, which holds every byte against it, refuses. What decides whether the files fit (configurations,
tokenizers, headers, indexes) is fetched and judged now, in a sketch: a directory in which large files have their
size and header, and nothing else.
"""

from __future__ import annotations

import fnmatch
import hashlib
import os
import re
import threading
from pathlib import Path

import msgspec

from pinner.errors import ManifestError, OperationFailed
from pinner.host.digest import file_digests
from pinner.host.hub import Hub, HubFailed, Listing, RepoFile, Why, each
from pinner.host.hub_cache import find_file
from pinner.model import artifacts
from pinner.model.facts import Unknown
from pinner.model.lock import FilePin, WeightsPin
from pinner.model.manifest import WeightsSection, is_inside
from pinner.probes.base import Wish
from pinner.probes.view import is_complete, view
from pinner.probes.weights import SAFETENSORS, list_files
from pinner.probes.weights_pin import judge_remote_code, sound_files, trusts_code

DEFAULT_REVISION = "main"

# Read whole for the lock; beyond this only weights are, and files of them that no loader of ours reads.
_WHOLE_BYTES = 32 << 20
# Most headers fit, so that one question is enough.
_BEGINNING_BYTES = 128 << 10
# Maps of a reduced vocabulary: what they hold decides whether a draft fits its target.
_MAPS = ("d2t", "t2d")
_OTHER_WEIGHTS = (".bin", ".pt", ".pth", ".ckpt", ".h5", ".msgpack", ".onnx", ".onnx_data", ".gguf", ".ot")
_WORTH_TELLING_BYTES = 1 << 30
_NEEDED = re.compile(
    r"(config|generation_config|tokenizer|tokenizer_config|special_tokens_map|added_tokens|chat_template|vocab|"
    r"preprocessor_config|processor_config)\.(json|jinja|model|txt)|merges\.txt|.*\.tiktoken|tiktoken\.model"
)


def pin_repository(wish: Wish, name: str, section: WeightsSection) -> WeightsPin:
    """The commit and its files. What the previous lock pinned for the same wish stays, unless it is upgraded.

    Raises ManifestError for what the Hub does not have, ArtifactError for files that must not be pinned, and
    HubFailed.
    """
    repo = section.repo or ""
    kept = _kept(wish, name, section)
    if kept is not None:
        if trusts_code(wish):
            place = laid_out(wish, section)
            where = f"{name}.repo: {repo}: "
            judge_remote_code(place, list_files(place).files, where=where, is_trusted=True, warn=wish.warn)
        return kept
    asked = section.revision or DEFAULT_REVISION
    wish.say(f"asking the Hub for {repo}")
    hub = Hub()
    try:
        listing = hub.resolve(repo, asked)
    except HubFailed as error:
        if error.why in (Why.NO_REPO, Why.NO_REVISION):
            key = "repo" if error.why is Why.NO_REPO else "revision"
            raise ManifestError(f"{name}.{key}: {error.message}", hint=error.hint) from None
        raise
    _refuse_no_commit(hub, name, repo, asked, listing.revision)
    if listing.repo != repo:
        wish.warn(f"{name}.repo: {repo} is called {listing.repo} on the Hub now")
    chosen = _chosen(wish, name, section, listing)
    return WeightsPin(
        repo=repo,
        wish=asked,
        revision=listing.revision,
        include=section.include,
        exclude=section.exclude,
        files=_pin_files(wish, name, section, listing._replace(files=chosen)),
    )


def laid_out(wish: Wish, section: WeightsSection) -> Path:
    """A directory that shows what is being locked: the sketch, or the view of what stays pinned."""
    place = _sketch_place(wish, section)
    if place.is_dir():
        return place
    name = "model" if section is wish.manifest.model else "draft"
    kept = _kept(wish, name, section)
    if kept is None:
        pin_repository(wish, name, section)
        return place
    if is_complete(view(wish.home, kept), kept):
        return view(wish.home, kept)
    files = tuple(RepoFile(file.path, file.size, file.sha256, None) for file in kept.files)
    try:
        _sketch(Hub(), kept.repo or "", Listing(kept.repo or "", kept.revision or "", files), place)
    except HubFailed as error:
        if error.why in (Why.NO_REPO, Why.NO_REVISION):
            hint = f"`pinner lock --upgrade {name}` pins what the Hub has now, and prints what that moves"
            raise OperationFailed(f"{name}: what the lock pins is gone: {error.message}", hint=hint) from None
        raise
    return place


def _kept(wish: Wish, name: str, section: WeightsSection) -> WeightsPin | None:
    """The previous pin if it was made for the very same wish."""
    if wish.previous is None or name in wish.upgrade_weights:
        return None
    old: WeightsPin | None = getattr(wish.previous, name)
    if old is None:
        return None
    before = (old.repo, old.wish, old.include, old.exclude)
    asked = (section.repo, section.revision or DEFAULT_REVISION, section.include, section.exclude)
    if before != asked:
        return None
    return WeightsPin(**{field: getattr(old, field) for field in WeightsPin.__struct_fields__})


def _refuse_no_commit(hub: Hub, name: str, repo: str, asked: str, commit: str) -> None:
    """A full commit id is the only identity that a lock takes, and the one asked for is the one to get."""
    if re.fullmatch(r"[0-9a-f]{40}", commit) is None:
        raise OperationFailed(f"{hub.name} names no commit for {asked} of {repo}, but {commit[:60]!r}")
    if re.fullmatch(r"[0-9a-f]{40}", asked) and asked != commit:
        raise OperationFailed(
            f"{name}.revision: {hub.name} answers with commit {commit} where {asked} was asked for"
        )


def _chosen(wish: Wish, name: str, section: WeightsSection, listing: Listing) -> tuple[RepoFile, ...]:
    """The files that `include` and `exclude` leave; hidden ones never count, as in any directory."""
    files = [file for file in listing.files if not any(part.startswith(".") for part in file.path.split("/"))]
    for file in files:
        if not is_inside(file.path) or not file.path:
            raise OperationFailed(f"{section.repo} names a file {file.path!r}, which leaves its directory")
    for key in ("include", "exclude"):
        for pattern in getattr(section, key):
            if not any(_matches(file.path, (pattern,)) for file in files):
                wish.warn(f"{name}.{key}: {pattern!r} matches no file of {section.repo}")
    chosen = [
        file
        for file in files
        if (not section.include or _matches(file.path, section.include))
        and not _matches(file.path, section.exclude)
    ]
    if not chosen:
        what = "`include` and `exclude` leave no file" if files else "there is no file"
        raise ManifestError(f"{name}.repo: {what} of {section.repo} at {listing.revision[:12]}")
    _tell_superfluous(wish, name, chosen)
    left_out = {file.path for file in files} - {file.path for file in chosen}
    if needed := sorted(path for path in left_out if _NEEDED.fullmatch(path)):
        wish.warn(f"{name}: `include` and `exclude` leave out {', '.join(needed)}, which engines load")
    return tuple(chosen)


def _tell_superfluous(wish: Wish, name: str, chosen: list[RepoFile]) -> None:
    """Weights in formats that no engine reads where there are safetensors too: they cost a download."""
    others = [file for file in chosen if file.path.endswith(_OTHER_WEIGHTS)]
    size_bytes = sum(file.size for file in others)
    if size_bytes >= _WORTH_TELLING_BYTES and any(file.path.endswith(SAFETENSORS) for file in chosen):
        wish.warn(
            f"{name}: {size_bytes / 1e9:,.1f} GB in other formats beside safetensors are pinned and fetched too, "
            f"such as {others[0].path}; `exclude` leaves them out"
        )


def _matches(path: str, patterns: tuple[str, ...]) -> bool:
    """By the rules of huggingface_hub: `*` also crosses directories, and a directory stands for all in it."""
    return any(fnmatch.fnmatchcase(path, f"{one}*" if one.endswith("/") else one) for one in patterns)


def _pin_files(wish: Wish, name: str, section: WeightsSection, listing: Listing) -> tuple[FilePin, ...]:
    """Lay the files out, judge them as those of a directory, and give their pins."""
    repo = section.repo or ""
    place = _sketch_place(wish, section)
    wish.say(f"reading configurations and headers of {repo}@{listing.revision[:12]}")
    hub = Hub()
    _sketch(hub, repo, listing, place)
    where = f"{name}.repo: {repo}@{listing.revision[:12]}: "
    found = sound_files(place, where=where)
    judge_remote_code(place, found, where=where, is_trusted=trusts_code(wish), warn=wish.warn)
    whole = [file for file in listing.files if _is_read_whole(file)]
    digests = file_digests([place / file.path for file in whole], wish.memory)
    pins = {file.path: FilePin(path=file.path, size=file.size, sha256=file.sha256 or "") for file in listing.files}
    for file, digest in zip(whole, digests, strict=True):
        real = os.path.realpath(place / file.path)
        if isinstance(digest, Unknown):
            raise OperationFailed(f"{real}: {digest.reason}")
        is_wrong = file.sha256 not in (None, digest.sha256) or file.size != digest.size
        if is_wrong or (file.sha256 is None and file.blob != _blob_id(Path(real))):
            raise damaged(hub, f"{where}{file.path}", real)
        pins[file.path] = FilePin(path=file.path, size=digest.size, sha256=digest.sha256)
    return tuple(pins.values())


def damaged(hub: Hub, what: str, real: str) -> OperationFailed:
    """The error for a file of the user's cache that is not what the cache says."""
    return OperationFailed(
        f"{what}: the file in the cache is not the Hub's: {real}",
        hint=f"pinner removes nothing from {hub.cache}: remove that file, and it is fetched again",
    )


def _sketch_place(wish: Wish, section: WeightsSection) -> Path:
    assert wish.scratch is not None, "locking a repository takes a place for its sketch"
    identity = msgspec.json.encode([section.repo, section.revision, section.include, section.exclude])
    return wish.scratch / hashlib.sha256(identity).hexdigest()[:24]


def _is_read_whole(file: RepoFile) -> bool:
    """Files that the Hub knows no sha256 of are small: git itself holds them."""
    return file.sha256 is None or (file.size <= _WHOLE_BYTES and not file.path.endswith(SAFETENSORS))


def _sketch(hub: Hub, repo: str, listing: Listing, place: Path) -> None:
    """Lay files out: what is in the cache as it is, small files fetched, of large ones size and header."""
    commit = listing.revision

    def cached(file: RepoFile) -> Path | None:
        return find_file(hub.cache, repo, commit, file.path, file.sha256)

    hub.download(
        repo, commit, {file.path: file.size for file in listing.files if _is_read_whole(file) and not cached(file)}
    )
    stage = place.with_name(f".{place.name}")
    headers = []
    for file in listing.files:
        target = stage / file.path
        target.parent.mkdir(parents=True, exist_ok=True)
        real = cached(file)
        if real is not None and (real.stat().st_size == file.size or _is_read_whole(file)):
            target.symlink_to(real)
        elif file.path.endswith(SAFETENSORS):
            headers.append(file)
        else:
            with target.open("wb") as stream:
                stream.truncate(file.size)

    def write(file: RepoFile, _stop: threading.Event) -> None:
        _write_header(hub, repo, commit, file, stage / file.path)

    each(write, headers)
    stage.rename(place)


def _write_header(hub: Hub, repo: str, commit: str, file: RepoFile, target: Path) -> None:
    """A file with the beginning and the size of a safetensors file, and in it what maps vocabularies."""

    def read(start: int, stop: int) -> bytes:
        span = range(start, min(stop, file.size))
        return hub.read(repo, commit, file.path, span) if span else b""

    data = read(0, _BEGINNING_BYTES)
    start = artifacts.LENGTH_BYTES
    end = start + artifacts.header_length(data[:start])
    is_header = artifacts.length_fault(data[:start], file.size) is None
    if is_header and len(data) < end:
        data += read(len(data), end)
    with target.open("wb") as stream:
        stream.write(data)
        for first, last in _map_spans(data[start:end]) if is_header else ():
            stream.seek(end + first)
            stream.write(read(end + first, end + last))
        stream.truncate(file.size)


def _map_spans(header: bytes) -> list[tuple[int, int]]:
    """Where tensors that map vocabularies lie behind a header; of one that is none the sketch shows it."""
    try:
        found = artifacts.tensors(header)
    except ValueError:
        return []
    return [one.data_offsets for name, one in found.items() if any(part in name for part in _MAPS)]


def _blob_id(path: Path) -> str:
    data = path.read_bytes()
    return hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()
