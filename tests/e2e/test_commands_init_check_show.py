"""The operator's commands on real data: a first job file, its check, its batches."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import subprocess
import sys
import tarfile
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from chats import CHATML, write_chat_folder
from harness import run_command
from penstock.client.cli import main as penstock
from penstock.server.cli import run
from penstock.server.commands.group import cli
from penstock.server.commands.measure import MAX_BATCHES
from penstock.server.commands.meter import POOLS_PASSED
from penstock.server.commands.show import computed_batches
from penstock.server.jobs.load import load
from penstock.server.pipeline.line import Line
from penstock.wire import frame
from penstock.wire.describe import batch_record
from penstock.wire.order import Share
from penstock.wire.v1.feed_pb2 import BatchHeader

DOCS = Path(__file__).parents[2] / "docs"

TEXTS = [f"document number {number} says hello to the world\n" * 5 for number in range(60)]


def write_parquet(folder: Path) -> list[str]:
    for part in range(2):
        rows = TEXTS[part::2]
        table = pa.table({"id": [str(number) for number in range(len(rows))], "text": rows})
        pq.write_table(table, folder / f"part{part}.parquet", row_group_size=10)
    return [str(folder / f"part{part}.parquet") for part in range(2)]


def write_jsonl(folder: Path) -> list[str]:
    lines = [json.dumps({"id": number, "body": text}) for number, text in enumerate(TEXTS)]
    (folder / "notes.jsonl").write_text("\n".join(lines))
    return [str(folder / "notes.jsonl")]


def write_csv(folder: Path) -> list[str]:
    with (folder / "table.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["x", "y"])
        writer.writerows([number, number / 3] for number in range(60))
    return [str(folder / "table.csv")]


def write_text(folder: Path) -> list[str]:
    (folder / "poem.txt").write_text("\n".join(text.splitlines()[0] for text in TEXTS))
    return [str(folder / "poem.txt")]


def write_folder(folder: Path) -> list[str]:
    inner = folder / "texts" / "deep"
    inner.mkdir(parents=True)
    for number, text in enumerate(TEXTS):
        (inner / f"{number}.txt").write_text(text)
    (inner / "README").write_text("not one of them")
    return [str(folder / "texts")]


def write_tokenized(folder: Path) -> list[str]:
    ids = [list(range(1, 2 + number % 7)) for number in range(60)]
    pq.write_table(pa.table({"input_ids": ids}), folder / "ids.parquet")
    return [str(folder / "ids.parquet")]


KINDS = {
    "parquet": (write_parquet, "parquet", "text"),
    "jsonl": (write_jsonl, "jsonl", "body"),
    "csv": (write_csv, "csv", None),
    "text": (write_text, "text", "text"),
    "folder": (write_folder, "text", "text"),
    "tokenized": (write_tokenized, "parquet", None),
}


def write_tokenizer(path: Path) -> Path:
    from tokenizers import Tokenizer, models, pre_tokenizers

    vocabulary = {chr(code): code for code in range(128)}
    vocabulary["<eos>"] = 128
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=" "))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    tokenizer.save(str(path))
    return path


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory and a cache of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PENSTOCK_WORKERS", "1")  # what many give at once has tests of its own
    return tmp_path


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run `penstockd` as a user does: in a process of its own."""
    return run_command(["penstock.server.cli", *arguments], environment=os.environ)


@pytest.mark.parametrize("kind", [*KINDS, "parquet alone", "tokenized alone"])
def test_what_init_writes_passes_check(
    kind: str, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """On every kind of data, with a tokenizer beside it and alone, unedited."""
    tokenizer = not kind.endswith(" alone")
    kind = kind.removesuffix(" alone")
    write, source_type, column = KINDS[kind]
    (home / "data").mkdir()
    files = write(home / "data")
    if tokenizer:
        write_tokenizer(home / "data" / "tokenizer.json")

    assert run(["init", *files]) == 0
    assert run(["check", "penstock.yaml", "--json", "--items", "8", "--batches", "1"]) == 0

    out = capsys.readouterr().out
    result = json.loads(out.splitlines()[-1])
    [job] = result["jobs"]
    assert result["ok"]
    assert job["items"] == 60
    assert job["batches_run"] == 1
    assert 50 < job["memory"]["keeping_up"] < job["memory"]["stalled"]
    text = (home / "penstock.yaml").read_text()
    assert f"type: {source_type}" in text
    assert str(home) not in text, "paths below the job file are relative"
    if tokenizer and column is not None:
        assert f"column: {column}" in text
        assert 'append: "<eos>"' in text
        assert job["efficiency"] > 0.5
    if kind == "tokenized":
        assert job["efficiency"] is not None


def job_of_init(home: Path, *arguments: str) -> dict[str, Any]:
    assert run(["init", *arguments, "--force"]) == 0
    job: dict[str, Any] = yaml.safe_load((home / "penstock.yaml").read_text())["jobs"]["main"]
    return job


def test_init_takes_the_column_and_the_sizes_that_it_is_told(home: Path) -> None:
    """Another column than the longest, rows of another length, or padded batches of items."""
    write_tokenizer(home / "tokenizer.json")
    rows = [{"long": text, "short": text[:9], "n": number} for number, text in enumerate(TEXTS)]
    (home / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))

    packed = job_of_init(home, "rows.jsonl", "--column", "short", "--max-tokens", "77")
    padded = job_of_init(home, "rows.jsonl", "--batch-size", "5")

    assert packed["processor"]["column"] == "short"
    assert packed["source"]["columns"] == ["short"]
    assert (packed["batcher"]["max_tokens"], packed["collator"]["pad_to"]) == (77, 77)
    assert padded["processor"]["column"] == "long"
    assert (padded["batch_size"], padded["collator"]) == (5, "padded")
    assert "batcher" not in padded
    assert len(load("penstock.yaml").job("main").log_id) == 32


