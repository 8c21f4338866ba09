"""The git program, run so that neither the caller nor a hostile repository can steer it.

Owns git's environment, the options every call carries, which addresses may be fetched from, and reading a
reflog through GitPython. Must not know what mirrors, exports or checkouts are for.

Nothing that a repository brings may run: hooks, filters, fsmonitor, external diffs, signature programs,
remote helpers and lazy fetches are all off, whatever its configuration says.
"""

from __future__ import annotations

import functools
import os
import re
import shutil
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from pinner.errors import CommandFailed, ManifestError, OperationFailed
from pinner.host import process
from pinner.host.process import Completed
from pinner.host.progress import GitMeter

FULL_ID = re.compile(r"[0-9a-f]{40}\Z")

# A directory that does not exist: git finds no configuration, attributes or ignore rules of the user there.
_NOWHERE = "/nonexistent"

# Reading never needs the network; a partial clone would otherwise fetch what it misses by itself.
_NO_TRANSPORT = {"GIT_ALLOW_PROTOCOL": "none", "GIT_NO_LAZY_FETCH": "1"}
_TRANSPORT = {
    "GIT_ALLOW_PROTOCOL": "https:ssh:file",
    # Without a person to answer, a question about a passphrase or host key would hang for ever.
    "GIT_SSH_COMMAND": "ssh -oBatchMode=yes",
}
# What reaching a remote through this site's network may need. None of it changes what is fetched.
_TRANSPORT_FROM_CALLER = (
    "HOME",  # ~/.netrc for https; ssh looks up the user's home by itself
    "SSH_AUTH_SOCK",
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
    "GIT_SSL_CAINFO",
    *(name for proxy in ("http", "https", "all", "no") for name in (f"{proxy}_proxy", f"{proxy}_proxy".upper())),
)

_OPTIONS = (
    "core.fsmonitor=false",
    "core.hooksPath=/dev/null",
    "core.untrackedCache=false",
    "core.attributesFile=/dev/null",
    "core.excludesFile=/dev/null",
    "core.autocrlf=false",
    "core.safecrlf=false",
    "core.symlinks=true",
    "core.fileMode=true",
    "core.protectHFS=true",
    "core.protectNTFS=true",
    "core.quotePath=false",
    "core.logAllRefUpdates=false",
    "credential.helper=",
    "fetch.recurseSubmodules=false",
    "submodule.recurse=false",
    "gc.auto=0",
    "maintenance.auto=false",
    "http.lowSpeedLimit=1000",
    "http.lowSpeedTime=60",
    "log.showSignature=false",
    "protocol.ext.allow=never",
    "transfer.fsckObjects=true",
    # Old histories hold such commits and tags; they cannot harm, and real projects have them.
    *(
        f"fetch.fsck.{kind}=ignore"
        for kind in (
            "badDate",
            "badDateOverflow",
            "badEmail",
            "badName",
            "badTimezone",
            "missingEmail",
            "missingNameBeforeEmail",
            "missingSpaceBeforeDate",
            "missingSpaceBeforeEmail",
            "missingTaggerEntry",
            "zeroPaddedDate",
            "zeroPaddedFilemode",
        )
    ),
)


def environment(*, transport: bool = False) -> dict[str, str]:
    """Git's whole environment, built from nothing."""
    caller = os.environ
    env = {
        "PATH": search_path(),
        "HOME": _NOWHERE,
        "LANG": "C",
        "LC_ALL": "C",
        "TZ": "UTC",
        "GIT_ATTR_NOSYSTEM": "1",
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_GRAFT_FILE": f"{_NOWHERE}/grafts",
        "GIT_NO_REPLACE_OBJECTS": "1",
        "GIT_OPTIONAL_LOCKS": "0",
        "GIT_PAGER": "cat",
        "GIT_TERMINAL_PROMPT": "0",
        **(_TRANSPORT if transport else _NO_TRANSPORT),
    }
    if transport:
        env |= {name: caller[name] for name in _TRANSPORT_FROM_CALLER if name in caller}
    # git's own test hook: it can only make git stricter.
    if "GIT_TEST_ASSUME_DIFFERENT_OWNER" in caller:
        env["GIT_TEST_ASSUME_DIFFERENT_OWNER"] = caller["GIT_TEST_ASSUME_DIFFERENT_OWNER"]
    return env


def search_path() -> str:
    """The caller's PATH without relative entries, which would name programs of the directory looked at."""
    entries = os.environ.get("PATH", os.defpath).split(os.pathsep)
    return os.pathsep.join(entry for entry in entries if entry.startswith("/")) or os.defpath


@functools.cache
def _program(path: str) -> str:
    found = shutil.which("git", path=path)
    if found is None:
        raise OperationFailed("the program git was not found", hint="install git 2.39 or newer")
    return found


