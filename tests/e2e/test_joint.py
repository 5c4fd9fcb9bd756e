"""A job of two sets of roles over a real node: its bytes, its death, its length, its commands."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness import Server, serving
from invariants import Purity
from penstock.client import Loader
from penstock.client.cli import main as penstock
from penstock.server.cli import run
from penstock.server.jobs.load import load
from penstock.wire import PROTOCOL
from penstock.wire.errors import InvalidRequest
from penstock.wire.v1 import feed_pb2

TARGET = f"{Path(__file__).parent.parent / 'resume' / 'joint.py'}:jobs"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A node whose workers build the jobs by running their code."""
    flags = ["--listen", "127.0.0.1:0", "--metrics", "off", "--workers", "2"]
    flags += [
        "--log-format",
        "json",
        "--store",
        f"sqlite:///{tmp_path_factory.mktemp('joint') / 'store.db'}",
    ]
    with serving(TARGET, *flags) as node:
        yield node


def test_a_node_gives_the_bytes_of_both_sets_before_and_after_its_death(server: Server) -> None:
    """Made by any of two workers, from lines or from plans, whether lanes or steps have a set."""
    purities = {name: Purity(load(TARGET).job(name)) for name in ("endless", "stepwise")}
    for name, purity in purities.items():
        for delivered in server.read(name, horizon=60).take(60):
            purity.saw(*delivered)

    server.kill()
    server.start()
    for name, purity in purities.items():
        for start in (36, 24, 80):
            for delivered in server.read(name, start=start, horizon=start + 30).take(30):
                purity.saw(*delivered)
        assert purity.seen == 60 + 90

    told = server.feed.Describe(feed_pb2.DescribeRequest(protocol=PROTOCOL, job="endless"))
    optional = {key.name: key.optional for key in told.keys}
    assert optional["document_ids"]
    assert not optional["input_ids"]
    assert told.layout == ""
    assert [(each.name, each.share, each.layout) for each in told.sets] == [
        ("packed", 0.6, "flash"),
        ("padded", 0.4, "padded"),
    ]


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


def test_ranks_get_one_set_in_a_step_and_a_global_batch_that_would_mix_them_is_refused(
    server: Server,
) -> None:
    """Each rank hears the set's name with its batches; cat and show name it, too."""
    steps: dict[int, set[str]] = {}
    for rank in range(3):
        with Loader(server.address, "stepwise", rank=rank, world_size=3) as loader:
            for batch in itertools.islice(loader, 24):
                steps.setdefault(batch.step, set()).add(batch["dataset_name"])

    assert len(steps) == 12
    assert all(len(names) == 1 for names in steps.values())
    assert {name for names in steps.values() for name in names} == {"packed", "padded"}
    wrong = Loader(server.address, "stepwise", rank=0, world_size=1, batches_per_step=4)
    with wrong, pytest.raises(InvalidRequest, match="use 1, 2, 3, 6, or choice: batch"):
        next(iter(wrong))


def test_a_joint_job_that_ends_is_counted_and_names_its_sets(
    server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    """`cat` to the end, `show` at any position, as records and for people."""
    assert penstock(["cat", server.address, "ending", "--json"]) == 0
    records = [json.loads(line) for line in capsys.readouterr().out.splitlines()]

    assert {record["dataset_name"] for record in records} == {"packed", "padded"}
    for position in (1, len(records) - 6):
        number = str(position)
        assert run(["show", TARGET, "ending", "--json", "--position", number]) == 0
        shown = json.loads(capsys.readouterr().out)
        assert shown["digest"] == records[position]["digest"]
        assert shown["dataset_name"] == records[position]["dataset_name"]
        assert run(["show", TARGET, "ending", "--position", number]) == 0
        assert f"  {shown['dataset_name']}  " in capsys.readouterr().out.splitlines()[0]


def test_check_makes_items_and_batches_of_both_sets_twice(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """In another order and process, and from snapshots; of each set as many batches."""
    assert run(["check", TARGET, "endless", "--items", "12", "--batches", "3"]) == 0

    printed = capsys.readouterr().out
    assert "46 items in 5 lanes" in printed
    assert "12 items and 6 batches were made twice" in printed
    assert "share of packed" in printed
    assert "60.0% of the batches" in printed
    assert run(["check", TARGET, "stepwise", "--items", "12", "--batches", "2", "--json"]) == 0
