"""`adopt`: manifest and lock from a server that runs now.

Owns the order (everything is read before anything is written) and what is told of what was not captured. Only
reads the server and its files.
"""

from __future__ import annotations

import glob
import os
import re
import time
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import msgspec

from pinner.deploy.adopted_manifest import render
from pinner.deploy.find_server import Found, find_server
from pinner.deploy.live import check_all
from pinner.deploy.load import Deployment, manifest_of
from pinner.deploy.resolve import LockOutcome, lock
from pinner.deploy.running import find_run
from pinner.deploy.views import make_views
from pinner.errors import OperationFailed, PinnerError, UsageError
from pinner.host import checkout, edits
from pinner.host.digest import DigestMemory
from pinner.host.files import sync_directory
from pinner.host.home import Home
from pinner.host.hub import Hub, HubFailed
from pinner.host.hub_cache import cache_directory, snapshot_directory
from pinner.model.facts import Drift
from pinner.model.lock import Lock
from pinner.model.manifest import NAME_PATTERN
from pinner.probes import PROBES
from pinner.probes.base import CapturedKey, RunningServer

Say = Callable[[str], None]


class Adopted(msgspec.Struct, frozen=True, kw_only=True):
    """What was written, what was not captured, and whether the machine is as the new lock says.

    `patch` is the file that keeps the edits of a checkout, None where there are none; `run` is the run of pinner's
    own that was adopted.
    """

    pid: int
    kind: str
    manifest: Path
    patch: Path | None
    locked: LockOutcome
    missed: tuple[str, ...]
    drift: Drift
    run: str = ""


def adopt(
    what: str, home: Home, *, name: str | None = None, directory: Path, say: Say = lambda _line: None
) -> Adopted:
    """Adopt the server that `what` (a PID or a URL) means; the files are written into `directory`.

    Raises UsageError for what is no server here, or where a file of that name exists; OperationFailed and
    UnknownFact for what cannot be read.
    """
    if name is not None and re.fullmatch(NAME_PATTERN, name) is None:
        raise UsageError(f"{name!r} is not a name: letters, digits, - and _")
    directory = directory.absolute()
    if not directory.is_dir():
        raise UsageError(f"there is no directory {directory}")
    say("looking at the server's processes")
    found = find_server(what, directory, home)
    path = directory / f"{name or _name(found.server)}.toml"
    _refuse_existing(path)
    outcome, deployment, missed = _pin(found, path, home, say)
    say("checking")
    drift = check_all(deployment, outcome.lock, home, deep=False, overrides=())
    patch = _patch_path(path)
    return Adopted(
        pid=found.server.main.pid,
        kind=found.server.kind,
        manifest=path,
        patch=patch if outcome.lock.engine.source.differs and patch.exists() else None,
        locked=outcome,
        missed=tuple(missed),
        drift=drift,
        run=found.run,
    )


def _name(server: RunningServer) -> str:
    """A name from the model's."""
    model = (server.given.get("model-path") or [""])[-1].rstrip("/").rpartition("/")[2]
    return re.sub(r"[^A-Za-z0-9_-]+", "-", model).strip("-_") or "adopted"


def _patch_path(manifest: Path) -> Path:
    return manifest.with_suffix(".patch")


def _refuse_existing(path: Path) -> None:
    for one in (path, path.with_suffix(".lock"), _patch_path(path)):
        if os.path.lexists(one):
            raise UsageError(f"{one} exists already; nothing was written", hint="--name gives another name")


def _pin(found: Found, path: Path, home: Home, say: Say) -> tuple[LockOutcome, Deployment, list[str]]:
    """Capture, lock and write. Where the Hub does not answer, once more without it."""
    server = found.server
    try:
        return _attempt(found, server, path, home, say)
    except HubFailed as error:
        say(f"{error.message}; pinning the cache's directories instead")
        server = msgspec.structs.replace(server, as_directories=error.message)
        return _attempt(found, server, path, home, say)


def _attempt(
    found: Found, server: RunningServer, path: Path, home: Home, say: Say
) -> tuple[LockOutcome, Deployment, list[str]]:
    keys, missed = _capture(server, say)
    missed = [*_of_run(found.run, home), *found.notes, *missed]
    keys += _left_out(keys)
    text = render(path.stem, server, keys, missed, time.strftime("%Y-%m-%d %H:%M:%S %z"))
    deployment = manifest_of(path, tomllib.loads(text))
    pending = _Pending(path, text, server, home, say)
    return lock(deployment, home, capture=True, say=say, before_writing=pending.write), deployment, missed


def _capture(server: RunningServer, say: Say) -> tuple[list[CapturedKey], list[str]]:
    keys: list[CapturedKey] = []
    missed: list[str] = []
    for name, probe in PROBES.items():
        say(f"reading {name}")
        captured = probe.capture(server)
        keys += captured.keys if captured is not None else []
        missed += captured.missed if captured is not None else []
    return keys, missed


def _of_run(run: str, home: Home) -> list[str]:
    """That pinner itself started the server, and from what."""
    if not run:
        return []
    try:
        known = find_run(run, home)
    except PinnerError:
        known = None
    origin = f"from {known.manifest}" if known is not None else "from another state directory"
    return [f"pinner itself started this server, as {run} {origin}: that manifest pins it already"]


class _Pending(NamedTuple):
    """What is written beside the lock, once everything has been read."""

    path: Path
    text: str
    server: RunningServer
    home: Home
    say: Say

    def write(self, pinned: Lock) -> None:
        """Write the patch and the manifest; the lock comes last."""
        make_views(pinned, self.home, DigestMemory(self.home.digests), rebuild=False, say=self.say)
        source, patch = pinned.engine.source, b""
        if source.differs and source.path is not None:
            state = checkout.inspect(self.server.directory / source.path)
            patch = edits.patch(state, source.tree or "", source.differs)
        _refuse_existing(self.path)
        written: list[Path] = []
        try:
            for one, data in ((_patch_path(self.path), patch), (self.path, self.text.encode())):
                if data:
                    _write_new(one, data)
                    written.append(one)
        except BaseException:
            for one in written:
                one.unlink(missing_ok=True)
            raise
        sync_directory(self.path.parent)


def _write_new(path: Path, data: bytes) -> None:
    try:
        with path.open("xb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
    except FileExistsError:
        raise UsageError(f"{path} exists already; nothing was written") from None
    except OSError as error:
        path.unlink(missing_ok=True)
        raise OperationFailed(f"cannot write {path}: {error.strerror}") from None


def _left_out(keys: list[CapturedKey]) -> list[CapturedKey]:
    """What the server has not loaded of a repository: the files that its cache lacks. Raises HubFailed."""
    values = {(key.section, key.name): key.value for key in keys}
    found = []
    for section in ("model", "draft"):
        repo, revision = values.get((section, "repo")), values.get((section, "revision"))
        if repo is None or revision is None:
            continue
        snapshot = snapshot_directory(cache_directory(os.environ), repo, revision)
        files = [file.path for file in Hub().resolve(repo, revision).files]
        absent = [file for file in files if not (snapshot / file).is_file()]
        if absent:
            found.append(CapturedKey(section, "exclude", _patterns(files, absent), "not in the cache"))
    return found


def _patterns(files: list[str], absent: list[str]) -> list[str]:
    """Patterns for the files that are not there: a directory's where nothing of it is."""
    there = {file.rpartition("/")[0] for file in files if file not in absent}
    found = dict.fromkeys(
        f"{glob.escape(above)}/*" if above and above not in there else glob.escape(file)
        for file in absent
        for above in [file.rpartition("/")[0]]
    )
    return list(found)
