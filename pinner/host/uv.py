"""Running uv: resolving to PEP 751, building environments, building the engine.

Owns uv's command line and its environment, which is built from nothing so that no UV_*, PIP_* or configuration
file of the caller changes a result. Must not know manifests or locks.
"""

from __future__ import annotations

import os
import re
import sys
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from pinner.errors import CommandFailed, ManifestError, OperationFailed
from pinner.host import process
from pinner.host.home import Home
from pinner.host.progress import View, current

# What uv may take from the caller: how to reach the network and where its certificates are. None of it can
# change which bytes are installed, since hashes bind those.
TRANSPORT = (
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "ALL_PROXY",
    "NO_PROXY",
    "http_proxy",
    "https_proxy",
    "all_proxy",
    "no_proxy",
    "HOME",
    "XDG_DATA_HOME",
)


# What draws on a terminal, which an error's text must not.
_CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class SiteIndex(msgspec.Struct, frozen=True):
    """Where this site gets packages from: a mirror's address, folders of wheels. Never part of a lock."""

    index_url: str | None = None
    find_links: tuple[str, ...] = ()

    @property
    def is_set(self) -> bool:
        return self.index_url is not None or bool(self.find_links)


def site_index(home: Home, environ: Mapping[str, str] | None = None) -> SiteIndex:
    """PINNER_INDEX_URL and PINNER_FIND_LINKS (separated by spaces), else config.toml of $PINNER_HOME."""
    environ = os.environ if environ is None else environ
    config: dict[str, object] = {}
    if home.config.is_file():
        try:
            config = tomllib.loads(home.config.read_text())
        except (OSError, ValueError) as error:
            raise ManifestError(f"{home.config}: {error}") from None
        unknown = sorted(config.keys() - {"index-url", "find-links"})
        if unknown:
            raise ManifestError(f"{home.config}: {unknown[0]}: unknown key; known here: index-url, find-links")
    index_url = environ.get("PINNER_INDEX_URL") or config.get("index-url")
    links = environ.get("PINNER_FIND_LINKS", "").split() or config.get("find-links") or []
    if not isinstance(index_url, str | None) or not (
        isinstance(links, list) and all(isinstance(link, str) for link in links)
    ):
        raise ManifestError(f"{home.config}: index-url is a string, find-links a list of strings")
    return SiteIndex(index_url, tuple(links))


class ResolveOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How to resolve: `extras` of the projects; requirements that override those of any package; names of
    packages to leave out; no release after a time; what to `upgrade` (all, or the named ones)."""

    extras: Sequence[str] = ()
    overrides: Sequence[str] = ()
    excludes: Sequence[str] = ()
    exclude_newer: str | None = None
    upgrade: bool | Sequence[str] = False


class Uv:
    """The uv program that pinner depends on, with pinner's own cache.

    `indexes` and `links` (pages and folders of files) are the manifest's; the site's mirror, if set, takes the
    place of the first index, and the site's links the place of all others. Addresses go to uv through its
    environment, since they may hold credentials and argument lists are for all to read.
    """

    def __init__(
        self,
        home: Home,
        *,
        site: SiteIndex | None = None,
        indexes: Sequence[str] = (),
        links: Sequence[str] = (),
    ) -> None:
        from uv import find_uv_bin  # noqa: PLC0415  # searching for the binary is only worth it here

        self._program = find_uv_bin()
        self._site = site or SiteIndex()
        self._home = home
        self._indexes = tuple(indexes)
        self._links = self._site.find_links or tuple(links)
        self._pythons: Path | None = None

    def resolve(
        self,
        requirements: Sequence[Path],
        *,
        python: str,
        output: Path,
        options: ResolveOptions,
    ) -> None:
        """Resolve files of requirements, and pyproject.toml files, to a universal pylock at `output`.

        Versions that `output` already holds are kept unless `options.upgrade`. No package code
        runs: what would have to be built to be understood is an error.
        """
        argv = ["pip", "compile", *map(str, requirements), "--format", "pylock.toml", "--output-file", str(output)]
        argv += [
            "--universal",
            "--python-version",
            python,
            "--python",
            python,
            "--generate-hashes",
            "--no-header",
        ]
        argv += ["--no-build", "--no-annotate", "--quiet"]
        for extra in options.extras:
            argv += ["--extra", extra]
        if options.exclude_newer:
            argv += ["--exclude-newer", options.exclude_newer]
        if options.upgrade is True:
            argv.append("--upgrade")
        for name in options.upgrade if isinstance(options.upgrade, Sequence) else ():
            argv += ["--upgrade-package", name]
        for flag, lines in (("--overrides", options.overrides), ("--excludes", options.excludes)):
            if lines:
                path = output.parent / f"{flag[2:]}.txt"
                path.write_text("".join(f"{line}\n" for line in lines))
                argv += [flag, str(path)]
        self._run(argv, cwd=output.parent)

    def find_python(self, version: str) -> tuple[Path, str]:
        """An interpreter of a minor version and its full version, such as "3.11.7".

        One that this machine lacks is fetched into pinner's own directory. CommandFailed if that fails.
        """
        # No project and no environment that happens to lie around the caller may choose it.
        argv = ["python", "find", "--system", "--no-project", version]
        try:
            path = self._run(argv, cwd=Path("/")).strip()
        except CommandFailed:
            # uv only finds what is installed, and would install to the user's home.
            self._pythons = self._home.pythons
            self._run(["python", "install", "--no-bin", version], cwd=Path("/"), watch=_watch(current()))
            path = self._run(argv, cwd=Path("/")).strip()
        # Asking uv a second time would search a second time.
        ask = (path, "-I", "-S", "-c", "import platform; print(platform.python_version())")
        return Path(path), process.run(ask, env={"LANG": "C.UTF-8"}).stdout.decode().strip()

    def create_environment(self, path: Path, *, python: str) -> None:
        """A virtual environment at `path` that may be renamed afterwards."""
        self._run(["venv", "--python", python, "--relocatable", "--no-project", "--quiet", str(path)])

    def sync(self, environment: Path, requirements: Path, *, exclude_newer: str | None = None) -> None:
        """Make an environment hold exactly what a pylock or a file of hashed requirements names."""
        argv = ["pip", "sync", str(requirements), "--python", str(environment / "bin" / "python")]
        argv += ["--preview-features", "pylock"]
        argv += ["--allow-empty-requirements", "--index-strategy", "unsafe-best-match"]
        if exclude_newer:
            argv += ["--exclude-newer", exclude_newer]
        try:
            # With find-links uv asks the index for every package, also where the cache holds all that is pinned.
            self._run([*argv, "--offline"], cwd=requirements.parent)
        except CommandFailed:
            self._run(argv, cwd=requirements.parent, watch=_watch(current()))

    def build_wheel(
        self, project: Path, output: Path, *, python: str, exclude_newer: str | None, version: str
    ) -> Path:
        """Build a project's wheel into the directory `output`.

        `version` is what setuptools-scm projects are called, since the tree has no git history to ask.
        """
        argv = ["build", "--wheel", "--out-dir", str(output), "--python", python, "--quiet", str(project)]
        if exclude_newer:
            argv += ["--exclude-newer", exclude_newer]
        self._run(argv, cwd=output, more={"SETUPTOOLS_SCM_PRETEND_VERSION": version})
        wheels = sorted(output.glob("*.whl"))
        if len(wheels) != 1:
            raise OperationFailed(f"building {project.name} gave {len(wheels)} wheels, expected one")
        return wheels[0]

    def install_wheel(self, environment: Path, wheel: Path) -> None:
        """Add one wheel to an environment, without its dependencies."""
        argv = ["pip", "install", "--no-deps", "--no-index", "--quiet", "--python"]
        self._run([*argv, str(environment / "bin" / "python"), str(wheel)], cwd=wheel.parent)

    def forget_cache(self) -> None:
        """Empty pinner's own cache, so that everything is fetched and unpacked anew."""
        self._run(["cache", "clean"])

    def _run(
        self,
        argv: Sequence[str],
        *,
        cwd: Path | None = None,
        more: Mapping[str, str] | None = None,
        watch: process.Watch | None = None,
    ) -> str:
        command = (self._program, "--no-config", *argv)
        env = {**self._environment(), **(more or {})}
        if watch is None:
            env["UV_NO_PROGRESS"] = "1"
        else:
            env["TERM"] = "xterm"
        if watch is None:
            done = process.run(command, env=env, cwd=cwd, check=False)
        else:
            done = process.run_watched(command, env=env, cwd=cwd, watch=watch)
        if done.code != 0:
            said = _CONTROL.sub("", done.stderr.decode(errors="replace")).replace("\r", "")
            raise CommandFailed(("uv", *argv[:2]), done.code, self._without_credentials(said))
        return done.stdout.decode()

    def _environment(self) -> dict[str, str]:
        env = {name: os.environ[name] for name in TRANSPORT if name in os.environ}
        env["PATH"] = _path_without_own_environment()
        env["LANG"] = "C.UTF-8"
        env["UV_CACHE_DIR"] = str(self._home.downloads)
        # uv would make this directory in the user's home.
        env["UV_CREDENTIALS_DIR"] = str(self._home.downloads / "credentials")
        env["UV_NO_CONFIG"] = "1"
        if self._pythons is not None:
            env["UV_PYTHON_INSTALL_DIR"] = str(self._pythons)
        first = self._site.index_url or (self._indexes[0] if self._indexes else None)
        if first:
            env["UV_DEFAULT_INDEX"] = first
        if len(self._indexes) > 1:
            env["UV_INDEX"] = " ".join(self._indexes[1:])
        if self._links:
            env["UV_FIND_LINKS"] = ",".join(self._links)
        return env

    def _without_credentials(self, text: str) -> str:
        from urllib.parse import urlsplit  # noqa: PLC0415  # only on the way out of an error

        for address in (*self._indexes, *self._links, self._site.index_url or ""):
            parts = urlsplit(address)
            if "@" in parts.netloc:
                text = text.replace(parts.netloc.rpartition("@")[0] + "@", "")
        return text


def _watch(view: View) -> process.Watch | None:
    """Show uv's own bars, with bytes and rates, while it downloads; only on a terminal."""
    if view.columns is None:
        return None
    is_preparing = False

    def show(data: bytes) -> None:
        nonlocal is_preparing
        is_preparing = is_preparing or b"Preparing" in data
        if is_preparing:
            before, end, _ = data.partition(b"Prepared")
            view.raw(before)
            is_preparing = not end

    return process.Watch(show, view.columns)


def _path_without_own_environment() -> str:
    """The caller's PATH less pinner's own virtual environment, whose interpreter is not the engine's."""
    path = os.environ.get("PATH", os.defpath)
    if sys.prefix == sys.base_prefix:
        return path
    own = Path(sys.prefix, "bin")
    return os.pathsep.join(part for part in path.split(os.pathsep) if Path(part) != own)
