"""A worker's answers on its socket: when they come, and whose cost they tell."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness import write_job_file
from penstock.server.jobs.load import load
from penstock.server.node.channel import Message, Unpacker, pack
from penstock.server.node.page import PAGE_BYTES, Page
from penstock.server.node.worker import Worker

ROLES = """
import time
from penstock.server.roles import RawItemProcessor


class Sleepy(RawItemProcessor):
    one_to_one = True

    def process(self, raw, context):
        if raw["x"] == 150:
            time.sleep(3.0)
        return raw
"""

CHEAP = 100
"""Tickets after which a worker takes the next one for cheap, too."""


class Talk:
    """A worker with the jobs `a` and `b`, on a thread of this process, at lines 1, 2 and 3."""

    def __init__(self, folder: Path) -> None:
        (folder / "roles.py").write_text(ROLES)
        job = {
            "lanes": 1,
            "source": {"type": "items", "items": [{"x": number} for number in range(200)]},
            "distributor": {"type": "map", "shuffle": "none"},
            "processor": {"type": "./roles.py:Sleepy"},
            "batch_size": 1,
        }
        file = write_job_file(folder / "jobs.yaml", {"a": job, "b": {**job, "seed": 5}})
        self._ours, theirs = socket.socketpair()
        fd = os.memfd_create("page")
        os.ftruncate(fd, PAGE_BYTES)
        worker = Worker(theirs, Page(fd, write=True), str(file))
        os.close(fd)
        self._theirs, self._thread = theirs, threading.Thread(target=worker.run, daemon=True)
        self._thread.start()
        self._unpacker, self._found, self._number = Unpacker(), list[Message](), 0
        jobs = load(str(file)).jobs
        for line, name in ((1, "a"), (2, "b"), (3, "a")):
            log_id = jobs[name].log_id.hex()
            message = {"op": "job", "job": name, "log": log_id, "verdicts": [], "workers": 1}
            self.send(pack(message))
            self.send(pack({"op": "open", "line": line, "job": name, "lane": 0}))
        for offset in range(CHEAP):
            data, number = self.ask("a", offset, 1)
            self.send(data)
            self.until(number)

    def ask(self, job: str, offset: int, line: int, op: str = "produce") -> tuple[bytes, int]:
        """Return a message, and the number of its ticket."""
        self._number += 1
        head = {"ticket": self._number, "job": job, "lane": 0, "offset": offset, "line": line}
        more = {"blank": False, "careful": False, "count": 1}
        return pack({"op": op, **head, **more}), self._number

    def send(self, data: bytes) -> None:
        """Send messages."""
        self._ours.sendall(data)

    def until(self, number: int) -> Message:
        """Return the answer to a ticket."""
        while True:
            for message in self._found:
                if message.get("ticket") == number:
                    return message
            self._found += self._unpacker.feed(self._ours.recv(1 << 20))

    def charged(self, number: int) -> Counter[str]:
        """Return how many batches the answers up to that of a ticket have charged to each job."""
        self.until(number)
        counts: Counter[str] = Counter()
        for message in self._found:
            if "cost" in message:
                counts[message["cost"]["job"]] += message["cost"]["batches"]
            if message.get("ticket") == number:
                break
        return counts

    def close(self) -> None:
        """End the worker."""
        self._ours.close()
        self._thread.join(30)
        self._theirs.close()


@pytest.fixture
def talk(tmp_path: Path) -> Iterator[Talk]:
    worker = Talk(tmp_path)
    yield worker
    worker.close()


@pytest.mark.parametrize(("op", "line"), [("plan", 3), ("produce", 777)], ids=["plan", "failure"])
def test_no_job_pays_for_another(talk: Talk, op: str, line: int) -> None:
    """What was held is told with the next answer, whatever that is: before another job's."""
    first, number = talk.ask("a", CHEAP, 1)
    before = talk.charged(number - 1)
    second, next_number = talk.ask("a", 0, line, op)
    third, last = talk.ask("b", 0, 2)
    talk.send(first + second + third)

    # Whether the first answer was held depends on how fast this machine is.
    assert talk.charged(next_number) - before == {"a": 1}
    assert talk.charged(last) - before == {"a": 1, "b": 1}


def test_a_finished_batch_waits_for_no_slow_one(talk: Talk) -> None:
    cheap, number = talk.ask("a", CHEAP, 1)
    slow, late = talk.ask("a", 150, 1)
    began = time.monotonic()
    talk.send(cheap + slow)

    talk.until(number)
    assert time.monotonic() - began < 2.0
    talk.until(late)
    assert time.monotonic() - began >= 3.0
