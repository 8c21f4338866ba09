"""A package index on a loopback port, and wheels made by hand to put in it."""

from __future__ import annotations

import base64
import hashlib
import http.server
import threading
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path


def make_wheel(
    directory: Path, name: str, version: str, files: dict[str, str], requires: Sequence[str] = ()
) -> Path:
    """A pure wheel with a true RECORD; the same bytes every time."""
    info = f"{name}-{version}.dist-info"
    needs = "".join(f"Requires-Dist: {one}\n" for one in requires)
    content = {
        **files,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{needs}",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = [f"{path},{_hash(text)},{len(text.encode())}" for path, text in content.items()]
    content[f"{info}/RECORD"] = "\n".join([*record, f"{info}/RECORD,,"]) + "\n"
    directory.mkdir(parents=True, exist_ok=True)
    wheel = directory / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for path, text in content.items():
            archive.writestr(zipfile.ZipInfo(path, (2026, 1, 1, 0, 0, 0)), text)
    return wheel


def _hash(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return f"sha256={base64.urlsafe_b64encode(digest).rstrip(b'=').decode()}"


class _Simple(http.server.BaseHTTPRequestHandler):
    """The simple API: /simple/NAME/ lists the wheels of a name, /files/FILE gives one."""

    def __init__(self, wheels: Path, asked: list[str], *args: object) -> None:
        self.wheels, self.asked = wheels, asked
        super().__init__(*args)  # type: ignore[arg-type]

    def do_GET(self) -> None:
        self.asked.append(self.path)
        parts = self.path.strip("/").split("/")
        if len(parts) == 2 and parts[0] == "simple":
            found = sorted(self.wheels.glob(f"{parts[1].replace('-', '_')}-*.whl"))
            rows = "".join(self.row(wheel) for wheel in found)
            self.reply(200 if found else 404, "text/html", f"<html><body>{rows}</body></html>".encode())
        elif len(parts) == 2 and (self.wheels / parts[1]).is_file():
            self.reply(200, "application/octet-stream", (self.wheels / parts[1]).read_bytes())
        else:
            self.reply(404, "text/plain", b"")

    do_HEAD = do_GET

    @staticmethod
    def row(wheel: Path) -> str:
        digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
        return f'<a href="/files/{wheel.name}#sha256={digest}">{wheel.name}</a>\n'

    def reply(self, status: int, kind: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def index(wheels: Path) -> Iterator[tuple[str, list[str]]]:
    """Serve a directory of wheels; gives the index's address and the list of paths asked for."""
    asked: list[str] = []
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), partial(_Simple, wheels, asked))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/simple", asked
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
