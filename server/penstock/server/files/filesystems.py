"""Filesystems of fsspec, and packages that are needed for some files alone."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

from penstock.server.files.patience import SILENT_S
from penstock.wire.errors import MissingExtra

_WEB_S = 300.0
"""How long listing a page of a web server, or opening a file there, may take in all."""


def require(
    module: str, *, extra: str = "server", who: str = "this source", package: str = ""
) -> Any:
    """Return an imported module of an optional package.

    Args:
        module: The module.
        extra: The extra of penstock that brings it; empty = none does.
        who: What needs it, as errors say it.
        package: What pip calls its package, where that is not the module's first name.

    Raises:
        MissingExtra: The package is not installed, or is and cannot be imported; says which.
    """
    name = module.partition(".")[0]
    package = package or name
    install = f"penstock[{extra}]" if extra else package
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != name:
            raise unusable(who, package, extra, error) from error
        raise MissingExtra(
            f"{who} needs the package {package}, which is not installed: pip install '{install}' "
            "wherever this job is computed",
            package=package,
            extra=extra,
        ) from None
    except Exception as error:  # of libraries that a package loads: OSError, RuntimeError, others
        raise unusable(who, package, extra, error) from error


def unusable(who: str, package: str, extra: str, error: BaseException) -> MissingExtra:
    """Return the error of a package that is installed and cannot be imported.

    Args:
        who: What needs it, as errors say it.
        package: What pip calls it.
        extra: The extra of penstock that brings it; empty = none does.
        error: What importing it raised.
    """
    said = str(error).partition("\n")[0][:300]
    return MissingExtra(
        f"{who} needs the package {package}, which is installed and cannot be imported "
        f"({type(error).__name__}: {said}): install it anew, with what it needs, in a version that "
        "belongs to the others here",
        package=package,
        extra=extra,
    )


def located(url: str, options: Mapping[str, Any] | None = None) -> tuple[Any, str]:
    """Return the filesystem of a path or a URL, and what the file is called there.

    Raises:
        MissingExtra: The filesystem's own package is not installed.
        ValueError: No filesystem has such URLs.
    """
    core = require("fsspec.core")
    try:
        options = _bounded(url, options or {})
        return core.url_to_fs(plain_url(url), **options)  # type: ignore[no-any-return]
    except ImportError as error:  # s3fs, gcsfs, adlfs
        package = getattr(error.__cause__, "name", None) or url.partition(":")[0]
        raise MissingExtra(
            f"{url!r} needs a package that is missing: pip install {package} ({error})",
            package=package,
            extra="",
        ) from None


def is_web(url: str) -> bool:
    """Tell whether a URL is of a web server, which as a rule lists nothing."""
    return url.lower().startswith(("http://", "https://"))


def _bounded(url: str, options: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return options with which no request to a web server is silent for ever.

    Other filesystems have such bounds by themselves: those of FTP, SMB and S3 are in their options.
    """
    if not is_web(url):
        return options
    timeout = require("aiohttp").ClientTimeout(
        total=_WEB_S, sock_connect=SILENT_S, sock_read=SILENT_S
    )
    return {**options, "client_kwargs": {"timeout": timeout, **options.get("client_kwargs", {})}}


def plain_url(url: str) -> str:
    """Return a URL without the name of this machine: fsspec takes that for a folder (RFC 8089)."""
    return url.replace("file://localhost/", "file:///", 1)
