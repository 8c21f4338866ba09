"""From the manifest's `[python]` section to its pin and a pylock, by uv.

Owns what uv is asked, and which words of its answer a person gets. Must not build anything, nor run code of a
package.
"""

from __future__ import annotations

import shutil
import tempfile
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
from packaging.utils import canonicalize_name

from pinner.deploy.load import Deployment
from pinner.deploy.lockfile import render_pylock
from pinner.deploy.tomlfile import bytes_digest
from pinner.errors import CommandFailed, ManifestError, OperationFailed, PinnerError
from pinner.host.home import Home
from pinner.host.project import project_digest
from pinner.host.uv import ResolveOptions, Uv, site_index
from pinner.model import pylock as pylock_format
from pinner.model.address import without_credentials
from pinner.model.lock import PatchPin, ProjectPin, PythonPin, SourcePin
from pinner.probes import python_env, source
from pinner.probes.base import Wish

# What `--upgrade NAME` takes beside the names of packages.
PARTS = ("engine", "model", "draft")
# The engine's source as pinned, and its patches.
Code = tuple[SourcePin, tuple[PatchPin, ...]]


class _Inputs(msgspec.Struct, frozen=True):
    """Files for uv; `has_engine`: the engine's own pyproject.toml is one of them."""

    files: list[Path]
    has_engine: bool


def uv_for(deployment: Deployment, home: Home) -> Uv:
    """uv with the addresses of a manifest, or those that this site puts in their place."""
    python = deployment.manifest.python
    return Uv(home, site=site_index(home), indexes=python.indexes, links=_links(deployment))


def resolve_python(
    deployment: Deployment,
    wish: Wish,
    code: Code,
    upgrade: bool | str,
    old_pylock: dict[str, Any] | None,
) -> tuple[PythonPin, str | None, dict[str, Any] | None]:
    """The Python pin, and the pylock's text and data where one is made."""
    python = wish.manifest.python
    if python.path is not None:
        return python_env.pin(wish), None, None
    if python.version is None:
        raise ManifestError(f"{deployment.path}: python.version: is missing")
    uv = uv_for(deployment, wish.home)
    try:
        _, patch_level = uv.find_python(python.version)
    except CommandFailed as error:
        said = error.stderr.strip()
        raise OperationFailed(
            f"{deployment.path}: python.version: no Python {python.version} here, and uv can fetch none:\n{said}"
        ) from None
    previous = wish.previous.python if wish.previous else None
    if previous and previous.version == python.version and upgrade is not True:
        patch_level = previous.patch_level
    projects = tuple(_project(wish, index) for index in range(len(python.projects)))
    data = _resolve(deployment, wish, (code, projects), (uv, upgrade), old_pylock)
    text = render_pylock(data)
    pin = PythonPin(
        version=python.version,
        patch_level=patch_level,
        pylock=bytes_digest(text.encode()),
        exclude_newer=python.exclude_newer,
        indexes=tuple(without_credentials(address) for address in python.indexes),
        find_links=tuple(without_credentials(link) for link in python.find_links),
        projects=projects,
    )
    return pin, text, data


def _project(wish: Wish, index: int) -> ProjectPin:
    """Pin a project of the user's own. ManifestError where it is none."""
    key = f"python.projects[{index}]"
    path = wish.manifest.python.projects[index]
    root = wish.directory / path
    try:
        data = tomllib.loads((root / "pyproject.toml").read_text())
        name = data["project"]["name"]
        content = project_digest(root)
    except (OSError, UnicodeDecodeError) as error:
        said = error.strerror if isinstance(error, OSError) else error
        raise ManifestError(f"{key}: cannot read {root / 'pyproject.toml'}: {said}") from None
    except tomllib.TOMLDecodeError as error:
        raise ManifestError(f"{key}: {root / 'pyproject.toml'}: not valid TOML: {error}") from None
    except (KeyError, TypeError):
        raise ManifestError(f"{key}: {root / 'pyproject.toml'} names no project: `[project] name`") from None
    except OperationFailed as error:
        raise ManifestError(f"{key}: {error.message}") from None
    return ProjectPin(path=path, name=canonicalize_name(str(name)), content=content)


