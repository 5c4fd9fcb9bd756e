"""What goes wrong with items: each stops or is left out by name, alike for everybody, durably."""

from __future__ import annotations

import re
import threading
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from harness import Server, StubReader, serving, write_job_file
from invariants import Purity, check_conservation, eventually
from penstock.client import Loader
from penstock.server.job.job import Job
from penstock.server.jobs.load import load
from penstock.server.pipeline.items import Items
from penstock.server.pipeline.line import Line
from penstock.server.pipeline.retry import RETRY_DEADLINE_S
from penstock.server.sources import ItemsSource
from penstock.wire.errors import (
    BadBatch,
    BadItem,
    LaneStarved,
    PenstockError,
    SourceUnavailable,
    WorkerCrashed,
)
from penstock.wire.v1 import feed_pb2

ROLES = '''
import os
import pathlib
import time

import numpy as np

from penstock.server.roles import BatchCollator, RawItemProcessor
from penstock.server.sources import ItemsSource

HERE = pathlib.Path(__file__).parent


class Fails(RawItemProcessor):
    """Every tenth item is damaged."""

    def process(self, raw, context):
        return {"input_ids": decode(raw)}


class Fine(RawItemProcessor):
    """Nothing is wrong with any item."""

    def process(self, raw, context):
        return {"input_ids": [raw["number"]] * raw["size"]}


class SizedFails(Fails):
    """Its sizes are known without decoding, so the damage shows on exit."""

    one_to_one = True

    def size(self, raw):
        return raw["size"]


def decode(raw):
    if raw["number"] % 10 == 7:
        raise ValueError(f"record {raw['number']} is damaged")
    return [raw["number"]] * raw["size"]


class Filters(RawItemProcessor):
    def process(self, raw, context):
        context.skip("too short")


class Together(Fine):
    """Cannot take several items at once."""

    uses_global_rng = False

    def process_batch(self, raws, contexts):
        raise KeyError("length")


class Poison(RawItemProcessor):
    """Item 13 ends the process that touches it."""

    uses_global_rng = False

    def process(self, raw, context):
        if raw["number"] == 13:
            with open(HERE / "deaths", "a") as deaths:
                deaths.write("x")
            os.kill(os.getpid(), 9)
        return {"input_ids": decode({**raw, "number": 0})}


class Slow(RawItemProcessor):
    """Waits for a file before its first item."""

    def process(self, raw, context):
        while not (HERE / "go").exists():
            time.sleep(0.05)
        return {"input_ids": [raw["number"]]}


class FlakySource(ItemsSource):
    """Cannot be read while a file says so."""

    def fetch(self, indices):
        if (HERE / "away").exists():
            raise OSError(5, "the mount is away")
        return super().fetch(indices)


class Loud(RawItemProcessor):
    """Puts the whole item into its message, and half a surrogate pair."""

    def process(self, raw, context):
        raise ValueError("\\udcff" + "x" * (5 << 20))


class Picky(BatchCollator):
    """Fails on the fourth batch of every lane."""

    def collate(self, rows, context):
        if context.offset == 3:
            raise KeyError("pixel_values")
        return {"x": np.array([len(rows)])}
'''

ITEMS = [{"number": n, "size": 3 + n * 7 % 11} for n in range(40)]


