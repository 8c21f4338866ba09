"""Bare mirrors of repositories, one for each address, shared by all deployments.

Owns what lies below $PINNER_HOME/mirrors: making a mirror, bringing it up to date, finding the commit that a
wish means, and having the contents of what is pinned, so that later work needs no network.

A mirror holds all branches and tags with the history of commits and trees. File contents come along only
where the remote cannot leave them out; those of pinned commits are fetched. Nothing is ever collected from a
mirror: a commit that its remote has dropped stays.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec

from pinner.errors import ManifestError, OperationFailed
from pinner.host import export, fetch, files, git, history
from pinner.host.export import ExportedTree, Patch
from pinner.host.git import FULL_ID, Git
from pinner.host.history import CommitInfo
from pinner.host.process import Completed
from pinner.model.manifest import is_safe_revision

_BRANCHES_AND_TAGS = ("+refs/heads/*:refs/heads/*", "+refs/tags/*:refs/tags/*")
# Commits that were asked for by id; the reference keeps them from a `git gc` run by hand.
_KEPT = "refs/pinned"

# Files leave the repository as the bytes that were committed, whatever its own .gitattributes say:
# no line-end conversion, no $Id$, no filter programs, no re-encoding.
_ATTRIBUTES = "* -text !eol -ident -filter !working-tree-encoding -export-subst -export-ignore\n"


class Resolved(msgspec.Struct, frozen=True):
    """The commit that a wish means. `refs` are branches and tags that hold it; `note` warns if none does."""

    commit: str
    tree: str
    refs: tuple[str, ...]
    note: str = ""


class Mirror(msgspec.Struct, frozen=True):
    """A mirror that exists: `path` is the bare repository, `url` what it mirrors."""

    path: Path
    url: str

    @property
    def git(self) -> Git:
        return Git.bare(self.path)

    def update(self, say: Callable[[str], None] = lambda _line: None) -> None:
        """Fetch all branches and tags. Raises OperationFailed if the remote cannot be reached."""
        say(f"fetching {git.without_password(self.url)}")
        with self._held():
            self._fetch("--prune", *_BRANCHES_AND_TAGS)

    def resolve(
        self, wish: str, *, say: Callable[[str], None] = lambda _line: None, is_new: bool = False
    ) -> Resolved:
        """The commit that a branch, a tag, a full reference name or a short or full commit id means now.

        Asks the remote, except for a full id that is here already; `is_new` says that the mirror has just been
        made, so that its branches and tags are the remote's. Raises ManifestError if the wish is
        nothing or more than one thing, OperationFailed for a commit that the remote no longer offers.
        """
        if not is_safe_revision(wish):
            raise ManifestError(f"{wish!r} is not a branch, tag or commit id")
        if FULL_ID.match(wish):
            return self._resolved(self._have(wish, say, is_new=is_new))
        if not is_new:
            self.update(say)
        if wish.startswith("refs/"):
            return self._resolved(self._named(wish))
        return self._resolved(self._found(wish))

    def holds(self, commit: str) -> bool:
        """Whether the commit and its tree are here; asks nobody."""
        return history.peel(self.git, commit) is not None

    def make_present(self, commit: str, *, say: Callable[[str], None] = lambda _line: None) -> None:
        """Have the contents of every file of a commit here, fetching only what is missing.

        Raises OperationFailed if the remote offers the commit or a file of it no longer.
        """
        self._have(commit, say)
        missing = self._missing_blobs(commit)
        if not missing:
            return
        files_word = "file" if len(missing) == 1 else "files"
        say(f"fetching {len(missing)} {files_word} of {commit[: history.SHORT]}")
        with self._held():
            self._fetch("--filter=blob:none", "--stdin", input="".join(f"{blob}\n" for blob in missing).encode())
        if missing := self._missing_blobs(commit):
            raise OperationFailed(
                f"{git.without_password(self.url)} did not give {len(missing)} of the files of commit {commit}"
            )

    def tree_entries(self, tree: str) -> dict[str, str]:
        """Every file of a commit or tree: path to "<mode> <blob id>"."""
        return history.tree_entries(self.git, tree)

    def log(self, old: str, new: str) -> tuple[CommitInfo, ...]:
        """The commits of `new` that `old` does not have, newest first; swap them for those that went away."""
        return history.log(self.git, old, new)

    def commit_info(self, commit: str) -> CommitInfo:
        """One commit of the mirror."""
        return history.commit_info(self.git, commit)

    def patched_tree(self, commit: str, patches: Sequence[Patch]) -> str:
        """The tree that results from a commit and patches; see `export.patched_tree`."""
        return export.patched_tree(self.git, commit, patches)

    def export(self, commit: str, destination: Path, patches: Sequence[Patch] = ()) -> ExportedTree:
        """The files of a commit, patched, in a fresh directory; see `export.export`."""
        return export.export(self.git, commit, destination, patches)

    @contextlib.contextmanager
    def _held(self) -> Iterator[None]:
        with files.exclusive(_lock_file(self.path), what=f"fetching {git.without_password(self.url)}"):
            fetch.remove_leftovers(self.path)
            yield

    def _fetch(self, *args: str, input: bytes | None = None) -> None:
        completed = self._try_fetch(*args, input=input)
        if completed.code != 0:
            raise fetch.error(self.url, completed)

    def _try_fetch(self, *args: str, input: bytes | None = None) -> Completed:
        fetch.refuse_shallow(self.url)
        completed = fetch.into(self.path, *args, input=input)
        fetch.refuse_shallow(self.url, completed)
        return completed

    def _have(self, wanted: str, say: Callable[[str], None], *, is_new: bool = False) -> str:
        """A full id that is here, fetched if need be: by branches and tags, by its id, by any reference."""
        if self.holds(wanted):
            return wanted
        self._refuse_other_objects(wanted)
        if not is_new:
            self.update(say)
        if self.holds(wanted):
            return wanted
        say(f"asking {git.without_password(self.url)} for {wanted}: no branch or tag holds it")
        with self._held():
            refused = self._try_fetch(f"+{wanted}:{_KEPT}/{wanted}")
            if refused.code != 0:
                # Some servers give only what a reference names; a pull request's head may still be one.
                for name in self._remote_names(wanted):
                    if self._try_fetch(f"+{name}:{_KEPT}/{wanted}").code == 0:
                        break
        if self.holds(wanted):
            return wanted
        self._refuse_other_objects(wanted)
        reason = re.search(r".*(not our ref|unadvertised object|remote ref).*", git.error_text(refused))
        raise OperationFailed(
            f"{git.without_password(self.url)} does not offer commit {wanted}"
            + (f" ({reason[0].strip()})" if reason else ""),
            hint="it may have been force-pushed away and collected; no other commit is taken in its place",
        )

    def _remote_names(self, wanted: str) -> list[str]:
        listed = self.git.run("ls-remote", "origin", check=False, transport=True)
        if listed.code != 0:
            raise fetch.error(self.url, listed)
        rows = [line.split("\t") for line in listed.stdout.decode("utf-8", "replace").splitlines()]
        return [row[1] for row in rows if row[0] == wanted and not row[1].endswith("^{}") and row[1] != "HEAD"]

    def _refuse_other_objects(self, wanted: str) -> None:
        kind = history.kind(self.git, wanted)
        if kind in ("tree", "blob"):
            raise ManifestError(f"{wanted} is a {kind}, not a commit")

    def _named(self, reference: str) -> str:
        if not reference.startswith(("refs/heads/", "refs/tags/")):
            with self._held():
                self._fetch(f"+{reference}:{_KEPT}/{reference.removeprefix('refs/')}")
            reference = f"{_KEPT}/{reference.removeprefix('refs/')}"
        if history.peel(self.git, reference) is None:
            raise ManifestError(f"{git.without_password(self.url)} has no {reference} that leads to a commit")
        return reference

    def _found(self, wish: str) -> str:
        """The one full name or id that a branch, tag or short id means."""
        names = [name for name in (f"refs/heads/{wish}", f"refs/tags/{wish}") if self.holds(name)]
        ids = history.commits_beginning(self.git, wish)
        url = git.without_password(self.url)
        if len(names) + bool(ids) > 1 and len({history.peel(self.git, name) for name in (*names, *ids)}) > 1:
            kinds = [
                name.removeprefix("refs/").replace("heads/", "branch ").replace("tags/", "tag ") for name in names
            ]
            kinds += [f"commit {commit}" for commit in ids]
            raise ManifestError(
                f"{wish!r} is more than one thing in {url}: {', '.join(kinds)}",
                hint=f"write {' or '.join(names)}" if len(names) > 1 else "write the full name or id",
            )
        if names:
            return names[0]
        if not ids:
            raise ManifestError(
                f"{url} has no branch, tag or commit {wish!r}",
                hint="a commit that no branch or tag holds is only found by its full id",
            )
        if len(ids) > 1:
            lines = "".join(f"\n  {self.commit_info(commit).line} ({commit})" for commit in ids)
            raise ManifestError(f"{wish!r} is the beginning of {len(ids)} commits of {url}:{lines}")
        return ids[0]

    def _resolved(self, name: str) -> Resolved:
        found = history.peel(self.git, name)
        if found is None:
            raise OperationFailed(f"the mirror {self.path} lost {name}", hint="remove it; it comes back")
        commit, tree = found
        holders = self.git.text(
            "for-each-ref", f"--contains={commit}", "--format=%(refname)", "refs/heads", "refs/tags"
        )
        refs = tuple(holders.splitlines())
        note = ""
        if not refs:
            note = (
                f"no branch or tag of {git.without_password(self.url)} holds {commit}: the remote may drop it "
                "at any time; only pinner's mirror on this machine keeps it"
            )
        return Resolved(commit, tree, refs, note)

    def _missing_blobs(self, commit: str) -> list[str]:
        """Ids of files that a partial mirror leaves to the remote. A whole one has all that it refers to."""
        if "promisor" not in (self.path / "config").read_text():
            return []
        listed = self.git.run("rev-list", "--objects", "--no-walk", "--missing=print", commit).stdout
        return [line[1:] for line in listed.decode("utf-8", "replace").splitlines() if line.startswith("?")]


def ensure(mirrors: Path, url: str, say: Callable[[str], None] = lambda _line: None) -> Mirror:
    """The mirror of an address as `git.address` returned it, made if it is not there yet.

    Built beside and renamed when whole: a killed call leaves no mirror. Raises OperationFailed if the
    remote cannot be fetched or holds objects that git refuses.
    """
    mirror = Mirror(mirrors / _key(url), url)
    if mirror.path.is_dir():
        return mirror
    with files.exclusive(_lock_file(mirror.path), what=f"fetching {git.without_password(url)}"):
        if mirror.path.is_dir():
            return mirror
        for left in mirrors.glob(f".{mirror.path.name}.*"):
            fetch.remove(left)
        # A name of its own: a git that outlived a killed pinner may still write into the old one.
        import secrets  # noqa: PLC0415  # `check` makes no mirror

        staged = mirrors / f".{mirror.path.name}.{secrets.token_hex(4)}"
        say(f"fetching {git.without_password(url)}")
        try:
            _initialize(staged, url)
            # Git's own local transport never leaves contents out, and says so on every call.
            options = () if git.is_local(url) else ("--filter=blob:none",)
            fetch.refuse_shallow(url)
            completed = fetch.into(staged, *options, *_BRANCHES_AND_TAGS)
            fetch.refuse_shallow(url, completed)
            if completed.code != 0:
                raise fetch.error(url, completed)
            staged.rename(mirror.path)
            files.sync_directory(mirrors)
        finally:
            fetch.remove(staged)
    return mirror


def existing(mirrors: Path, url: str) -> Mirror | None:
    """The mirror of an address if it is here; asks nobody."""
    mirror = Mirror(mirrors / _key(url), url)
    return mirror if mirror.path.is_dir() else None


def _key(url: str) -> str:
    """The directory's name: the digest of the address, in which case of scheme and host mean nothing."""
    head, separator, rest = url.partition("://")
    if separator:
        host, slash, path = rest.partition("/")
        url = f"{head.lower()}://{host.lower()}{slash}{path}"
    return hashlib.sha256(url.rstrip("/").encode("utf-8", "surrogateescape")).hexdigest()[:16]


def _lock_file(path: Path) -> Path:
    return path.with_name(f"{path.name}.lock")


def _initialize(path: Path, url: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    # The empty template brings no hooks.
    Git(()).run("init", "--quiet", "--bare", "--template=", "--initial-branch=main", str(path))
    Git.bare(path).run("config", "remote.origin.url", url)
    (path / "info").mkdir(exist_ok=True)
    (path / "info" / "attributes").write_text(_ATTRIBUTES)
