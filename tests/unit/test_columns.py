"""Batches made of columns are, to the byte, those that are made of items one by one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.server.job.job import Job
from penstock.server.pipeline import maker as maker_module
from penstock.server.pipeline.items import Items
from penstock.server.pipeline.line import Line
from penstock.server.roles import IdentityProcessor, MapDistributor, Sample
from penstock.server.roles.batcher import SampleBatcher
from penstock.server.roles.batchers import BestFitPackingBatcher, SimpleBatcher
from penstock.server.roles.collators import PackedCollator
from penstock.server.roles.source import Source
from penstock.server.sources import ArrowSource, MegatronSource, ParquetSource, TokensSource
from penstock.wire.errors import BadItem, PenstockError
from penstock.wire.v1.feed_pb2 import BatchHeader


class Opaque(ParquetSource):
    """The same rows, of which no column is known to be one of numbers."""

    def sequence_dtype(self, column: str) -> np.dtype[Any] | None:
        """Return None."""
        return None


def write(
    path: Path, lists: list[list[int] | None], kind: Any = None, **columns: list[Any]
) -> None:
    """Write rows in groups of 7."""
    column = pa.array(lists, kind or pa.list_(pa.int32()))
    pq.write_table(pa.table({"input_ids": column, **columns}), path, row_group_size=7)


def documents(count: int, seed: int, most: int = 40) -> list[list[int] | None]:
    """Return documents of 0 to `most` tokens."""
    random = np.random.default_rng(seed)
    return [random.integers(1, 99, random.integers(0, most + 1)).tolist() for _ in range(count)]


def job(
    kind: type[ParquetSource],
    folder: Path,
    batcher: SampleBatcher,
    collator: PackedCollator,
    **more: Any,
) -> Job:
    """Return a job over all files of a folder, a source each."""
    sources = {path.stem: kind(str(path)) for path in sorted(folder.glob("*.parquet"))}
    return Job(sources, batcher=batcher, collator=collator, lanes=2, **more)


def made(line: Line, count: int) -> list[tuple[BatchHeader, bytes]]:
    """Return the next batches of a line; the log, which names the source's class, left out."""
    found = []
    for _ in range(count):
        batch = line.make(line.advance())
        body = bytearray(batch.nbytes)
        header = BatchHeader.FromString(batch.write(memoryview(body)))
        header.log_id = b""
        found.append((header, bytes(body)))
    return found


