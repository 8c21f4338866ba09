"""Reading manifests and locks from disk, with errors that name file, key and line.

Owns finding the files of a deployment and judging whether they belong together. Must not resolve, build or
look at the machine beyond these files.
"""

from __future__ import annotations

import datetime
import difflib
import hashlib
import json
import re
import tomllib
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from pinner.engines import ENGINES
from pinner.errors import LockError, ManifestError, UsageError
from pinner.model import lock as lock_format
from pinner.model import manifest as manifest_format
from pinner.model.lock import Lock
from pinner.model.manifest import (
    Draft,
    Engine,
    Manifest,
    Model,
    PassedThrough,
    Python,
    Serve,
    Source,
    problems,
)

MAX_BYTES = 64 * 1024 * 1024

SECTIONS: dict[str, type[msgspec.Struct]] = {
    "": Manifest,
    "engine": Engine,
    "engine.source": Source,
    "python": Python,
    "model": Model,
    "draft": Draft,
    "serve": Serve,
}

Struct = TypeVar("Struct", bound=msgspec.Struct)


class Deployment(msgspec.Struct, frozen=True, kw_only=True):
    """A manifest that has been read: its file, its data and the digest of that data."""

    path: Path
    name: str
    manifest: Manifest
    digest: str

    @property
    def directory(self) -> Path:
        """Where the manifest's relative paths start."""
        return self.path.parent

    @property
    def lock_path(self) -> Path:
        return self.directory / f"{self.name}.lock"

    @property
    def pylock_path(self) -> Path:
        return self.directory / f"pylock.{self.name}.toml"

    @property
    def key(self) -> str:
        """Tells this deployment from every other one on the machine: name and place of the manifest."""
        return f"{self.name}-{hashlib.sha256(str(self.path).encode(errors='surrogateescape')).hexdigest()[:12]}"


def find_manifest(text: str) -> Path:
    """The manifest that a command line names: a path, a name in deployments/, or its lock."""
    given = Path(text)
    candidates = [given]
    if given.name == text:
        candidates.append(Path("deployments") / text)
        if not given.suffix:
            candidates += [Path(f"{text}.toml"), Path("deployments") / f"{text}.toml"]
    for candidate in candidates:
        manifest = candidate.with_suffix(".toml") if candidate.suffix == ".lock" else candidate
        if manifest.is_file():
            return manifest.absolute()
    if given.is_dir():
        raise UsageError(
            f"{text} is a directory, not a manifest", hint=f"name a file in it, such as {text}/NAME.toml"
        )
    tried = " or ".join(str(candidate) for candidate in dict.fromkeys(candidates))
    raise UsageError(f"no manifest at {tried}", hint="`pinner init NAME` writes one to start from")


def load_manifest(path: Path) -> Deployment:
    """Read and validate a manifest. Raises ManifestError naming the file and every wrong key."""
    path = path.absolute()
    name = path.stem
    if path.suffix != ".toml" or re.fullmatch(manifest_format.NAME_PATTERN, name) is None:
        raise ManifestError(
            f"{path.name} is not a name for a manifest",
            hint="a manifest is NAME.toml, where NAME is letters, digits, - and _",
        )
    data = _read_toml(path, ManifestError)
    _refuse_version(path, data, manifest_format.FORMAT, ManifestError)
    wrong = _later_sections(data) or _unknown_keys(data)
    if wrong:
        raise _manifest_error(path, wrong)
    data = _dates_to_text(data)
    manifest = _convert(path, data, Manifest, ManifestError)
    found = [*_kind_problems(manifest), *problems(manifest)]
    if found:
        raise _manifest_error(path, found)
    return Deployment(path=path, name=name, manifest=manifest, digest=data_digest(data))


def load_lock(deployment: Deployment) -> Lock:
    """Read the lock of a manifest; it must be of this very manifest and its pylock unedited.

    Raises LockError: missing, damaged, newer, or stale, each with what to do.
    """
    relock = f"run `pinner lock {_shown(deployment.path)}`"
    lock = read_lock(deployment)
    if lock is None:
        raise LockError(f"{deployment.lock_path} does not exist", hint=relock)
    reason = stale_reason(deployment, lock)
    if reason:
        raise LockError(
            f"{deployment.lock_path} is out of date: {reason}", hint=f"{relock}, and read what it changes"
        )
    return lock


def read_lock(deployment: Deployment) -> Lock | None:
    """The lock beside a manifest, current or not; None where there is none. Raises LockError if damaged."""
    path = deployment.lock_path
    if not path.exists():
        return None
    data = _read_toml(path, LockError)
    _refuse_version(path, data, lock_format.FORMAT, LockError)
    lock = _convert(path, data, Lock, LockError)
    _refuse_escapes(path, lock)
    return lock


