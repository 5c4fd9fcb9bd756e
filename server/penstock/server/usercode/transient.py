"""Which errors may be temporary, and which say something about the bytes.

The difference decides whether an item may be lost for good: after a temporary error it is tried
again, and there is never a verdict. So a type that can mean either counts as temporary; what is
left are errors of a decoder about bytes that it has in memory.
"""

from __future__ import annotations

import builtins
import gzip
import io
import re
from collections.abc import Iterator

from penstock.server.usercode.allocation import is_impossible
from penstock.wire.errors import PenstockError, SourceUnavailable

_REMOTE = (
    "adlfs.", "aiobotocore.", "aiohttp.", "asyncpg.", "azure.", "boto3.", "botocore.", "fsspec.",
    "gcsfs.", "google.api_core.", "google.auth.", "google.cloud.", "google.resumable_media.",
    "grpc.", "h11.", "h2.", "http.", "httpcore.", "httpcore2.", "httpx.", "httpx2.",
    "huggingface_hub.", "ocifs.", "paramiko.", "psycopg.", "psycopg2.", "pymongo.", "pymysql.",
    "redis.", "requests.", "s3fs.", "s3transfer.", "smart_open.", "socket.", "ssl.", "urllib.",
    "urllib3.",
)  # fmt: skip
"""Packages that talk to another machine: their errors are about that machine or the network."""

_REMOTE_CODE = (*_REMOTE, "datasets.", "transformers.")
"""These raise plain OSErrors where a hub does not answer; their own types say other things."""

_TRANSIENT_NAMES = re.compile(
    r"time_?d?_?out|out_?of_?memory|OperationalError|BrokenProcessPool", re.IGNORECASE
)
"""Libraries have time-outs of their own that are not `TimeoutError`; DB-API has one class for a
database that is locked or away."""

_ADDRESS_NAMES = frozenset(
    {"InvalidURL", "InvalidSchema", "MissingSchema", "InvalidUrlClientError", "LocationParseError"}
)
"""An address that no machine has: those packages say so without asking anybody."""

_TRANSIENT_TEXTS = {
    RuntimeError: (
        "can't allocate memory",
        "can't start new thread",
        "out of memory",
        "timed out",
    ),
    OSError: ("AWS Error",),
}
"""Torch, the interpreter and Arrow's own S3 have no type for these."""

_SYSTEM_ERRORS = tuple(
    found
    for found in vars(builtins).values()
    if isinstance(found, type) and issubclass(found, OSError) and found is not OSError
)

_OF_BYTES = (gzip.BadGzipFile, io.UnsupportedOperation)

_MAX_CHAIN = 20


def is_transient(error: BaseException, *, reading: bool = False) -> bool:
    """Tell whether an error may be temporary, and so says nothing about the bytes.

    Time-outs, lost connections, memory that another machine may have, and every OSError with an
    errno may be gone in a moment: a missing file too, since files on a mount come back. An OSError
    without an errno is either: decoders raise one for damaged bytes (Pillow, pyarrow), network
    packages for a machine that does not answer. Its type and where it was raised tell them apart.

    Args:
        error: What was raised. What it was raised from, or while handling, counts as well: an error
            that is wrapped in another has not turned into one of the bytes.
        reading: It comes out of code that reads bytes and does not decode them.
    """
    if isinstance(error, PenstockError):
        return isinstance(error, SourceUnavailable)
    return any(_is_transient(link, reading) for link in _chain(error))


def _is_transient(error: BaseException, reading: bool) -> bool:
    if isinstance(error, PenstockError):
        return isinstance(error, SourceUnavailable)
    if is_impossible(error):
        return False
    if isinstance(error, (MemoryError, *_SYSTEM_ERRORS)):
        return True
    names = {cls.__name__ for cls in type(error).__mro__}
    if names & _ADDRESS_NAMES or isinstance(error, _OF_BYTES):
        return False
    if any(map(_TRANSIENT_NAMES.search, names)) or _is_of(type(error), _REMOTE):
        return True
    if _says(error):
        return True
    if not isinstance(error, OSError) or error.errno is not None:
        return isinstance(error, OSError)
    if _is_of(type(error), ("PIL.",)):
        return False
    return reading or type(error) is not OSError or _raised_in(error, _REMOTE_CODE)


def _is_of(cls: type, packages: tuple[str, ...]) -> bool:
    return any(f"{base.__module__}.".startswith(packages) for base in cls.__mro__)


def _says(error: BaseException) -> bool:
    text = " ".join(argument[:1000] for argument in error.args if isinstance(argument, str))
    return any(
        isinstance(error, cls) and any(name in text for name in texts)
        for cls, texts in _TRANSIENT_TEXTS.items()
    )


def _raised_in(error: BaseException, packages: tuple[str, ...]) -> bool:
    """Tell whether it is code of one of these packages that raised."""
    frames = error.__traceback__
    if frames is None:
        return False
    while frames.tb_next is not None:
        frames = frames.tb_next
    return f"{frames.tb_frame.f_globals.get('__name__', '')}.".startswith(packages)


def _chain(error: BaseException) -> Iterator[BaseException]:
    """Yield an error and its causes, each once, to a bounded depth."""
    seen: set[int] = set()
    waiting = [error]
    while waiting and len(seen) < _MAX_CHAIN:
        link = waiting.pop()
        if id(link) in seen:
            continue
        seen.add(id(link))
        yield link
        if isinstance(link, BaseExceptionGroup):
            waiting += link.exceptions
        if link.__cause__ is not None:
            waiting.append(link.__cause__)
        elif link.__context__ is not None and not link.__suppress_context__:
            waiting.append(link.__context__)
