"""Digests of file contents, in parallel.

Owns how bytes are read and hashed, and what makes a file the same file. Must not remember anything: that is
host/memory.py. A file that changes or shrinks while it is read gives Unknown, never a digest and never a
crash: files are mapped only inside forked workers, where SIGBUS ends the worker, and read elsewhere.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import mmap
import os
import stat
import threading
import time
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any, NamedTuple

import msgspec

from pinner.host.parallel import MAX_PIECES, Send, can_fork, run_forked, worker_count
from pinner.host.progress import hashing
from pinner.model.facts import Unknown

Progress = Callable[[int], None]
# Mode, inode, device, size in bytes, mtime and ctime in nanoseconds.
Identity = tuple[int, int, int, int, int, int]

SAFE_AGE_NS = 2_000_000_000

_SMALL = 1 << 20  # read whole
_BUFFER = 1 << 20
_WINDOW = 32 << 20  # between two reports of progress
_STEP = 4 << 20
_AHEAD = 8 << 20  # the kernel's own read-ahead is too short to keep a disk busy while one hashes
_FILE_COST = 64 << 10  # opening a file costs as much as hashing this many bytes
_SHARE_FROM = 32 << 20  # below this cost one process is faster than several
_CHANGED = Unknown("it changes while it is read")

identity: Callable[[os.stat_result], Identity] = attrgetter(
    "st_mode", "st_ino", "st_dev", "st_size", "st_mtime_ns", "st_ctime_ns"
)


class Hashed(NamedTuple):
    """A file's digest, the identity it had, and whether that identity vouches for these bytes later on."""

    identity: Identity
    digest: bytes
    is_settled: bool


def is_settled(identity: Identity, moment_ns: int) -> bool:
    """Whether a later change must show: the ctime is at least 2 s older than the moment of reading.

    File systems stamp with a clock that ticks in steps of up to 2 s; two changes within one step look alike.
    """
    return identity[5] <= moment_ns - SAFE_AGE_NS


def hash_files(
    paths: Sequence[bytes], sizes: Sequence[int], algorithm: str, progress: Progress | None = None
) -> list[Hashed | Unknown]:
    """The digest of each file, in the order of `paths`; symlinks are not followed.

    `algorithm` is "sha256" or "git" (the blob id). `sizes`, in bytes, are used to share out the work only.
    `progress` gets the number of bytes hashed since the last call, in this process, one call at a time; without
    it the current view is told, where there is much to read.
    """
    progress = progress or hashing(sum(sizes))
    results: list[Hashed | Unknown | None] = [None] * len(paths)
    cost = sum(sizes) + _FILE_COST * len(paths)
    todo = list(range(len(paths)))
    if cost >= _SHARE_FROM and len(paths) > 1 and can_fork():
        _hash_forked(paths, sizes, algorithm, results, progress)
        todo = [index for index, result in enumerate(results) if result is None]
    report = _one_at_a_time(progress)
    if len(todo) > 1 and sum(sizes[index] for index in todo) >= _SHARE_FROM:
        from concurrent.futures import ThreadPoolExecutor  # noqa: PLC0415  # loads logging, and is rarely wanted

        with ThreadPoolExecutor(worker_count()) as pool:
            largest_first = sorted(todo, key=sizes.__getitem__, reverse=True)
            done = pool.map(lambda index: hash_file(paths[index], algorithm, report), largest_first)
            for index, result in zip(largest_first, done, strict=True):
                results[index] = result
    else:
        for index in todo:
            results[index] = hash_file(paths[index], algorithm, report)
    return [result for result in results if result is not None]


def hash_file(
    path: bytes, algorithm: str, progress: Progress | None = None, *, is_disposable: bool = False
) -> Hashed | Unknown:
    """The digest of one regular file; Unknown with the reason where it cannot be told.

    `is_disposable` says that this process may be ended by a file that shrinks: then large files are mapped.
    """
    for _ in range(3):
        moment = time.time_ns()
        try:
            # A fifo put in the file's place must not block the open.
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            return Unknown(reason_of(error))
        try:
            before = os.fstat(descriptor)
            if not stat.S_ISREG(before.st_mode):
                return Unknown("it is not a regular file")
            digest = _digest(descriptor, before.st_size, algorithm, progress, is_disposable)
            after = os.fstat(descriptor)
        except OSError as error:
            return Unknown(reason_of(error))
        finally:
            os.close(descriptor)
        seen = identity(before)
        if digest is not None and seen == identity(after):
            return Hashed(seen, digest, is_settled(seen, moment))
    return _CHANGED


def new_hash(algorithm: str, size: int) -> Any:
    """A hash object for content of `size` bytes, by "sha256" or "git"."""
    if algorithm == "git":
        return hashlib.sha1(b"blob %d\0" % size, usedforsecurity=False)
    return hashlib.sha256()


