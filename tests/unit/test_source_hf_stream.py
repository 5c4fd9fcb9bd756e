"""Rows of streaming datasets: any row again by its number, over files, URLs and functions."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.server.core.refs import ItemRef
from penstock.server.job.job import Job
from penstock.server.pipeline.line import Line
from penstock.server.roles import IterableDistributor
from penstock.server.sources import HfStreamSource, TorchDatasetSource
from penstock.server.sources.hf_stream import MARK_ROWS
from penstock.server.testing import check_job, check_stream
from penstock.wire.errors import BadBatch, InvalidJob, SourceChanged
from penstock.wire.item_numbers import shard_row

ROWS = (5, 0, 280, 3)
"""Rows of the files; in one of them lies a mark."""


def row(file: int, number: int) -> dict[str, Any]:
    return {"text": f"row {number} of {file}", "number": 1000 * file + number}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files of JSON lines, and one of Parquet with three row groups."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    folder = tmp_path_factory.mktemp("stream")
    for file, rows in enumerate(ROWS):
        lines = [json.dumps(row(file, number)) + "\n" for number in range(rows)]
        (folder / f"{file}.jsonl").write_text("".join(lines))
    table = pa.Table.from_pylist([row(7, number) for number in range(25)])
    pq.write_table(table, folder / "rows.parquet", row_group_size=10)
    return folder


def json_source(folder: Path, **more: Any) -> HfStreamSource:
    return HfStreamSource("json", data_files=str(folder / "*.jsonl"), **more)


def made_dataset(shards: int = 3) -> Any:
    """Return a dataset of code: its own shards, a map and a filter."""
    from datasets import IterableDataset

    def rows(numbers: list[int]) -> Iterator[dict[str, Any]]:
        for number in numbers:
            for n in range(4):
                yield {"number": 10 * number + n}

    dataset = IterableDataset.from_generator(rows, gen_kwargs={"numbers": list(range(shards))})
    return dataset.map(lambda row: {"twice": 2 * row["number"]}).filter(lambda r: r["number"] != 12)


SOURCES: dict[str, Callable[[Path], HfStreamSource]] = {
    "json lines": json_source,
    "some columns": lambda folder: json_source(folder, columns=["number"]),
    "row groups": lambda folder: HfStreamSource(
        "parquet", data_files=str(folder / "rows.parquet"), reshard=True
    ),
    "a dataset": lambda folder: HfStreamSource(dataset=made_dataset()),
}


@pytest.mark.parametrize("make", SOURCES.values(), ids=SOURCES.keys())
def test_a_streaming_dataset_keeps_the_contract_of_streams(
    folder: Path, make: Callable[[Path], HfStreamSource]
) -> None:
    """From every mark the same rows; rows in any order; an identity that is JSON."""
    check_stream(make(folder))


def test_rows_are_those_of_the_files_and_marks_lie_apart(folder: Path) -> None:
    """Each file is a shard, in the order in which `datasets` reads them."""
    source = json_source(folder)

    assert source.shards() == [f"{file}.jsonl" for file in range(len(ROWS))]
    for file, rows in enumerate(ROWS):
        found = list(source.open(file, None))
        assert [item for item, _ in found] == [row(file, number) for number in range(rows)]
        marks = [mark for _, mark in found if mark is not None]
        assert marks == list(range(MARK_ROWS, rows + 1, MARK_ROWS))
    assert source.columns_of_items() == {"text": "string", "number": "int64"}
    assert len(SOURCES["row groups"](folder).shards()) == 3
    assert [item for item, _ in SOURCES["a dataset"](folder).open(1, None)] == [
        {"number": n, "twice": 2 * n} for n in (10, 11, 13)
    ]


@pytest.mark.parametrize("lanes", [1, 3, 9])
def test_every_row_once_per_epoch_through_a_shuffle_buffer(folder: Path, lanes: int) -> None:
    """Where `datasets`' own state loses rows of its buffer, and repeats others."""
    distributor = IterableDistributor(buffer_size=40)
    distributor.bind({"main": json_source(folder)}, 1, 1, lanes)
    drawn: list[ItemRef] = []
    for lane in range(lanes):
        draws = distributor.open(lane, lanes)
        while (item := draws.next()) is not None:
            drawn.append(item)
            if len(drawn) % 100 == 50:  # a restart
                state = json.loads(json.dumps(draws.state()))
                draws = distributor.open(lane, lanes)
                draws.restore(state)

    expected = [(shard, n) for shard, rows in enumerate(ROWS) for n in range(rows)]
    assert Counter(shard_row(item.index) for item in drawn) == Counter(expected)


def test_a_lane_over_files_restores_exactly_at_every_offset(folder: Path) -> None:
    """Bytes and snapshots, from processes that have read nothing."""

    def make() -> Job:
        return Job(
            json_source(folder), IterableDistributor(buffer_size=30), batch_size=7, lanes=3, seed=2
        )

    check_job(make, lane=1, batches=30)


def test_files_at_a_url_are_the_same_log(folder: Path) -> None:
    """Over fsspec: the names, hashes and rows are those of the local files."""
    import fsspec

    memory = fsspec.filesystem("memory")
    memory.put(str(folder) + "/", "memory://hf_stream/", recursive=True)
    try:
        remote = HfStreamSource("json", data_files="memory://hf_stream/*.jsonl")

        assert remote.fingerprint()["bytes"] == json_source(folder).fingerprint()["bytes"]
        assert remote.shards() == json_source(folder).shards()
        assert next(remote.open(2, MARK_ROWS))[0] == row(2, MARK_ROWS)
        assert remote.identity() == json_source(folder).identity()
    finally:
        memory.rm("memory://hf_stream", recursive=True)


