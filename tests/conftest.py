"""What tests of several folders share."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def runtime(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder for the sockets of `spawn:` nodes: their paths may have 107 bytes at most."""
    with tempfile.TemporaryDirectory(prefix="pst-") as folder:
        monkeypatch.setenv("XDG_RUNTIME_DIR", folder)
        yield Path(folder)
