"""Packages that others import where they are installed, kept out where nothing needs them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def hidden(package: str) -> Iterator[None]:
    """Let a package be missing for what is imported inside; one that is imported already is not.

    For processes of penstock's own, before they have other threads. `None` in `sys.modules` is
    Python's documented way to say that there is no such module.
    """
    if package in sys.modules:
        yield
        return
    modules: dict[str, object] = sys.modules  # type: ignore[assignment]
    modules[package] = None
    try:
        yield
    finally:
        del modules[package]
