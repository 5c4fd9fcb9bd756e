"""What an operator does beside a run: looks at its batches, moves its cursor, scrapes the node."""

from __future__ import annotations

import contextlib
import itertools
import json
import sqlite3
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from harness import Rank, Server, call_command, run_command, serving, write_job_file
from invariants import eventually
from penstock.client.calls.control import Control, Member
from penstock.client.calls.grpc_transport import open_transport
from penstock.server.metrics.scraped import SLOWEST_RANKS
from penstock.server.store.database import BUSY_TIMEOUT_S
from penstock.wire import PROTOCOL
from penstock.wire.errors import StoreUnavailable
from penstock.wire.v1 import cursors_pb2

DEADLINE_S = 60.0

ITEMS = [{"input_ids": list(range(n, n + 1 + n % 7))} for n in range(60)]
SOURCE = {"type": "items", "items": ITEMS}
TEXT = {"type": "items", "items": [{"text": f"document {n}"} for n in range(40)]}

JOBS: dict[str, Any] = {
    "packed": {
        "lanes": 3,
        "batches_per_step": 4,
        "source": SOURCE,
        "batcher": {"type": "best_fit", "max_tokens": 16, "pool_size": 4},
        "collator": {"type": "packed", "pad_to": 16},
    },
    "padded": {
        "lanes": 3,
        "batches_per_step": 4,
        "source": SOURCE,
        "batcher": {"type": "simple", "batch_size": 3},
        "collator": {"type": "padded"},
    },
    "simple": {"lanes": 3, "batches_per_step": 4, "source": TEXT, "batch_size": 3},
    "finite": {"lanes": 3, "batches_per_step": 4, "epochs": 1, "source": TEXT, "batch_size": 3},
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A node that all tests share."""
    folder = tmp_path_factory.mktemp("operator")
    with serving(write_job_file(folder / "jobs.yaml", JOBS, metrics="127.0.0.1:0")) as running:
        yield running


def test_a_busy_store_is_named_and_not_taken_for_a_missing_node(tmp_path: Path) -> None:
    """The node waits for its store, and the caller's deadline ends while it waits once more."""
    file = write_job_file(
        tmp_path / "jobs.yaml",
        {"simple": JOBS["simple"]},
        store="sqlite:///p.db",
        metrics="127.0.0.1:0",
    )
    failures = 'penstock_store_errors_total{reason="store_unavailable"}'
    with (
        serving(file) as server,
        contextlib.closing(open_transport(server.address)) as transport,
    ):
        control = Control(transport, "simple", server.address, BUSY_TIMEOUT_S + 1)
        member = Member("g", "t", 0, 1)
        control.begin(member, batches_per_step=None, start_step=None, store="")
        other = sqlite3.connect(tmp_path / "p.db", isolation_level=None)
        assert scrape(server)[failures] == 0
        other.execute("BEGIN IMMEDIATE")

        with pytest.raises(StoreUnavailable, match="database is locked"):
            control.commit(member, 1, 3, all_rows=True)
        other.close()

        assert scrape(server)[failures] >= 1
        assert control.commit(member, 1, 3, all_rows=True).cursor == 3


def penstock(server: Server, command: str, *arguments: str) -> str:
    """Run a command of `penstock` that succeeds; return what it prints."""
    done = call_command("penstock", command, server.address, *arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("job", JOBS)
@pytest.mark.parametrize(("rank", "world_size"), [(0, 1), (1, 2)])
def test_cat_and_show_print_the_same_bytes(
    server: Server, job: str, rank: int, world_size: int
) -> None:
    """A node, a process without one and the job file's own command; padding of the end too."""
    step = "3"  # of the finite job: the last, filled up with padding
    who = ["--rank", str(rank), "--world-size", str(world_size)]
    look = [job, "--from-step", step, "--steps", "1", "--json", *who]
    show = [
        "show",
        str(server.file),
        job,
        "--step",
        step,
        "--batches-per-step",
        "4",
        "--json",
        *who,
    ]

    over_the_wire = penstock(server, "cat", *look)
    local = call_command("penstock", "cat", f"local:{server.file}", *look)
    shown = call_command("penstockd", *show)
    if (job, rank) == ("packed", 0):
        assert shown.stdout == run_command(["penstock.server.cli", *show]).stdout

    assert over_the_wire == local.stdout == shown.stdout
    records = [json.loads(line) for line in over_the_wire.splitlines()]
    assert [one["position"] for one in records] == list(range(12 + rank, 16, world_size))
    padding = [one["position"] for one in records if one["counts"]["samples"] == 0]
    assert bool(padding) == (job == "finite")


@pytest.mark.parametrize("move", ["seek", "restore"])
def test_moving_a_cursor_ends_the_ranks_that_read_with_the_reason(
    server: Server, tmp_path: Path, move: str
) -> None:
    """A checkpoint disturbs nobody; a move stops every rank by name; the next start obeys it."""
    group = f"moved-{move}"
    options = ["packed", "--group", group, "--commit", "--json", "--world-size", "2"]
    ranks = [
        Rank(server.address, tmp_path / f"{r}", *options, "--attempt", "one", "--rank", str(r))
        for r in range(2)
    ]
    try:
        eventually(lambda: all(len(r.records()) > 8 for r in ranks), DEADLINE_S, "both ranks read")
        penstock(server, "cursors", "packed", "--group", group, "checkpoint", "here", "--step", "2")
        before = [len(rank.records()) for rank in ranks]
        eventually(
            lambda: all(len(r.records()) > n for r, n in zip(ranks, before, strict=True)),
            DEADLINE_S,
            "a checkpoint disturbs nobody",
        )

        target = ["seek", "--to-step", "2"] if move == "seek" else ["restore", "here"]
        penstock(server, "cursors", "packed", "--group", group, *target)
        codes = [rank.wait() for rank in ranks]
    finally:
        for rank in ranks:
            rank.close()

    assert codes == [1, 1]
    reason = "step 2" if move == "seek" else "checkpoint 'here', step 2"
    for rank in ranks:
        [line] = rank.errors().splitlines()
        assert reason in line
        assert line.endswith("[stale_generation]")
    again = ["packed", "--group", group, "--commit", "--steps", "1", "--json"]
    records = [json.loads(line) for line in penstock(server, "cat", *again).splitlines()]
    assert [one["position"] for one in records] == [8, 9, 10, 11]


def scrape(server: Server) -> dict[str, float]:
    """Return the samples of the metrics page, by name and labels."""
    address = server.events("ready")[0]["metrics"]
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=30) as reply:
        lines = [line for line in reply.read().decode().splitlines() if not line.startswith("#")]
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)}


