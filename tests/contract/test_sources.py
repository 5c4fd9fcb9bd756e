"""What every source promises: items by index, blocks that add up, an identity of content alone."""

from __future__ import annotations

import io
import json
import os
import shutil
import struct
import tarfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penstock.server.roles.condition import Condition
from penstock.server.roles.source import IndexedSource
from penstock.server.sources import (
    BUILTIN_SOURCES,
    ArrowSource,
    CsvSource,
    FolderSource,
    HfSource,
    ItemsSource,
    JsonlSource,
    JsonSource,
    LerobotSource,
    MdsSource,
    MegatronSource,
    MetaSource,
    ParquetSource,
    SavedSource,
    TextSource,
    TokensSource,
    TorchDatasetSource,
    WebdatasetSource,
)
from penstock.server.testing import check_source
from robots import TASKS as ROBOT_TASKS
from robots import RobotFolder

TEXTS = ["alpha", "needle", "", "gamma delta", "épsilon", "zeta", "eta"]
ROWS = [{"text": text, "number": number} for number, text in enumerate(TEXTS)]
IDS = [[*text.encode(), 0] for text in TEXTS]
FLAT = [id for ids in IDS for id in ids]
FORMATS = Path(__file__).parents[1] / "data" / "formats"


@dataclass(frozen=True)
class Case:
    """A kind of source over files that hold the same seven rows.

    Attributes:
        write: Writes its files into an empty folder.
        open: Opens them.
        items: What it gives.
    """

    write: Callable[[Path], None]
    open: Callable[[Path], IndexedSource]
    items: list[Any]


