"""Mixtures, lanes of parts and conditions over a real node: its death, its metrics, `cat`."""

from __future__ import annotations

import re
import urllib.request
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from harness import Server, serving, write_job_file
from invariants import Purity, check_conservation
from penstock.client import Loader
from penstock.client.cli import main as penstock
from penstock.server.jobs.load import load
from penstock.wire.errors import InvalidJob, SourceExhausted

WEB = {"type": "parquet", "files": "web/*.parquet", "columns": ["input_ids"]}
CODE = {"type": "parquet", "files": "code.parquet", "columns": ["input_ids"]}
PACKED = {
    "batcher": {"type": "best_fit", "max_tokens": 64, "pool_size": 8},
    "collator": {"type": "packed", "pad_to": 64},
    "lanes": 4,
    "snapshot_every": 4,
}
MIXED = {
    "type": "mixture",
    "weights_by": "tokens",
    "parts": {
        "web": {
            "weight": 3,
            "distributor": {
                "type": "mixture",
                "weights_by": "tokens",
                "parts": {
                    "english": {
                        "weight": 2,
                        "distributor": {"type": "map", "source": "web", "where": {"lang": "en"}},
                    },
                    "other": {
                        "weight": 1,
                        "distributor": {
                            "type": "map",
                            "source": "web",
                            "where": {"lang": {"not": "en"}},
                            "sample_ratio": 0.5,
                        },
                    },
                },
            },
        },
        "code": {"weight": 1, "max_epochs": 40},
    },
}
JOBS: dict[str, dict[str, Any]] = {
    "mixed": {"sources": {"web": WEB, "code": CODE}, "distributor": MIXED, **PACKED},
    "lanes": {
        "sources": {"web": WEB, "code": CODE},
        "distributor": {"type": "rank_partitioned", "parts": {"web": 3, "code": 1}},
        **PACKED,
    },
    "whole": {
        "sources": {"web": WEB, "code": CODE},
        "distributor": {"type": "mixture", "parts": {"web": 3, "code": 1}},
        "epochs": 1,
        "batch_size": 4,
        "collator": {"type": "padded"},
        "lanes": 4,
    },
    "ends": {
        "sources": {"web": WEB, "code": CODE},
        "distributor": {"type": "mixture", "parts": {"web": 1, "code": 1}, "exhausted": "error"},
        "batch_size": 2,
        "collator": {"type": "padded"},
        "lanes": 2,
    },
}
WEB_ROWS, CODE_ROWS = 60, 17


