"""The pins of a record: the deployment's files that go into it, and whether they have moved since.

Owns which files of a deployment a record holds. Must not judge a machine.
"""

from __future__ import annotations

import hashlib
import tomllib
from pathlib import Path
from typing import Any

from pinner.deploy.load import Deployment
from pinner.errors import RecordError
from pinner.host.files import read_bytes
from pinner.host.project import project_sources
from pinner.measure.carry import read_file
from pinner.measure.records import Stored
from pinner.model.facts import Unknown
from pinner.model.lock import Lock, ProjectPin
from pinner.model.record import DEPLOYMENT, name_problem

# What stands in a lock and pins nothing: a new bench in the manifest changes its digest.
_NO_PINS = frozenset({"version", "requires-pinner", "manifest"})
_IN_DETAIL = frozenset({"engine", "python"})


def deployment_files(deployment: Deployment, lock: Lock) -> dict[str, bytes]:
    """Manifest, lock, pylock, patches and projects as they are now, by the names that they have in a record.

    A patch that lies outside the manifest's directory is named by its digest.
    """
    paths = [deployment.path, deployment.lock_path]
    if lock.python.pylock is not None:
        paths.append(deployment.pylock_path)
    files = {f"{DEPLOYMENT}/{path.name}": read_bytes(path, what="the file") for path in paths}
    for pin in lock.engine.patches:
        content = read_bytes(deployment.directory / pin.file, what="the patch")
        files[patch_file(pin.file, pin.sha256)] = content
    for project in lock.python.projects:
        files |= _project_files(deployment.directory, project)
    return files


def _project_files(directory: Path, project: ProjectPin) -> dict[str, bytes]:
    """The source of a project beside the manifest; of one that lies elsewhere the record has only the digest."""
    if name_problem(f"{DEPLOYMENT}/{project.path}") is not None:
        return {}
    sources = project_sources(directory / project.path) or {}
    return {
        f"{DEPLOYMENT}/{project.path}/{name}": read_bytes(path, what="the project's file")
        for name, path in sources.items()
    }


def patch_file(written: str, digest: str) -> str:
    """The name in a record of a patch that the manifest writes so."""
    name = f"{DEPLOYMENT}/{written}"
    return f"patches/{digest.removeprefix('sha256:')}.patch" if name_problem(name) else name


def lock_data(stored: Stored) -> dict[str, Any] | None:
    """The data of a record's lock; None for a record without pins. RecordError if it is damaged."""
    if stored.record.lock_file not in stored.record.files:
        return None
    try:
        return tomllib.loads(read_file(stored, stored.record.lock_file).decode())
    except ValueError as error:
        raise RecordError(f"{stored.path}: {stored.record.lock_file} is no TOML: {error}") from None


def moved(stored: Stored) -> tuple[str, ...] | Unknown:
    """The parts of the lock whose pins are others now than in the record; nothing where it is current.

    Unknown for foreign evidence, and where manifest or lock are not there any more.
    """
    if stored.record.origin == "foreign":
        return Unknown("it has no pins")
    manifest = Path(stored.record.manifest)
    if not stored.record.manifest or not manifest.is_file():
        return Unknown("its manifest is not here")
    lock_path = manifest.with_suffix(".lock")
    try:
        data = lock_path.read_bytes()
        if f"sha256:{hashlib.sha256(data).hexdigest()}" == stored.record.files.get(stored.record.lock_file):
            return ()
        now = _pins(tomllib.loads(data.decode()))
        measured = lock_data(stored)
    except (OSError, ValueError):
        return Unknown(f"{lock_path} cannot be read")
    except RecordError as error:
        return Unknown(error.message)
    if measured is None:
        return Unknown("it holds no lock")
    then = _pins(measured)
    return tuple(sorted(key for key in then.keys() | now.keys() if then.get(key) != now.get(key)))


def _pins(lock: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in lock.items():
        if key in _IN_DETAIL and isinstance(value, dict):
            found |= {f"{key}.{name}": item for name, item in value.items()}
        elif key not in _NO_PINS:
            found[key] = value
    return found
