"""A stream, and several sources in one job: over a real node, its death, and its commands."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from harness import Server, serving, write_job_file
from invariants import Purity, check_conservation
from penstock.client.cli import main as penstock
from penstock.server.cli import run
from penstock.server.jobs.load import load
from penstock.wire.errors import InvalidJob
from penstock.wire.item_numbers import row_index

LINES = (Path(__file__).parent.parent / "resume" / "lines.py").read_text()

ROLES = '''
from penstock.server.roles import RawItemProcessor


class Fails(RawItemProcessor):
    """Every seventh item is damaged."""

    def process(self, raw, context):
        if raw["number"] % 7 == 3:
            raise ValueError(f"record {raw['number']} is damaged")
        return {"input_ids": [raw["number"]] * (1 + raw["number"] % 5)}


class SizedFails(Fails):
    one_to_one = True

    def size(self, raw):
        return 1 + raw["number"] % 5
'''

NOTING = """
import pathlib, time

from lines import Lines
from penstock.server.roles import RawItemProcessor

NOTES = pathlib.Path(__file__).parent / "notes"


def note(what):
    with open(NOTES, "a") as notes:
        notes.write(what)


class Noting(Lines):
    def open(self, shard, mark):
        for row in super().open(shard, mark):
            note("r")
            yield row


class Slowly(RawItemProcessor):
    one_to_one = True

    def process(self, raw, context):
        note("p")
        time.sleep(0.003)  # so that workers share what there is to make
        return {"x": raw["number"]}
"""

SHARDS = (13, 0, 8, 21, 5)

STREAM = {
    "source": {"type": "./lines.py:Lines", "folder": "shards", "apart": 50},
    "distributor": {"type": "iterable", "buffer_size": 9},
}
TWO = {
    "sources": {
        "first": {"type": "items", "items": [{"number": n} for n in range(11)]},
        "second_1": {"type": "items", "items": [{"number": n} for n in range(100, 123)]},
    },
}
PACKED = {
    "batcher": {"type": "best_fit", "max_tokens": 12, "pool_size": 5},
    "collator": {"type": "packed", "pad_to": 12},
    "on_item_error": "quarantine",
    "lanes": 3,
    "snapshot_every": 4,
}

JOBS: dict[str, dict[str, Any]] = {
    "stream": {**STREAM, **PACKED, "processor": "./roles.py:Fails"},
    "sized_stream": {**STREAM, **PACKED, "processor": "./roles.py:SizedFails"},
    "two": {**TWO, **PACKED, "processor": "./roles.py:Fails"},
    "whole": {**TWO, "batch_size": 4, "epochs": 2, "lanes": 3},
}


def write_jobs(folder: Path, jobs: dict[str, Any], **server: Any) -> Path:
    (folder / "roles.py").write_text(ROLES)
    (folder / "lines.py").write_text(LINES)
    (folder / "shards").mkdir()
    number = 0
    for shard, rows in enumerate(SHARDS):
        lines = (json.dumps({"number": number + row}) + "\n" for row in range(rows))
        (folder / "shards" / f"{shard}.jsonl").write_text("".join(lines))
        number += rows
    return write_job_file(folder / "jobs.yaml", jobs, **server)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A node with all of the jobs."""
    folder = tmp_path_factory.mktemp("sources")
    with serving(write_jobs(folder, JOBS, snapshot_seconds=0, workers=2)) as node:
        yield node


@pytest.mark.parametrize("name", ["stream", "sized_stream", "two"])
def test_a_node_that_was_killed_goes_on_with_the_same_bytes(tmp_path: Path, name: str) -> None:
    """Bytes before and after are those of a process that knows no node; no verdict is found anew.

    They name source and item, where the item is a row shard and row.
    """
    # A store of its own: what another test has found there is not found again.
    with serving(write_jobs(tmp_path, JOBS, snapshot_seconds=0, workers=2)) as server:
        job = load(str(server.file)).jobs[name]
        purity = Purity(job)
        for delivered in server.read(name, horizon=60).take(60):
            purity.saw(*delivered)
        events = server.events("item quarantined", at_least=3, job=name)
        left_out = {event["item"] for event in events}

        server.kill()
        server.start()
        for start in (40, 23, 80):
            for delivered in server.read(name, start=start, horizon=start + 30).take(30):
                purity.saw(*delivered)

        assert purity.seen == 60 + 90
        again = [e["item"] for e in server.events("item quarantined") if e["job"] == name]
    assert not set(again) & left_out
    for lane in range(job.lanes):
        check_conservation(job, lane, 20)
    named = {item.partition("[")[0] for item in left_out}
    assert named == ({"first", "second_1"} if name == "two" else {"main"})


