"""Running a verb's body: every way in which it can end becomes an exit code and, if asked for, an envelope.

Owns the last line of defence: no traceback ever reaches a terminal.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Sequence
from itertools import pairwise

from pinner.bug import report
from pinner.errors import ExitCode, OperationFailed, PinnerError, UsageError
from pinner.host.home import home
from pinner.host.progress import View, install
from pinner.model.facts import Drift, Override, unmatched
from pinner.terminal import Output


def run_verb(command: str, as_json: bool, call: Callable[[Output], ExitCode]) -> ExitCode:
    """Call a verb's body with an Output and return the exit code that its end means."""
    signal.signal(signal.SIGTERM, _interrupt)
    output = Output(command, as_json=as_json)
    install(output)
    try:
        return call(output)
    except PinnerError as error:
        return _failed(output, error)
    except KeyboardInterrupt:
        return _failed(output, Interrupted("interrupted; nothing half done remains"))
    except OSError as error:
        return _failed(output, _of_the_machine(error))
    except Exception as error:  # a bug, which says so instead of looking like an answer
        return _failed(output, report(command, error))
    finally:
        install(View())


def tell_unmatched(output: Output, drift: Drift, accept: list[str], reason: list[str]) -> None:
    """Say which --accept had no effect: it is misspelt, or no longer needed."""
    for key in unmatched(drift, overrides(accept, reason)):
        output.note(f"--accept {key} matched no difference")


def overrides(accept: list[str], reason: list[str]) -> tuple[Override, ...]:
    """`--accept` and `--reason` in pairs, in the order given."""
    if any(not text.strip() for text in reason):
        raise UsageError("--reason is empty; say why the difference is meant")
    if len(accept) != len(reason):
        raise UsageError(
            f"{len(accept)} --accept and {len(reason)} --reason: each accepted difference needs its own reason",
            hint='for example --accept source.commit --reason "trying the new kernel"',
        )
    return tuple(Override(key, text) for key, text in zip(accept, reason, strict=True))


def reject(argv: Sequence[str]) -> None:
    """Give a command line that the parser rejected its envelope, if it asked for JSON."""
    if "--output=json" in argv or ("--output", "json") in pairwise(argv):
        command = next((word for word in argv if not word.startswith("-")), "")
        error = UsageError("the command line could not be understood; the message is on stderr")
        Output(command, as_json=True).envelope(error.exit_code, {}, [error])


class Interrupted(PinnerError):
    """The user pressed Ctrl-C, or something sent SIGTERM."""

    exit_code = ExitCode.INTERRUPTED


def _of_the_machine(error: OSError) -> PinnerError:
    """A full disk, a directory that cannot be written: not pinner's fault, and not an answer either."""
    where = f"{error.filename}: " if error.filename else ""
    try:
        state = home().root
    except PinnerError:
        return OperationFailed(f"{where}{error.strerror or error}")
    hint = f"pinner keeps its state in {state}; PINNER_HOME names another place"
    is_own = str(error.filename or "").startswith(str(state))
    return OperationFailed(f"{where}{error.strerror or error}", hint=hint if is_own or not where else None)


def _failed(output: Output, error: PinnerError) -> ExitCode:
    try:
        output.error(error)
        output.envelope(error.exit_code, {}, [error])
    except PinnerError as unwritten:
        return unwritten.exit_code
    return error.exit_code


def _interrupt(_number: int, _frame: object) -> None:
    raise KeyboardInterrupt
