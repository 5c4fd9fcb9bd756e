"""docs/sources.md: its table lists every source, and its examples open real files."""

from __future__ import annotations

import json
import re
import shutil
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from penstock.server.config.location import Location
from penstock.server.jobs.registry import KINDS, build
from penstock.server.sources import BUILTIN_SOURCES
from robots import RobotFolder

PAGE = (Path(__file__).parents[2] / "docs" / "sources.md").read_text()
FORMATS = Path(__file__).parents[1] / "data" / "formats"
EXAMPLES: dict[str, dict[str, Any]] = yaml.safe_load(
    re.findall(r"^```yaml\n(.*?)^```", PAGE, re.M | re.S)[0]
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every file that the page names."""
    import datasets

    folder = tmp_path_factory.mktemp("sources")
    for name in ("corpus", "more", "texts", "shards"):
        (folder / name).mkdir()
    rows = pa.table({"text": ["a", "b"]})
    pq.write_table(rows, folder / "corpus" / "0.parquet")
    with (
        pa.OSFile(str(folder / "table.arrow"), "wb") as sink,
        pa.ipc.new_file(sink, rows.schema) as writer,
    ):
        writer.write_table(rows)
    chat = [{"from": "human", "value": "?"}, {"from": "gpt", "value": "!"}]
    messages = [{"role": "user", "content": "?"}]
    for name in ("a.jsonl", "more/b.jsonl"):
        (folder / name).write_text(json.dumps({"messages": messages}) + "\n")
    (folder / "sharegpt.json").write_text(json.dumps([{"conversations": chat}] * 4))
    (folder / "table.csv").write_text("zip,n\n007,1\n")
    (folder / "book.txt").write_text("one\ntwo\n\nthree\n")
    (folder / "texts" / "a.txt").write_text("a text")
    datasets.disable_progress_bars()
    datasets.DatasetDict({"train": datasets.Dataset.from_list([{"n": 1}])}).save_to_disk(
        folder / "saved"
    )
    with tarfile.open(folder / "shards" / "0.tar", "w") as archive:
        archive.add(folder / "book.txt", "book.txt")
    shutil.copytree(FORMATS / "mds" / "zstd", folder / "mds")
    for ending in (".bin", ".idx"):
        golden = FORMATS / "megatron" / f"int32{ending}"
        shutil.copyfile(golden, folder / f"corpus_text_document{ending}")
    np.array([5, 6, 50256, 7], np.uint16).tofile(folder / "train.bin")
    np.save(folder / "rows.npy", np.zeros((2, 8), np.uint16))
    (folder / "pictures" / "cat").mkdir(parents=True)
    (folder / "pictures" / "cat" / "1.jpg").write_bytes(b"a cat")
    RobotFolder().write(folder / "robots")
    for name, text in re.findall(r"<!-- file: (\S+) -->\n```json\n(.*?)^```", PAGE, re.M | re.S):
        (folder / name).write_text(text)
    return folder


def test_the_table_lists_every_source() -> None:
    """By its type, each once and in the order of the code."""
    listed = re.findall(r"^\| `(\w+)` \|", PAGE, re.M)

    assert listed == list(BUILTIN_SOURCES)
    others = {"hf", "hf_stream", "torch", "items"}
    assert {spec["type"] for spec in EXAMPLES.values()} == set(listed) - others


@pytest.mark.parametrize(("name", "items"), [
    ("parquet", 2), ("lines", 2), ("array", 4), ("table", 1), ("paragraphs", 2), ("documents", 1),
    ("arrow", 2), ("saved", 1), ("tars", 1), ("mosaic", 7), ("megatron", 4), ("nanogpt", 2),
    ("rows", 2), ("several", 4), ("pictures", 1), ("robots", 27),
])  # fmt: skip
def test_each_example_opens_files(folder: Path, name: str, items: int) -> None:
    """As a job file builds it, and its items are read."""
    source = build(KINDS["source"], EXAMPLES[name], Location("page", folder, ("source",)))

    assert len(source) == items
    assert len(source.fetch(range(items))) == items
    source.close()


def test_what_the_page_says_of_sizes_holds(folder: Path) -> None:
    """The table's last column."""
    for name, spec in EXAMPLES.items():
        source = build(KINDS["source"], spec, Location("page", folder, ("source",)))
        assert source.knows_sizes() == (name in ("megatron", "rows")), name
        source.close()