def test_verdicts_about_rows_are_listed_and_released(
    server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    """As SHARD:ROW for people, and with the name of the source where there are several."""
    server.read("stream", horizon=45).take(45)
    server.read("two", horizon=45).take(45)

    assert penstock(["quarantine", server.address, "stream"]) == 0
    assert "main[0:3]" in capsys.readouterr().out
    assert penstock(["quarantine", server.address, "stream", "release", "0:3"]) == 0
    assert "main[0:3] is drawn again" in capsys.readouterr().out
    assert penstock(["quarantine", server.address, "two", "list", "--json"]) == 0
    listed = {(one["source"], one["index"]) for one in json.loads(capsys.readouterr().out)}
    assert ("first", 3) in listed
    assert penstock(["quarantine", server.address, "two", "release", "3"]) == 2
    assert "it has 'first', 'second_1': write SOURCE[INDEX]" in capsys.readouterr().err
    assert penstock(["quarantine", server.address, "two", "release", "first[3]"]) == 0
    capsys.readouterr()


def test_every_item_of_both_sources_comes_once_per_epoch(
    server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    """`cat --json` tells of each sample which source it is of; `show` says the same."""
    assert penstock(["cat", server.address, "whole", "--count", "18", "--json"]) == 0
    records = [json.loads(line) for line in capsys.readouterr().out.splitlines()]

    drawn = Counter(tuple(item) for record in records for item in record["items"])
    assert drawn == Counter(
        (source, index, epoch)
        for source, count in (("first", 11), ("second_1", 23))
        for index in range(count)
        for epoch in range(2)
    )
    assert run(["show", str(server.file), "whole", "--json", "--position", "5"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["items"], shown["digest"]) == (records[5]["items"], records[5]["digest"])


def test_check_runs_streams_and_several_sources(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Items and batches are made twice, in another order and process, and are the same."""
    file = write_jobs(tmp_path, {name: JOBS[name] for name in ("sized_stream", "two")})

    assert run(["check", str(file), "--items", "12", "--batches", "2"]) == 0

    printed = capsys.readouterr().out
    assert "a stream in 3 lanes" in printed
    assert "34 items in 3 lanes" in printed


def test_a_row_of_a_shard_is_named_as_such(tmp_path: Path) -> None:
    """Where the policy is to stop: by source, shard and row."""
    file = write_jobs(tmp_path, {"stop": {**JOBS["stream"], "on_item_error": "stop"}})
    with pytest.raises(Exception, match=r"item main\[\d:\d+\] in epoch 0 of job 'stop' fails"):
        check_conservation(load(str(file)).jobs["stop"], 0, 90)


def test_one_source_is_one_log_whichever_way_it_is_written(tmp_path: Path) -> None:
    """`source:` is `sources: {main: ...}`; names and order of several are in the log id."""
    first, second = TWO["sources"].values()
    sections = {
        "plain": {"source": first},
        "main": {"sources": {"main": first}},
        "named": {"sources": {"texts": first}},
        "two": {"sources": {"a": first, "b": second}},
        "turned": {"sources": {"b": second, "a": first}},
        "one_of_two": {
            "sources": {"a": first, "b": second},
            "distributor": {"type": "map", "source": "a"},
        },
    }
    jobs = {name: {**job, "batch_size": 1} for name, job in sections.items()}
    file = tmp_path / "jobs.json"
    file.write_text(json.dumps({"jobs": jobs}))  # which keeps the order of keys
    ids = {name: job.log_id for name, job in load(str(file)).jobs.items()}

    assert ids["plain"] == ids["main"]
    assert len(set(ids.values())) == len(ids) - 1


@pytest.mark.parametrize(
    ("job", "sentence"),
    [
        ({}, r"jobs.a.source is missing: give a source: .* or several by name in sources"),
        ({**TWO, "source": "items"}, r"jobs.a.source and jobs.a.sources are both given: remove"),
        ({"sources": {}}, r"jobs.a.sources is \{\}: give sources by name"),
        ({"sources": {"a-b": "items"}}, r"'a-b' is not a name for a source: use letters"),
        ({"sources": {"a": {"type": "itemz"}}}, r"jobs.a.sources.a.type: there is no source 'item"),
        ({"sources": {"a": {"type": "items", "items": []}}}, r"source 'a' holds zero items"),
        (
            {"source": STREAM["source"]},
            r"map draws items by number, and source 'main' \(Lines\) does not give them so: use a",
        ),
        ({**TWO, "distributor": "iterable"}, r"the job has 'first', 'second_1': name one of them"),
        (
            {**TWO, "distributor": {"type": "map", "source": "third"}},
            r"draws from a source 'third', and the job has 'first', 'second_1'",
        ),
        (
            {"source": {"type": "./own.py:Own"}},
            r"derived from Source itself, .*IndexedSource or StreamSource",
        ),
    ],
)
def test_what_cannot_be_is_one_sentence(tmp_path: Path, job: Any, sentence: str) -> None:
    """With the key and its line, when the job is loaded."""
    (tmp_path / "own.py").write_text(
        "from penstock.server.roles import Source\nclass Own(Source):\n    pass\n"
    )
    file = write_jobs(tmp_path, {"a": {"batch_size": 1, **job}})

    with pytest.raises(InvalidJob, match=sentence) as caught:
        load(str(file)).job("a")
    assert caught.value.message.startswith(f"{file}:")


def test_a_node_reads_each_row_once(tmp_path: Path) -> None:
    """Who draws a row makes its batch: of several workers no other one reads the shard."""
    job = {
        **STREAM,
        "source": {**STREAM["source"], "type": "./noting.py:Noting", "apart": 0},
        "lanes": 5,
        "processor": "./noting.py:Slowly",
        "batch_size": 2,
    }
    file = write_jobs(tmp_path, {"job": job}, workers=2)
    (tmp_path / "noting.py").write_text(NOTING)
    with serving(file) as server:
        server.read("job", horizon=200).take(200)
        assert server.terminate() == 0

    notes = Counter((tmp_path / "notes").read_text())
    assert notes["p"] >= 400
    ahead = 5 * 32  # rows that lanes have looked at, and not drawn yet
    assert notes["r"] <= notes["p"] + ahead, "a row is read by the worker that draws it alone"


def test_numbers_in_json_are_whole_everywhere(server: Server) -> None:
    """The wire's number of a row is `row_index`, exact in every JSON reader."""
    [delivered] = server.read("stream", horizon=1).take(1)

    numbers = [sample.index for sample in delivered.header.samples]
    assert all(row_index(0, 0) <= number < 1 << 53 for number in numbers)
