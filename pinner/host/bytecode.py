"""Compiling Python files by another interpreter, and comparing byte code with its source.

Owns the programs that run in that interpreter. Must not decide what is compiled or where byte code belongs.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from pinner.host import process

# What `python -m compileall -j 0` does for one optimization level, in a third of its time: it hands single files
# to a pool, and stats and imports more than is needed. Runs in the engine's interpreter, which may be older than
# pinner's own. What is no Python of this version is left out; packages ship such files as test data.
_PROGRAM = """
import gc, os, py_compile, sys
mode = py_compile.PycInvalidationMode[sys.argv[1]]
files = []
for root in sys.argv[2:]:
    for directory, below, names in os.walk(root):
        below[:] = [name for name in below if name != "__pycache__"]
        files += [os.path.join(directory, name) for name in names if name.endswith(".py")]
files = [file for file in files if os.path.isfile(file)]
files.sort(key=os.path.getsize, reverse=True)
usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
count = max(1, min(usable, len(files) // 50))
workers = []
for number in range(count):
    pid = os.fork() if number < count - 1 else 0
    if pid:
        workers.append(pid)
        continue
    gc.disable()
    for file in files[number::count]:
        try:
            py_compile.compile(file, doraise=True, quiet=2, invalidation_mode=mode)
        except Exception:
            pass
    if number < count - 1:
        os._exit(0)
for pid in workers:
    os.waitpid(pid, 0)
"""

# Byte code of another version is not read at all, so that it does no harm.
_COMPARISON = """
import importlib.util, marshal, sys
names = sys.stdin.buffer.read().split(b"\\0")
for source, compiled in zip(names[::2], names[1::2]):
    try:
        with open(compiled, "rb") as stream:
            data = stream.read()
        if data[:4] == importlib.util.MAGIC_NUMBER:
            level = next((n for n in (1, 2) if compiled.endswith(b".opt-%d.pyc" % n)), 0)
            with open(source, "rb") as stream:
                text = stream.read()
            code = compile(text, source.decode("utf-8", "replace"), "exec", dont_inherit=True, optimize=level)
            if marshal.loads(data[16:]) != code:
                continue
        sys.stdout.buffer.write(compiled + b"\\0")
    except Exception:
        pass
"""


def faithful(python: Path, pairs: Sequence[tuple[Path, Path]]) -> set[Path]:
    """Of (source, byte code) the byte code that is what its source gives when `python` compiles it."""
    if not pairs:
        return set()
    command = [str(python), "-I", "-S", "-B", "-W", "ignore", "-c", _COMPARISON]
    given = b"\0".join(os.fsencode(path) for pair in pairs for path in pair)
    done = process.run(command, env={"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8"}, input=given, check=False)
    return {Path(os.fsdecode(name)) for name in done.stdout.split(b"\0") if name}


def compile_trees(python: Path, roots: Sequence[Path], *, checked: bool, prefix: Path | None = None) -> None:
    """Compile every .py file below `roots` by the interpreter `python`, which runs nothing of its environment.

    Byte code is valid by the content of its source, never by times. `checked`: the interpreter compares the two
    when it imports. `prefix` is where byte code goes instead of beside its source.
    """
    where = [] if prefix is None else ["-X", f"pycache_prefix={prefix}"]
    mode = "CHECKED_HASH" if checked else "UNCHECKED_HASH"
    command = [str(python), "-I", "-S", "-W", "ignore", *where, "-c", _PROGRAM, mode, *map(str, roots)]
    process.run(command, env={"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8"}, check=False)