def stale_reason(deployment: Deployment, lock: Lock) -> str | None:
    """Why a lock does not belong to its manifest and the files beside it; None where it does. Offline."""
    if lock.manifest != deployment.digest:
        return f"{deployment.path.name} has changed since it was written"
    for pin in lock.engine.patches:
        patch = deployment.directory / pin.file
        try:
            digest = bytes_digest(patch.read_bytes())
        except OSError as error:
            return f"the patch {pin.file} cannot be read ({error.strerror})"
        if digest != pin.sha256:
            return f"the patch {pin.file} has changed since"
    if lock.python.pylock is not None:
        try:
            digest = bytes_digest(deployment.pylock_path.read_bytes())
        except OSError as error:
            return f"{deployment.pylock_path.name} cannot be read ({error.strerror})"
        if digest != lock.python.pylock:
            return f"{deployment.pylock_path.name} is not the one that it was written with"
    return None


def bytes_digest(data: bytes) -> str:
    """`sha256:<hex>` of some bytes."""
    return "sha256:" + hashlib.sha256(data).hexdigest()


def data_digest(data: Any) -> str:
    """`sha256:<hex>` of parsed data: comments, order of keys and spelling of values do not count."""
    return bytes_digest(json.dumps(data, sort_keys=True, separators=(",", ":"), ensure_ascii=True).encode())


def _shown(path: Path) -> str:
    """A path as a person would type it."""
    try:
        return str(path.relative_to(Path.cwd()))
    except (ValueError, OSError):
        return str(path)


def _read_toml(path: Path, error: type[ManifestError | LockError]) -> dict[str, Any]:
    try:
        if path.stat().st_size > MAX_BYTES:
            raise error(f"{path}: larger than {MAX_BYTES // 2**20} MiB, which no manifest or lock is")
        return tomllib.loads(path.read_bytes().decode("utf-8"))
    except OSError as problem:
        raise error(f"cannot read {path}: {problem.strerror}") from None
    except UnicodeDecodeError as problem:
        raise error(f"{path}: not UTF-8 text (byte {problem.start})") from None
    except tomllib.TOMLDecodeError as problem:
        raise error(f"{path}: not valid TOML: {problem}") from None
    except (RecursionError, ValueError, OverflowError) as problem:
        # tomllib lets these through for absurd nesting, dates and numbers.
        raise error(f"{path}: not valid TOML: {str(problem) or 'nested too deeply'}") from None


def _refuse_version(path: Path, data: dict[str, Any], known: int, error: type[ManifestError | LockError]) -> None:
    version = data.get("version")
    if isinstance(version, bool) or not isinstance(version, int):
        raise error(f"{path}: version: must be the format's number", hint=f"write version = {known}")
    if version > known:
        needs = data.get("requires-pinner")
        which = f"pinner {needs} or newer" if isinstance(needs, str) else "a newer pinner"
        raise error(
            f"{path}: version: format {version} is newer than this pinner reads (format {known})",
            hint=f"{which} reads it",
        )
    if version < 1:
        raise error(f"{path}: version: there is no format {version}", hint=f"write version = {known}")


def _later_sections(data: dict[str, Any]) -> list[tuple[str, str]]:
    return [
        (
            name,
            "this version of pinner cannot check this section yet; an unchecked pin would be a lie",
        )
        for name in manifest_format.LATER_SECTIONS
        if name in data
    ]


def _kind_problems(manifest: Manifest) -> list[tuple[str, str]]:
    kind = manifest.engine.kind
    if kind in ENGINES:
        return []
    near = difflib.get_close_matches(kind, ENGINES, n=1)
    more = f"did you mean {near[0]!r}?" if near else f"known engines: {', '.join(sorted(ENGINES))}"
    return [("engine.kind", f"there is no engine {kind!r}; {more}")]


def _unknown_keys(data: dict[str, Any]) -> list[tuple[str, str]]:
    """Every key that the format does not have, each with the nearest one that it has."""
    wrong: list[tuple[str, str]] = []
    for section, struct in SECTIONS.items():
        table: Any = data
        for part in section.split(".") if section else []:
            table = table.get(part) if isinstance(table, dict) else None
        if isinstance(table, dict):
            wrong += _unknown_in(section, table, struct)
    env = data.get("env")
    if isinstance(env, dict):
        for name, value in env.items():
            if isinstance(value, dict):
                wrong += _unknown_in(f"env.{name}", value, PassedThrough)
    return wrong


