"""Filesystems of fsspec, and packages that are needed for some files alone."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

from penstock.wire.errors import MissingExtra


def require(module: str, *, extra: str = "server", who: str = "this source") -> Any:
    """Return an imported module of an optional package.

    Args:
        module: The module.
        extra: The extra of penstock that brings it.
        who: What needs it, as errors say it.

    Raises:
        MissingExtra: The package is not installed; names the extra that brings it.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        package = module.partition(".")[0]
        if error.name is None or error.name.partition(".")[0] != package:
            raise
        raise MissingExtra(
            f"{who} needs the package {package}: pip install 'penstock[{extra}]'",
            package=package,
            extra=extra,
        ) from None


def located(url: str, options: Mapping[str, Any] | None = None) -> tuple[Any, str]:
    """Return the filesystem of a path or a URL, and what the file is called there.

    Raises:
        MissingExtra: The filesystem's own package is not installed.
        ValueError: No filesystem has such URLs.
    """
    core = require("fsspec.core")
    try:
        return core.url_to_fs(plain_url(url), **(options or {}))  # type: ignore[no-any-return]
    except ImportError as error:  # s3fs, gcsfs, adlfs
        package = getattr(error.__cause__, "name", None) or url.partition(":")[0]
        raise MissingExtra(
            f"{url!r} needs a package that is missing: pip install {package} ({error})",
            package=package,
            extra="",
        ) from None


def plain_url(url: str) -> str:
    """Return a URL without the name of this machine: fsspec takes that for a folder (RFC 8089)."""
    return url.replace("file://localhost/", "file:///", 1)