def test_lag_restarts_and_commits_of_a_group_are_seen(server: Server) -> None:
    """What was sent and not finished, streams that were opened again, and commits by time."""
    labels = 'group="lag",penstock_job="simple"'
    lag = f'penstock_consumer_lag_batches{{{labels},rank="0"}}'
    restarts = 'penstock_stream_restarts_total{penstock_job="simple"}'
    commits = "penstock_cursor_commit_duration_seconds_count"
    before = scrape(server)
    options: dict[str, Any] = {"group": "lag", "token": "t", "world_size": 1}
    begun = server.cursors.Begin(
        cursors_pb2.BeginRequest(protocol=PROTOCOL, job="simple", start_step=5, **options),
        timeout=DEADLINE_S,
    )
    opening = {**options, "generation": begun.generation, "batches_per_step": 4, "horizon": 36}

    reader = server.read("simple", **opening, start=20)
    reader.take(16)
    eventually(lambda: scrape(server).get(lag) == 16, DEADLINE_S, "16 are sent, none is finished")
    reader.extend(36, finished_step=8)
    eventually(lambda: scrape(server).get(lag) == 4, DEADLINE_S, "three steps are finished")
    reader.cancel()
    again = server.read("simple", **opening, start=32)
    again.take(4)
    server.cursors.Commit(
        cursors_pb2.CommitRequest(
            job="simple", group="lag", token="t", generation=begun.generation, step=9
        ),
        timeout=DEADLINE_S,
    )

    after = scrape(server)
    again.cancel()
    left = server.events("reader left", 2, group="lag")
    assert [one["finished_step"] for one in left] == [8, 9], "a commit says so, too"
    assert after[restarts] - before.get(restarts, 0) == 1
    assert after[commits] - before.get(commits, 0) == 1


