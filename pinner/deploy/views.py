"""Models and drafts from the Hub on this machine: their files in its cache, and the views that engines start on.

Owns the download and what its failure means. Must not take a file that is not the locked one, whatever the Hub
offers now, and must not remove anything from the cache: its files are the user's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import NamedTuple

from pinner.errors import OperationFailed
from pinner.host.digest import DigestMemory
from pinner.host.files import exclusive, remove_tree
from pinner.host.home import Home
from pinner.host.hub import Hub, HubFailed, Why
from pinner.host.hub_cache import find_file
from pinner.model.facts import Difference
from pinner.model.lock import Lock, WeightsPin
from pinner.probes.view import is_complete, view
from pinner.probes.weights import compare_files, observe_files

Say = Callable[[str], None]

# Nobody is to wait long for a note.
_ASK_S = 3.0
_NAMED = 5


class Views(NamedTuple):
    """The views that were made, by aspect, and what is worth knowing of them."""

    made: dict[str, Path]
    notes: tuple[str, ...]


def make_views(lock: Lock, home: Home, memory: DigestMemory, *, rebuild: bool, say: Say) -> Views:
    """Make the views of a lock that are missing.

    What a new view leads to has been held against the lock, every byte. Raises OperationFailed naming what is
    missing or wrong.
    """
    made: dict[str, Path] = {}
    notes: list[str] = []
    for aspect, pin in (("model", lock.model), ("draft", lock.draft)):
        if pin is None or pin.repo is None:
            continue
        place = view(home, pin)
        guard = home.models / f".{place.name}.lock"
        if not rebuild and is_complete(place, pin):
            continue
        made[aspect] = place
        waiting = "waiting for another pinner that is fetching the same model"
        with exclusive(guard, what="fetching the same model", on_wait=partial(say, waiting)):
            if rebuild or not is_complete(place, pin):
                notes += _make(aspect, pin, place, memory, say)
    return Views(made, tuple(notes))


def _make(aspect: str, pin: WeightsPin, place: Path, memory: DigestMemory, say: Say) -> list[str]:
    repo, revision = pin.repo or "", pin.revision or ""
    hub = Hub()
    found = _in_cache(hub, pin)
    missing = {file.path: file.size for file in pin.files if file.path not in found}
    if missing:
        _download(hub, aspect, pin, missing, say)
        found = _in_cache(hub, pin)
        if absent := missing.keys() - found.keys():
            raise OperationFailed(f"{aspect}: {_named(absent)} did not come into the cache {hub.cache}")
    stage = place.with_name(f".stage-{place.name}")
    remove_tree(stage)
    try:
        for path, real in found.items():
            (stage / path).parent.mkdir(parents=True, exist_ok=True)
            (stage / path).symlink_to(real)
        say(f"verifying {len(found)} files of {repo}@{revision[:12]}")
        differences, unknown = compare_files(pin, observe_files(aspect, pin, stage, memory, deep=False))
        if wrong := (*differences, *unknown):
            raise _wrong(hub, aspect, pin, {item.key: found[item.key] for item in wrong}, wrong)
        remove_tree(place)
        stage.rename(place)
    finally:
        remove_tree(stage)
    return [] if missing else _gone_note(hub, aspect, pin)


def _in_cache(hub: Hub, pin: WeightsPin) -> dict[str, Path]:
    found = {
        file.path: find_file(hub.cache, pin.repo or "", pin.revision or "", file.path, file.sha256)
        for file in pin.files
    }
    return {path: real for path, real in found.items() if real is not None}


def _download(hub: Hub, aspect: str, pin: WeightsPin, missing: dict[str, int], say: Say) -> None:
    repo, revision = pin.repo or "", pin.revision or ""
    say(f"downloading {len(missing)} files of {repo}@{revision[:12]}, {sum(missing.values()) / 1e9:,.2f} GB")
    try:
        hub.download(repo, revision, missing)
    except HubFailed as error:
        what = f"{_named(missing)} of {repo}@{revision[:12]} not in the cache {hub.cache}"
        if error.why in (Why.NO_REPO, Why.NO_REVISION, Why.NO_FILE):
            hint = (
                "pinner takes no other revision in its place. Copy the cache of a machine that has the files; "
                f"`pinner lock --upgrade {aspect}` pins what is offered now, which is another model"
            )
            raise OperationFailed(
                f"{aspect}: revision {revision} no longer offered by {repo}: {error.message}; {what}",
                hint=hint if error.why is not Why.NO_REPO else error.hint,
            ) from None
        raise OperationFailed(f"{aspect}: {error.message}; {what}", hint=error.hint) from None


def _wrong(
    hub: Hub, aspect: str, pin: WeightsPin, places: dict[str, Path], wrong: tuple[Difference, ...]
) -> OperationFailed:
    lines = "".join(
        f"\n  {item.key}: {item.note or item.observed}\n    {places[item.key]}" for item in wrong[:_NAMED]
    )
    more = f"\n  … and {len(wrong) - _NAMED} more" if len(wrong) > _NAMED else ""
    return OperationFailed(
        f"{aspect}: {len(wrong)} of {len(pin.files)} files in the cache are not what the lock pins of "
        f"{pin.repo}@{(pin.revision or '')[:12]}:{lines}{more}",
        hint=f"pinner removes nothing from {hub.cache}: remove the files named, and they are fetched again",
    )


def _gone_note(hub: Hub, aspect: str, pin: WeightsPin) -> list[str]:
    """Whether what lies here could be fetched again; nothing where the Hub does not answer."""
    try:
        hub.resolve(pin.repo or "", pin.revision or "", timeout_s=_ASK_S)
    except HubFailed as error:
        if error.why in (Why.NO_REPO, Why.NO_REVISION):
            return [f"{aspect}: not re-fetchable, keep a copy: {error.message}"]
    return []


def _named(paths: Iterable[str]) -> str:
    names = sorted(paths)
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more
