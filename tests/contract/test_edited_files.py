"""A file that is edited under an open source, with its time of change put back, is not served."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from contract.test_sources import CASES, Case, plain
from penstock.server.files.content import WHOLE_BYTES
from penstock.server.sources import HfStreamSource, JsonlSource
from penstock.wire.errors import SourceChanged

READ_ONCE = ("hf json", "hf csv", "hf text", "hf arrow", "hf parquet", "hf webdataset", "hf folder",
             "torch", "items", "folder")  # fmt: skip
"""These have read their files when they are open: items of a Dataset are its author's, and
`datasets` has made a copy that is known by the content. Items of a folder are names: whoever reads
media by them sees what has changed."""

READ_AS_IT_IS_OPENED = {"index.json", "state.json", "dataset_dict.json", "meta.json",
                        "dataset_info.json", "info.json", "stats.json",
                        "tasks.parquet"}  # fmt: skip
"""Lists of the files of a source, and what is said of them: nothing in them is read again."""

OPEN_FILES = {name: case for name, case in CASES.items() if not name.startswith(READ_ONCE)}


def edit(path: Path) -> None:
    """Change a byte in the middle, in place, and put the time of change back."""
    before = path.stat()
    with path.open("r+b") as file:
        file.seek(before.st_size // 2)
        byte = file.read(1)
        file.seek(before.st_size // 2)
        file.write(bytes([byte[0] ^ 1]))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    after = path.stat()
    assert (after.st_size, after.st_mtime_ns) == (before.st_size, before.st_mtime_ns)


def replace(path: Path) -> None:
    """Put another file in its place, as `rsync -t` does: of its size and time of change."""
    other = path.with_name(".other")
    shutil.copy2(path, other)
    edit(other)
    shutil.copystat(path, other)
    other.replace(path)


def touch(path: Path) -> None:
    os.utime(path, (10**9, 10**9))


def copy(path: Path) -> None:
    """Put a copy in its place: the same bytes in another file."""
    other = path.with_name(".other")
    shutil.copy(path, other)
    other.replace(path)


def move_away_and_back(path: Path) -> None:
    path.rename(path.with_name(".away")).rename(path)


@pytest.mark.parametrize("change", [edit, replace])
@pytest.mark.parametrize("case", OPEN_FILES.values(), ids=OPEN_FILES.keys())
def test_no_item_of_other_bytes_is_given(
    case: Case, change: Callable[[Path], None], tmp_path: Path
) -> None:
    """It is SourceChanged, whichever file of a source it is, and never damage or other items."""
    model = tmp_path / "model"
    model.mkdir()
    case.write(model)
    files = [path for path in sorted(model.rglob("*")) if path.is_file() and path.stat().st_size]
    said: dict[str, str] = {}
    for number, path in enumerate(files):
        folder = tmp_path / str(number)
        folder.mkdir()
        case.write(folder)
        source = case.open(folder)
        source.identity()

        change(folder / path.relative_to(model))

        try:
            assert plain(source.fetch(range(len(source)))) == case.items
        except SourceChanged as error:
            said[path.name] = str(error)
        source.close()

    assert all(name in message for name, message in said.items())
    assert {path.name for path in files} - {*said} <= READ_AS_IT_IS_OPENED


@pytest.mark.parametrize("change", [touch, copy, move_away_and_back])
@pytest.mark.parametrize("case", OPEN_FILES.values(), ids=OPEN_FILES.keys())
def test_a_file_that_only_looks_changed_is_read_on(
    case: Case, change: Callable[[Path], None], tmp_path: Path
) -> None:
    """Its content is hashed again, and is the same."""
    case.write(tmp_path)
    source = case.open(tmp_path)
    identity = source.identity()

    for path in sorted(tmp_path.rglob("*")):
        if path.is_file():
            change(path)

    assert plain(source.fetch(range(len(source)))) == case.items
    source.check_present()
    assert source.identity() == identity
    source.close()


@pytest.mark.parametrize("change", [edit, replace])
def test_rows_of_a_stream_are_those_that_were_hashed(
    change: Callable[[Path], None], tmp_path: Path
) -> None:
    """Also where the file is edited while its shard is read."""
    path = tmp_path / "a.jsonl"
    path.write_text("".join(f'{{"n": {n:7d}}}\n' for n in range(1000, 400_000)))
    source = HfStreamSource("json", data_files=str(path))
    source.fingerprint()
    rows = source.open(0, None)
    first = [next(rows)[0]["n"] for _ in range(100)]

    change(path)

    assert first == [*range(1000, 1100)]
    with pytest.raises(SourceChanged, match=r"a\.jsonl changed"):
        list(rows)
    with pytest.raises(SourceChanged, match=r"a\.jsonl changed"):
        next(source.open(0, None))


def test_images_beside_their_rows_are_those_that_were_hashed(tmp_path: Path) -> None:
    """`hf` reads them when they are asked for: by then they may be others."""
    image = pytest.importorskip("PIL.Image")
    from penstock.server.sources import HfSource

    for label in ("cat", "dog"):
        (tmp_path / label).mkdir()
        image.new("RGB", (4, 4)).save(tmp_path / label / f"{label}.png")
    source = HfSource("imagefolder", data_files=str(tmp_path / "**"))
    source.identity()
    [before] = source.fetch([0])

    touch(tmp_path / "cat" / "cat.png")
    assert source.fetch([0]) == [before]
    edit(tmp_path / "cat" / "cat.png")

    with pytest.raises(SourceChanged, match=r"cat\.png changed"):
        source.fetch([0])


def test_where_parts_of_a_file_are_hashed_another_time_of_change_is_refused(tmp_path: Path) -> None:
    """Of more than 64 MiB: an edit may lie between the parts. A new name alone says nothing."""
    path = tmp_path / "a.jsonl"
    line = b'{"text": "' + b"x" * (1 << 20) + b'"}\n'
    path.write_bytes(line * (WHOLE_BYTES // len(line) + 2))
    source = JsonlSource(str(path))
    source.identity()

    move_away_and_back(path)
    assert len(source.fetch([0])) == 1
    touch(path)

    with pytest.raises(SourceChanged, match=r"a\.jsonl changed"):
        source.fetch([40])


class HubFiles(MemoryFileSystem):  # type: ignore[misc]
    """Tells of its files what `huggingface_hub` tells of those of a repository."""

    protocol = "hubfiles"

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return super()._strip_protocol(path.replace("hubfiles://", "memory://"))  # type: ignore[no-any-return]

    def info(self, path: str, **kwargs: Any) -> dict[str, Any]:
        """Return the name, the size and the id of the blob."""
        return self._as_told(super().info(path, **kwargs))

    def ls(self, path: str, detail: bool = True, **kwargs: Any) -> list[Any]:
        """Return the same of a folder's."""
        found = [self._as_told(info) for info in super().ls(path, detail=True, **kwargs)]
        return found if detail else [info["name"] for info in found]

    def _as_told(self, info: dict[str, Any]) -> dict[str, Any]:
        told = {key: info[key] for key in ("name", "size", "type")}
        if info["type"] == "file":
            content = self.store[info["name"]].getvalue()
            told["blob_id"] = hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
        return {**told, "lfs": None, "last_commit": None}


def test_a_commit_that_changes_a_file_of_the_hub_is_noticed(tmp_path: Path) -> None:
    """By the id of its blob: neither a size nor a time need to tell."""
    fsspec.register_implementation("hubfiles", HubFiles, clobber=True)
    files = fsspec.filesystem("hubfiles")
    files.pipe("/hub/a.jsonl", b'{"text": "one"}\n{"text": "two"}\n')
    try:
        source = JsonlSource("hubfiles://hub/*.jsonl")
        source.identity()

        files.pipe("/hub/a.jsonl", b'{"text": "one"}\n{"text": "six"}\n')

        with pytest.raises(SourceChanged, match=r"a\.jsonl"):
            source.fetch([1])
    finally:
        files.rm("/hub", recursive=True)
