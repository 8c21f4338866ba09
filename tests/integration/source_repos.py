"""Real git repositories with fixed names and dates for the tests of sources."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

START = 1_760_000_000  # 2025-10-09T08:53:20Z

ENV = {
    "PATH": os.environ["PATH"],
    "HOME": "/nonexistent",
    "LANG": "C",
    "TZ": "UTC",
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "GIT_AUTHOR_NAME": "Ada",
    "GIT_AUTHOR_EMAIL": "ada@example.org",
    "GIT_COMMITTER_NAME": "Ada",
    "GIT_COMMITTER_EMAIL": "ada@example.org",
}


class Repo:
    """A repository at `path`; every commit is an hour after the one before."""

    def __init__(self, path: Path, *, bare: bool = False) -> None:
        self.path = path
        self.clock = START
        path.mkdir(parents=True, exist_ok=True)
        if not (path / ".git").exists() and not (path / "HEAD").exists():
            self.git("init", "-q", "-b", "main", *(["--bare"] if bare else []), ".")

    def git(self, *args: str, input: bytes | None = None, **env: str) -> str:
        date = f"{self.clock} +0200"
        done = subprocess.run(
            ["git", *args],
            cwd=self.path,
            env={**ENV, "GIT_AUTHOR_DATE": date, "GIT_COMMITTER_DATE": date, **env},
            input=input,
            capture_output=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr.decode()
        return done.stdout.decode().rstrip("\n")

    def write(self, name: str, data: str | bytes) -> Path:
        path = self.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data if isinstance(data, bytes) else data.encode())
        return path

    def commit(self, subject: str, **contents: str | bytes) -> str:
        """Commit what is there, after writing `contents` (`__` is a slash and `_dot_` a dot)."""
        for name, data in contents.items():
            self.write(name.replace("__", "/").replace("_dot_", "."), data)
        self.clock += 3600
        self.git("add", "-A")
        self.git("commit", "-q", "--allow-empty", "-m", subject)
        return self.head

    @property
    def head(self) -> str:
        return self.git("rev-parse", "HEAD")

    def clone(self, path: Path, *args: str) -> Repo:
        subprocess.run(
            ["git", "clone", "-q", *args, str(self.path), str(path)], env=ENV, check=True, capture_output=True
        )
        other = Repo(path)
        other.clock = self.clock
        return other

    def commit_tree(self, rows: list[tuple[str, str, bytes]], subject: str = "made by hand") -> str:
        """A commit of a tree made by hand: (mode, name, content or id), which git itself would not add."""
        lines = b""
        for mode, name, content in rows:
            kind = {"040000": "tree", "160000": "commit"}.get(mode, "blob")
            blob = content.decode() if kind != "blob" else self.git("hash-object", "-w", "--stdin", input=content)
            lines += f"{mode} {kind} {blob}\t{name}".encode() + b"\0"
        tree = self.git("mktree", "-z", input=lines)
        self.clock += 3600
        commit = self.git("commit-tree", tree, "-m", subject)
        self.git("update-ref", "refs/heads/main", commit)
        return commit