class Git(msgspec.Struct, frozen=True):
    """The git program at one place: `place` are the options that name it."""

    place: tuple[str, ...]

    @staticmethod
    def bare(git_dir: Path) -> Git:
        """A repository of pinner's own, named outright, so that git asks nobody who owns it."""
        return Git(("--git-dir", str(git_dir)))

    @staticmethod
    def checkout(directory: Path, safe_directories: tuple[str, ...] = ()) -> Git:
        """A checkout that git finds and whose ownership it checks; the values are the user's own."""
        safe = [part for value in safe_directories for part in ("-c", f"safe.directory={value}")]
        return Git((*safe, "-C", str(directory)))

    def run(
        self,
        *args: str,
        input: bytes | None = None,  # the name that process.run and subprocess use
        env: Mapping[str, str] | None = None,
        check: bool = True,
        transport: bool = False,
        umask: int | None = None,
        watch: process.Watch | None = None,
    ) -> Completed:
        """Run git with `args`; `env` adds to the clean environment.

        Raises CommandFailed if it fails and `check` is set, OperationFailed if there is no git.
        """
        whole = environment(transport=transport) | dict(env or {})
        options = [part for option in _OPTIONS for part in ("-c", option)]
        argv = [_program(whole["PATH"]), "--no-pager", *options, *self.place, *args]
        if umask is not None:
            # The shell only sets the umask, which is a property of the whole process, and becomes git.
            argv = ["/bin/sh", "-c", f'umask {umask:03o}; exec "$@"', "sh", *argv]
        if watch is None:
            completed = process.run(argv, env=whole, input=input, check=False)
        else:
            completed = process.run_watched(argv, env=whole, input=input, watch=watch)
        if check and completed.code != 0:
            raise CommandFailed(("git", *args), completed.code, error_text(completed))
        return completed

    def text(self, *args: str) -> str:
        """The output of a command that must succeed, without the last line's end."""
        return os.fsdecode(self.run(*args).stdout).removesuffix("\n")


def error_text(completed: Completed) -> str:
    """What git said on stderr, without user info in addresses."""
    said = GitMeter.without_progress(completed.stderr.decode("utf-8", "replace"))
    return process.redact(said, {})


def address(url: str, directory: Path, *, key: str = "engine.source.git") -> str:
    """The address to fetch from: https, ssh, file or a local path or bundle, relative ones from `directory`.

    Raises ManifestError naming `key` for everything else, above all what git would run or take as an option.
    """

    def refuse(why: str) -> ManifestError:
        return ManifestError(f"{key}: {without_password(url)!r} {why}")

    if url.startswith("-") or any(ord(character) < 32 for character in url):
        raise refuse("is not the address of a repository")
    if re.match(r"[A-Za-z0-9+.-]*::", url):
        raise refuse("names a remote helper; only https, ssh, file and local paths are allowed")
    if "://" in url:
        parts = urlsplit(url)
        if parts.scheme not in ("https", "ssh", "file"):
            raise refuse(f"uses {parts.scheme!r}; only https, ssh, file and local paths are allowed")
        if parts.password is not None or (parts.scheme == "https" and parts.username is not None):
            raise ManifestError(
                f"{key}: {without_password(url)!r} holds a credential, which would reach the lock",
                hint="write the address without it, and the credential into ~/.netrc",
            )
        if parts.scheme != "file" and re.match(r"[A-Za-z0-9\[]", parts.hostname or "") is None:
            raise refuse("has no usable host name")
        return url
    colon, slash = url.find(":"), url.find("/")
    if colon > 0 and (slash == -1 or colon < slash):
        if re.match(r"([A-Za-z0-9_][A-Za-z0-9_.-]*@)?[A-Za-z0-9][A-Za-z0-9.-]*:[^-:]", url) is None:
            raise refuse("is neither user@host:path nor a local path (write ./ before a path with a colon)")
        return url
    return str(Path(os.path.normpath(directory.absolute() / url)))


def is_local(url: str) -> bool:
    """Whether an address as `address` returns it is a path of this machine."""
    return url.startswith("/")


def without_password(url: str) -> str:
    """The address as it may be shown."""
    return re.sub(r"(://)[^/@]*@", r"\1", url)


class Move(msgspec.Struct, frozen=True):
    """One reflog entry: `who` took HEAD from `old` to `new` by `action`, `when` (ISO 8601 with offset)."""

    old: str
    new: str
    who: str
    when: str
    action: str


def reflog(path: Path) -> tuple[Move, ...]:
    """The entries of a reflog file, oldest first. Raises OSError; a line that is no entry is left out."""
    data = path.read_bytes()
    if not data:
        return ()
    from git.refs.log import RefLogEntry  # noqa: PLC0415  # costs 240 ms, and only drift needs it

    moves = []
    for line in data.splitlines():
        try:
            entry = RefLogEntry.from_line(line.decode("utf-8", "replace").encode())
        except (ValueError, IndexError):
            continue
        seconds, west = entry.time
        zone = timezone(timedelta(seconds=-west))
        moves.append(
            Move(
                old=entry.oldhexsha,
                new=entry.newhexsha,
                who=printable(f"{entry.actor.name or ''} <{entry.actor.email or ''}>".strip()),
                when=iso_time(seconds, zone),
                action=printable(process.redact(entry.message or "an unnamed action", {})),
            )
        )
    return tuple(moves)


def printable(text: str) -> str:
    """Text of a repository for a person's terminal, which it must not steer."""
    return re.sub(r"[\x00-\x1f\x7f-\x9f]", "\N{REPLACEMENT CHARACTER}", text)


def iso_time(seconds: float, zone: timezone | None = None) -> str:
    """A moment in ISO 8601 to the second, with its offset."""
    return datetime.fromtimestamp(int(seconds), zone or UTC).isoformat()
