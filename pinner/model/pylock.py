"""PEP 751 lockfiles as pinner writes them: one minor version of Python, no address of a site, stable bytes.

Pure: takes and gives parsed TOML. Must not run uv or read files.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import unquote, urlsplit

from packaging.markers import InvalidMarker, Marker
from packaging.utils import InvalidWheelFilename, parse_wheel_filename

from pinner.model.address import without_credentials

# What a lock must serve: Linux on both processors, with glibc or musl, and macOS as far as packages do.
_PLATFORMS = (
    {"sys_platform": "linux", "platform_system": "Linux", "platform_machine": "x86_64", "os_name": "posix"},
    {"sys_platform": "linux", "platform_system": "Linux", "platform_machine": "aarch64", "os_name": "posix"},
    {"sys_platform": "darwin", "platform_system": "Darwin", "platform_machine": "arm64", "os_name": "posix"},
    {"sys_platform": "darwin", "platform_system": "Darwin", "platform_machine": "x86_64", "os_name": "posix"},
)
_PYTHON = re.compile(r"\bpython_(full_)?version\b")
_PLATFORM_TAG = re.compile(r"any|((many|musl)?linux.*|macosx.*)_(x86_64|aarch64|arm64|universal2)")


def normalized(
    data: Mapping[str, Any], *, python: str, site: Iterable[str], previous: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """A pylock as uv resolved it, reduced to what a lock of Python `python` ("3.11") may hold.

    Packages and wheels that no supported platform can use are left out, as are times of upload. A wheel from an
    address that starts with one of `site` (a mirror, a folder of wheels) keeps its file name and hash only, or
    the address that `previous` has for the same hash. Credentials never stay.
    """
    site = tuple(site)
    known = _addresses(previous) if previous else {}
    packages = []
    for package in data.get("packages", []):
        if "marker" in package and not _can_apply(package["marker"], python):
            continue
        kept: dict[str, Any] = {key: package[key] for key in ("name", "version", "marker") if key in package}
        kept["requires-python"] = package.get("requires-python")
        for key in ("vcs", "directory", "archive"):
            kept[key] = _clean(package.get(key))
        kept["sdist"] = _artifact(package["sdist"], site, known) if "sdist" in package else None
        wheels = [
            _artifact(wheel, site, known) for wheel in package.get("wheels", []) if _is_usable(wheel, python)
        ]
        kept["wheels"] = sorted(_unique(wheels), key=lambda wheel: wheel["name"]) or None
        packages.append({key: value for key, value in kept.items() if value is not None})
    low, high = python, f"3.{int(python.split('.')[1]) + 1}"
    return {
        "lock-version": "1.0",
        "created-by": "pinner",
        "requires-python": f">={low},<{high}",
        "packages": sorted(packages, key=lambda package: (package["name"], package.get("version", ""))),
    }


def needs_site(data: Mapping[str, Any]) -> bool:
    """Whether some file has no address, so that an index or a folder of wheels must be searched by hash."""
    return any(
        "url" not in artifact
        for package in data.get("packages", [])
        for artifact in (*package.get("wheels", []), *filter(None, [package.get("sdist")]))
    )


def asks_for_python(data: Mapping[str, Any]) -> bool:
    """Whether a marker asks for the version of Python, which is one and the same for all of a lock."""
    return any(_PYTHON.search(package.get("marker", "")) for package in data.get("packages", []))


def hashed_requirements(data: Mapping[str, Any]) -> str:
    """The same pins as requirements with hashes: any index may serve them, since only these bytes pass."""
    lines = []
    for package in data.get("packages", []):
        marker = f" ; {package['marker']}" if "marker" in package else ""
        if "vcs" in package:
            vcs = package["vcs"]
            where = f"#subdirectory={vcs['subdirectory']}" if vcs.get("subdirectory") else ""
            lines.append(f"{package['name']} @ git+{vcs['url']}@{vcs['commit-id']}{where}{marker}")
            continue
        artifacts = [*package.get("wheels", []), *filter(None, [package.get("sdist")])]
        hashes = " ".join(
            sorted({f"--hash={name}:{value}" for item in artifacts for name, value in item["hashes"].items()})
        )
        lines.append(f"{package['name']}=={package['version']}{marker} {hashes}")
    return "\n".join(lines) + "\n"


def versions(data: Mapping[str, Any]) -> dict[str, str]:
    """Name to version of every package; a package from git shows its commit."""
    return {
        package["name"]: package.get("version") or package.get("vcs", {}).get("commit-id", "unversioned")
        for package in data.get("packages", [])
    }


def _can_apply(marker: str, python: str) -> bool:
    try:
        parsed = Marker(marker)
    except InvalidMarker:
        return True
    version = {
        "python_version": python,
        "python_full_version": f"{python}.99",
        "implementation_name": "cpython",
    }
    return any(
        parsed.evaluate({**platform, **version, "platform_python_implementation": "CPython", "extra": ""})
        for platform in _PLATFORMS
    )


def _is_usable(wheel: Mapping[str, Any], python: str) -> bool:
    try:
        tags = parse_wheel_filename(_file_name(wheel))[3]
    except InvalidWheelFilename:
        return True
    return any(
        _matches(tag.interpreter, tag.abi, python) and _PLATFORM_TAG.fullmatch(tag.platform) for tag in tags
    )


def _matches(interpreter: str, abi: str, python: str) -> bool:
    minor = int(python.split(".")[1])
    if interpreter == f"cp3{minor}":
        return abi in (f"cp3{minor}", "abi3", "none")
    found = re.fullmatch(r"(cp|py)3(\d*)", interpreter)
    if found is None:
        return "py2.py3" in interpreter
    older = not found[2] or int(found[2]) <= minor
    return older and (abi == "none" if found[1] == "py" else abi == "abi3")


def _artifact(artifact: Mapping[str, Any], site: tuple[str, ...], known: Mapping[str, str]) -> dict[str, Any]:
    name = _file_name(artifact)
    kept: dict[str, Any] = {"name": name}
    address = artifact.get("url") or artifact.get("path", "")
    sha256 = artifact["hashes"].get("sha256", "")
    if address.startswith(site) if site else False:
        address = known.get(sha256, "")
    if address and "://" in address:
        kept["url"] = without_credentials(address)
    else:
        # PEP 751 demands an address or a path. A bare name promises only that a file so called, with this hash,
        # is to be found: beside the lock, or where this site's settings say.
        kept["path"] = name
    if "size" in artifact:
        kept["size"] = artifact["size"]
    kept["hashes"] = dict(artifact["hashes"])
    return kept


def _unique(wheels: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One entry a file; where a folder and an index offer the same bytes, the address wins."""
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for wheel in wheels:
        key = (wheel["name"], wheel["hashes"].get("sha256", ""))
        if key not in found or "url" in wheel:
            found[key] = wheel
    return list(found.values())


def _addresses(data: Mapping[str, Any]) -> dict[str, str]:
    return {
        artifact["hashes"]["sha256"]: artifact["url"]
        for package in data.get("packages", [])
        for artifact in (*package.get("wheels", []), *filter(None, [package.get("sdist")]))
        if "url" in artifact and "sha256" in artifact.get("hashes", {})
    }


def _file_name(artifact: Mapping[str, Any]) -> str:
    given = artifact.get("name")
    if given:
        return str(given)
    return unquote(urlsplit(artifact.get("url") or artifact.get("path", "")).path.rpartition("/")[2])


def _clean(table: Mapping[str, Any] | None) -> dict[str, Any] | None:
    if table is None:
        return None
    cleaned = dict(table)
    if "url" in cleaned:
        cleaned["url"] = without_credentials(cleaned["url"])
    cleaned.pop("upload-time", None)
    return cleaned
