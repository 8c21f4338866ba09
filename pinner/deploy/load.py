"""Finding and reading a manifest, with errors that name file, key and line.

Owns where the files of a deployment lie. Must not resolve, build or look at the machine beyond them.
"""

from __future__ import annotations

import datetime
import difflib
import hashlib
import os
import re
from pathlib import Path
from typing import Any

import msgspec

from pinner.deploy.blanks import MARK, blanks
from pinner.deploy.tomlfile import convert, data_digest, read_toml, refuse_version
from pinner.engines import ENGINES
from pinner.errors import ManifestError, UsageError
from pinner.model import manifest as manifest_format
from pinner.model.bench import Bench, Expect
from pinner.model.hardware import Hardware
from pinner.model.manifest import (
    Draft,
    Engine,
    Manifest,
    Model,
    PassedThrough,
    Python,
    Serve,
    Source,
)
from pinner.model.manifest_rules import problems

SECTIONS: dict[str, type[msgspec.Struct]] = {
    "": Manifest,
    "engine": Engine,
    "engine.source": Source,
    "python": Python,
    "model": Model,
    "draft": Draft,
    "serve": Serve,
    "hardware": Hardware,
}


class Deployment(msgspec.Struct, frozen=True, kw_only=True):
    """A manifest that has been read: its file, its data, and the digest of that data without [bench]."""

    path: Path
    name: str
    manifest: Manifest
    digest: str

    @property
    def directory(self) -> Path:
        """Where the manifest's relative paths start."""
        return self.path.parent

    @property
    def shown(self) -> str:
        """The manifest as a person would type it here."""
        try:
            return str(self.path.relative_to(Path.cwd()))
        except (ValueError, OSError):
            return str(self.path)

    @property
    def lock_path(self) -> Path:
        return self.directory / f"{self.name}.lock"

    @property
    def pylock_path(self) -> Path:
        return self.directory / f"pylock.{self.name}.toml"

    @property
    def key(self) -> str:
        """Tells this deployment from every other one here, by whatever links its directory is reached."""
        place = os.fsencode(self.directory.resolve() / self.path.name)
        return f"{self.name}-{hashlib.sha256(place).hexdigest()[:12]}"


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
    return manifest_of(path, read_toml(path, ManifestError))


def manifest_of(path: Path, data: dict[str, Any]) -> Deployment:
    """The deployment that a manifest with this data would be at `path`, whether it is there or not."""
    refuse_version(path, data, manifest_format.FORMAT, ManifestError)
    to_fill = list(blanks(data))
    if to_fill:
        raise _blanks_error(path, to_fill)
    wrong = _unknown_keys(data)
    if wrong:
        raise _manifest_error(path, wrong)
    data = _dates_to_text(data)
    manifest = convert(path, data, Manifest, ManifestError)
    found = [*_kind_problems(manifest), *problems(manifest)]
    if found:
        raise _manifest_error(path, found)
    # What is measured changes nothing of what is served: the lock pins datasets by themselves.
    served = {key: value for key, value in data.items() if key != "bench"}
    return Deployment(path=path, name=path.stem, manifest=manifest, digest=data_digest(served))


def _kind_problems(manifest: Manifest) -> list[tuple[str, str]]:
    kind = manifest.engine.kind
    if kind in ENGINES:
        forbidden = ENGINES[kind].FORBIDDEN
        return [(f"env.{name}", forbidden[name]) for name in manifest.env if name in forbidden]
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
    return wrong + _unknown_in_benches(data.get("bench"))


def _unknown_in_benches(benches: Any) -> list[tuple[str, str]]:
    wrong: list[tuple[str, str]] = []
    for name, bench in benches.items() if isinstance(benches, dict) else ():
        if isinstance(bench, dict):
            wrong += _unknown_in(f"bench.{name}", bench, Bench)
            expected = bench.get("expect")
            for metric, expect in expected.items() if isinstance(expected, dict) else ():
                if isinstance(expect, dict):
                    wrong += _unknown_in(f"bench.{name}.expect.{metric}", expect, Expect)
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


def _blanks_error(path: Path, to_fill: list[tuple[str, str]]) -> ManifestError:
    count = "1 blank" if len(to_fill) == 1 else f"{len(to_fill)} blanks"
    lines = "".join(f"\n  {key}: {what}" for key, what in to_fill)
    return ManifestError(
        f"{path}: {count} to fill in:{lines}",
        hint=f"each is a value that begins with `{MARK}`; put what it asks for in its place, or delete its line",
    )


def _manifest_error(path: Path, wrong: list[tuple[str, str]]) -> ManifestError:
    if len(wrong) == 1:
        return ManifestError(f"{path}: {wrong[0][0]}: {wrong[0][1]}")
    lines = "".join(f"\n  {key}: {sentence}" for key, sentence in wrong)
    return ManifestError(f"{path}: {len(wrong)} things are wrong:{lines}")
