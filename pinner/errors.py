"""The error tree and the exit codes; must not import anything of pinner.

PinnerError
├── UsageError            2  a command line that cannot be carried out
├── ManifestError         2  NAME.toml cannot be used
├── LockError             2  NAME.lock is missing, stale, damaged or too new
├── ArtifactError         2  a model or draft file is not what its name says
├── RecordError           2  a record is damaged, too new, or not what it is taken for
├── UnknownFact           3  a demanded fact could not be told
└── OperationFailed       3  it could not be done
    ├── CommandFailed        a program that pinner started failed
    ├── LaunchFailed         the engine did not start or does not generate
    └── Busy                 somebody else holds what is needed
"""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """What the process tells its caller; the table is in docs/exit-codes.md."""

    OK = 0
    DIFFERENT = 1
    INVALID = 2
    FAILED = 3
    BUG = 70
    INTERRUPTED = 130


class PinnerError(Exception):
    """An error for the person at the terminal: what is wrong and where; the hint says what to do."""

    exit_code = ExitCode.FAILED

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class UsageError(PinnerError):
    """The command line cannot be carried out as written."""

    exit_code = ExitCode.INVALID


class ManifestError(PinnerError):
    """A manifest cannot be used; the message names the file and the key."""

    exit_code = ExitCode.INVALID


class LockError(PinnerError):
    """A lock is missing, stale, damaged, or written by a newer pinner."""

    exit_code = ExitCode.INVALID


class ArtifactError(PinnerError):
    """A model or draft file is not what its name says, so it must not be pinned."""

    exit_code = ExitCode.INVALID


class RecordError(PinnerError):
    """A record, or what should become one, cannot be used; the message names the file."""

    exit_code = ExitCode.INVALID


class UnknownFact(PinnerError):
    """A fact that was demanded could not be told."""


class OperationFailed(PinnerError):
    """It could not be done; nothing half done is left."""


class CommandFailed(OperationFailed):
    """A program that pinner started failed."""

    def __init__(self, argv: tuple[str, ...], code: int, stderr: str) -> None:
        tail = stderr.strip()[-2000:]
        super().__init__(f"{argv[0]} exited with {code}" + (f":\n{tail}" if tail else ""))
        self.argv = argv
        self.code = code
        self.stderr = stderr


class LaunchFailed(OperationFailed):
    """The engine did not start, or it started and does not generate."""


class Busy(OperationFailed):
    """Somebody else holds the port, the lock or the workspace."""
