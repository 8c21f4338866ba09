"""Owns `engine.bundle`: the engine's history, made from `engine/` and the patches in `history/`.

Run as `python make_bundle.py [OUT]`. Each patch is one commit: author, date, subject, an optional tag, a
body, and after a line `---` the diff. The commit that carries the tag has exactly the tree of `engine/`;
earlier states come from taking patches back, later ones from applying them. The commit ids depend on nothing
else: not on the user's git configuration, the time zone or the umask. Where a change of `engine/` makes a
patch fail, mend the patch by hand. Must not touch anything but OUT.
"""

from __future__ import annotations

import email.utils
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent


@dataclass(frozen=True)
class Patch:
    """One commit of the history."""

    author: str
    email: str
    date: str
    message: str
    tag: str | None
    diff: str

    @classmethod
    def read(cls, path: Path) -> Patch:
        head, _, diff = path.read_text(encoding="utf-8").partition("\n---\n")
        fields, _, body = head.partition("\n\n")
        header = dict(line.split(": ", 1) for line in fields.splitlines())
        author, address = email.utils.parseaddr(header["From"])
        message = header["Subject"] + "\n" + (f"\n{body.strip()}\n" if body.strip() else "")
        return cls(author, address, header["Date"], message, header.get("Tag"), diff)


class Repository:
    """A scratch repository that no configuration of the user reaches."""

    def __init__(self, root: Path) -> None:
        self.tree = root / "tree"
        self.tree.mkdir()
        kept = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")}
        self.environment = kept | {
            "GIT_CONFIG_GLOBAL": os.devnull,
            "GIT_CONFIG_SYSTEM": os.devnull,
            "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_ATTR_NOSYSTEM": "1",
            "GIT_CEILING_DIRECTORIES": str(root),
            "HOME": str(root),
            "XDG_CONFIG_HOME": str(root),
            "LC_ALL": "C",
            "TZ": "UTC",
        }
        self.git("init", "-q", "--template=", "--initial-branch=main", "--object-format=sha1")
        for setting in ("core.autocrlf=false", "core.fileMode=false", "gc.auto=0", "pack.threads=1"):
            self.git("config", *setting.split("="))

    def git(self, *arguments: str, text: str | None = None, **extra: str) -> str:
        done = subprocess.run(
            ["git", *arguments],
            cwd=self.tree,
            env=self.environment | extra,
            input=text,
            capture_output=True,
            encoding="utf-8",
            check=False,
        )
        if done.returncode:
            raise RuntimeError(f"git {' '.join(arguments)}: {done.stderr.strip()}")
        return done.stdout.strip()

    def apply(self, patch: Patch, *options: str) -> None:
        if patch.diff.strip():
            self.git("apply", "--whitespace=nowarn", *options, "-", text=patch.diff)

    def commit(self, patch: Patch) -> str:
        self.git("add", "--all", "--force")
        who = {}
        for role in ("AUTHOR", "COMMITTER"):
            who |= {f"GIT_{role}_NAME": patch.author, f"GIT_{role}_EMAIL": patch.email}
            who[f"GIT_{role}_DATE"] = patch.date
        self.git("commit", "-q", "--no-verify", "--no-gpg-sign", "--cleanup=verbatim", "-F", "-",
                 text=patch.message, **who)  # fmt: skip
        if patch.tag:
            self.git("tag", "--no-sign", patch.tag)
        return self.git("rev-parse", "HEAD")


def make(out: Path) -> list[tuple[str, Patch]]:
    """Write the bundle to `out`; the commits, oldest first."""
    patches = [Patch.read(path) for path in sorted((HERE / "history").glob("*.patch"))]
    tagged = [n for n, patch in enumerate(patches) if patch.tag]
    if len(tagged) != 1:
        raise ValueError(f"one patch must carry the tag, {len(tagged)} do")
    with tempfile.TemporaryDirectory() as scratch:
        repository = Repository(Path(scratch).resolve())
        ignored = shutil.ignore_patterns("__pycache__", "*.pyc", "*.egg-info", ".*_cache", "dist", "build")
        shutil.copytree(HERE / "engine", repository.tree, ignore=ignored, dirs_exist_ok=True)
        for patch in reversed(patches[1 : tagged[0] + 1]):
            repository.apply(patch, "--reverse")
        commits = []
        for number, patch in enumerate(patches):
            if number:
                repository.apply(patch)
            commits.append((repository.commit(patch), patch))
        tags = [f"refs/tags/{patch.tag}" for patch in patches if patch.tag]
        # One thread and no reuse: the same git program writes the same bytes.
        repository.git("repack", "-q", "-a", "-d", "-f")
        made = Path(scratch) / "engine.bundle"
        repository.git("bundle", "create", "-q", "--version=2", str(made), "HEAD", "refs/heads/main", *tags)
        shutil.copyfile(made, out)
    return commits


def main(arguments: list[str]) -> None:
    out = Path(arguments[0]) if arguments else HERE / "engine.bundle"
    for commit, patch in make(out):
        print(commit[:12], patch.message.splitlines()[0], f"({patch.tag})" if patch.tag else "")


if __name__ == "__main__":
    main(sys.argv[1:])
