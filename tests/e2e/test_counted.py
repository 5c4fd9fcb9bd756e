"""A finite job whose items give any number of samples is read to its end, and counted meanwhile."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import signal
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from harness import Delivered, Server, run_command, serving, write_job_file
from invariants import Purity, eventually
from penstock.client import Loader
from penstock.client.run import opener
from penstock.server.jobs.load import load
from penstock.server.node.workers.count import ensure_counted
from penstock.wire import PROTOCOL
from penstock.wire.errors import InvalidJob, LogDiverged, WorkerCrashed
from penstock.wire.order import Cut, Share
from penstock.wire.v1 import feed_pb2

ROLES = '''
import os
import pathlib
import sys
import time

HERE = pathlib.Path(__file__).parent


def sometimes(raw):
    """0, 1 or 2 samples of an item; a word and a file hold it up."""
    number = raw["x"]
    if (HERE / "slow").exists():
        time.sleep(0.2)
    while (HERE / "held").exists() and sys.argv[0].endswith("count.py"):
        (HERE / f"pid {os.getpid()}").touch()
        time.sleep(0.05)  # where it is counted alone
    if number == 5 and (HERE / "deadly").exists():
        os.kill(os.getpid(), 9)
    if (HERE / "fewer").exists() and number == 29:
        return None
    return [{"x": number}] * (number % 3)


def tokens(raw):
    """The same samples, each of so many tokens."""
    found = sometimes(raw) or []
    return [{"input_ids": [one["x"]] * (1 + one["x"] % 7)} for one in found]


def bad(raw):
    if raw["x"] % 10 == 3:
        raise ValueError("an old library")
    return sometimes(raw)
'''

NOTHING = """
def filtered(raw):
    return None


def empty(raw):
    return {"input_ids": []}


def overlong(raw):
    return {"input_ids": [1] * 20}
"""

COUNT = 30
EXPECTED = sorted(n for n in range(COUNT) for _ in range(n % 3))


def make_jobs(folder: Path, **server: Any) -> Path:
    (folder / "roles.py").write_text(ROLES)
    job = {
        "epochs": 1,
        "lanes": 4,
        "batches_per_step": 2,
        "source": {"type": "items", "items": [{"x": number} for number in range(COUNT)]},
        "function": "./roles.py:sometimes",
        "batch_size": 4,
    }
    single = {**job, "batch_size": 1, "snapshot_every": 2}
    quarantine = {**job, "function": "./roles.py:bad", "on_item_error": "quarantine"}
    packed = {key: value for key, value in single.items() if key != "batch_size"} | {
        "function": "./roles.py:tokens",
        "batcher": {"type": "best_fit", "max_tokens": 8, "pool_size": 4},
        "collator": {"type": "packed", "pad_to": 8},
    }
    jobs = {"val": job, "single": single, "packed": packed, "bad": quarantine}
    return write_job_file(
        folder / "jobs.yaml", {**jobs, "train": {**job, "epochs": None}}, **server
    )


def values(target: str, job: str) -> tuple[list[int], int]:
    """Read a whole pass; return the values of all batches that are none of padding, sorted."""
    found: list[int] = []
    with Loader(target, job, as_numpy=True, mode="eval", deadline_s=120) as loader:
        steps = 0
        for step in loader.steps():
            steps += 1
            for batch in step:
                if not batch.info.is_padding:
                    found += batch["x"].tolist()
    return sorted(found), steps


def test_every_sample_of_an_epoch_comes_once_and_it_is_counted_once(tmp_path: Path) -> None:
    """By a server, after its restart, and in this process: the same batches and steps."""
    file = make_jobs(tmp_path, workers=2)
    with serving(file) as server:
        first = values(server.address, "val")
        bad = values(server.address, "bad")
        counted = server.events("counted", at_least=2)
        server.kill()
        server.start()
        again = values(server.address, "val")

        assert not server.events("counted"), "it was counted twice"

    assert first[0] == EXPECTED
    assert first == again == values(f"local:{file}", "val")
    assert bad[0] == [number for number in EXPECTED if number % 10 != 3]
    assert {event["job"] for event in counted} == {"val", "bad"}, "nobody asked for the others"
    shown = run_command(["penstock.server.cli", "show", str(file), "val", "--step", "0", "--json"])
    assert shown.returncode == 0, shown.stderr
    assert [json.loads(line)["position"] for line in shown.stdout.splitlines()] == [0, 1]


def test_a_job_is_read_while_it_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No reader waits for the count; the length is told as soon as it is known, and the same."""
    monkeypatch.setattr(opener, "COUNT_S", 0.3)
    (tmp_path / "held").touch()
    with serving(make_jobs(tmp_path)) as server:
        describe = feed_pb2.DescribeRequest(protocol=PROTOCOL, job="bad")
        told = server.feed.Describe(describe)
        assert told.finite
        assert not told.HasField("batches")
        with Loader(server.address, "bad", as_numpy=True, rank=0, world_size=2) as loader:
            unknown = r"not known yet \(0 of 30 items are counted\).* a job with a plan.* at once"
            with pytest.raises(TypeError, match=unknown):
                len(loader)
            next(iter(loader))
            read, steps = values(server.address, "bad")
            assert read == [number for number in EXPECTED if number % 10 != 3]
            assert len(loader) == steps, "one rank has read all of it"
        assert server.feed.Describe(describe).batches in (2 * steps - 1, 2 * steps)
        assert values(server.address, "val")[0] == EXPECTED
        with Loader(server.address, "train", as_numpy=True, deadline_s=120) as loader:
            assert next(iter(loader))["x"].shape == (4,)