def test_init_of_conversations_without_a_template_points_at_the_example(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Items as they are, and the way to packed tokens."""
    turns = [{"from": "human", "value": "?"}, {"from": "gpt", "value": "!"}]
    (home / "chats.jsonl").write_text("\n".join([json.dumps({"c": turns})] * 60))
    write_tokenizer(home / "tokenizer.json")  # without a template: no use for conversations

    job = job_of_init(home, "chats.jsonl", "--batch-size", "3")

    said = " ".join(capsys.readouterr().out.split())
    assert "column c holds conversations" in said
    assert job["batch_size"] == 3
    assert "processor" not in job
    assert "type: chat, tokenizer: FOLDER, column: c" in ((home / "penstock.yaml").read_text())


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--max-tokens", "8", "--batch-size", "8"], "give one of them"),
        (
            ["--max-tokens", "8"],
            "--max-tokens 8 packs tokens, and these items give none: add --tok",
        ),
        (["--column", "bdy"], "no column of this name; did you mean body?"),
        (["--column", "id"], "--column id holds values of type int, such as 0: name one of texts"),
        (
            ["--column", "c", "--tokenizer", "tokenizer.json"],
            "has no chat template: give the folder",
        ),
        (["--max-tokens", "1"], "1 is not in the range x>=2"),
    ],
)
def test_init_refuses_what_does_not_go_with_the_data(
    arguments: list[str], sentence: str, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each is one sentence with the way on, and nothing is written."""
    (home / "data").mkdir()
    chat = [{"role": "user", "content": "?"}]
    rows = [{"id": n, "body": text, "c": chat} for n, text in enumerate(TEXTS)]
    if "c" not in arguments:
        rows = [{"id": row["id"], "body": row["body"]} for row in rows]
    (home / "data" / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    write_tokenizer(home / "tokenizer.json" if "c" in arguments else home / "elsewhere.json")

    status = run(["init", "data/rows.jsonl", *arguments])

    assert status == 2
    assert sentence in capsys.readouterr().err
    assert not (home / "penstock.yaml").exists()


def test_init_does_not_take_token_ids_for_text(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Small ids are UTF-8 byte for byte, as is a file of them without an index."""
    (home / "train.bin").write_bytes(np.arange(90, dtype="<u2").tobytes())

    assert run(["init", "train.bin"]) == 2

    assert "--source dtype=uint16, or what they are, and --source eos=ID" in capsys.readouterr().err
    assert not (home / "penstock.yaml").exists()


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        (
            "sets.json",
            json.dumps({"chat": {"file_name": "chat.jsonl"}}).encode(),
            "if it lists data sets, write the job file by hand, with source: {type: meta, file:",
        ),
        (
            "sets.json",
            json.dumps({"chat": {"file_name": "chat.jsonl"}}, indent=1).encode(),
            "is one JSON object",
        ),
        ("bad.jsonl", b"no\nnor this\n", "bad.jsonl: line 1 is not JSON"),
    ],
)
def test_init_says_what_to_do_with_files_that_are_no_rows(
    name: str, content: bytes, sentence: str, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The way on, and no job file."""
    (home / name).write_bytes(content)

    assert run(["init", name]) == 2

    assert sentence in capsys.readouterr().err
    assert not (home / "penstock.yaml").exists()


def test_init_of_a_row_of_ids_says_what_to_write(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Only their owner knows the id that ends a document."""
    np.save(home / "ids.npy", np.arange(90, dtype="<u2"))

    assert run(["init", "ids.npy"]) == 2

    assert "add --source eos=ID, the id after each document" in capsys.readouterr().err


def write_tar(path: Path, *samples: dict[str, bytes]) -> None:
    """Write a tar as WebDataset reads it: a file for each ending of a sample."""
    with tarfile.open(path, "w") as archive:
        for number, sample in enumerate(samples):
            for ending, data in sample.items():
                member = tarfile.TarInfo(f"{number:04}.{ending}")
                member.size = len(data)
                archive.addfile(member, io.BytesIO(data))


def write_pictures(home: Path) -> list[str]:
    pictures = [{"jpg": bytes([255, 216, n]), "txt": f"picture {n}".encode()} for n in range(20)]
    write_tar(home / "pictures.tar", *pictures)
    return ["pictures.tar"]


def write_classes(home: Path) -> list[str]:
    write_tar(home / "c.tar", *({"png": bytes([n]), "cls": b"%d" % n} for n in range(20)))
    return ["c.tar"]


def write_objects(home: Path) -> list[str]:
    rows = [json.dumps({"text": text, "n": 1}).encode() for text in TEXTS]
    write_tar(home / "objects.tar", *({"json": row} for row in rows))
    return ["objects.tar"]


def write_lists(name: str, **more: Any) -> Callable[[Path], list[str]]:
    def write(home: Path) -> list[str]:
        ids = [list(range(1, 2 + number % 7)) for number in range(60)]
        others = {key: [value] * 60 for key, value in more.items()}
        pq.write_table(pa.table({name: ids, "name": ["a long name"] * 60, **others}), "ids.parquet")
        return ["ids.parquet"]

    return write


def write_labelled(home: Path) -> list[str]:
    ids = [list(range(1, 2 + number % 7)) for number in range(60)]
    masked = [[-100, -100, *some[2:]][: len(some)] for some in ids]  # a prompt of two tokens
    pq.write_table(pa.table({"input_ids": ids, "labels": masked, "x": [0] * 60}), "ids.parquet")
    return ["ids.parquet"]


def write_splits(home: Path) -> list[str]:
    from datasets import Dataset, DatasetDict

    parts = {name: Dataset.from_dict({"text": TEXTS}) for name in ("train", "test")}
    DatasetDict(parts).save_to_disk(str(home / "saved"))
    return ["saved", "--split", "test"]


def write_row(home: Path) -> list[str]:
    ids = np.random.default_rng(0).integers(1, 100, 4000).astype("<u2")
    ids[::40] = 0
    (home / "train.bin").write_bytes(ids.tobytes())
    return ["train.bin", "--source", "dtype=uint16", "--source", "eos=0"]


FOUND = {
    "pictures": (write_pictures, "columns jpg, txt, 8 items to a batch", {"jpg": "list"}),
    "classes": (write_classes, "png is bytes, which batches hold as they are", {"cls": "tensor"}),
    "objects": (write_objects, "tokenizes column json.text", {"input_ids": "tensor"}),
    "tokens": (write_lists("tokens"), "takes the token ids of column tokens", {"input_ids": ""}),
    "labels": (write_labelled, "left out: x", {"labels": "tensor"}),
    "splits": (write_splits, "tokenizes column text", {"input_ids": "tensor"}),
    "a row": (write_row, "takes the token ids of column input_ids", {"input_ids": "tensor"}),
}


@pytest.mark.parametrize("kind", FOUND)
def test_init_takes_what_is_meant_for_training(
    kind: str, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Not the archive's name, not a name beside the ids, not a label; and it says what is left."""
    write, said, values = FOUND[kind]
    write_tokenizer(home / "tokenizer.json")
    files = write(home)

    assert run(["init", *files]) == 0

    out = capsys.readouterr().out
    assert said in out
    assert "checked: 8 items and " in out
    assert run(["show", "penstock.yaml", "main", "--position", "0", "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    for name, is_a in values.items():
        assert is_a in record["values"][name]["kind"]


def test_init_of_labels_trains_on_them(home: Path) -> None:
    """They stay the sample's own: what they leave out is not learned."""
    write_labelled(home)

    assert run(["init", "ids.parquet"]) == 0

    [batch] = computed_batches(load("penstock.yaml").job("main"), range(1), 1, share=None)
    values = frame.decode_values(BatchHeader.FromString(batch.header), batch.body)
    learned = values["labels"][values["labels"] != -100]
    assert learned.size
    assert (learned > 2).all()  # prompts are 1 and 2


def test_init_says_that_what_it_wrote_fails(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Lists of any length cannot be stacked, and what to do with them only their owner knows."""
    rows = [[0.5] * (1 + number % 3) for number in range(60)]
    pq.write_table(pa.table({"embedding": rows}), "rows.parquet")

    assert run(["init", "rows.parquet"]) == 2

    out, err = capsys.readouterr()
    assert "wrote" not in out
    assert "penstock.yaml is written, and fails its check: " in err
    assert "'embedding' has shape" in err
    assert "function:" in err


def test_init_needs_to_know_the_split(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_splits(home)

    assert run(["init", "saved"]) == 2

    assert "has the splits test, train; choose one with --split NAME" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("HuggingFaceFW/fineweb", "hf download HuggingFaceFW/fineweb --repo-type dataset"),
        ("none.jsonl", "there is no file or folder 'none.jsonl' [invalid_request]"),
    ],
)
def test_init_of_a_name_of_the_hub_says_how_to_get_it(
    name: str, said: str, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["init", name]) == 2

    assert said in capsys.readouterr().err


def test_init_notes_that_half_of_a_pair_is_read(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [{"instruction": f"add {n}", "output": f"it is {n}" * 3} for n in range(60)]
    (home / "a.json").write_text(json.dumps(rows))
    write_tokenizer(home / "tokenizer.json")

    assert run(["init", "a.json"]) == 0

    assert "instruction and output are two halves, and output alone is read" in (
        capsys.readouterr().out
    )


def test_init_of_a_text_column_with_a_number_in_it(home: Path) -> None:
    """Most values decide what a column holds; the job's policy decides about the others."""
    rows = [*({"text": text} for text in TEXTS), {"text": 17}, {"text": None}]
    (home / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    write_tokenizer(home / "tokenizer.json")

    assert run(["init", "rows.jsonl"]) == 0

    assert load("penstock.yaml").job("main").role_sets[0].processor.type_name == "tokenize"


def test_init_notes_items_that_cannot_be_read(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A broken line is no reason to write nothing, and what is written passes its check."""
    (home / "rows.jsonl").write_text('{"text": "one"}\nbroken\n{"text": "two"}\n')

    assert run(["init", "rows.jsonl"]) == 0

    said = capsys.readouterr().out
    assert "1 of the first 3 items cannot be read: " in said
    assert "on_item_error: quarantine" in (home / "penstock.yaml").read_text()
    assert "rows.jsonl: line 2 is not JSON" in said
    assert "line 2 is not JSON" in (home / "penstock.yaml").read_text()


def test_job_files_of_one_folder_have_stores_of_their_own(home: Path) -> None:
    """A store has one holder, so two nodes with one store could not run side by side."""
    write_jsonl(home)

    assert run(["init", "notes.jsonl"]) == 0
    assert run(["init", "notes.jsonl", "--output", "other.yaml"]) == 0

    assert load("penstock.yaml").server.store == "sqlite:///penstock.db"
    assert load("other.yaml").server.store == "sqlite:///other.db"


def test_ping_of_a_job_file_names_its_jobs(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`local:` answers for a node: with a version and the jobs, though nobody serves them."""
    write_jsonl(home)
    assert run(["init", "notes.jsonl"]) == 0
    capsys.readouterr()

    assert penstock(["ping", "local:penstock.yaml", "--json"]) == 0

    found = json.loads(capsys.readouterr().out)
    assert found["jobs"] == ["main"]
    assert found["version"] == version("penstock")


def test_init_names_files_by_their_glob(home: Path) -> None:
    """Files that are all of their kind in a folder are named as one pattern."""
    (home / "data").mkdir()
    files = write_parquet(home / "data")

    assert run(["init", *files]) == 0

    assert 'files: "data/*.parquet"' in (home / "penstock.yaml").read_text()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["init", "none.parquet"], "there is no file or folder 'none.parquet'"),
        (["init", "data"], "holds no files"),
        (["init", "a.jsonl", "b.csv"], "of several kinds (1 jsonl, 1 csv)"),
        (["init", "bytes"], "neither text nor a known kind"),
        (["init", "latin.txt"], "is not UTF-8: write it again as UTF-8"),
        (["init", "rows.zip"], "is an archive: unpack it"),
        (["init", "a.jsonl", "--tokenizer", "none.json"], "there is no tokenizer 'none.json'"),
        (["init", "a.jsonl", "--tokenizer", "b.csv"], "is not a tokenizer"),
        (["init", "a.jsonl", "--output", "there.yaml"], "replace it with --force"),
        (["init", "a.jsonl", "--output", "no/where.yaml"], "there is no folder"),
        (["init"], "Missing argument 'FILES...'"),
        (["check", "none.yaml"], "there is no job file 'none.yaml'"),
        (["check", "good.yaml", "jb"], "there is no job 'jb'"),
        (["show", "good.yaml", "job"], "give either --position or --step"),
        (["show", "good.yaml", "job", "--position", "99"], "position 99 lies past the end"),
        (["show", "good.yaml", "job", "--step", "99"], "step 99 lies past the end"),
        (
            ["show", "good.yaml", "job", "--step", "0", "--rank", "2", "--world-size", "2"],
            "rank 2 is not one of 2 ranks",
        ),
        (
            ["show", "good.yaml", "job", "--step=0", "--batches-per-step=3", "--world-size=2"],
            "cannot be shared evenly by 2 ranks",
        ),
        (["show", "good.yaml", "job", "--position", "0", "--json", "--text"], "not both"),
        (["serve", "good.yaml", "--workers", "many"], "--workers is 'many'"),
        (["serv", "good.yaml"], "there is no command 'serv': did you mean serve?"),
    ],
)
def test_a_users_mistake_is_one_sentence_and_status_2(
    arguments: list[str], says: str, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """On stderr, with what to do and a stable code; no traceback."""
    (home / "data").mkdir()
    (home / "a.jsonl").write_text('{"x": "y"}\n')
    (home / "b.csv").write_text("x\n1\n")
    (home / "bytes").write_bytes(b"\xff\xfe\x00\x01" * 10)
    (home / "latin.txt").write_bytes(b"caf\xe9 " * 10)
    (home / "rows.zip").write_bytes(b"PK\x03\x04\xff\xfe" * 10)
    (home / "there.yaml").write_text("")
    (home / "good.yaml").write_text(
        "jobs: {job: {source: {type: items, items: [1, 2]}, batch_size: 1, epochs: 1}}\n"
    )

    status = run(arguments)

    err = capsys.readouterr().err
    assert status == 2
    assert says in err
    assert err.startswith("penstockd: error: ")
    assert "Traceback" not in err


ROLES = """\
import os, random, time
import numpy as np
from penstock.server.roles import BatchCollator, RawItemProcessor

class Clock(RawItemProcessor):
    def process(self, raw, context):
        return {"x": raw["x"], "now": time.time_ns()}

class Order(RawItemProcessor):
    def __init__(self):
        self.seen = 0
    def process(self, raw, context):
        self.seen += 1
        return {"x": raw["x"], "seen": self.seen}

class Hash(RawItemProcessor):
    def process(self, raw, context):
        return {"x": raw["x"], "hash": hash(str(raw))}

class Pure(RawItemProcessor):
    def process(self, raw, context):
        values = [context.rng.random(), random.random(), np.random.rand()]
        return {"x": raw["x"], "r": np.array(values)}

class Raises(RawItemProcessor):
    def process(self, raw, context):
        return helper(raw)

def helper(raw):
    raise ValueError("not this one")

class Dies(RawItemProcessor):
    def process(self, raw, context):
        if os.environ.get("PYTHONHASHSEED", "random") in ("4711", "4712"):
            os._exit(7)
        return {"x": raw["x"]}

class Stamped(BatchCollator):
    def collate(self, rows, context):
        return {"pid": np.array([os.getpid()])}

def stamped(samples):
    return {"pid": np.array([os.getpid()] * len(samples))}

def stacked(samples):
    return {"labels": np.array([sample.pop("x") for sample in samples]), "n": np.random.rand(2)}
"""


def check_role(home: Path, section: str) -> subprocess.CompletedProcess[str]:
    (home / "roles.py").write_text(ROLES)
    (home / "job.yaml").write_text(
        "jobs:\n  job:\n    lanes: 2\n"
        "    source: {type: items, items: [{x: 1}, {x: 2}, {x: 3}, {x: 4}]}\n    " + section + "\n"
    )
    return command("check", "job.yaml", "job", "--batches", "1")


@pytest.mark.parametrize(("role", "key"), [("Clock", "now"), ("Order", "seen"), ("Hash", "hash")])
def test_check_names_what_is_impure(home: Path, role: str, key: str) -> None:
    """Clocks, memory of earlier items, and hash randomisation: item and key are named."""
    done = check_role(home, f"batch_size: 2\n    processor: ./roles.py:{role}")

    assert done.returncode == 2
    assert f"is not pure: {role} gives item main[" in done.stderr
    assert f"another '{key}'" in done.stderr
    assert "[log_diverged]" in done.stderr


def test_check_names_an_impure_collator(home: Path) -> None:
    """Pure items in an impure batch."""
    done = check_role(
        home, "batcher: {type: simple, batch_size: 2}\n    collator: ./roles.py:Stamped"
    )

    assert done.returncode == 2
    assert "another 'pid'" in done.stderr
    assert "Stamped" in done.stderr


def test_check_names_an_impure_collate_function(home: Path) -> None:
    """A function's batches are compared as a class's are."""
    done = check_role(home, 'batch_size: 2\n    collator: {function: "./roles.py:stamped"}')

    assert done.returncode == 2
    assert "another 'pid'" in done.stderr
    assert "stamped (roles.py)" in done.stderr


def test_a_collate_function_serves_a_finite_job_to_its_last_step(home: Path) -> None:
    """With batch_size and a pure function: check passes, the tail is padding of the same shapes."""
    done = check_role(
        home,
        'batch_size: 1\n    collator: {function: "./roles.py:stacked"}\n'
        "    epochs: 1\n    batches_per_step: 3",
    )

    assert done.returncode == 0, done.stderr
    batches = list(computed_batches(load("job.yaml").job("job"), range(6), 3, share=Share(3, 0, 1)))
    headers = [BatchHeader.FromString(batch.header) for batch in batches]
    values = [
        frame.decode_values(header, batch.body)
        for header, batch in zip(headers, batches, strict=True)
    ]
    assert [header.padding for header in headers] == [False] * 4 + [True] * 2
    assert all(list(batch) == ["labels", "n"] for batch in values)
    assert all(batch["n"].shape == (2,) for batch in values)
    assert sorted(int(batch["labels"][0]) for batch in values) == [-100, -100, 1, 2, 3, 4]
    assert len({batch["n"].tobytes() for batch in values[:4]}) == 4, "each batch has its own draws"


def test_check_names_an_impure_source(home: Path) -> None:
    """A Dataset that counts its calls is told from its processor."""
    (home / "data.py").write_text(
        "class Counted:\n"
        "    def __init__(self): self.calls = 0\n"
        "    def __len__(self): return 20\n"
        "    def __getitem__(self, index):\n"
        "        self.calls += 1\n"
        "        return {'x': self.calls}\n"
    )
    (home / "job.yaml").write_text(
        "jobs: {job: {source: {type: torch, factory: ./data.py:Counted}, batch_size: 2}}\n"
    )

    done = command("check", "job.yaml")

    assert done.returncode == 2
    assert "Counted (data.py) gives another raw item main[" in done.stderr


@pytest.mark.parametrize(
    ("state", "sentence"),
    [
        (
            "",
            "Growing.size has changed since the constructor, and is taken for its parameter 'size'",
        ),
        (
            "    def state(self): return {'held': []}\n",
            "batch 1 of lane 0 has another 'x' when its lane goes on from a snapshot; Growing",
        ),
        (
            "    def state(self): return {}\n"
            "    def restore(self, state): self.held = state['held']\n",
            "Growing.restore() does not take what state() gave after batch 0 of lane 0 "
            "(KeyError('held'))",
        ),
    ],
)
def test_check_names_a_batcher_that_cannot_be_resumed(
    state: str, sentence: str, home: Path
) -> None:
    """An attribute that has the name of a parameter and changes; a restore of another state."""
    (home / "batchers.py").write_text(
        "from penstock.server.roles import SampleBatcher\n"
        "class Growing(SampleBatcher):\n"
        "    version, needs_sizes, needs_content = 1, False, False\n"
        "    def __init__(self, size): self.size, self.held = size, []\n"
        "    def add(self, ref, sample=None):\n"
        "        self.held.append(ref)\n"
        "        if len(self.held) < self.size: return []\n"
        "        group, self.held, self.size = [[one] for one in self.held], [], self.size + 1\n"
        "        return [group]\n" + state
    )
    (home / "job.yaml").write_text(
        "jobs:\n  job:\n    batcher: {type: ./batchers.py:Growing, size: 1}\n    lanes: 1\n"
        f"    source: {{type: items, items: {[{'x': number} for number in range(32)]}}}\n"
    )

    done = command("check", "job.yaml")

    assert done.returncode == 2
    assert sentence in done.stderr
    assert "[log_diverged]" in done.stderr or not state


def test_check_counts_what_a_verdict_removes(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With `on_item_error: quarantine` a bad item is a note, and not the end of the check."""
    (home / "data.py").write_text(
        "def to_sample(raw):\n"
        "    if raw['x'] % 8 == 3:\n"
        "        raise ValueError('an eighth is bad')\n"
        "    return raw\n"
    )
    (home / "job.yaml").write_text(
        "jobs:\n  job:\n    function: ./data.py:to_sample\n    on_item_error: quarantine\n"
        f"    source: {{type: items, items: {[{'x': number} for number in range(32)]}}}\n"
        "    batch_size: 2\n    lanes: 2\n"
    )

    assert run(["check", "job.yaml", "--json"]) == 0

    [job] = json.loads(capsys.readouterr().out)["jobs"]
    assert job["quarantined"] == {"ValueError: an eighth is bad": 4}
    assert "4 of 32 items fail: ValueError: an eighth is bad" in job["warnings"]


def test_check_names_a_batcher_that_finds_no_size(home: Path) -> None:
    """A batcher of the user's whose samples have no `input_ids`: one sentence, no traceback."""
    (home / "batchers.py").write_text(
        "from penstock.server.roles import SampleBatcher\n"
        "class Pairs(SampleBatcher):\n"
        "    def add(self, ref, sample=None): return [[[ref]]]\n"
    )

    done = check_role(home, "batcher: ./batchers.py:Pairs\n    collator: default")

    assert done.returncode == 2
    [line] = done.stderr.splitlines()
    assert "Pairs.size_of() finds no size of a sample of item main[" in line
    assert line.endswith("with KeyError: 'input_ids'; the sample has x [bad_batch]")


def test_check_counts_what_a_batcher_refuses(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`overlong: error` follows the job's policy, as on a server: a note, or the end."""
    text = (
        "jobs:\n  job:\n    on_item_error: quarantine\n    lanes: 1\n"
        f"    source: {{type: items, items: {[{'input_ids': [1] * (n + 1)} for n in range(9)]}}}\n"
        "    batcher: {type: best_fit, max_tokens: 8, pool_size: 2, overlong: error}\n"
        "    collator: packed\n"
    )
    (home / "job.yaml").write_text(text)
    (home / "stop.yaml").write_text(text.replace("quarantine", "stop"))

    assert run(["check", "job.yaml", "--json"]) == 0
    [job] = json.loads(capsys.readouterr().out)["jobs"]
    assert run(["check", "stop.yaml"]) == 2

    [(reason, count)] = job["quarantined"].items()
    assert reason.startswith("9 tokens do not fit into a row of 8")
    assert count >= 1
    assert "[bad_item]" in capsys.readouterr().err


def test_check_passes_seeded_randomness(home: Path) -> None:
    """The item's own generator and the seeded global ones are pure, in any order and process."""
    done = check_role(home, "batch_size: 2\n    processor: ./roles.py:Pure")

    assert done.returncode == 0, done.stderr
    assert "twice, in another order and process: the same" in done.stdout


def test_check_names_a_function_that_draws_against_its_word(home: Path) -> None:
    """It says that it draws nothing, so nobody seeds for it; what it draws would differ."""
    (home / "draws.py").write_text(
        "import random\n"
        "def to_sample(raw):\n"
        "    return {'x': raw['x'], 'r': random.random()}\n"
        "to_sample.uses_global_rng = False\n"
    )

    done = check_role(home, "batch_size: 2\n    function: ./draws.py:to_sample")

    assert done.returncode == 2
    assert "to_sample of job 'job' says uses_global_rng = False, and draws" in done.stderr
    assert "[invalid_job]" in done.stderr


SURROUNDINGS = """\
import os, time
from pathlib import Path
import numpy as np
from penstock.server.roles import RawItemProcessor

class Place(RawItemProcessor):
    def process(self, raw, context):
        hour = time.localtime(raw["x"]).tm_hour
        return {"x": raw["x"], "hour": hour, "language": os.environ["LANG"]}

class Product(RawItemProcessor):
    def process(self, raw, context):
        rng = np.random.default_rng(raw["x"])
        shapes = ((100, 2000), 2000)
        matrix, vector = (rng.standard_normal(shape, dtype=np.float32) for shape in shapes)
        return {"x": matrix @ vector}

class Folder(RawItemProcessor):
    def process(self, raw, context):
        return {"x": raw["x"], "folder": os.getcwd()}

class Words(RawItemProcessor):
    def parameters(self):
        return {"words": list({"one", "two", "three", "four", "five", "six"})}
    def process(self, raw, context):
        return raw

class Relative(RawItemProcessor):
    def setup(self):
        self.text = Path("words.txt").read_text()
    def process(self, raw, context):
        return {"x": raw["x"], "text": self.text}
"""


def check_surroundings(home: Path, role: str) -> subprocess.CompletedProcess[str]:
    (home / "surroundings.py").write_text(SURROUNDINGS)
    (home / "words.txt").write_text("a b c")
    return check_role(home, f"batch_size: 2\n    processor: ./surroundings.py:{role}")


@pytest.mark.parametrize(
    ("role", "notes"),
    [
        (
            "Place",
            [
                "depends on the time zone: Place gives another value there, first 'hour' of item",
                "depends on the locale: Place gives another value there, first 'language'",
            ],
        ),
        ("Relative", ["depends on the working folder: it fails there:"]),
    ],
)
def test_check_names_what_a_role_depends_on(role: str, notes: list[str], home: Path) -> None:
    """It is fixed wherever batches are computed, so it is a note: one each, with role and key."""
    done = check_surroundings(home, role)

    assert done.returncode == 0, done.stderr
    for note in notes:
        assert [line for line in done.stdout.splitlines() if "depends on" in line and note in line]
    assert done.stdout.count("depends on") == len(notes)


def test_check_allows_products_of_matrices(home: Path) -> None:
    """Their last bits depend on the number of threads; that is one everywhere."""
    done = check_surroundings(home, "Product")

    assert done.returncode == 0, done.stderr
    # Whether they differ is the library's and the processor's affair.
    for line in done.stdout.splitlines():
        assert "depends on" not in line or "the number of threads" in line


def test_check_compares_log_ids(home: Path) -> None:
    """Parameters in the order of a set: two nodes would not know each other's log."""
    done = check_surroundings(home, "Words")

    assert done.returncode == 2
    assert "has another log id in another process" in done.stderr


def test_check_refuses_what_the_folder_decides(home: Path) -> None:
    """Nothing fixes it: two nodes that were started elsewhere would give two contents."""
    done = check_surroundings(home, "Folder")

    assert done.returncode == 2
    assert "it depends on the working folder" in done.stderr
    assert "Folder gives another value there, first 'folder' of item main[" in done.stderr
    assert "[log_diverged]" in done.stderr


def test_check_shows_a_users_exception_with_the_users_frames(home: Path) -> None:
    """The traceback begins in the user's file; the sentence names the item."""
    done = check_role(home, "batch_size: 2\n    processor: ./roles.py:Raises")

    assert done.returncode == 2
    frames = [line for line in done.stderr.splitlines() if line.strip().startswith("File ")]
    assert len(frames) == 2
    assert all("roles.py" in frame for frame in frames)
    assert "fails in Raises.process() with ValueError: not this one" in done.stderr
    assert "[bad_item]" in done.stderr


def test_check_tells_of_a_death_elsewhere(home: Path) -> None:
    """A role that kills its process only there is not mistaken for a pure one."""
    done = check_role(home, "batch_size: 2\n    processor: ./roles.py:Dies")

    assert done.returncode == 2
    assert "ended with status 7 in another one" in done.stderr


@pytest.mark.parametrize(
    "command",
    [
        ("check", "penstock.yaml"),
        ("show", "penstock.yaml", "main", "--step", "0"),
        ("schema",),
        ("--help",),
    ],
)
def test_a_command_whose_output_is_not_read_to_its_end_ends_quietly(
    command: tuple[str, ...], home: Path
) -> None:
    """As in `penstockd check penstock.yaml | head`: no code of a role is blamed."""
    job = "{source: {type: items, items: [1, 2, 3, 4]}, batch_size: 2}"
    (home / "penstock.yaml").write_text(f"jobs: {{main: {job}}}")
    reading, writing = os.pipe()
    os.close(reading)

    ended = subprocess.run(
        [sys.executable, "-m", "penstock.server.cli", *command],
        cwd=home,
        stdout=writing,
        stderr=subprocess.PIPE,
        text=True,
    )

    os.close(writing)
    assert (ended.returncode, ended.stderr) == (0, "")


def test_check_goes_on_to_the_other_jobs(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One broken job does not hide what is known of another; the status says that one is broken."""
    (home / "two.yaml").write_text(
        "jobs:\n"
        "  bad: {source: {type: parquet, files: none.parquet}, batch_size: 1}\n"
        "  good: {source: {type: items, items: [1, 2, 3]}, batch_size: 1, lanes: 1}\n"
    )

    status = run(["check", "two.yaml", "--json"])

    out = json.loads(capsys.readouterr().out)
    assert status == 2
    assert [(job["job"], job["ok"]) for job in out["jobs"]] == [("bad", False), ("good", True)]
    assert out["jobs"][0]["error"]["key"] == "jobs.bad.source.files"


def test_check_warns_of_few_items_per_lane(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Fewer items in a lane than four pools: epochs mix, and the note says which lanes suit."""
    (home / "ids.yaml").write_text(
        "jobs:\n  job:\n    lanes: 8\n"
        f"    source: {{type: items, items: {[{'input_ids': [1, 2, 3]}] * 64}}}\n"
        "    batcher: {type: best_fit, max_tokens: 8, pool_size: 8}\n"
        "    collator: {type: packed, pad_to: 8}\n"
    )

    assert run(["check", "ids.yaml", "--json"]) == 0

    [job] = json.loads(capsys.readouterr().out)["jobs"]
    assert any("lanes: 2 or a smaller pool_size" in warning for warning in job["warnings"])
    assert any("padding: more items for each lane" in warning for warning in job["warnings"])
    assert job["efficiency"] == pytest.approx(6 / 8)


def test_check_processes_items_of_each_set_by_its_own_processor(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Both sets take the same items, and make other samples of them: the job is pure."""
    (home / "times.py").write_text(
        "from penstock.server.roles import RawItemProcessor\n"
        "class Times(RawItemProcessor):\n"
        "    uses_global_rng = False\n"
        "    def __init__(self, by):\n"
        "        self.by = by\n"
        "    def process(self, raw, context):\n"
        "        return {'n': raw['n'] * self.by}\n"
    )
    parts = [
        f"{{source: {{type: items, items: [{{n: 1}}, {{n: 2}}]}}, batch_size: 1, "
        f"processor: {{type: './times.py:Times', by: {by}}}}}"
        for by in (1, 10)
    ]
    (home / "joint.yaml").write_text(
        "jobs:\n  job:\n    lanes: 1\n    choice: batch\n"
        f"    joint: {{a: {parts[0]}, b: {parts[1]}}}\n"
    )

    status = run(["check", "joint.yaml"])

    out = capsys.readouterr()
    assert (status, out.err) == (0, "")
    assert "were made twice, in another order and process: the same" in out.out


def test_show_refuses_steps_of_several_sets(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As a Loader does: nobody could read such a step."""
    part = "{source: {type: items, items: [1, 2]}, batch_size: 1}"
    (home / "joint.yaml").write_text(
        "jobs:\n  job:\n    lanes: 1\n    batches_per_step: 4\n"
        f"    joint: {{a: {part}, b: {part}}}\n"
    )

    assert run(["show", "joint.yaml", "job", "--step", "3", "--batches-per-step", "3"]) == 2

    assert "a step would hold several sets; use 1, 2, 4" in capsys.readouterr().err


def test_check_lists_what_reaches_no_batch(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Values that the collator does not know are left behind, and somebody may have meant them."""
    (home / "data.py").write_text(
        "def ids(item):\n"
        "    return {'input_ids': [1, 2, 3], 'labels': [1, 2, 3], 'x': object(), 'url': 'u'}\n"
    )
    roles = "batcher: {type: best_fit, max_tokens: 8}\n    collator: packed"
    (home / "job.yaml").write_text(
        "jobs:\n  job:\n    lanes: 1\n    source: {type: items, items: [1, 2, 3, 4]}\n"
        f"    function: ./data.py:ids\n    {roles}\n"
    )

    assert run(["check", "job.yaml"]) == 0
    assert "x, url of the samples are in no batch: the collator packed does not take" in (
        " ".join(capsys.readouterr().out.split())
    )

    (home / "data.py").write_text("def ids(item):\n    return {'input_ids': [1, 2, 3]}\n")
    assert run(["check", "job.yaml"]) == 0
    assert "in no batch" not in capsys.readouterr().out


def test_check_says_how_storage_is_read_where_it_is_asked(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What memory is for is named by its setting; how noisy rates were stands beside them."""
    write_parquet(home)
    assert run(["init", "part0.parquet"]) == 0
    capsys.readouterr()
    groups = ("reading groups", "read amplification of a window", "blocks in memory")

    assert run(["check", "penstock.yaml"]) == 0
    brief = capsys.readouterr().out
    assert run(["check", "penstock.yaml", "--verbose"]) == 0
    whole = capsys.readouterr().out

    assert not [name for name in groups if name in brief]
    assert all(name in whole for name in groups)
    assert re.search(r"up to [\d,]+ MiB, [\d,]+ MiB of it for ready batches \(ready_bytes", brief)
    assert re.search(r"by one worker.* \([\d,]+ to [\d,]+ in 8 windows\)", brief)


def test_check_says_how_much_an_epoch_draws(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`where` and `sample_ratio` make other draws than there are items."""
    (home / "some.yaml").write_text(
        "jobs:\n  job:\n    lanes: 1\n    batch_size: 2\n"
        f"    source: {{type: items, items: {[{'n': n} for n in range(40)]}}}\n"
        "    distributor: {type: map, sample_ratio: 0.25}\n"
    )

    assert run(["check", "some.yaml"]) == 0

    assert "40 items, 10 draws an epoch, in 1 lane, endless" in capsys.readouterr().out


def test_check_says_how_long_a_packed_job_is(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In epochs: how many batches they make is counted when the job is served."""
    (home / "ids.yaml").write_text(
        "jobs:\n  job:\n    lanes: 1\n    epochs: 2\n"
        f"    source: {{type: items, items: {[{'input_ids': [1, 2, 3]}] * 40}}}\n"
        "    batcher: {type: best_fit, max_tokens: 8, pool_size: 8}\n"
        "    collator: {type: packed, pad_to: 8}\n"
    )

    assert run(["check", "ids.yaml"]) == 0

    assert "40 items in 1 lane, 2 epochs, whose batches are counted" in capsys.readouterr().out


@pytest.mark.parametrize("pool_size", [1, 200])
def test_check_measures_packing_past_the_first_fill_of_the_pool(
    pool_size: int, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The first rows are chosen from a fresh pool: the best of 200 samples fill them best."""
    rng = np.random.default_rng(3)
    items = [{"input_ids": [1] * int(size)} for size in rng.integers(20, 60, 1000)]
    (home / "ids.json").write_text(json.dumps(items))
    (home / "ids.py").write_text(
        "import json, pathlib\n"
        "def items(): return json.loads(pathlib.Path(__file__).with_name('ids.json').read_text())\n"
    )
    (home / "ids.yaml").write_text(
        "jobs:\n  job:\n    lanes: 1\n"
        "    source: {type: torch, factory: ./ids.py:items}\n"
        f"    batcher: {{type: best_fit, max_tokens: 64, pool_size: {pool_size}}}\n"
        "    collator: {type: packed, pad_to: 64}\n"
    )
    line = Line(load("ids.yaml").job("job"), 0)

    assert run(["check", "ids.yaml", "--json", "--batches", "2"]) == 0

    [job] = json.loads(capsys.readouterr().out)["jobs"]
    while line.offset < 2 or line.planner.drawn < POOLS_PASSED * pool_size:
        line.advance()
    tokens = sum(ref.size for _ in range(MAX_BATCHES) for row in line.advance().rows for ref in row)
    assert job["efficiency"] == pytest.approx(tokens / (64 * MAX_BATCHES))
    assert (job["paced_batches"], job["pool_filled"], job["workers"]) == (MAX_BATCHES, True, 1)
    assert job["per_second"].keys() == {"tokens", "samples"}
    assert all(rate > 0 for rate in job["per_second"].values())


def test_check_measures_a_lane_that_ends_by_its_first_batches(home: Path) -> None:
    """A finite lane with nothing past its start has no rates, and says of what it speaks."""
    (home / "few.yaml").write_text(
        "jobs:\n  job:\n    lanes: 1\n    epochs: 1\n    batch_size: 2\n    collator: padded\n"
        "    source: {type: items, items: [{input_ids: [1, 2]}, {input_ids: [1]}]}\n"
    )

    done = command("check", "few.yaml")

    assert done.returncode == 0, done.stderr
    said = " ".join(done.stdout.split())
    assert "2 items in 1 lane, 1 batch" in said
    assert "packing efficiency 0.7500 (1 batch, its lane has no more)" in said
    assert "per second" not in done.stdout


def records(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[dict[str, Any]]:
    assert run(["show", *arguments, "--json"]) == 0
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


@pytest.fixture
def finite(home: Path) -> str:
    """Ten batches in 3 lanes, 4 to a step: the last step is filled up."""
    items = [{"x": number} for number in range(10)]
    (home / "finite.yaml").write_text(
        "jobs:\n  job:\n    lanes: 3\n    epochs: 1\n    batches_per_step: 4\n    batch_size: 1\n"
        f"    source: {{type: items, items: {json.dumps(items)}}}\n"
    )
    return "finite.yaml"


def test_the_ranks_of_a_step_share_its_positions(
    finite: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """For every world size the ranks' batches are the step's, and those are the positions'."""
    alone = [records(capsys, finite, "job", "--position", str(p))[0] for p in range(8)]

    for world_size in (1, 2, 4):
        for step in (0, 1):
            found = [
                record
                for rank in range(world_size)
                for record in records(
                    capsys,
                    *f"{finite} job --step {step} --rank {rank} --world-size {world_size}".split(),
                )
            ]
            ordered = sorted(found, key=lambda record: record["position"])
            assert ordered == alone[4 * step : 4 * step + 4]


def test_the_last_step_is_filled_with_padding(finite: str, home: Path) -> None:
    """Positions past the end are blanked batches that no item counts in."""
    job = load(finite).job("job")

    headers = [
        BatchHeader.FromString(batch.header)
        for batch in computed_batches(job, range(8, 12), 4, share=Share(4, 0, 1))
    ]

    assert [header.padding for header in headers] == [False, False, True, True]
    assert [header.position for header in headers] == [8, 9, 10, 11]


def test_show_is_the_same_in_another_process(home: Path) -> None:
    """The record, digest included, does not depend on the process that computes it."""
    write_parquet(home)
    write_tokenizer(home / "tokenizer.json")
    assert run(["init", *sorted(str(path) for path in home.glob("*.parquet"))]) == 0

    here = [
        json.dumps(batch_record(BatchHeader.FromString(batch.header), batch.body, 3))
        for batch in computed_batches(load("penstock.yaml").job("main"), range(3, 4), 1, share=None)
    ]
    there = command("show", "penstock.yaml", "main", "--position", "3", "--json")

    assert there.stdout.splitlines() == here


def test_show_text_decodes_documents_with_their_seams(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The first thing that anyone asks of a packer: what lies behind what."""
    write_parquet(home)
    write_tokenizer(home / "tokenizer.json")
    assert run(["init", "part0.parquet", "part1.parquet"]) == 0
    capsys.readouterr()

    assert run(["show", "penstock.yaml", "main", "--position", "0", "--text"]) == 0

    out = capsys.readouterr().out
    assert out.startswith("0  step 0  lane 0:0  ")
    assert "--- row 0, document 1, " in out
    assert "--- row 0, document 2, " in out
    assert "h e l l o" in out or "hello" in out


def test_every_command_has_help_with_an_example_or_a_choice(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A newcomer finds the way from --help alone."""
    assert run(["--help"]) == 0
    top = capsys.readouterr().out
    for name in cli.commands:
        assert f"  {name} " in top
        assert run([name, "--help"]) == 0
        text = capsys.readouterr().out
        assert f"penstockd {name} " in text
        for parameter in cli.commands[name].params:
            assert parameter.param_type_name == "argument" or getattr(parameter, "help", None)


def test_schema_prints_json(capsys: pytest.CaptureFixture[str]) -> None:
    """Editors read it."""
    assert run(["schema"]) == 0

    assert json.loads(capsys.readouterr().out)["title"] == "penstock job file"


def doc_files(page: str) -> dict[str, str]:
    found = re.findall(r"<!-- file: (\S+) -->\n```\w+\n(.*?)```", (DOCS / page).read_text(), re.S)
    return dict(found)


def test_from_a_dataset_class_to_batches_in_8_lines(home: Path) -> None:
    """The page's own files: the Dataset unedited, and at most 8 lines around it."""
    files = doc_files("roles.md")
    for name, text in files.items():
        (home / name).write_text(text)
    lines = [
        line
        for name in ("penstock.yaml", "train.py")
        for line in files[name].splitlines()
        if line.strip()
    ]

    assert len(lines) <= 8
    assert "penstock" not in files["data.py"]
    [batch] = computed_batches(load("penstock.yaml").job("digits"), range(5, 6), 1, share=None)
    values = frame.decode_values(BatchHeader.FromString(batch.header), batch.body)
    assert values["image"].shape == (32, 28, 28)
    assert values["label"].shape == (32,)
    assert command("check", "penstock.yaml").returncode == 0
    read = subprocess.run(
        [sys.executable, "train.py"], capture_output=True, text=True, check=True, cwd=home
    )
    assert [line.split()[0] for line in read.stdout.splitlines()] == [*map(str, range(10))]


def test_the_pages_own_roles_pass_check(home: Path) -> None:
    """The functions, batcher, collator and stream that docs/roles.md shows are right and pure.

    So are the lines of job files of that page, and of those about built-in roles.
    """
    for name, text in doc_files("roles.md").items():
        (home / name).write_text(text)
    (home / "roles.yaml").write_text(
        "jobs:\n  job:\n    lanes: 2\n"
        "    source: {type: torch, factory: ./data.py:Digits}\n"
        "    function: ./augment.py:to_sample\n"
        "    batcher: {type: ./my_roles.py:Pairs, labels: 10}\n"
        "    collator: ./my_roles.py:Stack\n"
        "  called:\n    lanes: 2\n"
        "    source: {type: torch, factory: ./data.py:Digits}\n"
        "    batch_size: 32\n"
        "    collator: {function: ./collate.py:collate}\n"
        "  lines:\n    lanes: 2\n"
        "    source: {type: ./lines.py:Lines, folder: texts}\n"
        "    distributor: iterable\n"
        "    batch_size: 2\n"
        "  streamed:\n    lanes: 3\n"
        "    source: {type: hf_stream, path: json, data_files: texts/*.jsonl}\n"
        "    distributor: {type: iterable, buffer_size: 1000}\n"
        "    batch_size: 2\n"
        "  rows:\n    lanes: 2\n"
        "    source: {type: items, items: [{input_ids: [1, 2, 3]}, {input_ids: [4]}]}\n"
        "    batcher: {type: sequential, max_sequence_length: 64}\n"
        "    collator: {type: packed, layout: megatron, pad_to: 8192, document_multiple: 8}\n"
        "  chats:\n    lanes: 2\n"
        "    source: {type: items, items: [{messages: [{role: user, content: hi},"
        " {role: assistant, content: ho}]}]}\n"
        "    processor: {type: chat, tokenizer: my-model, max_length: 8192}\n"
        "    batcher: {type: simple, batch_size: 2}\n"
        "    collator: padded\n"
    )
    write_chat_folder(home / "my-model", CHATML)
    (home / "texts").mkdir()
    for shard in range(3):
        (home / "texts" / f"{shard}.txt").write_text("one\ntwo\nthree\n")
    (home / "texts" / "one.jsonl").write_text('{"text": "one"}\n{"text": "two"}\n' * 9)

    pages = [
        (DOCS / f"{name}.md").read_text()
        for name in ("roles", "distributors", "processors", "collators")
    ]
    fragments = re.findall(r"^```yaml\n((?:    .*\n)+)```", "".join(pages), re.M)
    assert len(fragments) == 7
    written = (home / "roles.yaml").read_text().replace('"', "")
    assert all(fragment.replace('"', "") in written for fragment in fragments)

    done = command("check", "roles.yaml", "--json")

    assert done.returncode == 0, done.stderr
    jobs = {job["job"]: job for job in json.loads(done.stdout)["jobs"]}
    assert jobs["job"]["filtered"].keys() <= {"no sevens"}
    assert list(jobs) == ["job", "called", "lines", "streamed", "rows", "chats"]
    assert any("has 1 shard for 3 lanes" in warning for warning in jobs["streamed"]["warnings"])


@pytest.mark.parametrize("command", [[], *([name] for name in cli.commands)])
def test_help_fits_a_terminal(
    command: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """At 80 columns no line is broken by the terminal, and no sentence ends in `...`."""
    monkeypatch.setenv("COLUMNS", "80")

    assert run([*command, "--help"]) == 0

    written = capsys.readouterr().out
    assert [line for line in written.splitlines() if len(line) > 80] == []
    assert re.search(r"[a-z,]\.\.\.$", written, re.MULTILINE) is None