def write_jobs(folder: Path, **server: Any) -> Path:
    (folder / "web").mkdir()
    rows = [
        {"input_ids": [n] * (3 + n * 7 % 29), "lang": ("en", "de", "fr")[n % 3]}
        for n in range(WEB_ROWS)
    ]
    for part in range(3):
        table = pa.Table.from_pylist(rows[part * 20 : part * 20 + 20])
        pq.write_table(table, folder / "web" / f"{part}.parquet", row_group_size=6)
    code = [{"input_ids": [1000 + n] * (20 + n)} for n in range(CODE_ROWS)]
    pq.write_table(pa.Table.from_pylist(code), folder / "code.parquet")
    return write_job_file(folder / "jobs.yaml", JOBS, **server)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A node with all of the jobs."""
    folder = tmp_path_factory.mktemp("mixtures")
    file = write_jobs(folder, snapshot_seconds=0, workers=2, metrics="127.0.0.1:0")
    with serving(file) as node:
        yield node


def test_a_node_that_was_killed_goes_on_with_the_same_bytes(server: Server) -> None:
    """Where sizes decide the draws, and where lanes belong to parts; each item once in a pass."""
    for name in ("mixed", "lanes"):
        job = load(str(server.file)).jobs[name]
        purity = Purity(job)
        for delivered in server.read(name, horizon=80).take(80):
            purity.saw(*delivered)

        server.kill()
        server.start()
        for start in (61, 23, 100):
            for delivered in server.read(name, start=start, horizon=start + 30).take(30):
                purity.saw(*delivered)

        assert purity.seen == 80 + 90
        for lane in range(job.lanes):
            check_conservation(job, lane, 25)


def scrape(server: Server) -> str:
    address = server.events("ready", at_least=1)[-1]["metrics"]
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=30) as answer:
        text: str = answer.read().decode()
    return text


def test_metrics_tell_what_each_part_shall_have_and_has(server: Server) -> None:
    """A series for each part, by its path; what was drawn comes near to what was asked for."""
    server.read("mixed", horizon=400).take(400)

    text = scrape(server)
    found: dict[str, dict[str, float]] = {}
    labels = r'(?:by="tokens",)?part="([\w/]+)",penstock_job="mixed"'
    pattern = rf"^penstock_part_(target_ratio|items_total|tokens_total)\{{{labels}\}} (\S+)$"
    for kind, part, value in re.findall(pattern, text, re.MULTILINE):
        found.setdefault(kind, {})[part] = float(value)
    target = {"web": 0.75, "web/english": 0.5, "web/other": 0.25, "code": 0.25}
    assert found["target_ratio"] == pytest.approx(target)
    tokens = found["tokens_total"]
    total = tokens["web"] + tokens["code"]
    assert {part: count / total for part, count in tokens.items()} == pytest.approx(
        target, abs=0.03
    )
    assert set(found["items_total"]) == set(target)
    assert '{by="lanes",part="code",penstock_job="lanes"} 0.25' in text


def test_an_epoch_of_a_mixture_is_read_to_its_end(server: Server) -> None:
    """A part that is used up leaves, and the others go on to theirs."""
    loader = Loader(server.address, "whole", batches_per_step=1, mode="eval")
    with loader:
        found = [batch["input_ids"][:, 0] for batch in loader]

    ids = Counter(int(token) for batch in found for token in batch)
    assert set(ids) == set(range(WEB_ROWS)) | set(range(1000, 1000 + CODE_ROWS))


def test_a_part_that_must_not_end_stops_the_readers(server: Server) -> None:
    """With an error that names it, at the batch that lacks an item."""
    with Loader(server.address, "ends", batches_per_step=1, mode="eval", max_steps=99) as loader:
        batches = iter(loader)
        for _ in range(CODE_ROWS - 3):
            next(batches)
        with pytest.raises(SourceExhausted, match="part 'code' of the mixture is used up after 1"):
            list(batches)


def test_cat_says_of_which_source_samples_are(
    server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    """On the line of each batch, where sources have names; and what was drawn of each part."""
    assert penstock(["cat", server.address, "mixed", "--count", "3"]) == 0

    printed = capsys.readouterr().out
    assert re.search(r"of code \d+, web \d+  beside: .* \d+ tokens:web/english", printed)


def other(**changed: Any) -> dict[str, Any]:
    part = {"source": "web", "type": "map", **changed}
    return {"type": "mixture", "parts": {"code": 1, "x": {"weight": 1, "distributor": part}}}


@pytest.mark.parametrize(
    ("distributor", "sentence"),
    [
        (other(type="mapp"), r"jobs.a.distributor.parts.x.distributor.type: there is no distribut"),
        (other(wher=1), r"jobs.a.distributor.parts.x.distributor.wher is not a parameter of map"),
        (other(shuffle="ful"), r"jobs.a.distributor.parts.x.distributor.shuffle is 'ful'"),
        (other(where={"language": "en"}), r"part 'x': where asks for column 'language'"),
        (other(where={"lang": {"min": 3}}), r"part 'x': where.lang cannot be compared with the v"),
        (other(source="cod"), r"part 'x': the distributor draws from a source 'cod'"),
        (other(source="code"), r"parts 'code' and 'x' both draw item 0 of source 'code'"),
        (
            {"type": "mixture", "parts": {"x": {"distributor": 3}}},
            r"x.distributor is 3: give a type",
        ),
        (
            {"type": "mixture", "parts": [1]},
            r"jobs.a.distributor.parts is \[1\]: give keys and val",
        ),
        ({"type": "rank_partitioned", "parts": {"web": -1}}, r"the weight of part 'web' is -1"),
    ],
)
def test_what_cannot_be_is_one_sentence(
    server: Server, distributor: Any, sentence: str, tmp_path: Path
) -> None:
    """With the key down to the part, and its line."""
    folder = server.file.parent
    file = folder / f"{tmp_path.name}.yaml"
    job = {"sources": {"web": WEB, "code": CODE}, "distributor": distributor, "batch_size": 1}
    write_job_file(file, {"a": {**job, "collator": {"type": "padded"}}})

    with pytest.raises(InvalidJob, match=sentence) as caught:
        load(str(file)).job("a")
    assert re.match(rf"{file}:\d+: ", caught.value.message)
