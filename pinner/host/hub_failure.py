"""What the errors of huggingface_hub mean, in pinner's words.

Pure but for the question whether a token is set. A server's own words stay out: they may repeat a token, and the
library's hold addresses that are signed.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple

from pinner.errors import OperationFailed

PUBLIC = "https://huggingface.co"

_CANNOT_WRITE = (errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EROFS)


class Why(StrEnum):
    """Why the Hub gave no answer."""

    NO_REPO = "no repository"
    NO_REVISION = "no revision"
    NO_FILE = "no file"
    REFUSED = "refused"
    UNREACHABLE = "unreachable"
    TROUBLE = "trouble"


class HubFailed(OperationFailed):
    """The Hub gave no answer; `why` says in which way."""

    def __init__(self, message: str, why: Why, *, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.why = why


class Question(NamedTuple):
    """What was asked: of which Hub, for which cache, and the file if it was for one."""

    hub: str
    cache: Path
    repo: str
    revision: str
    path: str | None


def failure(library: Any, asked: Question, error: BaseException) -> HubFailed:
    """The error for whatever the library raised; `library` is huggingface_hub."""
    for cause in _causes(error):
        known = _of_the_hub(library, asked, cause) or _of_the_machine(asked, cause)
        if known is not None:
            return known
    what = f"{asked.repo}@{asked.revision[:12]}"
    what = f"{asked.path} of {what}" if asked.path else what
    return HubFailed(f"{asked.hub} gave no usable answer for {what} ({type(error).__name__})", Why.TROUBLE)


def _of_the_hub(library: Any, asked: Question, error: BaseException) -> HubFailed | None:
    errors, repo = library.errors, asked.repo
    if isinstance(error, errors.GatedRepoError):
        return HubFailed(
            f"{repo} is gated, and {_token(library, 'has no access to it')}",
            Why.REFUSED,
            hint=f"accept its terms at {PUBLIC}/{repo}, and set HF_TOKEN to a token of that account",
        )
    if isinstance(error, errors.RepositoryNotFoundError):
        return HubFailed(
            f"{asked.hub} has no repository {repo}, or it is private and {_token(library, 'has no access to it')}",
            Why.NO_REPO,
            hint="look at its name; for a private one set HF_TOKEN",
        )
    if isinstance(error, errors.RevisionNotFoundError):
        return HubFailed(f"{asked.hub} has no revision {asked.revision} of {repo}", Why.NO_REVISION)
    if isinstance(error, errors.RemoteEntryNotFoundError):
        return HubFailed(f"{asked.hub} has no file {asked.path} in {repo}@{asked.revision[:12]}", Why.NO_FILE)
    if isinstance(error, errors.HfHubHTTPError):
        return _of_status(library, asked, int(error.response.status_code))
    return None


def _of_status(library: Any, asked: Question, status: int) -> HubFailed:
    if status == 401:
        return HubFailed(f"{asked.hub} does not accept the token that is set", Why.REFUSED)
    if status == 403:
        return HubFailed(f"{asked.hub} refuses {asked.repo}: {_token(library, 'may not read it')}", Why.REFUSED)
    if status == 404:
        return HubFailed(f"{asked.hub} has no repository {asked.repo}", Why.NO_REPO)
    if status == 429:
        hint = "wait some minutes; with HF_TOKEN set more is let through"
        return HubFailed(f"{asked.hub} answers: too many requests", Why.UNREACHABLE, hint=hint)
    return HubFailed(f"{asked.hub} answers {status} for {asked.repo}", Why.UNREACHABLE, hint="try again later")


def _of_the_machine(asked: Question, error: BaseException) -> HubFailed | None:
    """A disk that takes nothing, or no connection; those are told by the names of the transport's errors."""
    if isinstance(error, OSError) and error.errno and (error.filename or error.errno in _CANNOT_WRITE):
        where = f" ({error.filename})" if error.filename else ""
        return HubFailed(f"cannot write to the cache {asked.cache}: {error.strerror}{where}", Why.TROUBLE)
    name = type(error).__name__
    if name.endswith("Timeout"):
        reason = "no answer in time"
    elif name == "ProxyError":
        reason = "the proxy refuses"
    elif name in ("ConnectError", "ReadError", "WriteError", "RemoteProtocolError", "CloseError"):
        text = str(error)
        reason = text if text and "://" not in text else "the connection broke"
    else:
        return None
    return HubFailed(f"{asked.hub} cannot be reached: {reason}", Why.UNREACHABLE)


def _causes(error: BaseException) -> Iterator[BaseException]:
    """An error and what led to it."""
    seen: set[int] = set()
    one: BaseException | None = error
    while one is not None and id(one) not in seen:
        seen.add(id(one))
        yield one
        one = one.__cause__ or one.__context__


def _token(library: Any, then: str) -> str:
    return f"the token that is set {then}" if library.get_token() else "no token is set"
