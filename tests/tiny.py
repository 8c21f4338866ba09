"""A deployment that fits in a test: a stub engine in a real git repository, weights of a few bytes, a manifest.

The stub speaks what `up` needs of SGLang's surface with nothing but the standard library, so that a workspace
builds in a second without a download. What it gets wrong on request stands in its variable STUB.
"""

from __future__ import annotations

import json
import os
import socket
import struct
import subprocess
from pathlib import Path

GIT_ENV = {
    "PATH": os.environ["PATH"],
    "HOME": "/nonexistent",
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "GIT_AUTHOR_NAME": "Ada",
    "GIT_AUTHOR_EMAIL": "ada@example.com",
    "GIT_COMMITTER_NAME": "Ada",
    "GIT_COMMITTER_EMAIL": "ada@example.com",
    "GIT_AUTHOR_DATE": "2026-01-01T00:00:00Z",
    "GIT_COMMITTER_DATE": "2026-01-01T00:00:00Z",
}

PYPROJECT = """\
[project]
name = "pocket"
version = "0.1"
requires-python = ">=3.11"
[build-system]
requires = ["uv_build>=0.13.9,<0.14"]
build-backend = "uv_build"
[tool.uv.build-backend]
module-root = ""
"""

SERVER = '''\
"""A stub of a serving engine."""
import argparse, http.server, json, os, subprocess, sys, time

STUB = dict(item.partition("=")[::2] for item in os.environ.get("STUB", "").split(";") if item)
parser = argparse.ArgumentParser()
parser.add_argument("--port", type=int)
parser.add_argument("--host")
parser.add_argument("--model-path")
known, _ = parser.parse_known_args()


seen, served = set(), []
http.server.ThreadingHTTPServer.request_queue_size = 512


class Handler(http.server.BaseHTTPRequestHandler):
    def answer(self, code, body):
        data = json.dumps(body).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def drip(self):
        self.send_response(200)
        self.send_header("Content-Length", "100000")
        self.end_headers()
        while True:
            self.wfile.write(b" ")
            self.wfile.flush()
            time.sleep(0.3)

    def do_GET(self):
        if "drip-health" in STUB:
            self.drip()
        elif self.path == "/health_generate" and "no-health-generate" in STUB:
            self.answer(404, {})
        elif self.path.startswith("/health"):
            self.answer(503 if "unhealthy" in STUB else 200, {})
        elif self.path == "/server_info":
            self.answer(200, {"port": known.port, "model_path": known.model_path, "api_key": "hush"})
        elif self.path == "/env":
            self.answer(200, {"env": dict(os.environ), "argv": sys.argv, "cwd": os.getcwd(), "file": __file__})
        else:
            self.answer(404, {"error": "no such path"})

    def chunk(self, event):
        data = b"data: " + (event if isinstance(event, bytes) else json.dumps(event).encode()) + b"\\n\\n"
        self.wfile.write(b"%x\\r\\n%s\\r\\n" % (len(data), data))

    def stream(self, body):
        """A prompt that was seen before is answered ten times faster, from the cache."""
        prompt = json.dumps(body.get("text", body.get("input_ids")))
        length = len(body.get("input_ids") or prompt.split())
        is_cached = prompt in seen
        seen.add(prompt)
        served.append(prompt)
        own = len(served)
        if own == 1:
            print("first stream", flush=True)
        wanted = body["sampling_params"]["max_new_tokens"]
        step = int(STUB.get("accept", 1))
        self.protocol_version = "HTTP/1.1"
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.send_header("Connection", "close")
        self.end_headers()
        time.sleep(0.002 if is_cached else 0.02)
        for number, count in enumerate(range(step, wanted + step, step), 1):
            meta = {"prompt_tokens": length, "completion_tokens": min(count, wanted)}
            meta["cached_tokens"] = length if is_cached else 0
            if "accept" in STUB:
                meta["spec_verify_ct"] = number
            self.chunk({"text": "x", "meta_info": meta})
            if own > int(STUB.get("trouble-after", 1 << 30)):
                if "stream-die" in STUB:
                    os._exit(7)
                if "stream-stall" in STUB:
                    time.sleep(3600)
                if "stream-error" in STUB:
                    self.chunk({"error": {"message": "out of memory"}})
                if "stream-error" in STUB or "stream-short" in STUB:
                    break
            time.sleep(float(STUB.get("step", 0.002)))
        self.chunk(b"[DONE]")
        self.wfile.write(b"0\\r\\n\\r\\n")

    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.path == "/flush_cache":
            if "no-flush" not in STUB:
                seen.clear()
            self.answer(404 if "no-flush" in STUB else 200, {})
        elif b'"stream":true' in body:
            self.stream(json.loads(body))
        elif "hang" in STUB:
            time.sleep(3600)
        elif "drip" in STUB:
            self.drip()
        elif "die" in STUB:
            os._exit(7)
        elif "null" in STUB:
            self.answer(200, {"text": None})
        elif "boolean" in STUB:
            self.answer(200, {"text": "", "meta_info": {"completion_tokens": True}})
        elif "empty" in STUB:
            self.answer(200, {"text": "", "meta_info": {"completion_tokens": 0}})
        elif "error" in STUB:
            self.answer(500, {"error": {"message": "out of memory"}})
        else:
            self.answer(200, {"text": " quick brown fox", "meta_info": {"completion_tokens": 3}})

    def log_message(self, *_):
        pass


if "shm" in STUB:
    import mmap
    name, _, size = STUB["shm"].partition(":")
    with open(f"/dev/shm/{name}", "w+b") as segment:
        segment.write(b"x" * int(size))
        segment.flush()
        held = mmap.mmap(segment.fileno(), 0)
if "compile" in STUB:
    kernel = os.path.join(os.environ["XDG_CACHE_HOME"], "kernel.o")
    os.makedirs(os.path.dirname(kernel), exist_ok=True)
    with open(kernel, "a") as file:
        file.write(STUB["compile"])
SLEEP = "import sys, time; time.sleep(float(sys.argv[1]))"
if "shout" in STUB:
    print("\x1b[2J\x1b]0;title\x07")
    raise SystemExit(1)
if "tell" in STUB:
    print("secret is", os.environ.get("TOKEN"), flush=True)
if "crash" in STUB:
    print("loading", "secret is", os.environ.get("TOKEN"))
    raise SystemExit("cannot load the model")
if "overwrite" in STUB:
    name, _, value = STUB["overwrite"].partition(":")
    os.environ[name] = value
if "worker" in STUB or "overwrite" in STUB:
    subprocess.Popen([sys.executable, "-c", SLEEP, "3600"])
if "helper" in STUB:
    subprocess.Popen(["/usr/bin/env", "-i", "sleep", "3600"])
if "escape" in STUB:
    free = {name: value for name, value in os.environ.items() if name != "PINNER_RUN"}
    code = "import os, sys; os.fork() and os._exit(0); os.setsid(); os.execv(sys.executable, sys.argv[1:])"
    subprocess.Popen([sys.executable, "-c", code, sys.executable, "-c", SLEEP, STUB["escape"]], env=free).wait()
time.sleep(float(STUB.get("slow", 0)))
print("The server is fired up and ready to roll!", flush=True)
http.server.ThreadingHTTPServer((known.host, known.port), Handler).serve_forever()
'''

