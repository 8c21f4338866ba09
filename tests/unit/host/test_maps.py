"""Files that a process has mapped: the text of /proc/PID/maps, and real processes."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from pinner.host.maps import MappedFile, mapped_files, parse
from pinner.host.procfs import Unreadable
from tests import native

MAPS = """\
55d0-55d1 r--p 00000000 fe:00 12 /usr/bin/python3.11
55d1-55d2 r-xp 00001000 fe:00 12 /usr/bin/python3.11
7f00-7f01 rw-p 00000000 00:00 0
7f01-7f02 r-xp 00000000 fe:00 34 /env/lib/with blank.so.2 (deleted)
7f02-7f03 r-xp 00000000 00:01 56 /memfd:jit (deleted)
7f03-7f04 r--s 00000000 fe:00 78 /data/line\\012break
7ffd-7ffe r-xp 00000000 00:00 0 [vdso]
"""


def test_the_text_is_read_as_the_kernel_writes_it() -> None:
    device = os.makedev(0xFE, 0)
    assert parse(MAPS) == (
        MappedFile("/data/line\nbreak", device, 78),
        MappedFile("/env/lib/with blank.so.2", device, 34, deleted=True, executable=True),
        MappedFile("/memfd:jit", os.makedev(0, 1), 56, deleted=True, executable=True),
        MappedFile("/usr/bin/python3.11", device, 12, executable=True),
    )


def test_a_living_process_shows_a_library_and_its_replacement(tmp_path: Path) -> None:
    library = native.nccl(tmp_path / "libnccl.so.2", 1)
    code = "import ctypes, sys; ctypes.CDLL(sys.argv[1]); print(1, flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", code, str(library)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        process.stdout.readline()

        def seen() -> MappedFile:
            found = mapped_files(process.pid)
            assert not isinstance(found, Unreadable)
            return next(one for one in found if one.path == str(library))

        try:
            first = seen()
            assert first.executable
            assert (first.deleted, first.replaced, first.inode) == (False, False, library.stat().st_ino)
            shutil.copy(library, tmp_path / "new")
            (tmp_path / "new").rename(library)
            assert seen().deleted
            assert seen().replaced
        finally:
            process.stdin.close()
    gone = mapped_files(process.pid)
    assert isinstance(gone, Unreadable)
    assert gone.gone


def test_hidden_and_empty_are_unreadable(tmp_path: Path) -> None:
    """A directory in the file's place stands for any reason why it cannot be read; a kernel thread has nothing."""
    stat = "7 (python) S 1 7 7 0 -1 0 " + " ".join(["0"] * 12) + " 42 0 0"
    (tmp_path / "7").mkdir()
    (tmp_path / "7/stat").write_text(stat)
    (tmp_path / "7/maps").mkdir()
    hidden = mapped_files(7, proc=tmp_path)
    assert isinstance(hidden, Unreadable)
    assert not hidden.gone
    (tmp_path / "7/maps").rmdir()
    (tmp_path / "7/maps").write_text("")
    empty = mapped_files(7, proc=tmp_path)
    assert isinstance(empty, Unreadable)
    assert "no memory" in empty.reason