def test_a_file_that_changes_is_refused(tmp_path: Path) -> None:
    """When its shard is opened, and when a run begins."""
    for name in ("a", "b"):
        (tmp_path / f"{name}.jsonl").write_text(json.dumps(row(0, 0)) + "\n")
    source = json_source(tmp_path)
    before = json.dumps(source.fingerprint())
    (tmp_path / "b.jsonl").write_text(json.dumps(row(1, 10)) + "\n" * 2)

    assert len(list(source.open(0, None))) == 1
    with pytest.raises(SourceChanged, match=r"b\.jsonl changed"):
        next(source.open(1, None))
    with pytest.raises(SourceChanged, match=r"b\.jsonl changed"):
        source.check_present()
    assert json.dumps(json_source(tmp_path).fingerprint()) != before


@pytest.mark.parametrize("kind", ["json", "parquet"])
def test_files_of_different_columns_are_one_sentence(
    kind: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """It names the file and its columns; of the library nothing else is seen."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    for file, item in enumerate(({"text": "a"}, {"body": "b", "size": 1})):
        if kind == "json":
            (tmp_path / f"{file}.json").write_text(json.dumps(item) + "\n")
        else:
            pq.write_table(pa.Table.from_pylist([item]), tmp_path / f"{file}.parquet")
    source = HfStreamSource(kind, data_files=str(tmp_path / f"*.{kind}"))

    assert [item for item, _ in source.open(0, None)] == [{"text": "a"}]
    with pytest.raises(BadBatch) as error:
        list(source.open(1, None))

    said = error.value.message
    assert said.startswith(f"shard '1.{kind}' cannot be read at row 0: CastError: Couldn't cast")
    assert "body: string size: int64" in said
    assert "files of one kind with the same columns" in said
    assert "\n" not in said
    assert not error.value.fields
    assert capfd.readouterr() == ("", "")


def test_a_damaged_file_is_named_with_its_row(tmp_path: Path) -> None:
    """The rows before it were given; from a mark on, too."""
    (tmp_path / "0.csv").write_text("text,number\n" + "x,1\n" * 300 + '"y\n')
    source = HfStreamSource("csv", data_files=str(tmp_path / "0.csv"), options={"chunksize": 100})

    for mark in (None, 256):
        stream = source.open(0, mark)
        given = [item for item, _ in itertools.islice(stream, 300 - (mark or 0))]
        with pytest.raises(BadBatch, match=r"'0\.csv' cannot be read at row 300: ParserError"):
            next(stream)
        assert given == [{"text": "x", "number": 1}] * (300 - (mark or 0))


FACTORY = """
from datasets import IterableDataset

def rows(numbers):
    for number in numbers:
        yield {"number": number}

def make(count, kind="stream"):
    if kind == "list":
        return list(range(count))
    return IterableDataset.from_generator(rows, gen_kwargs={"numbers": list(range(count))})

def known(count):
    return make(count)

known.fingerprint = lambda: "v1"
"""


def test_a_function_of_the_users_makes_the_dataset(tmp_path: Path) -> None:
    """It is known by its code, and by the fingerprint that it gives or lacks."""
    (tmp_path / "data.py").write_text(FACTORY)
    made = HfStreamSource(factory=f"{tmp_path}/data.py:make", count=3)
    known = HfStreamSource(factory=f"{tmp_path}/data.py:known", count=3)

    assert made.fetch([next(made.spread(1))]) == [{"number": 0}]
    assert made.unseen() is not None
    assert "make (data.py) has no fingerprint()" in (made.unseen() or "")
    assert known.unseen() is None
    assert known.fingerprint() == {"shards": 3, "dataset": "v1"}
    more = HfStreamSource(factory=f"{tmp_path}/data.py:make", count=4)
    assert made.identity() != more.identity()
    with pytest.raises(InvalidJob, match=r"make \(data.py\) gave a value of type list, and not an"):
        HfStreamSource(factory=f"{tmp_path}/data.py:make", count=4, kind="list")


def test_wrong_parameters_are_refused_with_a_remedy(folder: Path) -> None:
    """One sentence each."""
    files = str(folder / "*.jsonl")
    with pytest.raises(InvalidJob, match="needs path: json and data_files, or factory"):
        HfStreamSource()
    with pytest.raises(InvalidJob, match="path and factory are both given"):
        HfStreamSource("json", data_files=files, factory="./data.py:make")
    with pytest.raises(InvalidJob, match=r"delimiter is not a parameter of hf_stream: .* options"):
        HfStreamSource("json", data_files=files, delimiter=";")
    with pytest.raises(InvalidJob, match="has no split 'test'"):
        json_source(folder, split="test")
    with pytest.raises(InvalidJob, match="has no column 'txt'"):
        json_source(folder, columns=["txt"])
    with pytest.raises(InvalidJob, match=r"no file|cannot read|Unable to find"):
        HfStreamSource("json", data_files=str(folder / "none-*.jsonl"))
    with pytest.raises(InvalidJob, match="a torch source takes either"):
        TorchDatasetSource()


def test_batches_of_a_line_hold_rows_of_the_stream(folder: Path) -> None:
    """End to end in one process: the values are columns of the rows."""
    job = Job(
        json_source(folder, columns=["number"]),
        IterableDistributor(shuffle=False),
        batch_size=4,
        lanes=1,
    )
    plan = Line(job, 0).advance()

    assert [shard_row(ref.item.index) for [ref] in plan.rows] == [(0, n) for n in range(4)]