def make_jobs(folder: Path, **server: Any) -> Path:
    """Write the roles and a job for each thing that goes wrong."""
    (folder / "roles.py").write_text(ROLES)
    source = {"type": "items", "items": ITEMS}
    pack = {
        "lanes": 3,
        "batches_per_step": 3,
        "source": source,
        "distributor": {"type": "map", "shuffle": "none"},
        "batcher": {"type": "best_fit", "max_tokens": 24, "pool_size": 4},
        "collator": {"type": "packed"},
    }
    simple = {
        **pack,
        "batcher": {"type": "simple", "batch_size": 4},
        "collator": {"type": "padded"},
    }
    quarantine = {"on_item_error": "quarantine"}
    jobs = {
        "stop": {**simple, "processor": {"type": "./roles.py:Fails"}},
        # Another log than `exit`: what happens to a bad item is a fact of a log.
        "stop_sized": {**pack, "seed": 1, "processor": {"type": "./roles.py:SizedFails"}},
        "draw": {**pack, "processor": {"type": "./roles.py:Fails"}, **quarantine},
        "exit": {**pack, "processor": {"type": "./roles.py:SizedFails"}, **quarantine},
        "single": {
            **simple,
            "batcher": {"type": "simple", "batch_size": 1},
            "processor": {"type": "./roles.py:SizedFails"},
            **quarantine,
        },
        "starved": {**pack, "processor": {"type": "./roles.py:Filters"}},
        "together": {**pack, "processor": {"type": "./roles.py:Together"}},
        "poison": {**simple, "lanes": 2, "processor": {"type": "./roles.py:Poison"}},
        "slow": {**simple, "processor": {"type": "./roles.py:Slow"}},
        "flaky": {
            **simple,
            "source": {"type": "./roles.py:FlakySource", "items": ITEMS},
            "processor": {"type": "./roles.py:Fine"},
        },
        "picky": {**simple, "collator": {"type": "./roles.py:Picky"}},
        "loud": {**simple, "processor": {"type": "./roles.py:Loud"}},
        "damaged": {
            "lanes": 2,
            "source": {"type": "parquet", "files": "damaged.parquet"},
            "distributor": {"type": "map", "shuffle": "none"},
            "batch_size": 10,
        },
    }
    write_damaged(folder / "damaged.parquet")
    return write_job_file(folder / "jobs.yaml", jobs, **server)


def write_damaged(path: Path) -> None:
    """Write 40 rows in two row groups, one bit of the second one flipped."""
    pq.write_table(pa.table({"x": list(range(40))}), path, row_group_size=20)
    chunk = pq.read_metadata(path).row_group(1).column(0)
    data = bytearray(path.read_bytes())
    data[chunk.dictionary_page_offset or chunk.data_page_offset] ^= 0x10
    path.write_bytes(data)


def until_it_fails(server: Server, job: str) -> tuple[list[int], PenstockError]:
    """Read on until the node says what is wrong."""
    reader = server.read(job, horizon=200)
    positions: list[int] = []
    try:
        positions.extend(delivered.header.position for delivered in reader)
    except PenstockError as error:
        return positions, error
    raise AssertionError(f"nothing was wrong with {job!r}")


@pytest.fixture
def server(tmp_path: Path) -> Any:
    """A node of one worker, of this test alone."""
    with serving(make_jobs(tmp_path)) as running:
        yield running


def test_a_bad_item_stops_the_lane_with_the_users_traceback(server: Server) -> None:
    """The reader is told the item, the reason, the remedy and the line of the user's code."""
    positions, error = until_it_fails(server, "stop")

    assert isinstance(error, BadItem)
    assert "record" in error.message
    assert "set on_item_error: quarantine" in error.message
    item = error.fields["item"]
    assert item[1] % 10 == 7
    assert "roles.py" in error.fields["traceback"]
    assert "raise ValueError" in error.fields["traceback"]
    assert "penstock/server" not in error.fields["traceback"]
    logged = server.events("a batch cannot be made", at_least=1, job="stop")
    assert "raise ValueError" in logged[0]["traceback"]
    assert positions == sorted(positions)


@pytest.mark.parametrize("job", ["stop", "stop_sized"])
def test_all_before_a_bad_item_is_delivered(server: Server, job: str) -> None:
    """What `local:` gives before it stops, the node gives: an item ahead spoils nothing."""
    purity = Purity(load(str(server.file)).jobs[job])
    position, good = 0, []
    while True:
        try:
            purity.truth(position)
        except BadItem:
            break
        good.append(position)
        position += 1

    reader = server.read(job, horizon=len(good))
    reader.hang_up()
    for delivered in reader:
        purity.saw(*delivered)

    assert purity.seen == len(good)
    assert good


@pytest.mark.parametrize("job", ["draw", "exit", "single"])
def test_verdicts_are_durable_and_a_replay_is_the_same(server: Server, job: str) -> None:
    """Bytes before and after a kill equal those of a process that knows no store.

    With `single` a batch of one bad item is delivered as padding: offsets never shift.
    """
    purity = Purity(load(str(server.file)).jobs[job])
    for delivered in server.read(job, horizon=60).take(60):
        purity.saw(*delivered)
    verdicts = server.events("item quarantined", at_least=4, job=job)
    items = [event["item"] for event in verdicts]
    assert len(items) == len(set(items)) >= 4
    assert {event["stage"] for event in verdicts} == {"draw" if job == "draw" else "exit"}

    server.kill()
    server.start()
    for delivered in server.read(job, horizon=90).take(90):
        purity.saw(*delivered)

    assert purity.seen == 150
    again = [e["item"] for e in server.events("item quarantined") if e["job"] == job]
    assert not set(again) & set(items), "a verdict that was durable was found anew"
    if job == "single":
        padding = [position for position in range(60) if purity.truth(position)[0].padding]
        assert [position % 10 for position in padding] == [7] * 6