def _resolve(
    deployment: Deployment,
    wish: Wish,
    code: tuple[Code, tuple[ProjectPin, ...]],
    how: tuple[Uv, bool | str],
    old_pylock: dict[str, Any] | None,
) -> dict[str, Any]:
    """Ask uv for a pylock of the engine's project and the manifest's requirements, and normalize it."""
    uv, upgrade = how
    python = wish.manifest.python
    version = python.version or ""
    with tempfile.TemporaryDirectory(prefix="pinner-lock-") as name:
        work = Path(name)
        inputs = _requirement_files(wish, code, work)
        if python.extras and not inputs.has_engine and wish.manifest.engine.source.package is None:
            raise ManifestError(f"{deployment.path}: python.extras: the engine's source has no pyproject.toml")
        options = ResolveOptions(
            extras=python.extras if inputs.has_engine else (),
            overrides=python.overrides,
            # A project stands in for the package of its name.
            excludes=(*python.excludes, *(project.name for project in code[1])),
            exclude_newer=python.exclude_newer,
            upgrade=upgrade if isinstance(upgrade, bool) else (() if upgrade in PARTS else (upgrade,)),
        )
        site = tuple(_not_kept(deployment, wish.home))

        def ask(options: ResolveOptions, known: dict[str, Any] | None) -> dict[str, Any]:
            output = work / "pylock.toml"
            output.unlink(missing_ok=True)
            if known is not None:
                output.write_text(render_pylock(_with_addresses(known)))
            try:
                uv.resolve(inputs.files, python=version, output=output, options=options)
            except CommandFailed as error:
                raise _resolution_error(deployment, error) from None
            return pylock_format.normalized(
                tomllib.loads(output.read_text()), python=version, site=site, previous=known
            )

        data = ask(options, old_pylock)
        if pylock_format.asks_for_python(data):
            # uv has resolved for newer Pythons too. From what is left of that the markers come out as they will
            # every time that this is locked again.
            data = ask(msgspec.structs.replace(options, upgrade=False), data)
    return data


def _resolution_error(deployment: Deployment, error: CommandFailed) -> PinnerError:
    text = error.stderr.strip()
    hint = None
    if "--no-build" in text or "Building source distributions is disabled" in text:
        hint = "pinner runs no code of a package while locking: it must have a wheel, or static metadata"
    if "extra" in text and "not found" in text:
        return ManifestError(f"{deployment.path}: python.extras: the engine's project has no such extra:\n{text}")
    if "No solution found" in text or "Failed to parse" in text or "Couldn't parse requirement" in text:
        return ManifestError(f"{deployment.path}: python: the requirements cannot be met:\n{text}", hint=hint)
    return OperationFailed(f"resolving the Python environment failed:\n{text}", hint=hint)


def _requirement_files(wish: Wish, code: tuple[Code, tuple[ProjectPin, ...]], work: Path) -> _Inputs:
    """The pyproject.toml of the engine, if it has one, and of each project, and the requirements as a file."""
    (pin, patches), projects = code
    lines = list(wish.manifest.python.requirements)
    if pin.type == "package":
        extras = f"[{','.join(wish.manifest.python.extras)}]" if wish.manifest.python.extras else ""
        lines.append(f"{pin.name}{extras}=={pin.version}")
    files = []
    engine = _engine_file(wish, pin, patches, work)
    if engine is not None:
        files.append(_copied(engine, work / "engine"))
    for index, project in enumerate(projects):
        files.append(_copied(wish.directory / project.path / "pyproject.toml", work / f"project-{index}"))
    requirements = work / "requirements.in"
    requirements.write_text("".join(f"{line}\n" for line in lines))
    return _Inputs([*files, requirements], has_engine=engine is not None)


def _engine_file(wish: Wish, pin: SourcePin, patches: tuple[PatchPin, ...], work: Path) -> Path | None:
    """The engine's pyproject.toml as the lock pins it; None where there is none."""
    if pin.type == "git":
        tree = work / "tree"
        source.export(
            pin, [wish.directory / patch.file for patch in patches], wish.home, tree, directory=wish.directory
        )
        found = tree / pin.subdirectory / "pyproject.toml"
    elif pin.type == "path":
        found = wish.directory / (pin.path or "") / pin.subdirectory / "pyproject.toml"
    else:
        return None
    return found if found.is_file() else None


def _copied(file: Path, directory: Path) -> Path:
    """A copy in a directory of its own, so that uv looks at no other file of the project."""
    directory.mkdir()
    return Path(shutil.copyfile(file, directory / file.name))


def _with_addresses(data: dict[str, Any]) -> dict[str, Any]:
    """A pylock for uv to read versions from; a bare file name would make it look for the file."""
    packages = [
        {key: value for key, value in package.items() if key not in ("wheels", "sdist")}
        | {"wheels": [wheel for wheel in package.get("wheels", []) if "url" in wheel]}
        for package in data.get("packages", [])
    ]
    return {**data, "packages": packages}


def _links(deployment: Deployment) -> tuple[str, ...]:
    """The manifest's pages and folders of files; a folder starts from the manifest."""
    links = deployment.manifest.python.find_links
    return tuple(link if "://" in link else str(deployment.directory / link) for link in links)


def _not_kept(deployment: Deployment, home: Home) -> Iterator[str]:
    """How addresses begin that hold for this machine or site alone, as uv writes them."""
    site = site_index(home)
    if site.index_url:
        # Where a mirror answers, its files may lie at any address: none of them may be kept.
        yield ""
    folders = [link for link in _links(deployment) if "://" not in link]
    for link in (*site.find_links, *folders):
        yield link if "://" in link else Path(link).absolute().as_uri()
        if link.startswith("file://"):
            yield link
