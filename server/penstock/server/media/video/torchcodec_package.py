"""The package torchcodec, where its wheel fits the torch and the FFmpeg that are installed."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from penstock.wire.errors import MissingExtra

LEAST = (0, 12)
"""The lowest version: earlier ones were not compared with PyAV."""

_CAUSE = re.compile(r"(?:OSError|ImportError|RuntimeError): (\S.*)")

_NO_CAUSE = ("Could not load", "[start of")

_REMEDY = (
    "install the torchcodec of the table in its readme that goes with this torch (its wheel for "
    "CPUs where torch is one for CPUs) and the shared libraries of an FFmpeg that it names, such "
    "as by apt install ffmpeg; or take decoder: pyav"
)


def load_torchcodec() -> Any:
    """Return the module `torchcodec.decoders`, imported when it is first needed.

    Raises:
        MissingExtra: torchcodec is not installed, is too old, or does not fit what is installed
            beside it; says which.
    """
    has = _version("torchcodec")
    if has is None:
        raise _missing("torchcodec is not installed")
    if tuple(map(int, re.findall(r"\d+", has)[:2])) < LEAST:
        raise _missing(f"torchcodec {has} is installed, and at least {LEAST[0]}.{LEAST[1]} is read")
    try:
        return importlib.import_module("torchcodec.decoders")
    except Exception as error:  # what its libraries lack: ImportError, OSError, RuntimeError
        causes = "; ".join(list(dict.fromkeys(_causes(error)))[:3])
        torch = _version("torch")
        beside = f"torch {torch}" if torch else "no torch"
        raise _missing(
            f"torchcodec {has} cannot be loaded beside {beside} ({causes[:300]})"
        ) from error


def _missing(what: str) -> MissingExtra:
    return MissingExtra(
        f"decoder: torchcodec cannot be used: {what}: {_REMEDY}", package="torchcodec", extra=""
    )


def _causes(error: BaseException | None) -> Iterator[str]:
    """Yield what the dynamic loader says, which these errors have far within them."""
    said: list[str] = []
    while error is not None:
        text = str(error)
        said += [found for found in _CAUSE.findall(text) if not found.startswith(_NO_CAUSE)]
        if not text.startswith(_NO_CAUSE):
            said.append(text.partition("\n")[0])
        error = error.__cause__ or error.__context__
    # It tries each version of FFmpeg, and those that are not there say so: the others tell more.
    more = [each for each in said if not each.startswith("lib" + "av")]
    yield from more or said or ["it does not say why"]


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
