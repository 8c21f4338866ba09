"""Owns the HTTP surface: routes, JSON in and out, server-sent events. One thread for each connection.

Must not know how tokens are made.
"""

from __future__ import annotations

import json
import logging
import socket
from collections.abc import Callable, Generator
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import TCPServer
from typing import Any
from urllib.parse import urlsplit

from pocket import __version__, metrics
from pocket.model_config import read_config, read_generation_config
from pocket.openai_api import Answer, chat_prompt, sampling
from pocket.sampling_params import SamplingParams
from pocket.tokenizer_manager import TokenizerManager, Unavailable

logger = logging.getLogger(__name__)
MAX_BODY_BYTES = 16 << 20
Events = Generator[dict[str, Any], None, None]


class Server(ThreadingHTTPServer):
    """Bound at construction; what the handlers share."""

    daemon_threads = True
    request_queue_size = 512

    def __init__(self, manager: TokenizerManager, launch_command: str) -> None:
        self.manager, self.launch_command = manager, launch_command
        self.config = read_config(manager.args.model_path)
        self.sampling_defaults = read_generation_config(manager.args.model_path)
        self.status = "Starting"
        self.address_family = socket.AF_INET6 if ":" in manager.args.host else socket.AF_INET
        super().__init__((manager.args.host, manager.args.port), Handler)

    def server_bind(self) -> None:
        """Without the name look-up of http.server, which can wait for a DNS server for seconds."""
        TCPServer.server_bind(self)
        self.server_name, self.server_port = self.server_address[:2]


class BadRequest(Exception):
    """The client's mistake, told to it with status 400."""