@pytest.mark.parametrize("job", ["val", "single", "packed", "bad"])
def test_the_length_of_a_job_is_told_to_who_asks(tmp_path: Path, job: str) -> None:
    """By a node before anything is read, and by `local:`, the same; for steps and for batches."""
    file = make_jobs(tmp_path, workers=2)
    with serving(file) as server:
        for target in (server.address, f"local:{file}"):
            with Loader(target, job, as_numpy=True, mode="eval", world_size=2, rank=1) as loader:
                batches, steps = len(loader), len(loader.steps())
                assert batches == steps == sum(1 for _ in loader), target
    assert {event["job"] for event in server.events("counted")} == {job}


def test_an_interrupt_ends_the_wait_for_a_length(tmp_path: Path) -> None:
    """As Ctrl-C does while it is counted; the Loader reads on."""
    (tmp_path / "held").touch()
    with (
        serving(make_jobs(tmp_path)) as server,
        Loader(server.address, "val", as_numpy=True, mode="eval") as loader,
    ):

        def interrupt() -> None:
            eventually(lambda: bool(counting(tmp_path)), 60, "it is counted")
            os.kill(os.getpid(), signal.SIGINT)

        # A process that a shell has started in the background ignores the signal.
        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            thread = threading.Thread(target=interrupt)
            thread.start()
            with pytest.raises(KeyboardInterrupt):
                ask_for_ever(loader)
            thread.join()
        finally:
            signal.signal(signal.SIGINT, before)
        (tmp_path / "held").unlink()

        assert sorted(x for batch in loader for x in batch["x"].tolist()) == EXPECTED


def ask_for_ever(loader: Loader) -> None:
    """Ask for a length again and again: where counting begins late, the first call gives up."""
    while True:
        with contextlib.suppress(TypeError):
            len(loader)


def counting(folder: Path) -> list[int]:
    """Return the processes that have begun to count, and are held."""
    return [int(path.name.removeprefix("pid ")) for path in folder.glob("pid *")]


def test_kills_of_what_counts_change_nothing(tmp_path: Path) -> None:
    """Neither of the process that counts, nor of the node, while the job is read."""
    (tmp_path / "held").touch()
    with serving(make_jobs(tmp_path, workers=2)) as server:
        asks = feed_pb2.DescribeRequest(protocol=PROTOCOL, job="single", count=True)
        for deaths in range(1, 3):
            assert server.feed.Describe(asks).counting
            eventually(lambda: bool(counting(tmp_path)), 60, "it is counted")
            pid = counting(tmp_path)[-1]
            os.kill(pid, signal.SIGKILL)
            server.events("a count died", at_least=deaths)
            for path in tmp_path.glob("pid *"):  # the process after it writes its own again
                path.unlink()
        server.kill()
        server.start()
        assert server.feed.Describe(asks).counting
        (tmp_path / "held").unlink()
        with Loader(server.address, "single", as_numpy=True, mode="eval") as loader:
            told = len(loader)
            assert told == sum(1 for _ in loader)
        assert values(server.address, "single")[0] == EXPECTED


@dataclass
class Rank:
    """A rank that is started again and again, and what it was given in all."""

    rank: int
    seen: dict[int, Delivered] = field(default_factory=dict)
    end: feed_pb2.End | None = None

    def read(self, server: Server, job: str, share: Share, count: int) -> Iterator[None]:
        """Read on from the first position that is missing; yield after each of `count` batches."""
        start = next(own for own in share.walk(0) if own not in self.seen)
        reader = server.read(
            job,
            rank=share.rank,
            world_size=share.world_size,
            batches_per_step=share.batches_per_step,
            start=start,
            given_from=0,
            horizon=2**40,
        )
        for delivered in itertools.islice(reader, count):
            self.seen[delivered.header.position] = delivered
            yield
        self.end = reader.end
        reader.cancel()


