"""Owns the figures of the quickstart: start to ready, tokens per second with and without EAGLE-3, acceptance.

Run as `python measure.py [ENGINE_DIR ...]` with a Python that has numpy and setproctitle. Several engine
directories (say, `engine/` and a checkout of the bundle's tip) are measured in turns, so that a slow minute
of the machine does not fall on one of them. Greedy output must be equal between all servers.
"""

from __future__ import annotations

import http.client
import json
import os
import socket
import statistics
import subprocess
import sys
import time
from pathlib import Path

QUICKSTART = Path(__file__).parents[1]
EAGLE3 = [
    "--speculative-algorithm", "EAGLE3", "--speculative-draft-model-path", "draft",
    "--speculative-num-steps", "3", "--speculative-eagle-topk", "1", "--speculative-num-draft-tokens", "4",
]  # fmt: skip
PROMPTS = [
    "The server", "The old crane in the harbour", "In winter the snow", "A ship with timber",
    "What the engineer", "The capital of France", "Anna has kept the clock",
    "<|user|>Tell me a story.<|assistant|>",
]  # fmt: skip
NEW_TOKENS = 256
ROUNDS = 5


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Server:
    """One engine process with one set of arguments."""

    def __init__(self, engine: Path, arguments: list[str]) -> None:
        self.port = free_port()
        command = [
            sys.executable,
            "-m",
            "pocket.launch_server",
            "--model-path",
            "model",
            "--port",
            str(self.port),
        ]
        environment = os.environ | {"PYTHONPATH": str(engine.resolve())}
        begin = time.perf_counter()
        self.process = subprocess.Popen(
            command + arguments,
            cwd=QUICKSTART,
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        while not self._ready():
            if self.process.poll() is not None or time.perf_counter() > begin + 30:
                raise RuntimeError(f"{engine} does not start")
            time.sleep(0.01)
        self.start_seconds = time.perf_counter() - begin

    def _ready(self) -> bool:
        try:
            return self.request("GET", "/health")[0] == 200
        except OSError:
            return False

    def request(self, method: str, path: str, data: object = None) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            connection.request(method, path, json.dumps(data) if data is not None else None)
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    def round(self) -> tuple[float, list[list[int]]]:
        """Tokens per second over all prompts, one after another, from a cold cache; and the tokens."""
        self.request("POST", "/flush_cache")
        params = {"temperature": 0, "max_new_tokens": NEW_TOKENS, "ignore_eos": True}
        begin, outputs = time.perf_counter(), []
        for prompt in PROMPTS:
            _, body = self.request("POST", "/generate", {"text": prompt, "sampling_params": params})
            outputs.append(json.loads(body)["output_ids"])
        return sum(map(len, outputs)) / (time.perf_counter() - begin), outputs

    def state(self) -> dict:
        return json.loads(self.request("GET", "/server_info")[1])["internal_states"][0]

    def cpu_seconds(self) -> float:
        """What the workers have used so far; on a busy machine it tells more than the clock. Linux only."""
        total = 0
        for pid in Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split():
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            total += int(fields[11]) + int(fields[12])
        return total / os.sysconf("SC_CLK_TCK")

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(10)


def main(engines: list[Path]) -> None:
    servers = {}
    for engine in engines:
        servers[f"{engine} baseline"] = Server(engine, [])
        servers[f"{engine} EAGLE3"] = Server(engine, EAGLE3)
    try:
        speeds: dict[str, list[float]] = {name: [] for name in servers}
        before = {name: server.cpu_seconds() for name, server in servers.items()}
        outputs = {}
        for _ in range(ROUNDS):
            for name, server in servers.items():
                speed, outputs[name] = server.round()
                speeds[name].append(speed)
        for name, server in servers.items():
            state = server.state()
            tokens = ROUNDS * sum(map(len, outputs[name]))
            steps = state["step_time_dict"]
            print(
                f"{name}: start {server.start_seconds:.2f} s, {statistics.median(speeds[name]):.0f} tok/s "
                f"({min(speeds[name]):.0f} to {max(speeds[name]):.0f}), "
                f"{tokens / (server.cpu_seconds() - before[name]):.0f} tokens per CPU second, "
                f"accept length {state.get('avg_spec_accept_length', 1):.2f}, "
                f"{state['target_positions_computed'] / state['decode_steps_total']:.1f} positions a step, "
                + ", ".join(f"{key} {value:.2f}" for key, value in steps.items())
            )
        first = next(iter(outputs.values()))
        print("greedy output equal:", all(o == first for o in outputs.values()))
    finally:
        for server in servers.values():
            server.stop()


if __name__ == "__main__":
    main([Path(a) for a in sys.argv[1:]] or [QUICKSTART / "engine"])