class Handler(BaseHTTPRequestHandler):
    """One connection."""

    server: Server
    protocol_version = "HTTP/1.1"
    server_version = f"pocket/{__version__}"
    disable_nagle_algorithm = True
    timeout = 300

    def do_GET(self) -> None:
        self._route("GET")

    def do_POST(self) -> None:
        self._route("POST")

    def log_message(self, format: str, *args: Any) -> None:
        logger.debug(format, *args)

    def log_request(self, code: Any = "-", size: Any = "-") -> None:
        logger.info(f'{self.client_address[0]}:{self.client_address[1]} - "{self.requestline}" {code}')

    def _route(self, method: str) -> None:
        path = urlsplit(self.path).path
        body = self._body()
        allowed, action = ROUTES.get(path, ("", None))
        hidden = path == "/metrics" and not self.server.manager.args.enable_metrics
        hidden |= path == "/health_generate" and "no-health-generate" in self.server.manager.faults
        try:
            if action is None or hidden:
                self._send_json({"detail": "Not Found"}, 404)
            elif method not in allowed:
                self._send_json({"detail": "Method Not Allowed"}, 405)
            else:
                action(self, self._parse(body) if action in WITH_BODY else {})
        except BadRequest as error:
            self._send_error(str(error), 400, path)
        except Unavailable as error:
            self._send_error(str(error), 503, path)
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True

    def _body(self) -> bytes:
        """Read even where unused, so that the connection can be used again."""
        try:
            length = int(self.headers.get("Content-Length") or 0)
        except ValueError:
            length = -1
        if not 0 <= length <= MAX_BODY_BYTES:
            self.close_connection = True
            return b""
        return self.rfile.read(length)

    @staticmethod
    def _parse(body: bytes) -> dict[str, Any]:
        try:
            data = json.loads(body)
        except ValueError as error:
            raise BadRequest(f"the body is not JSON: {error}") from None
        if not isinstance(data, dict):
            raise BadRequest("the body must be a JSON object")
        return data

    def _send(self, body: bytes, status: int, content_type: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _send_json(self, data: Any, status: int = 200) -> None:
        self._send(json.dumps(data).encode(), status, "application/json")

    def _send_error(self, message: str, status: int, path: str) -> None:
        if path.startswith("/v1/"):
            kind = "BadRequestError" if status == 400 else "ServiceUnavailable"
            self._send_json({"object": "error", "message": message, "type": kind, "code": status}, status)
        else:
            self._send_json({"error": {"message": message}}, status)

    def _send_events(self, events: Events) -> None:
        """Server-sent events in chunked encoding, closed by `[DONE]`."""
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream; charset=utf-8")
        self.send_header("Cache-Control", "no-cache")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        with closing(self._with_stream_error(events)) as checked:
            for event in checked:
                self._send_chunk(b"data: " + json.dumps(event, ensure_ascii=False).encode() + b"\n\n")
        self._send_chunk(b"data: [DONE]\n\n")
        self.wfile.write(b"0\r\n\r\n")

    def _send_chunk(self, data: bytes) -> None:
        self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")

    def _with_stream_error(self, events: Events) -> Events:
        """The fault `stream-error`: after three events an error object, still with status 200."""
        with closing(events):
            for number, event in enumerate(events):
                if number == 3 and "stream-error" in self.server.manager.faults:
                    yield {"error": {"message": "the stream broke, as POCKET_FAULT asks", "code": 500}}
                    return
                yield event

    # Generation

    def generate(self, data: dict[str, Any]) -> None:
        manager = self.server.manager
        given = [key for key in ("text", "input_ids") if data.get(key) is not None]
        if len(given) != 1:
            raise BadRequest("either text or input_ids is needed")
        prompt = data[given[0]]
        many = isinstance(prompt, list) and bool(prompt) and isinstance(prompt[0], str | list)
        try:
            params = data.get("sampling_params") or {}
            each = params if isinstance(params, list) else [params] * (len(prompt) if many else 1)
            requests = [manager.encode(p) for p in (prompt if many else [prompt])]
            if len(each) != len(requests):
                raise ValueError("sampling_params must be one object, or one for each prompt")
            sampled = [SamplingParams.parse(p) for p in each]
        except (ValueError, TypeError) as error:
            raise BadRequest(str(error)) from None
        if data.get("stream"):
            self._send_events(self._generate_events(requests, sampled, many))
        else:
            outputs = self._all(requests, sampled)
            self._send_json(outputs if many else outputs[0])

    def _generate_events(
        self, requests: list[list[int]], sampled: list[SamplingParams], many: bool
    ) -> Events:
        with closing(self._stream(requests, sampled)) as outputs:
            for index, output in outputs:
                yield output | {"index": index} if many else output

    def _all(self, requests: list[list[int]], sampled: list[SamplingParams]) -> list[dict[str, Any]]:
        """The last output of each; all are on their way before the first is waited for."""
        running = [self.server.manager.generate(r, p, False) for r, p in zip(requests, sampled)]
        try:
            return [output for generation in running for output in generation]
        finally:
            for generation in running:
                generation.close()

    def _stream(
        self, requests: list[list[int]], sampled: list[SamplingParams]
    ) -> Generator[tuple[int, dict[str, Any]], None, None]:
        """All outputs with the index of their request, taking turns."""
        running = [self.server.manager.generate(r, p, True) for r, p in zip(requests, sampled)]
        turns = {index: iter(generation) for index, generation in enumerate(running)}
        try:
            while turns:
                for index, outputs in list(turns.items()):
                    if (output := next(outputs, None)) is None:
                        del turns[index]
                    else:
                        yield index, output
        finally:
            for generation in running:
                generation.close()

    def completions(self, data: dict[str, Any]) -> None:
        prompt = data.get("prompt")
        many = isinstance(prompt, list) and bool(prompt) and isinstance(prompt[0], str | list)
        self._openai(data, prompt if many else [prompt], chat=False)

    def chat_completions(self, data: dict[str, Any]) -> None:
        try:
            prompt = chat_prompt(data.get("messages"))
        except ValueError as error:
            raise BadRequest(str(error)) from None
        self._openai(data, [prompt], chat=True)

    def _openai(self, data: dict[str, Any], prompts: list[Any], chat: bool) -> None:
        try:
            requests = [self.server.manager.encode(p) for p in prompts]
            sampled = [sampling(data, self.server.sampling_defaults) for _ in requests]
        except (ValueError, TypeError) as error:
            raise BadRequest(str(error)) from None
        answer = Answer(chat, data.get("model") or self.server.manager.args.served_model_name)
        if not data.get("stream"):
            self._send_json(answer.whole(self._all(requests, sampled)))
            return
        with_usage = bool((data.get("stream_options") or {}).get("include_usage"))
        self._send_events(self._openai_events(answer, requests, sampled, with_usage))

    def _openai_events(
        self, answer: Answer, requests: list[list[int]], sampled: list[SamplingParams], with_usage: bool
    ) -> Events:
        latest: dict[int, dict[str, Any]] = {}
        with closing(self._stream(requests, sampled)) as outputs:
            for index, output in outputs:
                sent = len(latest[index]["text"]) if index in latest else 0
                latest[index] = output
                yield answer.chunk(output, index, sent)
        if with_usage:
            yield answer.final_usage(list(latest.values()))

    # Information and control

    def health(self, _: dict[str, Any]) -> None:
        self._send(b"", 200 if self.server.status == "Ready" else 503, "text/plain")

    def health_generate(self, _: dict[str, Any]) -> None:
        """Really generates one token, except under the fault `hang`, which is about lying."""
        ready = self.server.status == "Ready"
        if ready and "hang" not in self.server.manager.faults:
            self._all(
                [[self.server.manager.tokenizer.bos_id]], [SamplingParams(max_new_tokens=1, temperature=0)]
            )
        self._send(b"", 200 if ready else 503, "text/plain")

    def models(self, _: dict[str, Any]) -> None:
        args = self.server.manager.args
        card = {
            "id": args.served_model_name,
            "object": "model",
            "owned_by": "pocket",
            "root": args.served_model_name,
            "max_model_len": args.context_length,
        }
        self._send_json({"object": "list", "data": [card]})

    def model_info(self, _: dict[str, Any]) -> None:
        args, config = self.server.manager.args, self.server.config
        info = {
            "model_path": args.model_path,
            "served_model_name": args.served_model_name,
            "tokenizer_path": args.model_path,
            "is_generation": True,
            "weight_version": "default",
            "load_format": "safetensors",
            "model_type": config.get("model_type"),
            "architectures": config["architectures"],
        }
        self._send_json(info)

    def server_info(self, _: dict[str, Any]) -> None:
        args = self.server.manager.args
        more = {
            "launch_command": self.server.launch_command,
            "max_total_num_tokens": args.max_total_tokens,
            "max_req_input_len": args.context_length - 1,
            "status": self.server.status.lower(),
            "version": __version__,
            "internal_states": [self.server.manager.control("state")],
        }
        self._send_json(args.public() | more)

    def flush_cache(self, _: dict[str, Any]) -> None:
        if self.server.manager.control("flush")["flushed"]:
            self._send(b"Cache flushed.\n", 200, "text/plain")
        else:
            self._send(b"Flush cache failed: requests are running.\n", 400, "text/plain")

    def metrics(self, _: dict[str, Any]) -> None:
        manager = self.server.manager
        text = metrics.render(manager.control("state"), manager.latencies, manager.args.served_model_name)
        self._send(text.encode(), 200, "text/plain; version=0.0.4")


WITH_BODY = (Handler.generate, Handler.completions, Handler.chat_completions)
ROUTES: dict[str, tuple[str, Callable[[Handler, dict[str, Any]], None]]] = {
    "/health": ("GET", Handler.health),
    "/health_generate": ("GET", Handler.health_generate),
    "/generate": ("POST PUT", Handler.generate),
    "/v1/models": ("GET", Handler.models),
    "/v1/completions": ("POST", Handler.completions),
    "/v1/chat/completions": ("POST", Handler.chat_completions),
    "/model_info": ("GET", Handler.model_info),
    "/get_model_info": ("GET", Handler.model_info),
    "/server_info": ("GET", Handler.server_info),
    "/get_server_info": ("GET", Handler.server_info),
    "/flush_cache": ("GET POST", Handler.flush_cache),
    "/metrics": ("GET", Handler.metrics),
}