def reason_of(error: OSError) -> str:
    """Why a file cannot be read, in a few words."""
    if error.errno == errno.ELOOP:
        return "a symlink has taken its place"
    return (error.strerror or str(error)).lower()


def _digest(
    descriptor: int, size: int, algorithm: str, progress: Progress | None, is_disposable: bool
) -> bytes | None:
    """The digest of `size` bytes; None if the file does not hold exactly as many."""
    hasher = new_hash(algorithm, size)
    if size <= _SMALL:
        # One byte more than there should be shows a file that grows; /proc-like files read as they please.
        data = os.read(descriptor, size + 1)
        hasher.update(data)
        total = len(data)
        if progress:
            progress(total)
    elif is_disposable:
        total = _update_mapped(descriptor, size, hasher, progress)
    else:
        total = _update_read(descriptor, hasher, progress)
    return bytes(hasher.digest()) if total == size else None


def _update_mapped(descriptor: int, size: int, hasher: Any, progress: Progress | None) -> int:
    with mmap.mmap(descriptor, size, prot=mmap.PROT_READ) as mapped, memoryview(mapped) as view:
        mapped.madvise(mmap.MADV_SEQUENTIAL)
        reader = None
        if hasattr(os, "posix_fadvise"):
            reader = threading.Thread(target=_read_ahead, args=(descriptor, size), daemon=True)
            reader.start()
        for start in range(0, size, _WINDOW):
            with view[start : start + _WINDOW] as window:
                hasher.update(window)
                if progress:
                    progress(len(window))
        if reader is not None:
            # It must have let go of the descriptor before that is closed.
            reader.join()
    return size


def _read_ahead(descriptor: int, size: int) -> None:
    """Ask for a file in order, ahead of the hashing, so that disk and processor work at the same time.

    What is in memory already is left alone: asking for it costs a look-up a page.
    """
    is_cached = getattr(os, "RWF_NOWAIT", None)
    byte = bytearray(1)
    for start in range(0, size, _STEP):
        with contextlib.suppress(OSError):
            if is_cached is not None and os.preadv(descriptor, [byte], start, is_cached):
                continue
        os.posix_fadvise(descriptor, start, _STEP, os.POSIX_FADV_WILLNEED)


def _update_read(descriptor: int, hasher: Any, progress: Progress | None) -> int:
    buffer = memoryview(bytearray(_BUFFER))
    total = 0
    while count := os.preadv(descriptor, [buffer], total):
        if total % _AHEAD < _BUFFER and hasattr(os, "posix_fadvise"):
            os.posix_fadvise(descriptor, total + _AHEAD, _AHEAD, os.POSIX_FADV_WILLNEED)
        hasher.update(buffer[:count])
        total += count
        if progress:
            progress(count)
    return total


def _one_at_a_time(progress: Progress | None) -> Progress | None:
    if progress is None:
        return None
    lock = threading.Lock()

    def report(count: int) -> None:
        with lock:
            progress(count)

    return report


def _hash_forked(
    paths: Sequence[bytes],
    sizes: Sequence[int],
    algorithm: str,
    results: list[Hashed | Unknown | None],
    progress: Progress | None,
) -> None:
    """Fill `results` by forked workers; what a worker did not finish stays None."""
    pieces = _pieces(sizes)
    encoder = msgspec.msgpack.Encoder()

    def work(piece: int, send: Send) -> None:
        pending = 0

        def count_bytes(count: int) -> None:
            nonlocal pending
            pending += count
            if progress is not None and pending >= _WINDOW:
                send(encoder.encode((pending, [])))
                pending = 0

        done: list[Any] = []
        for index in pieces[piece]:
            result = hash_file(paths[index], algorithm, count_bytes, is_disposable=True)
            done.append((index, result.reason if isinstance(result, Unknown) else result))
        send(encoder.encode((pending, done)))

    def on_message(message: bytes) -> None:
        count, done = msgspec.msgpack.decode(message)
        for index, result in done:
            if isinstance(result, str):
                results[index] = Unknown(result)
            else:
                results[index] = Hashed(tuple(result[0]), result[1], result[2])
        if progress is not None and count:
            progress(count)

    run_forked(work, len(pieces), on_message)


def _pieces(sizes: Sequence[int]) -> list[list[int]]:
    """Indices in pieces of work, the largest files first and alone, small ones together."""
    enough = max(4 << 20, (sum(sizes) + _FILE_COST * len(sizes)) // (MAX_PIECES // 2))
    pieces: list[list[int]] = []
    load = enough
    for index in sorted(range(len(sizes)), key=sizes.__getitem__, reverse=True):
        if load >= enough:
            pieces.append([])
            load = 0
        pieces[-1].append(index)
        load += sizes[index] + _FILE_COST
    return pieces
