"""The Hub: what a repository holds at a revision, and its files into the cache that the user already has.

Owns huggingface_hub. Must not choose files or judge their bytes. Where the cache lies, which mirror answers and
which token is used is the caller's environment; none of it is kept, and neither a token nor a signed address nor
a server's own words reach an error's text.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar
from urllib.parse import urlsplit

from pinner import __version__
from pinner.errors import OperationFailed
from pinner.host.hub_cache import cache_directory
from pinner.host.hub_failure import PUBLIC, HubFailed, Question, Why, failure
from pinner.host.progress import Advance, current

# A file that a kill breaks off is fetched from its start again, so not many at once; hf_xet divides each itself.
_TRANSFERS = 4
_QUESTIONS = 16
_TIMEOUT_S = 10.0
_TRUE = ("1", "ON", "YES", "TRUE")

__all__ = ["Hub", "HubFailed", "Listing", "RepoFile", "Why", "each"]

_T = TypeVar("_T")


class RepoFile(NamedTuple):
    """A file of a repository: size in bytes; `sha256:<hex>` where the Hub knows it (LFS); its git blob id."""

    path: str
    size: int
    sha256: str | None
    blob: str | None


class Listing(NamedTuple):
    """All files of a repository at one commit, in path order; `repo` is what the Hub calls it."""

    repo: str
    revision: str
    files: tuple[RepoFile, ...]


class Hub:
    """The Hub that the caller's environment names, with its cache."""

    def __init__(self, environ: Mapping[str, str] | None = None) -> None:
        environ = os.environ if environ is None else environ
        self.cache = cache_directory(environ)
        self._endpoint = (environ.get("HF_ENDPOINT") or PUBLIC).rstrip("/")
        self._offline = next(
            (name for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE") if _is_true(environ.get(name))), None
        )

    @property
    def name(self) -> str:
        """The Hub for an error's text; a mirror with its address, without any password in it."""
        if self._endpoint == PUBLIC:
            return "the Hub"
        parts = urlsplit(self._endpoint)
        port = f":{parts.port}" if parts.port else ""
        return f"the Hub's mirror {parts.hostname}{port} (HF_ENDPOINT)"

    def resolve(self, repo: str, revision: str, *, timeout_s: float = _TIMEOUT_S) -> Listing:
        """The commit that a branch, tag or commit id is now, and its files. Raises HubFailed."""
        with self._failing(repo, revision) as library:
            api = library.HfApi(endpoint=self._endpoint, library_name="pinner", library_version=__version__)
            info = api.model_info(repo, revision=revision, files_metadata=True, timeout=timeout_s)
        files = []
        for sibling in info.siblings or ():
            if not isinstance(sibling.size, int):
                raise HubFailed(f"{self.name} does not tell the size of {repo}: {sibling.rfilename}", Why.TROUBLE)
            sha256 = f"sha256:{sibling.lfs.sha256}" if sibling.lfs else None
            files.append(RepoFile(sibling.rfilename, sibling.size, sha256, sibling.blob_id))
        return Listing(str(info.id), str(info.sha), tuple(sorted(files)))

    def read(self, repo: str, revision: str, path: str, span: range) -> bytes:
        """Some bytes of a file, without the rest of it. Raises HubFailed, after a second try."""
        try:
            return self._read(repo, revision, path, span)
        except HubFailed as error:
            # One of some hundred questions for headers: a hiccup must not end all of it.
            if error.why is not Why.UNREACHABLE:
                raise
            return self._read(repo, revision, path, span)

    def _read(self, repo: str, revision: str, path: str, span: range) -> bytes:
        with self._failing(repo, revision, path) as library:
            url = library.hf_hub_url(repo, path, revision=revision, endpoint=self._endpoint)
            headers = library.utils.build_hf_headers(library_name="pinner", library_version=__version__)
            headers |= {"Range": f"bytes={span.start}-{span.stop - 1}", "Accept-Encoding": "identity"}
            session = library.utils.get_session()
            with session.stream("GET", url, headers=headers, timeout=_TIMEOUT_S) as answer:
                library.utils.hf_raise_for_status(answer)
                # A server that knows no ranges sends the file from its start.
                skip = span.start if answer.status_code == 200 else 0
                data = _first(answer.iter_bytes(1 << 20), skip, len(span))
        if len(data) != len(span):
            raise HubFailed(f"{self.name} sent {len(data)} bytes of {path} for {len(span)}", Why.UNREACHABLE)
        return data

    def download(self, repo: str, revision: str, sizes: Mapping[str, int]) -> None:
        """Fetch files of a commit into the cache; those that are there stay. `sizes` in bytes by path.

        Whole files that an earlier call fetched serve, however it ended; a connection that breaks is taken up
        where it broke. Raises HubFailed, and OperationFailed where they do not fit.
        """
        if not sizes:
            return
        # One question first: it tells in a second what the library would try for a minute a file.
        self.resolve(repo, revision)
        _refuse_full(self.cache, sum(sizes.values()))
        advance = _one_at_a_time(current().transfer("downloading", sum(sizes.values())))
        largest_first = sorted(sizes, key=lambda path: -sizes[path])

        def fetch(path: str, stop: threading.Event) -> None:
            with self._failing(repo, revision, path) as library:
                library.hf_hub_download(
                    repo,
                    path,
                    revision=revision,
                    cache_dir=self.cache,
                    endpoint=self._endpoint,
                    library_name="pinner",
                    library_version=__version__,
                    tqdm_class=_bar(advance, stop),
                )

        each(fetch, largest_first, at_once=_TRANSFERS)

    @contextlib.contextmanager
    def _failing(self, repo: str, revision: str, path: str | None = None) -> Iterator[Any]:
        """Give the library, and turn whatever it raises into HubFailed."""
        if self._offline is not None:
            raise HubFailed(f"{self._offline} is set, so that the Hub is not asked", Why.UNREACHABLE)
        library = _library()
        try:
            yield library
        except (HubFailed, _Stopped):
            raise
        except Exception as error:
            # The library lets through whatever its transports raise; anything of it means the same here.
            question = Question(self.name, self.cache, repo, revision, path)
            raise failure(library, question, error) from None


def each(work: Callable[[_T, threading.Event], None], items: Sequence[_T], *, at_once: int = _QUESTIONS) -> None:
    """Do work on items, several at a time; the first failure or an interrupt stops all of it.

    `work` gets an event that is set when it should stop.
    """
    from concurrent.futures import ThreadPoolExecutor, as_completed  # noqa: PLC0415  # loads logging

    stop = threading.Event()
    pool = ThreadPoolExecutor(at_once)

    def run(item: _T) -> None:
        if stop.is_set():
            raise _Stopped
        try:
            work(item, stop)
        except BaseException:
            stop.set()
            raise

    try:
        for done in as_completed([pool.submit(run, item) for item in items]):
            error = done.exception()
            if error is not None and not isinstance(error, _Stopped):
                raise error
    except BaseException:
        stop.set()
        _abort_transfers()
        raise
    finally:
        pool.shutdown(cancel_futures=True)


def _abort_transfers() -> None:
    """End what hf_xet transfers: it does so outside Python, where no event reaches it."""
    if "hf_xet" in sys.modules:
        with contextlib.suppress(ImportError):
            from huggingface_hub.utils import _xet  # noqa: PLC0415

            abort: Callable[[], None] = _xet.abort_xet_session
            abort()


class _Stopped(Exception):
    """Raised in the midst of a download that nobody wants any more."""


def _library() -> Any:
    """huggingface_hub, told to be silent and to tell nobody anything."""
    import logging  # noqa: PLC0415

    import huggingface_hub  # noqa: PLC0415  # half a second that only the Hub's users have to pay
    from huggingface_hub import constants, errors, utils  # noqa: F401, PLC0415  # as attributes of the former

    constants.HF_HUB_DISABLE_TELEMETRY = True
    # Its lines hold addresses that are signed; what matters comes as an exception.
    logging.getLogger("huggingface_hub").setLevel(logging.CRITICAL)
    return huggingface_hub


def _bar(advance: Advance, stop: threading.Event) -> type:
    """What the library takes for a tqdm: it hands bytes on, and breaks a download off that should stop."""

    class Bar:
        def __init__(self, *_args: object, **_options: object) -> None:
            pass

        def __enter__(self) -> Bar:
            return self

        def __exit__(self, *_error: object) -> None:
            pass

        def update(self, count: float | None = 1) -> None:
            if stop.is_set():
                raise _Stopped
            advance(int(count or 0))

        def update_transfer(self, _count: float | None = 1) -> None:
            """Bytes on the wire; those on disk are told."""

        def set_postfix_str(self, *_args: object, **_options: object) -> None:
            pass

        set_transfer_postfix_str = refresh = close = set_postfix_str

    return Bar


def _first(pieces: Iterator[bytes], skip: int, count: int) -> bytes:
    data = bytearray()
    for piece in pieces:
        data += piece
        if len(data) >= skip + count:
            break
    return bytes(data[skip : skip + count])


def _refuse_full(cache: Path, needed_bytes: int) -> None:
    place = next(path for path in (cache, *cache.parents) if path.exists())
    free_bytes = shutil.disk_usage(place).free
    if free_bytes < needed_bytes:
        needed, free = (f"{count / 1e9:,.1f} GB" for count in (needed_bytes, free_bytes))
        raise OperationFailed(
            f"{needed} are to be downloaded, and {cache} has room for {free}",
            hint="HF_HOME names another place for the cache",
        )


def _one_at_a_time(advance: Advance) -> Advance:
    lock = threading.Lock()

    def report(count: int) -> None:
        with lock:
            advance(count)

    return report


def _is_true(text: str | None) -> bool:
    return text is not None and text.upper() in _TRUE
