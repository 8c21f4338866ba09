"""A Hub on a loopback port: what huggingface_hub asks of the real one, with real headers and redirects.

Large files (LFS) are redirected to another origin with a signed address, as the Hub does; `asked` holds every
request.
"""

from __future__ import annotations

import hashlib
import http.server
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit

SIGNATURE = "X-Amz-Signature=veryverysecret"
LFS = (".safetensors", ".bin", "tokenizer.json")


class Asked(NamedTuple):
    """One request."""

    method: str
    path: str
    range: str | None
    token: str | None


class FakeHub:
    """Repositories as mappings of commit to files, and how the server misbehaves."""

    def __init__(self) -> None:
        self.commits: dict[str, dict[str, dict[str, bytes]]] = {}
        self.refs: dict[str, dict[str, str]] = {}
        self.gone: set[str] = set()
        self.called: dict[str, str] = {}
        self.gated: set[str] = set()
        self.asked: list[Asked] = []
        self.status: int | None = None
        self.ignores_ranges = False
        # Bytes after which the connection breaks, once for each file; `held` files stop there until `release`.
        self.cut: dict[str, int] = {}
        self.held: dict[str, int] = {}
        self.is_holding = threading.Event()
        self.release = threading.Event()
        self.is_down = False
        self.port = 0

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def push(self, repo: str, files: dict[str, bytes | str], ref: str = "main") -> str:
        """Put files under a branch or tag; returns the commit."""
        data = {path: text.encode() if isinstance(text, str) else text for path, text in files.items()}
        text = json.dumps([repo, [(path, hashlib.sha256(one).hexdigest()) for path, one in sorted(data.items())]])
        commit = hashlib.sha1(text.encode()).hexdigest()
        self.commits.setdefault(repo, {})[commit] = data
        self.refs.setdefault(repo, {})[ref] = commit
        return commit

    def commit(self, repo: str, revision: str) -> str | None:
        found = self.refs[repo].get(revision, revision)
        return found if found in self.commits[repo] and found not in self.gone else None

    def fetched(self) -> list[str]:
        """The files whose bodies were asked for, each time."""
        names = {
            hashlib.sha256(data).hexdigest(): path
            for commits in self.commits.values()
            for files in commits.values()
            for path, data in files.items()
        }
        found = []
        for one in self.asked:
            if one.method == "GET" and "/cdn/" in one.path:
                found.append(names[urlsplit(one.path).path.rpartition("/")[2]])
            elif one.method == "GET" and "/resolve/" in one.path and not one.path.endswith(LFS):
                found.append(one.path.split("/resolve/")[1].partition("/")[2])
        return found


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: FakeHub

    def do_GET(self) -> None:
        self.hub.asked.append(
            Asked(self.command, self.path, self.headers["Range"], self.headers.get("Authorization"))
        )
        path = unquote(urlsplit(self.path).path)
        if self.hub.is_down:
            self.close_connection = True
        elif self.hub.status is not None:
            self.answer(self.hub.status, {}, b'{"error": "in trouble"}')
        elif found := re.fullmatch(r"/api/models/(.+?)/revision/(.+)", path):
            self.info(*found.groups())
        elif found := re.fullmatch(r"/cdn/([0-9a-f]{64})", path):
            self.large(found[1])
        elif found := re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path):
            self.resolve(*found.groups())
        else:
            self.answer(404, {}, b"")

    do_HEAD = do_GET

    def refused(self, repo: str, revision: str, *, is_file: bool = False) -> bool:
        hub = self.hub
        if repo not in hub.commits:
            self.answer(401, {"X-Error-Code": "RepoNotFound", "X-Error-Message": "Repository not found"}, b"")
        elif is_file and repo in hub.gated and self.headers.get("Authorization") != "Bearer hf_good":
            # The Hub's own words may repeat anything.
            message = f"Access to {repo} is restricted, {self.headers.get('Authorization')}"
            self.answer(403, {"X-Error-Code": "GatedRepo", "X-Error-Message": message}, b"")
        elif hub.commit(repo, revision) is None:
            self.answer(404, {"X-Error-Code": "RevisionNotFound", "X-Error-Message": "Invalid rev id"}, b"")
        else:
            return False
        return True

    def info(self, repo: str, revision: str) -> None:
        if self.refused(repo, revision):
            return
        commit = self.hub.commit(repo, revision) or ""
        siblings: list[dict[str, Any]] = []
        for path, data in self.hub.commits[repo][commit].items():
            one: dict[str, Any] = {"rfilename": path, "size": len(data), "blobId": blob_id(data)}
            if path.endswith(LFS):
                sha256 = hashlib.sha256(data).hexdigest()
                one["lfs"] = {"sha256": sha256, "size": len(data), "pointerSize": 130}
            siblings.append(one)
        body = {
            "id": self.hub.called.get(repo, repo),
            "modelId": repo,
            "sha": commit,
            "private": False,
            "siblings": siblings,
        }
        self.answer(200, {"Content-Type": "application/json"}, json.dumps(body).encode())

    def resolve(self, repo: str, revision: str, path: str) -> None:
        if self.refused(repo, revision, is_file=True):
            return
        commit = self.hub.commit(repo, revision) or ""
        data = self.hub.commits[repo][commit].get(path)
        if data is None:
            self.answer(404, {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": commit}, b"")
            return
        headers = {"X-Repo-Commit": commit, "Accept-Ranges": "bytes"}
        if path.endswith(LFS):
            sha256 = hashlib.sha256(data).hexdigest()
            # Another origin, as a content network is: no token may go there.
            headers["Location"] = f"http://localhost:{self.hub.port}/cdn/{sha256}?{SIGNATURE}"
            headers |= {"X-Linked-Etag": f'"{sha256}"', "X-Linked-Size": str(len(data))}
            self.answer(302, headers, b"")
        else:
            headers["ETag"] = f'"{blob_id(data)}"'
            self.ranged(path, data, headers)

    def large(self, sha256: str) -> None:
        for commits in self.hub.commits.values():
            for files in commits.values():
                for path, data in files.items():
                    if hashlib.sha256(data).hexdigest() == sha256:
                        self.ranged(path, data, {"ETag": f'"{sha256}"'})
                        return
        self.answer(404, {}, b"")

    def ranged(self, path: str, data: bytes, headers: dict[str, str]) -> None:
        found = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range") or "")
        if found is None or self.hub.ignores_ranges:
            self.answer(200, headers, data, path)
            return
        start, stop = int(found[1]), int(found[2] or len(data) - 1) + 1
        part = data[start:stop]
        headers["Content-Range"] = f"bytes {start}-{start + len(part) - 1}/{len(data)}"
        self.answer(206, headers, part, path)

    def answer(self, status: int, headers: dict[str, str], body: bytes, path: str = "") -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "HEAD":
            return
        if path in self.hub.held:
            self.wfile.write(body[: self.hub.held[path]])
            self.wfile.flush()
            self.hub.is_holding.set()
            self.hub.release.wait(60)
            self.close_connection = True
        elif path in self.hub.cut and len(body) > self.hub.cut[path]:
            self.wfile.write(body[: self.hub.cut.pop(path)])
            self.wfile.flush()
            self.close_connection = True
        else:
            self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass

    def handle(self) -> None:
        try:
            super().handle()
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True


def blob_id(data: bytes) -> str:
    """What git calls a file of these bytes."""
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


@contextmanager
def served(hub: FakeHub) -> Iterator[FakeHub]:
    """Serve until the end of the block."""
    handler = type("Handler", (_Handler,), {"hub": hub})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    hub.port = server.server_port
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield hub
    finally:
        hub.is_down = True
        hub.release.set()
        server.shutdown()
        thread.join()
        server.server_close()