@pytest.fixture
def of_columns(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Return a list that grows with each batch that is asked for: whether columns gave it."""
    seen: list[bool] = []
    collate = maker_module.collate_columns

    def watched(*args: Any) -> Any:
        values = collate(*args)
        seen.append(values is not None)
        return values

    monkeypatch.setattr(maker_module, "collate_columns", watched)
    return seen


@pytest.mark.parametrize("layout", ["flash", "megatron", "thd", "indexed", "neat", "seams"])
@pytest.mark.parametrize(
    "batcher",
    [
        BestFitPackingBatcher(32, pool_size=6, overlong="split", rows=2),
        BestFitPackingBatcher(32, pool_size=6, overlong="truncate"),
        SimpleBatcher(3),
    ],
    ids=["split", "truncate", "simple"],
)
def test_columns_and_items_give_the_same_bytes(
    tmp_path: Path, of_columns: list[bool], batcher: SampleBatcher, layout: str
) -> None:
    write(tmp_path / "a.parquet", documents(50, 1))
    write(tmp_path / "b.parquet", documents(30, 2), pa.large_list(pa.uint16()))
    collator = PackedCollator(layout=layout)
    jobs = [job(kind, tmp_path, batcher, collator) for kind in (ParquetSource, Opaque)]
    expected, found = (made(Line(one, 1), 40) for one in reversed(jobs))
    assert len(of_columns) == 40
    assert all(of_columns)
    assert found == expected


def test_the_largest_ids_of_any_source_are_kept(tmp_path: Path, of_columns: list[bool]) -> None:
    """However narrow the ids of another source are."""
    large: list[Any] = [[(1 << 40) + n] * (n % 7) for n in range(20)]
    write(tmp_path / "a.parquet", large, pa.list_(pa.int64()))
    write(tmp_path / "b.parquet", documents(20, 9), pa.list_(pa.uint16()))
    jobs = [
        job(kind, tmp_path, SimpleBatcher(3), PackedCollator()) for kind in (ParquetSource, Opaque)
    ]

    expected, found = (made(Line(one, 0), 10) for one in reversed(jobs))

    assert of_columns == [True] * 10
    assert found == expected


def test_labels_come_from_their_column(tmp_path: Path, of_columns: list[bool]) -> None:
    lists = documents(40, 3)
    labels = [[-100 if token % 3 else token for token in row or ()] for row in lists]
    column = pa.array(labels, pa.list_(pa.int64()))
    write(tmp_path / "a.parquet", lists, labels=column, url=[str(row) for row in range(40)])
    batcher = BestFitPackingBatcher(32, pool_size=6, overlong="split")
    jobs = [job(kind, tmp_path, batcher, PackedCollator(32)) for kind in (ParquetSource, Opaque)]
    expected, found = (made(Line(one, 0), 40) for one in reversed(jobs))
    assert all(of_columns)
    assert len(of_columns) == 40
    assert found == expected


def test_a_row_with_missing_numbers_is_a_bad_item(tmp_path: Path, of_columns: list[bool]) -> None:
    lists: list[Any] = documents(30, 4)
    lists[11], lists[20] = [1, None, 3], None
    write(tmp_path / "a.parquet", lists)
    batcher = BestFitPackingBatcher(40, pool_size=6)
    stopping = job(ParquetSource, tmp_path, batcher, PackedCollator(), on_item_error="stop")
    with pytest.raises(BadItem, match=r"a\[(11|20)\].*'input_ids' is missing"):
        made(Line(stopping, 0), 20)
    going_on = job(ParquetSource, tmp_path, batcher, PackedCollator(), on_item_error="quarantine")
    items = Items(going_on)
    made(Line(going_on, 0, items), 20)
    left_out = {verdict.item.index for verdict in items.verdicts}
    assert left_out <= {11, 20}
    assert left_out
    # What verdicts are about is looked at item by item.
    assert len(of_columns) < 40


def test_labels_of_another_length_stop_the_batch(tmp_path: Path) -> None:
    lists = documents(20, 5)
    labels = pa.array([[*(row or ()), 1] for row in lists], pa.list_(pa.int64()))
    write(tmp_path / "a.parquet", lists, labels=labels)
    line = Line(job(ParquetSource, tmp_path, SimpleBatcher(2), PackedCollator()), 0)
    with pytest.raises(Exception, match=r"labels for .* tokens; give one per token"):
        made(line, 1)


class Broken(PackedCollator):
    """Fails wherever samples are columns."""

    def collate_columns(self, rows: Any, context: Any) -> dict[str, Any]:
        """Fail."""
        raise ZeroDivisionError("a bug")


def test_what_fails_of_columns_alone_is_warned_of_once(
    tmp_path: Path, of_columns: list[bool], caplog: pytest.LogCaptureFixture
) -> None:
    """The batches are those of items, and people learn why they take longer."""
    write(tmp_path / "a.parquet", documents(30, 6))
    jobs = [
        job(ParquetSource, tmp_path, SimpleBatcher(2), kind()) for kind in (Broken, PackedCollator)
    ]

    found, expected = (made(Line(each, 0), 5) for each in jobs)

    assert found == expected
    assert of_columns == [False] * 5 + [True] * 5
    [said] = [record.message for record in caplog.records if "columns" in record.message]
    assert "Broken" in said
    assert "ZeroDivisionError: a bug" in said


def test_where_a_worker_has_ended_items_are_made_one_by_one(
    tmp_path: Path, of_columns: list[bool]
) -> None:
    """So that the one that ends it is named, and no other is blamed."""
    write(tmp_path / "a.parquet", documents(30, 7))
    packed = job(ParquetSource, tmp_path, SimpleBatcher(2), PackedCollator())
    items = Items(packed)
    items.careful = True

    made(Line(packed, 0, items), 3)

    assert of_columns == [False] * 3


def plain(kind: type[Source]) -> type[Source]:
    """Return a kind of source that knows no column of numbers."""
    return type(f"Plain{kind.__name__}", (kind,), {"sequence_dtype": lambda self, column: None})


@pytest.mark.parametrize(
    ("name", "shuffle"),
    [(name, None) for name in ("tokens", "lines", "arrow", "megatron")]
    + [(name, "full") for name in ("tokens", "lines", "megatron")],
)
def test_every_source_of_columns_gives_what_its_items_give(
    tmp_path: Path, of_columns: list[bool], name: str, shuffle: str | None
) -> None:
    """Sequences that end at an id, of one length, in record batches, and with an index."""
    flat = np.random.default_rng(6).integers(1, 50, 3000).astype(np.uint16)
    np.save(tmp_path / "ids.npy", flat)
    rows = pa.table({"input_ids": [part.tolist() for part in np.array_split(flat, 150)]})
    with (
        pa.OSFile(str(tmp_path / "a.arrow"), "wb") as sink,
        pa.ipc.new_file(sink, rows.schema) as w,
    ):
        w.write_table(rows, max_chunksize=20)
    formats = Path(__file__).parents[1] / "data" / "formats"
    made_by: dict[str, tuple[type[Source], dict[str, Any]]] = {
        "tokens": (TokensSource, {"files": str(tmp_path / "*.npy"), "sequence_length": 17}),
        "lines": (TokensSource, {"files": str(tmp_path / "*.npy"), "eos": 7}),
        "arrow": (ArrowSource, {"files": str(tmp_path / "a.arrow")}),
        "megatron": (MegatronSource, {"files": str(formats / "megatron" / "uint16.bin")}),
    }
    kind, parameters = made_by[name]
    expected, found = (
        made(
            Line(
                Job(
                    each(**parameters, block_bytes=512),
                    MapDistributor(shuffle=shuffle),
                    batcher=BestFitPackingBatcher(64, pool_size=6, overlong="split"),
                    collator=PackedCollator(64),
                    lanes=2,
                ),
                1,
            ),
            30,
        )
        for each in (plain(kind), kind)
    )
    assert of_columns == [True] * 30
    assert found == expected


def both_ways(one: Job, monkeypatch: pytest.MonkeyPatch, count: int = 6) -> None:
    """Expect of a lane that columns and items give the same bytes, or the same error."""
    found = []
    for collate in (maker_module.collate_columns, lambda items, plan: None):
        monkeypatch.setattr(maker_module, "collate_columns", collate)
        line = Line(one, 0)
        batches: list[Any] = []
        try:
            for _ in range(count):
                batches += made(line, 1)
        except PenstockError as error:
            batches.append(str(error))
        found.append(batches)
    assert found[0] == found[1]


def test_missing_numbers_are_found_where_no_size_is_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for place in range(4):
        lists: list[Any] = [[1, 2, 3], [4], [5, 6, 7, 8], [9, 9]]
        lists[place] = [1, None]
        write(tmp_path / "a.parquet", lists)
        for size in (1, 2, 4):
            both_ways(
                job(ParquetSource, tmp_path, SimpleBatcher(size), PackedCollator()),
                monkeypatch,
            )


@pytest.mark.parametrize("most", [3, 8])
def test_sizes_may_be_lengths_of_another_column(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    """Then neither a sample's end nor a piece's follows from its size."""
    other = pa.array([[1], [4, 4], [5, 6, 7, 8, 9], [9]], pa.list_(pa.int32()))
    write(tmp_path / "a.parquet", [[1, 2, 3], [4], [5, 6, 7, 8], [9, 9]], other=other)
    batcher = BestFitPackingBatcher(most, pool_size=2, length_key="other")
    both_ways(job(ParquetSource, tmp_path, batcher, PackedCollator()), monkeypatch)


class Doubled(IdentityProcessor):
    """Cuts other pieces than columns have."""

    version: ClassVar[int | str | None] = 1

    def cut(self, sample: Sample, start: int, stop: int, size: int) -> Sample:
        """Return a piece whose tokens are twice as large."""
        return {"input_ids": [2 * token for token in sample["input_ids"][start:stop]]}


class Untrue(TokensSource):
    """Tells sizes that are not the lengths of its sequences."""

    version: ClassVar[int | str | None] = 1

    def sizes(self, indices: Sequence[int]) -> Any:
        """Return one less."""
        sizes = super().sizes(indices)
        return None if sizes is None else sizes - 1

    def lengths(self, column: str, indices: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return the lengths."""
        return self.sizes(indices.tolist()) + np.int64(1)


def test_what_decides_pieces_beside_the_columns_is_heard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A processor's own `cut`, and sizes that do not hold."""
    batcher = BestFitPackingBatcher(10, pool_size=6, overlong="split")
    write(tmp_path / "a.parquet", documents(30, 7))
    cut = job(ParquetSource, tmp_path, batcher, PackedCollator(), processor=Doubled())
    both_ways(cut, monkeypatch)
    np.save(tmp_path / "ids.npy", np.arange(1, 400, dtype=np.uint16))
    source = Untrue(str(tmp_path / "ids.npy"), sequence_length=24)
    both_ways(Job(source, batcher=batcher, collator=PackedCollator(), lanes=2), monkeypatch)