def write_parquet(folder: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    for name, rows in (("a/part-0", ROWS[:3]), ("a/part-1", ROWS[3:4]), ("b", ROWS[4:])):
        path = folder / f"{name}.parquet"
        path.parent.mkdir(exist_ok=True)
        pq.write_table(pa.Table.from_pylist(rows), path, row_group_size=2, compression="none")


def write_jsonl(folder: Path) -> None:
    lines = (json.dumps(row, ensure_ascii=False) + "\n" for row in ROWS)
    (folder / "rows.jsonl").write_text("".join(lines), encoding="utf-8")


def write_csv(folder: Path) -> None:
    lines = [f'"{row["text"]}",{row["number"]}\n' for row in ROWS]
    (folder / "rows.csv").write_text("".join(["text,number\n", *lines]), encoding="utf-8")


def write_text(folder: Path) -> None:
    (folder / "rows.txt").write_text("".join(f"{text}\n" for text in TEXTS), encoding="utf-8")


def write_texts(folder: Path) -> None:
    for number, text in enumerate(TEXTS):
        (folder / f"{number}.txt").write_text(text, encoding="utf-8")


def write_arrow(folder: Path) -> None:
    import pyarrow as pa

    table = pa.Table.from_pylist(ROWS)
    path = str(folder / "rows.arrow")
    with pa.OSFile(path, "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)


def write_arrow_files(folder: Path) -> None:
    import pyarrow as pa

    table = pa.Table.from_pylist(ROWS)
    for name, kind, part in (
        ("a.arrow", pa.ipc.new_file, table[:4]),
        ("b.arrow", pa.ipc.new_stream, table[4:]),
    ):
        with pa.OSFile(str(folder / name), "wb") as sink, kind(sink, table.schema) as writer:
            writer.write_table(part, max_chunksize=2)


def write_array(folder: Path) -> None:
    (folder / "rows.json").write_text(json.dumps(ROWS, indent=1, ensure_ascii=False), "utf-8")


def write_mds(folder: Path) -> None:
    shutil.copytree(FORMATS / "mds" / "plain", folder / "mds")


def write_ids(folder: Path) -> None:
    (folder / "ids.bin").write_bytes(b"".join(map(bytes, IDS)))


def write_megatron(folder: Path) -> None:
    """By the layout of Megatron-LM's `indexed_dataset.py`, with values of a byte."""
    lengths = [len(ids) for ids in IDS]
    write_ids(folder)
    (folder / "ids.idx").write_bytes(
        struct.pack("<9sQBQQ", b"MMIDIDX", 1, 1, len(IDS), len(IDS) + 1)
        + np.array(lengths, np.int32).tobytes()
        + (np.cumsum(lengths) - lengths).astype(np.int64).tobytes()
        + np.arange(len(IDS) + 1, dtype=np.int64).tobytes()
    )


def write_meta(folder: Path) -> None:
    """The rows in two files, the second one with other names of columns."""
    renamed = [{"body": row["text"], "n": row["number"]} for row in ROWS[3:]]
    (folder / "b.jsonl").write_text("\n".join(map(json.dumps, renamed)), encoding="utf-8")
    (folder / "rows.csv").write_text("messages\nalpha\nneedle\ngamma\n", encoding="utf-8")
    (folder / "meta.json").write_text(
        json.dumps(
            {
                "b": {"file_name": "b.jsonl", "columns": {"messages": "body"}},
                "a": {"file_name": "rows.csv", "sample_ratio": 1.5},
            }
        )
    )


def write_tar(folder: Path) -> None:
    with tarfile.open(folder / "rows.tar", "w") as archive:
        for number, text in enumerate(TEXTS):
            for suffix, data in (
                ("txt", text.encode()),
                ("json", json.dumps({"number": number}).encode()),
                ("jpg", b"\xff\xd8 no image %d" % number),
            ):
                entry = tarfile.TarInfo(f"row-{number}.{suffix}")
                entry.size = len(data)
                archive.addfile(entry, io.BytesIO(data))


def write_saved(folder: Path) -> None:
    import datasets

    datasets.disable_progress_bars()
    datasets.Dataset.from_list(ROWS).save_to_disk(folder / "saved", num_shards=2)


def write_saved_splits(folder: Path) -> None:
    import datasets

    datasets.disable_progress_bars()
    splits = {"train": ROWS, "test": ROWS[:1]}
    datasets.DatasetDict(
        {name: datasets.Dataset.from_list(rows) for name, rows in splits.items()}
    ).save_to_disk(folder / "saved")


def write_module(folder: Path) -> None:
    (folder / "data.py").write_text(
        f"""
class Rows:
    def __init__(self, start=0):
        self.rows = {ROWS!r}[start:]

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        return self.rows[index]
""",
        encoding="utf-8",
    )


def hf(builder: str, pattern: str, **more: Any) -> Callable[[Path], IndexedSource]:
    return lambda folder: HfSource(builder, data_files=str(folder / pattern), **more)


def write_pictures(folder: Path) -> None:
    """Write pictures of two classes, and files that are none."""
    for number in range(10):
        path = folder / "pictures" / f"{'cat' if number < 6 else 'a dog'}" / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"\xff\xd8 " + (b"needle" if number == 3 else b"no picture"))
    (folder / "pictures" / "notes.txt").write_text("about them")


ROBOTS = RobotFolder(
    lengths=(3, 1, 3),
    cameras=(),
    declared={
        "text": ({"dtype": "string", "shape": [1]}, lambda i: TEXTS[i]),
        "number": ({"dtype": "int64", "shape": [1]}, lambda i: i),
    },
    compression="none",
)


def write_robots(folder: Path) -> None:
    ROBOTS.write(folder / "robots")


def robot_items() -> list[Any]:
    """The frames of the folder, with a window over `next.reward`."""
    rows = []
    for episode, length in enumerate(ROBOTS.lengths):
        columns = ROBOTS.rows(episode)
        for frame in range(length):
            item = {name: columns[name][frame] for name in ("text", "number", "next.reward")}
            after = min(frame + 1, length - 1)
            item["next.reward"] = [columns["next.reward"][at] for at in (frame, after)]
            item["next.reward_is_pad"] = [False, frame == length - 1]
            rows.append({**item, "task": ROBOT_TASKS[ROBOTS.task_of(episode, frame)]})
    order = ("next.reward", "text", "number", "next.reward_is_pad", "task")
    return [{name: row[name] for name in order} for row in rows]


CASES = {
    "lerobot": Case(
        write_robots,
        lambda folder: LerobotSource(
            str(folder / "robots"),
            features=["text", "number", "next.reward"],
            delta_timestamps={"next.reward": [0, 0.1]},
        ),
        robot_items(),
    ),
    "folder": Case(
        write_pictures,
        lambda folder: FolderSource(str(folder / "pictures")),
        [
            *({"image": f"a dog/{n}.jpg", "class": "a dog", "label": 0} for n in range(6, 10)),
            *({"image": f"cat/{n}.jpg", "class": "cat", "label": 1} for n in range(6)),
        ],
    ),
    "parquet": Case(
        write_parquet, lambda folder: ParquetSource(str(folder / "**/*.parquet")), ROWS
    ),
    "parquet of two patterns": Case(
        write_parquet,
        lambda folder: ParquetSource([str(folder / "b.parquet"), str(folder / "a")], ["text"]),
        [{"text": row["text"]} for row in ROWS],
    ),
    "jsonl": Case(write_jsonl, lambda folder: JsonlSource(str(folder / "*.jsonl")), ROWS),
    "jsonl in blocks": Case(
        write_jsonl, lambda folder: JsonlSource(str(folder), block_bytes=50), ROWS
    ),
    "json": Case(write_array, lambda folder: JsonSource(str(folder), block_bytes=60), ROWS),
    "csv": Case(write_csv, lambda folder: CsvSource(str(folder / "*.csv"), block_bytes=30), ROWS),
    "csv of one column": Case(
        write_csv,
        lambda folder: CsvSource(str(folder), ["number"]),
        [{"number": row["number"]} for row in ROWS],
    ),
    "text": Case(
        write_text,
        lambda folder: TextSource(str(folder / "rows.txt"), block_bytes=12),
        [{"text": text} for text in TEXTS],
    ),
    "text of files": Case(
        write_texts,
        lambda folder: TextSource(str(folder), "document"),
        [{"text": text} for text in TEXTS],
    ),
    "arrow": Case(
        write_arrow_files,
        lambda folder: ArrowSource(str(folder), ["number", "text"], block_bytes=1),
        ROWS,
    ),
    "saved": Case(write_saved, lambda folder: SavedSource(str(folder / "saved")), ROWS),
    "saved splits": Case(
        write_saved_splits, lambda folder: SavedSource(str(folder / "saved"), "train"), ROWS
    ),
    "webdataset": Case(
        write_tar,
        lambda folder: WebdatasetSource(str(folder), block_bytes=4000),
        [
            {
                "txt": row["text"],
                "json": {"number": row["number"]},
                "jpg": b"\xff\xd8 no image %d" % row["number"],
                "__key__": f"row-{row['number']}",
                "__url__": "rows.tar",
            }
            for row in ROWS
        ],
    ),
    "mds": Case(
        write_mds, lambda folder: MdsSource(str(folder), ["text", "number"], block_bytes=300), ROWS
    ),
    "tokens": Case(
        write_ids,
        lambda folder: TokensSource(str(folder), "uint8", eos=0, block_bytes=16),
        [{"input_ids": ids} for ids in IDS],
    ),
    "tokens of one length": Case(
        write_ids,
        lambda folder: TokensSource(str(folder), "uint8", sequence_length=8, block_bytes=16),
        [{"input_ids": FLAT[start : start + 8]} for start in range(0, len(FLAT), 8)],
    ),
    "megatron": Case(
        write_megatron,
        lambda folder: MegatronSource(str(folder / "ids.bin"), block_bytes=16),
        [{"input_ids": ids} for ids in IDS],
    ),
    "meta": Case(
        write_meta,
        lambda folder: MetaSource(str(folder / "meta.json")),
        [
            {"messages": text}
            for text in ("alpha", "needle", "gamma", "needle", *(row["text"] for row in ROWS[3:]))
        ],
    ),
    "hf json": Case(write_jsonl, hf("json", "rows.jsonl"), ROWS),
    "hf csv": Case(write_csv, hf("csv", "*.csv", options={"keep_default_na": False}), ROWS),
    "hf text": Case(write_text, hf("text", "rows.txt"), [{"text": text} for text in TEXTS]),
    "hf arrow": Case(write_arrow, hf("arrow", "*.arrow", columns=["number", "text"]), ROWS),
    "hf parquet": Case(write_parquet, hf("parquet", "**/*.parquet"), ROWS),
    "hf webdataset": Case(
        write_tar,
        hf("webdataset", "*.tar"),
        [
            {
                "txt": row["text"],
                "json": {"number": row["number"]},
                "jpg": {
                    "bytes": b"\xff\xd8 no image %d" % row["number"],
                    "path": f"row-{row['number']}.jpg",
                },
                "__key__": f"row-{row['number']}",
                "__url__": "rows.tar",
            }
            for row in ROWS
        ],
    ),
    "hf folder": Case(write_jsonl, lambda folder: HfSource(str(folder)), ROWS),
    "hf saved": Case(write_saved, lambda folder: HfSource(str(folder / "saved")), ROWS),
    "hf saved splits": Case(
        write_saved_splits, lambda folder: HfSource(str(folder / "saved"), split="train"), ROWS
    ),
    "torch": Case(write_module, lambda folder: TorchDatasetSource(f"{folder}/data.py:Rows"), ROWS),
    "torch with arguments": Case(
        write_module,
        lambda folder: TorchDatasetSource(f"{folder}/data.py:Rows", start=1),
        ROWS[1:],
    ),
    "items": Case(
        write_jsonl,
        lambda folder: ItemsSource(
            [json.loads(line) for line in (folder / "rows.jsonl").read_bytes().splitlines()]
        ),
        ROWS,
    ),
}


@pytest.fixture(scope="session", autouse=True)
def _hf_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep what `datasets` converts out of the user's cache, and the hub out of the tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_HUB_OFFLINE", "1")
        import datasets

        patch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path_factory.mktemp("hf"))
        yield


