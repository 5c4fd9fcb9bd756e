"""docs/coming-from.md: each job file of the page makes batches, which are what its tables say."""

from __future__ import annotations

import io
import json
import re
import shutil
import tarfile
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from chats import CHATML, write_chat_folder
from penstock.server.jobs.load import load
from penstock.server.pipeline.line import Line
from penstock.wire import frame

PAGE = (Path(__file__).parents[2] / "docs" / "coming-from.md").read_text()
FILES: dict[str, str] = dict(
    re.findall(r"<!-- file: (\S+) -->\n```\w+\n(.*?)^```", PAGE, re.M | re.S)
)
MDS = Path(__file__).parents[1] / "data" / "formats" / "mds" / "plain"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of the page, with small data of every kind that they name."""
    folder = tmp_path_factory.mktemp("coming")
    for name, text in FILES.items():
        (folder / name).write_text(text)
    (folder / "instruct").mkdir()
    rows = [{"input_ids": [n] * (1 + n % 40), "labels": [n] * (1 + n % 40)} for n in range(60)]
    for name in ("instruct/0", "instruct/1", "math"):
        pq.write_table(pa.Table.from_pylist(rows), folder / f"{name}.parquet")
    write_chat_folder(folder / "model", CHATML)
    chats = [
        {
            "conversations": [
                {"from": "human", "value": "What is the answer?" * (1 + n % 4)},
                {"from": "gpt", "value": f"It is {n}."},
            ]
        }
        for n in range(40)
    ]
    (folder / "sharegpt.json").write_text(json.dumps(chats))
    (folder / "more.jsonl").write_text("".join(json.dumps(chat) + "\n" for chat in chats))
    for name in ("web", "code"):
        shutil.copytree(MDS, folder / name)
    (folder / "shards").mkdir()
    with tarfile.open(folder / "shards" / "0.tar", "w") as archive:
        for n in range(20):
            for ending, data in (("txt", f"text {n}".encode()), ("cls", str(n % 3).encode())):
                member = tarfile.TarInfo(f"{n:03}.{ending}")
                member.size = len(data)
                archive.addfile(member, io.BytesIO(data))
    return folder


class Batch(NamedTuple):
    """What the tests below look at: values, the sources of the samples, tokens of padding."""

    values: dict[str, Any]
    sources: set[str]
    padding: int


def batches(folder: Path, name: str, count: int) -> list[Batch]:
    """Return a lane's first batches."""
    line = Line(load(str(folder / name), environ={}).job("train"), 1)
    found = []
    for _ in range(count):
        made = line.make(line.advance())
        body = bytearray(made.nbytes)
        header = frame.read_header(made.write(memoryview(body)))
        sources = {sample.source for sample in header.samples}
        values = frame.decode_values(header, body)
        found.append(Batch(values, sources, made.counts.get("padding_tokens", 0)))
    return found


def test_every_job_file_of_the_page_is_run_here() -> None:
    """None is shown that no test below has made batches of."""
    shown = {name for name, text in FILES.items() if text.startswith("jobs:")}
    run = set(re.findall(r'batches\(folder, "(\S+)"', Path(__file__).read_text()))

    assert shown == run
    assert len(shown) == 6


def test_cosmos_sets_keep_their_ratios_and_their_keys(folder: Path) -> None:
    """Three batches in four of the one set; widths are multiples of 16, and masks are bool."""
    made = batches(folder, "cosmos.yaml", 20)

    assert Counter(batch.values["dataset_name"] for batch in made) == {"instruct": 15, "math": 5}
    for values, sources, _ in made:
        assert sources == {values["dataset_name"]}
        assert values["input_ids"].shape[1] % 16 == 0
        assert values["attention_mask"].dtype == np.bool_
        assert (values["labels"][~values["attention_mask"]] == -100).all()


def test_automodel_trains_on_answers_in_neat_rows(folder: Path) -> None:
    """The keys of neat packing; some tokens are learned, and most are not."""
    [(values, _, _)] = batches(folder, "automodel.yaml", 1)

    assert {"input_ids", "labels", "position_ids", "attention_mask"} <= set(values)
    assert values["input_ids"].shape == (1, 4096)
    learned = (values["labels"] != -100).sum()
    assert 0 < learned < (values["attention_mask"] > 0).sum() / 2
    assert values["attention_mask"].max() > 1


def test_lmms_packs_become_padded_batches(folder: Path) -> None:
    """Each sample of a pack is a row of its own, and together they keep to the budget."""
    made = [batch.values for batch in batches(folder, "lmms.yaml", 8)]

    for values in made:
        assert values["attention_mask"].sum() <= 512
        assert len(values["input_ids"]) == len(values["labels"])
    assert all(len(values["input_ids"]) > 1 for values in made)


def test_torchdata_nodes_are_roles(folder: Path) -> None:
    """The weights of the parts, the filter of the function, the values of its collator."""
    made = batches(folder, "torchdata.yaml", 40)
    drawn = [number for batch in made for number in batch.values["numbers"]]

    assert all(n % 7 for n in drawn)
    assert sum(n >= 1000 for n in drawn) / len(drawn) == pytest.approx(0.75, abs=0.05)


def test_streams_of_mosaicml_are_parts(folder: Path) -> None:
    """Shards as they are written, both streams, rows without padding."""
    made = batches(folder, "streaming.yaml", 20)

    assert {source for batch in made for source in batch.sources} == {"web", "code"}
    assert all(batch.values["input_ids"].shape == (1, 16) for batch in made)
    assert all(batch.padding == 0 for batch in made)


def test_samples_of_webdataset_are_dicts(folder: Path) -> None:
    """Texts and classes are decoded, and belong together."""
    for values, _, _ in batches(folder, "webdataset.yaml", 10):
        assert [int(text.split()[1]) % 3 for text in values["text"]] == list(values["label"])


def test_a_key_of_cosmos_is_set_from_the_command_line(folder: Path) -> None:
    """As the page writes it, for the job that it shows: the log of the edited file."""
    [option] = re.findall(r"`--set (train\.\S+)`", PAGE)
    edited = folder / "cosmos-edited.yaml"
    edited.write_text(FILES["cosmos.yaml"].replace("max_tokens: 16000", "max_tokens: 12000"))

    job = load(str(folder / "cosmos.yaml"), environ={}, assignments=[option]).job("train")

    assert job.log_id == load(str(edited), environ={}).job("train").log_id
    assert job.log_id != load(str(folder / "cosmos.yaml"), environ={}).job("train").log_id