def test_series_are_few_and_distinct_however_many_ranks_read(server: Server) -> None:
    """Per group the slowest ranks alone, and ephemeral readers count as one group."""
    many = [
        server.read("padded", rank=r, world_size=12, batches_per_step=12, horizon=24)
        for r in range(12)
    ]
    many += [server.read("padded", horizon=3) for _ in range(3)]
    for reader in many:
        reader.take(1)
    address = server.events("ready")[0]["metrics"]

    with urllib.request.urlopen(f"http://{address}/metrics", timeout=30) as reply:
        lines = [line for line in reply.read().decode().splitlines() if not line.startswith("#")]

    for reader in many:
        reader.cancel()
    series = [line.rpartition(" ")[0] for line in lines]
    assert len(series) == len(set(series)), "a series is there twice: Prometheus refuses the scrape"
    assert 'penstock_group_readers{group="",penstock_job="padded"} 15.0' in lines
    waits = [one for one in series if one.startswith("penstock_group_waiting_seconds{")]
    by_group = itertools.groupby(sorted(waits), lambda one: one.rpartition(",rank=")[0])
    assert max(len(list(ranks)) for _, ranks in by_group) == SLOWEST_RANKS


def test_a_store_that_was_not_there_is_told(tmp_path: Path) -> None:
    """A mistyped --store is an empty store: the log names it; a start that finds one does not."""
    file = write_job_file(
        tmp_path / "jobs.yaml",
        {"main": {"source": {"type": "items", "items": [1, 2]}, "batch_size": 1}},
    )
    said = "created an empty store: no run has a cursor in it yet"
    flags = ["--store", "sqlite:///typo.db"]

    with serving(file, *flags) as server:
        [first] = server.events(said, at_least=1)
        server.terminate()
        server.start()
        again = server.events(said)

    assert first["store"] == str((tmp_path / "typo.db").resolve())
    assert again == []


DROPS: dict[str, Any] = {
    "lanes": 3,
    "source": {"type": "items", "items": [{"input_ids": list(range(1 + n))} for n in range(40)]},
    "batcher": {"type": "best_fit", "max_tokens": 30, "pool_size": 4, "overlong": "drop"},
    "collator": {"type": "packed", "pad_to": 30},
}

SIZED = """\
from penstock.server.roles import RawItemProcessor

class Sized(RawItemProcessor):
    version = 1
    one_to_one = True

    def size(self, raw):
        return len(raw["input_ids"])

    def process(self, raw, context):
        return raw
"""


def test_drops_are_counted_however_a_job_is_planned(tmp_path: Path) -> None:
    """From sizes alone, or from processed samples: the same data, the same drops on /metrics."""
    (tmp_path / "roles.py").write_text(SIZED)
    jobs = {
        "refs": {**DROPS, "processor": "./roles.py:Sized"},
        "samples": {**DROPS, "processor": {"type": "./roles.py:Plain"}},
    }
    (tmp_path / "roles.py").write_text(
        SIZED
        + "\nclass Plain(RawItemProcessor):\n    version = 1\n\n"
        + "    def process(self, raw, context):\n        return raw\n"
    )
    file = write_job_file(tmp_path / "jobs.yaml", jobs, metrics="127.0.0.1:0", workers=1)
    dropped = {}

    with serving(file) as server:
        for job in jobs:
            [reader] = [server.read(job, horizon=60)]
            reader.take(60)
            reader.cancel()
        for job in jobs:
            name = (
                f'penstock_samples_skipped_total{{penstock_job="{job}",reason="dropped:overlong"}}'
            )
            dropped[job] = scrape(server)[name]

    # Plans are made ahead of the batches, by a few: so it is about as many, and never none.
    assert dropped["samples"] > 10
    assert dropped["refs"] >= dropped["samples"] / 2