@pytest.fixture(params=CASES.values(), ids=CASES.keys())
def case(request: pytest.FixtureRequest) -> Case:
    """Each kind of source."""
    return request.param  # type: ignore[no-any-return]


@pytest.fixture
def folder(case: Case, tmp_path: Path) -> Path:
    """A folder with the case's files."""
    folder = tmp_path / "here"
    folder.mkdir()
    case.write(folder)
    return folder


def plain(items: list[Any]) -> list[Any]:
    """Return items with lists in place of arrays, which cannot be compared as items are."""
    return [
        {
            name: value.tolist() if isinstance(value, np.ndarray) else value
            for name, value in item.items()
        }
        for item in items
    ]


def identity(case: Case, folder: Path) -> str:
    source = case.open(folder)
    try:
        return json.dumps(source.identity(), sort_keys=True)
    finally:
        source.close()


def test_every_builtin_source_keeps_this_contract() -> None:
    """No built-in is left out of the cases above; streams keep `check_stream`."""
    kinds = {name.split()[0] for name in CASES}

    assert kinds == {
        name for name, source in BUILTIN_SOURCES.items() if issubclass(source, IndexedSource)
    }
    assert all(source.type_name == name for name, source in BUILTIN_SOURCES.items())


def test_items_come_by_index_in_the_order_asked(case: Case, folder: Path) -> None:
    """All items, backwards, with repeats, one at a time: always the item of that index."""
    source = case.open(folder)
    every = range(len(case.items))

    assert len(source) == len(case.items)
    assert plain(source.fetch(every)) == case.items
    assert plain(source.fetch([*reversed(every), 0, 3, 3])) == [
        *reversed(case.items),
        case.items[0],
        case.items[3],
        case.items[3],
    ]
    assert [plain(source.fetch([index])) for index in every] == [[item] for item in case.items]
    source.close()


