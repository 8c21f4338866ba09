"""Where pinner keeps its state: $PINNER_HOME, by default the platform's directory for user data.

Owns the names below that directory. Everything but records/ can be deleted and comes back.
"""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from pinner.errors import UsageError


class Home(msgspec.Struct, frozen=True):
    """The state directory; the properties name what lies in it, without making it."""

    root: Path

    @property
    def mirrors(self) -> Path:
        """Bare git mirrors, one a repository."""
        return self.root / "mirrors"

    @property
    def workspaces(self) -> Path:
        """Built workspaces, each named by the digest of what went into it."""
        return self.root / "workspaces"

    @property
    def models(self) -> Path:
        """Views of repositories on the Hub: symlinks into its cache, one directory for each set of pins."""
        return self.root / "models"

    @property
    def runs(self) -> Path:
        """One directory for each launched server."""
        return self.root / "runs"

    @property
    def records(self) -> Path:
        """One directory for each record; the only thing here that cannot be rebuilt."""
        return self.root / "records"

    @property
    def reproductions(self) -> Path:
        """Deployments that were written anew from a record, to be measured again."""
        return self.root / "reproductions"

    @property
    def digests(self) -> Path:
        """The memory of file digests, an SQLite database that may be deleted at any time."""
        return self.root / "digests.sqlite"

    @property
    def downloads(self) -> Path:
        """uv's cache; pinner's own, so that a file edited elsewhere can never enter a workspace."""
        return self.root / "downloads"

    @property
    def pythons(self) -> Path:
        """Interpreters that this machine lacked; workspaces stand upon them."""
        return self.root / "pythons"

    @property
    def config(self) -> Path:
        """Settings of this site: index-url and find-links."""
        return self.root / "config.toml"

    @property
    def logs(self) -> Path:
        """Reports of bugs in pinner itself."""
        return self.root / "logs"


def home(environ: dict[str, str] | None = None) -> Home:
    """The state directory that $PINNER_HOME names, or the platform's default."""
    given = (os.environ if environ is None else environ).get("PINNER_HOME")
    if given:
        root = Path(os.path.expanduser(given))  # noqa: PTH111  # Path's raises where there is no such user
        if not root.is_absolute():
            raise UsageError(
                f"PINNER_HOME is {given!r}, which means another place in every directory",
                hint="make it an absolute path",
            )
        # By whatever links it is reached, it is one place.
        return Home(root.resolve())
    import platformdirs  # noqa: PLC0415  # only where the default is wanted

    root = platformdirs.user_data_path("pinner", appauthor=False)
    if not root.is_absolute():
        # A user without an entry in the password file and without HOME, as in some containers.
        raise UsageError("this user has no home directory", hint="set PINNER_HOME to an absolute path")
    return Home(root)