def _unknown_in(section: str, table: dict[str, Any], struct: type[msgspec.Struct]) -> list[tuple[str, str]]:
    known = [field.encode_name for field in msgspec.structs.fields(struct)]
    wrong = []
    for key in table:
        if key in known:
            continue
        near = difflib.get_close_matches(key.replace("_", "-"), known, n=1, cutoff=0.5)
        more = f"did you mean `{near[0]}`?" if near else f"known here: {', '.join(known)}"
        wrong.append((f"{section}.{key}" if section else key, f"unknown key; {more}"))
    return wrong


def _dates_to_text(data: Any) -> Any:
    """TOML's own dates as text, so that `exclude-newer = 2026-11-01` works with and without quotes."""
    if isinstance(data, dict):
        return {key: _dates_to_text(value) for key, value in data.items()}
    if isinstance(data, list):
        return [_dates_to_text(value) for value in data]
    if isinstance(data, (datetime.date, datetime.time)):
        return data.isoformat()
    return data


def _convert(
    path: Path, data: dict[str, Any], struct: type[Struct], error: type[ManifestError | LockError]
) -> Struct:
    try:
        return msgspec.convert(data, struct)
    except msgspec.ValidationError as problem:
        text, _, where = str(problem).partition(" - at `")
        key = where.rstrip("`").removeprefix("$").lstrip(".")
        missing = re.match(r"Object missing required field `([^`]+)`", text)
        if missing:
            key, text = f"{key}.{missing[1]}" if key else missing[1], "is missing"
        if "[...]" in key:
            key, text = _name_entry(data, key, text, struct)
        raise error(f"{path}: {key}: {_plain(text)}" if key else f"{path}: {_plain(text)}") from None


def _name_entry(data: dict[str, Any], key: str, text: str, struct: type[msgspec.Struct]) -> tuple[str, str]:
    """msgspec does not say which entry of a table is wrong; try each one alone."""
    section, _, rest = key.partition("[...]")
    table: Any = data
    for part in section.split("."):
        table = table[part]
    for name, value in table.items():
        probe = _with_only(data, section.split("."), {name: value})
        try:
            msgspec.convert(probe, struct)
        except msgspec.ValidationError as problem:
            if "[...]" in str(problem):
                return f"{section}.{name}{rest}", str(problem).partition(" - at `")[0]
    return f"{section}{rest}", text


def _with_only(data: dict[str, Any], parts: list[str], table: dict[str, Any]) -> dict[str, Any]:
    head, *tail = parts
    return {**data, head: _with_only(data[head], tail, table) if tail else table}


def _plain(text: str) -> str:
    """msgspec's words in this project's: TOML has tables and strings, not objects and str."""
    if text.startswith("Expected `bool | int | str | object`"):
        return 'must be a string, or { secret = "NAME" } or { site = "NAME" }'
    words = {"object": "table", "str": "string", "array": "list", "null": "nothing"}
    text = re.sub(r"`([a-z |]+)`", lambda m: " or ".join(words.get(w, w) for w in m[1].split(" | ")), text)
    return text[:1].lower() + text[1:]


def _manifest_error(path: Path, wrong: list[tuple[str, str]]) -> ManifestError:
    if len(wrong) == 1:
        return ManifestError(f"{path}: {wrong[0][0]}: {wrong[0][1]}")
    lines = "".join(f"\n  {key}: {sentence}" for key, sentence in wrong)
    return ManifestError(f"{path}: {len(wrong)} things are wrong:{lines}")


def _refuse_escapes(path: Path, lock: Lock) -> None:
    """A lock is data from elsewhere: no file of a pin may lie outside its directory."""
    for aspect, weights in (("model", lock.model), ("draft", lock.draft)):
        for pin in weights.files if weights else ():
            if not pin.path or not manifest_format.is_inside(pin.path):
                raise LockError(f"{path}: {aspect}.files: {pin.path!r} leaves its directory")
    source = lock.engine.source
    if source.type not in ("git", "path", "package"):
        raise LockError(f"{path}: engine.source.type: {source.type!r} is not git, path or package")
    if not manifest_format.is_inside(source.subdirectory):
        raise LockError(f"{path}: engine.source.subdirectory: {source.subdirectory!r} leaves the repository")
    for field in ("commit", "tree", "patched_tree"):
        value = getattr(source, field)
        if value is not None and re.fullmatch(r"[0-9a-f]{40}([0-9a-f]{24})?", value) is None:
            raise LockError(f"{path}: engine.source.{field.replace('_', '-')}: {value!r} is not a full commit id")
    if source.type != "package" and (source.commit is None or source.tree is None):
        raise LockError(f"{path}: engine.source: has no commit or no tree")