def test_heads_are_the_columns_asked_for_or_whole_items(case: Case, folder: Path) -> None:
    """Also of rows whose whole form was read before, and the other way round."""
    source = case.open(folder)
    places = [len(case.items) - 1, 0, 0, 2]
    whole = [case.items[place] for place in places]

    assert plain(source.heads(places)) == whole
    assert source.heads([], ["text"]) == []
    if source.has_heads(["text"]):
        assert source.heads(places, ["text"]) == [{"text": item["text"]} for item in whole]
        assert source.fetch(places) == whole
        assert source.heads(places, ["text"]) == [{"text": item["text"]} for item in whole]
    assert not source.has_heads(None)
    everything = list(case.items[0])
    assert not source.has_heads(everything)
    assert plain(source.heads(places, everything)) == whole
    source.close()


def test_items_are_kept_by_a_condition_on_a_column(case: Case, folder: Path) -> None:
    """Where a source knows a column, it keeps the items that a look at each of them keeps."""
    source = case.open(folder)
    for name, value in (("text", "needle"), ("number", 3)):
        if source.has_column(name) and name in case.items[0]:
            expected = [n for n, item in enumerate(case.items) if item[name] == value]
            for _ in range(2):
                kept = source.matching(Condition({name: value}))
                assert [kept[n] for n in range(len(kept))] == expected
    source.close()


