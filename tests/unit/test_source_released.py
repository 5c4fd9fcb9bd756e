"""Sources that nobody holds any more: their blocks go with them, without the garbage collector."""

from __future__ import annotations

import gc
import io
import tarfile
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from penstock.server.roles import IndexedSource
from penstock.server.sources import JsonlSource, JsonSource, TextSource, WebdatasetSource


@pytest.fixture(autouse=True)
def _no_collector() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()


def _json(folder: Path) -> IndexedSource:
    (folder / "a.json").write_text("[1, 2]")
    return JsonSource(str(folder))


def _lines(folder: Path) -> IndexedSource:
    (folder / "a.jsonl").write_text("1\n2\n")
    return JsonlSource(str(folder))


def _text(folder: Path) -> IndexedSource:
    (folder / "a.txt").write_text("one\ntwo\n")
    return TextSource(str(folder))


def _tar(folder: Path) -> IndexedSource:
    with tarfile.open(folder / "a.tar", "w") as archive:
        archive.addfile(tarfile.TarInfo("one.txt"), io.BytesIO())
    return WebdatasetSource(str(folder))


@pytest.mark.parametrize("make", [_json, _lines, _text, _tar])
def test_a_block_in_memory_does_not_keep_its_source(
    make: Callable[[Path], IndexedSource], tmp_path: Path
) -> None:
    """A circle of both would hold up to `cache_bytes` until the collector of Python comes by."""
    source = make(tmp_path)
    source.keep_blocks(1)
    source.fetch([0])
    seen = weakref.ref(source)

    del source

    assert seen() is None