def test_local_with_a_group_obeys_and_keeps_verdicts(tmp_path: Path) -> None:
    """An item that is healed later stays left out, in this process as on a server: one log."""
    (tmp_path / "roles.py").write_text(
        "import os\n"
        "def to_sample(raw):\n"
        f"    if raw['x'] == 3 and not os.path.exists({str(tmp_path / 'healed')!r}):\n"
        "        raise ValueError('an old library')\n"
        "    return raw\n"
    )
    job = {
        "lanes": 1,
        "on_item_error": "quarantine",
        "source": {"type": "items", "items": [{"x": number} for number in range(6)]},
        "distributor": {"type": "map", "shuffle": "none"},
        "function": "./roles.py:to_sample",
        "batch_size": 2,
    }
    file = write_job_file(tmp_path / "jobs.yaml", {"job": job})

    def read(target: str) -> list[list[int]]:
        with Loader(target, "job", group="run", start=0, as_numpy=True) as loader:
            return [batch["x"].tolist() for batch, _ in zip(loader, range(4), strict=False)]

    first = read(f"local:{file}")
    (tmp_path / "healed").touch()
    again = read(f"local:{file}")
    with serving(file) as server:
        served = read(server.address)

    assert first == again == served == [[0, 1], [2, 4], [5, 0], [1, 2]]


def test_conservation_names_what_was_left_out(tmp_path: Path) -> None:
    """Drawn = delivered + quarantined + held, lane by lane."""
    jobs = load(str(make_jobs(tmp_path))).jobs

    for lane in range(3):
        counters = check_conservation(jobs["draw"], lane, 30)
        assert counters["quarantined:draw"] > 0


def test_a_lane_that_yields_nothing_stops_by_name(server: Server) -> None:
    """After an epoch without one sample: what was drawn, and why nothing came of it."""
    positions, error = until_it_fails(server, "starved")

    assert isinstance(error, LaneStarved)
    assert positions == []
    assert "filtered:too short" in error.message


def test_a_collators_failure_names_the_batch(server: Server) -> None:
    """With the user's line; the batches before it are delivered."""
    positions, error = until_it_fails(server, "picky")

    assert isinstance(error, BadBatch)
    assert sorted(positions) == list(range(9))
    assert error.fields["offset"] == 3
    assert "KeyError" in error.fields["traceback"]


@pytest.mark.parametrize("workers", [1, 3])
def test_an_item_that_ends_its_worker_stops_its_lane_by_name(tmp_path: Path, workers: int) -> None:
    """After three deaths over it: its lane stops, the other goes on, and nothing loops for ever."""
    with serving(make_jobs(tmp_path, workers=workers)) as server:
        positions, error = until_it_fails(server, "poison")

        assert isinstance(error, WorkerCrashed)
        assert "main[13] in epoch 0" in error.message
        assert error.fields["deaths"] == 3
        deaths = len((tmp_path / "deaths").read_text())
        # Two more come before it works item by item, and knows which one it was.
        assert 3 <= deaths <= 5
        assert error.fields["lane"] == 1
        # Items 1, 3, 5, 7 | 9, 11, 13: one batch of lane 1 comes before the poison.
        assert {0, 1} <= set(positions)

        reader = server.read("poison", lanes=[0], horizon=40)
        assert [one.header.lane for one in reader.take(20)] == [0] * 20
        again = server.read("poison", horizon=40)
        with pytest.raises(WorkerCrashed):
            again.take(40)
        assert len((tmp_path / "deaths").read_text()) == deaths