@pytest.mark.parametrize("index", [-1, 10, 10**12])
def test_an_index_outside_is_refused_in_words(case: Case, folder: Path, index: int) -> None:
    """No wrapping around: an index that no item has is an IndexError that names it."""
    source = case.open(folder)

    with pytest.raises(IndexError, match=rf"no item {index}: .* {len(case.items)} items"):
        source.fetch([0, index])


def test_every_source_keeps_the_contract(case: Case, folder: Path) -> None:
    """The published one."""
    source = case.open(folder)

    check_source(source)

    source.close()


@pytest.mark.parametrize(
    "case",
    [pytest.param(case, id=name) for name, case in CASES.items() if not name.startswith("torch")],
)
def test_what_a_caller_does_to_an_item_does_not_come_back(case: Case, folder: Path) -> None:
    """A processor may change what it is given: the next epoch gets the item anew.

    Of all sources that make the items themselves; a Dataset's are what its `__getitem__` returns.
    """
    source = case.open(folder)

    [item, twin] = source.fetch([3, 3])
    item.clear()

    assert plain([twin]) == [case.items[3]]
    assert plain(source.fetch([3])) == [case.items[3]]


def test_the_identity_does_not_know_the_place(case: Case, folder: Path, tmp_path: Path) -> None:
    """Copied elsewhere, the same files are the same source, and no path is in its identity."""
    elsewhere = tmp_path / "there" / "deep"
    shutil.copytree(folder, elsewhere)

    ours, theirs = identity(case, folder), identity(case, elsewhere)

    assert ours == theirs
    assert str(tmp_path) not in ours


def test_the_identity_does_not_know_the_time(case: Case, folder: Path) -> None:
    """Files that are touched stay the same source."""
    before = identity(case, folder)

    for path in folder.rglob("*"):
        os.utime(path, (10**9, 10**9))

    assert identity(case, folder) == before


def test_one_changed_byte_changes_the_identity(case: Case, folder: Path) -> None:
    """Same names, same sizes, same times, one other byte: another source."""
    before = identity(case, folder)
    [path] = [path for path in folder.rglob("*") if path.is_file() and contains_needle(path)]
    status = path.stat()

    path.write_bytes(path.read_bytes().replace(b"needle", b"noedle", 1))
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))

    assert identity(case, folder) != before


def contains_needle(path: Path) -> bool:
    return b"needle" in path.read_bytes()


def test_read_bytes_counts_since_the_last_call(case: Case, folder: Path) -> None:
    """The metric never falls below zero and is taken by reading it."""
    source = case.open(folder)

    source.fetch(range(len(source)))

    assert source.read_bytes() >= 0
    assert source.read_bytes() == 0