@pytest.mark.parametrize("name", ["single", "packed"])
def test_ends_that_are_found_late_outlive_worker_and_server(tmp_path: Path, name: str) -> None:
    """Two ranks have their own positions, whoever is killed as the lanes end, and no count helps.

    A node that starts again afterwards knows the length at once.
    """
    (tmp_path / "held").touch()
    file = make_jobs(tmp_path, workers=2)
    world, size = 2, 6
    ranks = [Rank(rank) for rank in range(world)]
    kills = 0
    with serving(file) as server:
        for turn in itertools.count():
            waiting = [one for one in ranks if one.end is None]
            if not waiting:
                break
            rank = waiting[turn % len(waiting)]
            for given, _ in enumerate(rank.read(server, name, Share(size, rank.rank, world), 5)):
                if given == 1 and turn % 2:
                    os.kill(server.worker_pids()[0], signal.SIGKILL)
                    kills += 1
            if turn % 3 == 2:
                server.kill()
                server.start()
        server.kill()
        server.start()
        describe = feed_pb2.DescribeRequest(protocol=PROTOCOL, job=name)
        told = server.feed.Describe(describe).batches
        assert not server.events("counted")

    steps = -(-told // size)
    assert kills >= 1
    assert [(one.end.batches, one.end.steps) for one in ranks if one.end] == [(told, steps)] * 2
    job = load(str(file)).job(name)
    ensure_counted(job)
    assert job.order.batches == told
    purity, items = Purity(job, Cut(size)), []
    for one in ranks:
        assert sorted(one.seen) == list(range(one.rank, steps * size, world))
        for delivered in one.seen.values():
            purity.saw(*delivered)
            assert delivered.header.padding == (delivered.header.position >= told)
            if not delivered.header.padding:
                items += [sample.index for sample in delivered.header.samples]
    assert sorted(items) == EXPECTED


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        ("filtered", "filtered:none: 30"),
        ("empty", "dropped:empty: 30"),
        ("overlong", "dropped:overlong: 30"),
    ],
)
def test_a_job_whose_items_all_come_to_nothing_says_why(
    tmp_path: Path, function: str, reason: str
) -> None:
    """A node, the same after a restart, this process, `show` and `check` say what was counted."""
    (tmp_path / "nothing.py").write_text(NOTHING)
    job = {
        "epochs": 1,
        "lanes": 4,
        "source": {"type": "items", "items": [{"x": number} for number in range(COUNT)]},
        "function": f"./nothing.py:{function}",
        "batcher": {"type": "best_fit", "max_tokens": 8, "overlong": "drop"},
        "collator": {"type": "packed", "pad_to": 8},
    }
    file = write_job_file(tmp_path / "jobs.yaml", {"val": job})
    said = re.escape(f"holds no batch at all: its lanes drew 30 items in vain ({reason})")

    with serving(file) as server:
        with pytest.raises(InvalidJob, match=said):
            values(server.address, "val")
        eventually(lambda: server.events("counted"), 60, "it is counted")
        server.kill()
        server.start()
        with pytest.raises(InvalidJob, match=said):
            values(server.address, "val")

    with pytest.raises(InvalidJob, match=said):
        values(f"local:{file}", "val")
    for command in (["show", str(file), "val", "--step", "0"], ["check", str(file)]):
        told = run_command(["penstock.server.cli", *command])
        assert told.returncode == 2, told.stdout
        assert re.search(said, told.stderr), told.stderr


def test_an_item_that_ends_the_count_is_named(tmp_path: Path) -> None:
    """After three deaths; the node and its other jobs go on."""
    (tmp_path / "deadly").touch()
    with (
        serving(make_jobs(tmp_path)) as server,
        Loader(server.address, "val", as_numpy=True, deadline_s=120) as loader,
        pytest.raises(WorkerCrashed, match=r"item main\[5\] .* SIGKILL|main\[5\] in epoch 0 ended"),
    ):
        list(loader)


def test_a_lane_that_ends_elsewhere_than_it_was_counted_stops(tmp_path: Path) -> None:
    """A role gives less than when it was counted: no sample is missing in silence."""
    with serving(make_jobs(tmp_path)) as server:
        with Loader(server.address, "val", as_numpy=True) as loader:
            assert len(loader)
        (tmp_path / "fewer").touch()

        with pytest.raises(LogDiverged, match="was counted to hold"):
            values(server.address, "val")
        server.events("a lane stopped", at_least=1, job="val", code="log_diverged")