MANIFEST = """\
version = 1
[engine]
kind = "pocket"
source = {source}
[engine.args]
tp-size = 1
[python]
version = "3.11"
{python}
[model]
path = "model"
[env]
NCCL_PROTO = "Simple"
{env}
{more}
[serve]
port = {port}
start-timeout-s = 20
generate-timeout-s = 2
stop-timeout-s = 2
"""


def git(repository: Path, *args: str, env: dict[str, str] | None = None) -> str:
    """Run git in a repository as a person called Ada, at a fixed time."""
    command = ["git", "-C", str(repository), "-c", "init.defaultBranch=main", *args]
    done = subprocess.run(command, env={**GIT_ENV, **(env or {})}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command}: {done.stderr}"
    return done.stdout.strip()


def commit(repository: Path, files: dict[str, str], subject: str) -> str:
    """Write files and commit them; returns the commit."""
    for name, text in files.items():
        path = repository / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    git(repository, "add", "--all", "--force")
    git(repository, "commit", "--quiet", "--message", subject)
    return git(repository, "rev-parse", "HEAD")


def engine_repository(path: Path) -> str:
    """A repository with the stub engine, tagged `good`; returns the commit."""
    path.mkdir(parents=True)
    git(path, "init", "--quiet")
    found = commit(
        path, {"pyproject.toml": PYPROJECT, "pocket/__init__.py": "", "pocket/launch_server.py": SERVER}, "Start"
    )
    git(path, "tag", "good")
    return found


def safetensors(path: Path, values: int = 4) -> None:
    """A weight file of so many floats."""
    header = json.dumps({"w": {"dtype": "F32", "shape": [values], "data_offsets": [0, 4 * values]}}).encode()
    path.write_bytes(struct.pack("<Q", len(header)) + header + struct.pack(f"<{values}f", *range(values)))


def free_port() -> int:
    """A loopback port that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def deployment(
    directory: Path,
    *,
    source: str = '{ git = "engine", commit = "good" }',
    python: str = "",
    env: str = "",
    more: str = "",
) -> Path:
    """A whole deployment in a directory; returns the manifest's path. All but `directory` are TOML."""
    directory.mkdir(parents=True, exist_ok=True)
    if not (directory / "engine").exists():
        engine_repository(directory / "engine")
    model = directory / "model"
    model.mkdir(exist_ok=True)
    (model / "config.json").write_text('{"architectures": ["LlamaForCausalLM"], "vocab_size": 1000}')
    safetensors(model / "model.safetensors")
    manifest = directory / "tiny.toml"
    manifest.write_text(MANIFEST.format(source=source, python=python, env=env, more=more, port=free_port()))
    return manifest
