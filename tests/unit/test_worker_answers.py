"""A worker's answers at its port: when they come, and whose cost they tell."""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness import write_job_file
from penstock.server.jobs.definition import rebuild
from penstock.server.jobs.load import load
from penstock.server.node.protocol.messages import (
    Cost,
    CountsSaid,
    Done,
    FromServer,
    FromWorker,
    KnowJob,
    OpenLine,
    PlanAhead,
    Planned,
    Produce,
    TicketFailed,
    Warned,
)
from penstock.server.node.workers.outbox import Outbox
from penstock.server.node.workers.worker import Worker
from penstock.server.processes.page import PAGE_BYTES, Page
from unit.memory_port import memory_ports

ROLES = """
import pathlib
import time
from penstock.server.roles import RawItemProcessor

GO = pathlib.Path(__file__).parent / "go"


class Waits(RawItemProcessor):
    one_to_one = True

    def process(self, raw, context):
        if raw["x"] == 150:
            end = time.monotonic() + 60
            while not GO.exists():
                assert time.monotonic() < end, "nobody said go"
                time.sleep(0.01)
        return raw
"""

CHEAP = 100
"""Tickets after which a worker takes the next one for cheap, too."""


class Talk:
    """A worker with the jobs `a` and `b`, on a thread of this process, at lines 1, 2 and 3.

    Attributes:
        go: A file: until it exists, the item at offset 150 is not done.
    """

    def __init__(self, folder: Path) -> None:
        (folder / "roles.py").write_text(ROLES)
        self.go = folder / "go"
        job = {
            "lanes": 1,
            "source": {"type": "items", "items": [{"x": number} for number in range(200)]},
            "distributor": {"type": "map", "shuffle": "none"},
            "processor": {"type": "./roles.py:Waits"},
            "batch_size": 1,
        }
        file = write_job_file(folder / "jobs.yaml", {"a": job, "b": {**job, "seed": 5}})
        self._ours, theirs = memory_ports()
        fd = os.memfd_create("page")
        os.ftruncate(fd, PAGE_BYTES)
        jobs = load(str(file)).jobs
        worker = Worker(theirs, Page(fd, write=True), build=rebuild)
        os.close(fd)
        worker.link.begin()
        self._theirs, self._thread = theirs, threading.Thread(target=worker.run, daemon=True)
        self._thread.start()
        self._found, self._number = list[FromWorker](), 0
        self.logs = {name: job.log_id for name, job in jobs.items()}
        for line, name in ((1, "a"), (2, "b"), (3, "a")):
            known = KnowJob(self.logs[name], jobs[name].definition, (), 1, (), False)
            self.send(known, OpenLine(line, self.logs[name], 0, None))
        for offset in range(CHEAP):
            ticket = self.ask("a", offset, 1)
            self.send(ticket)
            self.until(ticket.ticket)

    def ask(self, job: str, offset: int, line: int) -> Produce:
        """Return a ticket."""
        self._number += 1
        return Produce(self._number, self.logs[job], 0, offset, False, line, False)

    def send(self, *messages: FromServer) -> None:
        """Send messages together."""
        self._ours.send(messages)

    def until(self, number: int) -> FromWorker:
        """Wait for the answer to a ticket, and return it."""
        while not (found := [each for each in self._found if _ticket_of(each) == number]):
            self._found += self._ours.receive(wait=True) or ()
        return found[0]

    def charged(self, number: int) -> Counter[str]:
        """Return how many batches the answers up to that of a ticket have charged to each job."""
        self.until(number)
        counts: Counter[str] = Counter()
        names = {log_id: name for name, log_id in self.logs.items()}
        for message in self._found:
            if isinstance(message, Cost):
                counts[names[message.log_id]] += message.batches
            if _ticket_of(message) == number:
                break
        return counts

    def close(self) -> None:
        """End the worker."""
        self._ours.close()
        self._thread.join(30)
        self._theirs.close()


def _ticket_of(message: FromWorker) -> int | None:
    return message.ticket if isinstance(message, Done | Planned | TicketFailed) else None


@pytest.fixture
def talk(tmp_path: Path) -> Iterator[Talk]:
    worker = Talk(tmp_path)
    yield worker
    worker.close()


@pytest.mark.parametrize("way", ["plan", "failure"])
def test_no_job_pays_for_another(talk: Talk, way: str) -> None:
    """What was held is told with the next answer, whatever that is: before another job's."""
    first = talk.ask("a", CHEAP, 1)
    before = talk.charged(first.ticket - 1)
    second: Produce | PlanAhead = talk.ask("a", 0, 777)
    if way == "plan":
        second = PlanAhead(second.ticket, talk.logs["a"], 0, 0, False, 3, 1)
    third = talk.ask("b", 0, 2)
    talk.send(first, second, third)

    # Whether the first answer was held depends on how fast this machine is.
    assert talk.charged(second.ticket) - before == {"a": 1}
    assert talk.charged(third.ticket) - before == {"a": 1, "b": 1}


def test_no_job_pays_where_a_line_opens_in_between(talk: Talk) -> None:
    """A line that opens is not answered: what was held is told before the other job's ticket."""
    first = talk.ask("a", CHEAP, 1)
    before = talk.charged(first.ticket - 1)
    other = talk.ask("b", 0, 2)
    talk.send(first, OpenLine(4, talk.logs["a"], 0, None), other)

    assert talk.charged(other.ticket) - before == {"a": 1, "b": 1}


def test_a_finished_batch_waits_for_no_slow_one(talk: Talk) -> None:
    """Its answer comes while the next batch is made."""
    cheap, slow = talk.ask("a", CHEAP, 1), talk.ask("a", 150, 1)
    talk.send(cheap, slow)

    talk.until(cheap.ticket)
    talk.go.touch()

    assert isinstance(talk.until(slow.ticket), Done)


def test_what_cannot_be_sent_takes_nothing_with_it() -> None:
    """A role's number that no message can carry is an error; what was held before it arrives."""
    ours, theirs = memory_ports()
    outbox = Outbox(theirs)
    outbox.send([Warned("held")], hold=True)

    for told in ({"batcher:x": 1 << 70}, {"batcher:\udcff": 1}):
        for hold in (False, True):
            with pytest.raises((OverflowError, UnicodeEncodeError)):
                outbox.send([CountsSaid(b"log", 0, told, {})], hold=hold)
    outbox.send([Warned("next")])

    assert ours.receive(wait=True) == [Warned("held"), Warned("next")]
