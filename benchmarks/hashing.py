"""sha256 of large files against plain `hashlib` in threads, warm, and against a read-only pass, cold.

    uv run python benchmarks/hashing.py [GIB] [ROUNDS] [DIRECTORY]

Eight files of equal size, on as many processors as this process may use; paired and interleaved, medians.
Cold means dropped from the page cache by posix_fadvise, which the storage's own cache does not notice.
"""

from __future__ import annotations

import hashlib
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from pinner.host.hashing import hash_files

FILES = 8
CHUNK = 1 << 20


def build(directory: Path, size: int) -> list[Path]:
    paths = []
    for number in range(FILES):
        path = directory / f"model-{number}.safetensors"
        with path.open("wb") as stream:
            block = os.urandom(CHUNK)
            for _ in range(size // FILES // CHUNK):
                stream.write(block)
            stream.flush()
            os.fsync(stream.fileno())
        paths.append(path)
    return paths


def plain(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb", buffering=0) as stream:
        while block := stream.read(CHUNK):
            digest.update(block)
    return digest.hexdigest()


def read_only(path: Path) -> int:
    total = 0
    with path.open("rb", buffering=0) as stream:
        while block := stream.read(CHUNK):
            total += len(block)
    return total


def in_threads(work: Callable[[Path], object], paths: Sequence[Path]) -> float:
    start = time.perf_counter()
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        list(pool.map(work, paths))
    return time.perf_counter() - start


def ours(paths: Sequence[Path]) -> float:
    start = time.perf_counter()
    hash_files([os.fsencode(path) for path in paths], [path.stat().st_size for path in paths], "sha256")
    return time.perf_counter() - start


def drop(paths: Sequence[Path]) -> None:
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


def cold(work: Callable[[], float], paths: Sequence[Path]) -> float:
    drop(paths)
    return work()


def show(title: str, pairs: list[tuple[float, float]], size: int, limit: float) -> None:
    mine, other = (statistics.median(column) for column in zip(*pairs, strict=True))
    ratio = statistics.median(one / two for one, two in pairs)
    rate = size / mine / 1e9
    print(f"{title}: {mine:.2f} s ({rate:.2f} GB/s) against {other:.2f} s, ratio {ratio:.2f} (at most {limit})")


def main(gib: float = 4, rounds: int = 5, directory: str | None = None) -> None:
    size = int(gib * (1 << 30))
    with tempfile.TemporaryDirectory(dir=directory) as name:
        paths = build(Path(name), size)
        in_threads(read_only, paths)
        warm = [(ours(paths), in_threads(plain, paths)) for _ in range(rounds)]
        show("warm, hashlib in threads", warm, size, 0.95)
        chill = [
            (cold(lambda: ours(paths), paths), cold(lambda: in_threads(read_only, paths), paths))
            for _ in range(rounds)
        ]
        show("cold, read-only pass", chill, size, 1.25)


if __name__ == "__main__":
    given = sys.argv[1:]
    main(*[float(text) for text in given[:1]], *[int(text) for text in given[1:2]], *given[2:])