def test_damage_is_told_at_once_and_in_few_words(server: Server) -> None:
    """A damaged page is not waited for; a message of 5 MB fills neither log nor memory."""
    before = time.monotonic()
    with (
        Loader(server.address, "damaged", as_numpy=True) as loader,
        pytest.raises(BadItem, match=r"damaged\.parquet: row group 1, column 'x',") as caught,
    ):
        list(loader)
    assert caught.value.fields["row_group"] == 1
    assert time.monotonic() - before < RETRY_DEADLINE_S / 2
    with (
        Loader(server.address, "loud", as_numpy=True) as loader,
        pytest.raises(BadItem, match=r"main\[\d+\] in epoch 0 .*Loud") as caught,
    ):
        next(iter(loader))

    assert len(caught.value.message) < 5000
    assert max(map(len, server.lines)) < 50_000


def test_an_unreadable_source_is_waited_for(server: Server, tmp_path: Path) -> None:
    """While the mount is away nothing is quarantined and nothing fails; then all is right."""
    purity = Purity(load(str(server.file)).jobs["flaky"])
    for position in range(30):
        purity.truth(position)
    (tmp_path / "away").touch()
    reader = server.read("flaky", horizon=30)
    eventually(
        lambda: server.status()["workers"][0]["stage"] == "retrying", 30, "the worker retries"
    )
    (tmp_path / "away").unlink()

    for delivered in reader.take(30):
        purity.saw(*delivered)

    assert not server.events("item quarantined")
    assert not server.events("a batch cannot be made")


def test_an_error_that_went_away_is_in_the_servers_log(server: Server) -> None:
    """Its batches are right, and who looks at the log learns of the role."""
    assert len(server.read("together", horizon=40).take(40)) == 40

    eventually(
        lambda: any("Together.process_batch() failed" in line for line in server.lines),
        30,
        "the node has logged it",
    )


def test_a_job_whose_storage_is_away_holds_up_no_other(server: Server, tmp_path: Path) -> None:
    """Their one worker gives up its retries when another job has a ticket for it."""
    (tmp_path / "away").touch()
    reader = server.read("flaky", horizon=3)
    eventually(
        lambda: server.status()["workers"][0]["stage"] == "retrying", 30, "the worker retries"
    )

    assert len(server.read("picky", horizon=3).take(3)) == 3

    with pytest.raises(SourceUnavailable) as caught:
        reader.take(3)
    [tried_s] = re.findall(r"was tried for (\d+) s", caught.value.message)
    assert int(tried_s) < RETRY_DEADLINE_S / 2


def test_a_source_that_stays_away_is_named() -> None:
    """After the deadline the item is named, and the class says that it is not the item's fault."""

    class Away(ItemsSource):
        version = 1

        def fetch(self, indices: Any) -> list[Any]:
            raise TimeoutError("no answer")

    job = Job(Away([1, 2]), batch_size=1, lanes=1, on_item_error="quarantine")
    line = Line(job, 0, Items(job, retry_deadline_s=0.2))
    plan = line.advance()

    with pytest.raises(SourceUnavailable, match=r"could not be read, .* no answer"):
        line.make(plan)


def test_whoever_waits_is_told_for_what(server: Server, tmp_path: Path) -> None:
    """`Waiting` names lane, stage and item while the next batch is not there.

    Also to a consumer that says again and again how far it accepts, as one that waits does.
    """
    reader: StubReader = server.read("slow", horizon=1)
    timer = threading.Thread(target=_go_when_told, args=(reader, tmp_path / "go"))
    timer.start()

    reader.take(1)

    timer.join()
    waiting: feed_pb2.Waiting = reader.waiting[0]
    assert (waiting.lane, waiting.offset, waiting.stage) == (0, 0, "process")
    assert waiting.item == "main[0] in epoch 0"
    assert waiting.since_s > 1


def _go_when_told(reader: StubReader, go: Path) -> None:
    def is_told() -> bool:
        reader.extend(1)
        return bool(reader.waiting)

    try:
        eventually(is_told, 30, "the reader is told")
    finally:
        go.touch()


def test_the_clients_loader_raises_the_same_class(server: Server) -> None:
    """Through the Loader the error is the same class with the same fields."""
    before = time.monotonic()
    loader = Loader(server.address, "stop", as_numpy=True, deadline_s=60)
    with loader, pytest.raises(BadItem) as caught:
        list(loader)

    assert caught.value.fields["item"][1] % 10 == 7
    assert "raise ValueError" in caught.value.fields["traceback"]
    assert time.monotonic() - before < 30
