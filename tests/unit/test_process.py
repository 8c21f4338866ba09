"""Starting programs: exact environment, nothing left behind, no secret in an error."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from pathlib import Path

import pytest

from pinner.errors import CommandFailed, OperationFailed
from pinner.host import process

SHELL = ("/bin/sh", "-c")


def gone(pid: int) -> bool:
    for _ in range(200):
        try:
            if (Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except OSError:
            return True
        time.sleep(0.01)
    return False


def test_environment_input_and_output() -> None:
    done = process.run(["env"], env={"PATH": "/usr/bin:/bin", "A": "b c"})
    assert sorted(done.stdout.decode().splitlines()) == ["A=b c", "PATH=/usr/bin:/bin"]
    assert process.run(["/bin/cat"], env={}, input=b"\0x").stdout == b"\0x"
    assert process.run(["/bin/cat"], env={}).stdout == b""
    assert process.run(["/bin/pwd"], env={}, cwd=Path("/usr")).stdout == b"/usr\n"


def test_failures() -> None:
    with pytest.raises(CommandFailed) as caught:
        process.run([*SHELL, "echo no >&2; exit 5"], env={})
    assert (caught.value.code, caught.value.stderr) == (5, "no")
    assert process.run([*SHELL, "exit 5"], env={}, check=False).code == 5
    with pytest.raises(OperationFailed, match="cannot start nonexistent: nonexistent: No such file"):
        process.run(["nonexistent"], env={"PATH": "/usr/bin"})
    with pytest.raises(OperationFailed, match="/nonexistent: No such file"):
        process.run(["/bin/true"], env={}, cwd=Path("/nonexistent"))
    with pytest.raises(OperationFailed, match="null byte"):
        process.run(["/bin/true", "\0"], env={})


def test_errors_hold_no_secret() -> None:
    env = {"HF_TOKEN": "hf_verysecret", "MONKEY": "bananas"}
    code = 'echo "$HF_TOKEN $MONKEY https://me:pass@host/x" >&2; exit 1'
    with pytest.raises(CommandFailed) as caught:
        process.run([*SHELL, code], env=env)
    assert caught.value.stderr == "*** bananas https://***@host/x"
    assert "verysecret" not in str(caught.value)


@pytest.mark.parametrize("trap", ["", "trap '' TERM;"])
def test_a_timeout_ends_the_whole_group(tmp_path: Path, trap: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "_GRACE_S", 0.3)
    code = f"{trap} sleep 600 & echo $! > pid; echo said >&2; sleep 600"
    with pytest.raises(CommandFailed, match=r"ended after 0\.5 s") as caught:
        process.run([*SHELL, code], env={"PATH": "/usr/bin:/bin"}, cwd=tmp_path, timeout_s=0.5, check=False)
    assert "said" in caught.value.stderr
    assert gone(int((tmp_path / "pid").read_text()))


def test_an_interrupt_ends_the_whole_group(tmp_path: Path) -> None:
    def interrupt() -> None:
        while not (tmp_path / "pid").exists():
            time.sleep(0.005)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        process.run(
            [*SHELL, "sleep 600 & echo $! > new; mv new pid; wait"],
            env={"PATH": "/usr/bin:/bin"},
            cwd=tmp_path,
        )
    thread.join()
    assert gone(int((tmp_path / "pid").read_text()))


def test_detached(tmp_path: Path) -> None:
    read, write = os.pipe()
    code = f"import os,sys; os.write({write}, str(os.getsid(0)).encode()); print(os.getcwd(), dict(os.environ))"
    child = process.spawn_detached(
        [sys.executable, "-I", "-c", code],
        pass_fds=[write],
        env={"A": "b"},
        cwd=Path("/"),
        stdout=tmp_path / "log",
    )
    os.close(write)
    with os.fdopen(read) as pipe:
        assert pipe.read() == str(child.pid)
    assert child.wait(10) == 0
    assert (tmp_path / "log").read_text().startswith("/ {'A': 'b'")
    assert (tmp_path / "log").stat().st_mode & 0o777 == 0o600
    process.collect_detached()
    assert child not in process._detached
