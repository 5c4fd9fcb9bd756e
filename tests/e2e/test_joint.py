"""A job of two sets of roles over a real node: its bytes, its death, its length, its commands."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness import Server, serving
from invariants import Purity
from penstock.client.cli import main as penstock
from penstock.server.cli import run
from penstock.server.jobs.load import load
from penstock.wire.v1 import feed_pb2

TARGET = f"{Path(__file__).parent.parent / 'resume' / 'joint.py'}:jobs"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    """A node whose workers build the jobs by running their code."""
    flags = ["--listen", "127.0.0.1:0", "--metrics", "off", "--workers", "2"]
    flags += ["--log-format", "json", "--store", f"sqlite:///{tmp_path / 'store.db'}"]
    with serving(TARGET, *flags) as node:
        yield node


def test_a_node_gives_the_bytes_of_both_sets_before_and_after_its_death(server: Server) -> None:
    """Made by any of two workers, from lines or from plans, whichever set a lane has."""
    purity = Purity(load(TARGET).job("endless"))
    for delivered in server.read("endless", horizon=60).take(60):
        purity.saw(*delivered)

    server.kill()
    server.start()
    for start in (40, 23, 80):
        for delivered in server.read("endless", start=start, horizon=start + 30).take(30):
            purity.saw(*delivered)

    assert purity.seen == 60 + 90
    told = server.feed.Describe(feed_pb2.DescribeRequest(protocol=1, job="endless"))
    optional = {key.name: key.optional for key in told.keys}
    assert optional["document_ids"]
    assert not optional["input_ids"]


def test_a_finite_job_ends_with_the_longest_of_its_lanes(
    server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    """Some ends are found while the job is read; `show` gives what `cat` gave, at any position."""
    assert penstock(["cat", server.address, "counted", "--json"]) == 0
    records = [json.loads(line) for line in capsys.readouterr().out.splitlines()]

    sources = {item[0] for record in records for item in record["items"]}
    assert sources == {"short", "long", "found"}
    for position in (0, 3, len(records) - 1):
        assert run(["show", TARGET, "counted", "--json", "--position", str(position)]) == 0
        shown = json.loads(capsys.readouterr().out)
        assert (shown["items"], shown["digest"]) == (
            records[position]["items"],
            records[position]["digest"],
        )


def test_check_makes_items_and_batches_of_both_sets_twice(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """In another order and process, and from snapshots; of each set as many batches."""
    assert run(["check", TARGET, "endless", "--items", "12", "--batches", "3"]) == 0

    printed = capsys.readouterr().out
    assert "46 items in 5 lanes" in printed
    assert "12 items and 6 batches were made twice" in printed
