"""Packages of extras, imported where they are first needed."""

from __future__ import annotations

import importlib
from typing import Any

from penstock.wire.errors import MissingExtra


def optional(module: str, package: str, extra: str, what: str) -> Any:
    """Return an imported module of a package that not every install has.

    Args:
        module: The module.
        package: What pip calls its package.
        extra: The extra of penstock that brings it; empty = none does.
        what: What needs it, for the error's sentence.

    Raises:
        MissingExtra: The package is not installed.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != module.partition(".")[0]:
            raise
        install = f"penstock[{extra}]" if extra else package
        raise MissingExtra(
            f"{what} needs the package {package}, which is not installed: pip install '{install}' "
            "wherever this job is computed",
            package=package,
            extra=extra,
        ) from None
