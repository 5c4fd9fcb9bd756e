"""Workers that run in the test's own process: real tickets, lines and arenas, any order, any death.

`InlineWorker` is a `WorkerProcess` without the process: a real worker hears it over a port in
memory, and answers one message when the test lets it, or is ended by the test.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence
from typing import Any

from penstock.server.core.refs import ItemRef
from penstock.server.job.job import Job
from penstock.server.node.node import Node
from penstock.server.node.protocol.messages import (
    FromServer,
    ItemQuarantined,
    QuarantineItem,
    Ready,
)
from penstock.server.node.supply.program import Started
from penstock.server.node.supply.worker_pool import Hear, Lose
from penstock.server.node.supply.worker_process import WorkerProcess
from penstock.server.node.workers.worker import Worker
from penstock.server.processes.page import PAGE_BYTES, Page
from penstock.server.store import Store
from unit.memory_port import MemoryPort, memory_ports


class Agreeing(MemoryPort):
    """A worker's end where every verdict holds: all workers of a test find the same ones again."""

    def send(self, messages: Sequence[Any]) -> None:
        """Send messages, and answer those about verdicts."""
        judges = [one for one in messages if isinstance(one, QuarantineItem)]
        super().send([one for one in messages if not isinstance(one, QuarantineItem)])
        for judge in judges:
            self.peer.send([ItemQuarantined(judge.verdict)])


class _Ended:
    """The process of a worker that has none."""

    pid = 0

    def poll(self) -> int | None:
        return None

    def wait(self, timeout: float | None = None) -> int:
        return -9

    def kill(self) -> None:
        """Nothing to do."""


class InlineWorker(WorkerProcess):
    """A `WorkerProcess` whose worker the test moves by hand.

    Attributes:
        side: The worker.
        answered: What it has taken, in order.
    """

    end: type[MemoryPort] = Agreeing

    @staticmethod
    async def prepare() -> None:
        """Do nothing: this worker runs in the test's own process."""

    def _launch(self) -> Started:
        fd = os.memfd_create("page")
        os.ftruncate(fd, PAGE_BYTES)
        page = Page(fd, write=True)
        os.close(fd)
        ours, theirs = memory_ports(self.end)
        self.answered: list[FromServer] = []
        # No answer waits for the next one: the test alone says when an answer comes.
        self.side = Worker(theirs, page, build=InlineNode.built, hold_s=0)
        self._begin()
        return Started(_Ended(), ours, page)  # type: ignore[arg-type]

    def _begin(self) -> None:
        """Be ready at the loop's next turn."""
        self.side.link.port.send([Ready()])

    def next_message(self) -> FromServer | None:
        """Return the message that the worker has to answer next; None = there is none."""
        if self.dead:
            return None
        self._flush()
        self.side.link.take_in(wait=False)
        if not self.side.link.inbox:
            return None
        self.answered.append(self.side.link.inbox.popleft())
        return self.answered[-1]

    def answer_one(self) -> bool:
        """Let the worker take one message and answer it; tell whether there was one."""
        message = self.next_message()
        if message is None:
            return False
        self.side.handle(message)
        self._hear_all()
        return True

    def die(
        self,
        *,
        stage: str = "idle",
        of: str | None = None,
        lane: int | None = None,
        item: ItemRef | None = None,
    ) -> None:
        """End the worker: what is in its inbox is lost, what it answered is not."""
        self.page.note(stage, of, lane, item)
        self._end()


class InlineNode(Node):
    """A node whose workers the test moves by hand."""

    current_jobs: Mapping[str, Job] = {}

    @staticmethod
    def built(_definition: bytes, log_id: bytes) -> Job:
        """Return the job of a log, which its workers share with the node."""
        return next(job for job in InlineNode.current_jobs.values() if job.log_id == log_id)

    def __init__(
        self, jobs: Mapping[str, Job], store: Store, *, workers: int, bound_bytes: int
    ) -> None:
        InlineNode.current_jobs = jobs
        super().__init__(
            jobs, store, workers=workers, bound_bytes=bound_bytes, snapshot_seconds=3600.0
        )

    def _new_worker(self, number: int, hear: Hear, lose: Lose) -> InlineWorker:
        return InlineWorker(number, hear, lose)

    @property
    def hands(self) -> list[InlineWorker]:
        """Return the workers, to be moved."""
        return [worker for worker in self.workers if isinstance(worker, InlineWorker)]

    async def settle(self) -> None:
        """Let everything happen that needs no worker: dispatches, and questions to the store."""
        for _ in range(3):
            await asyncio.sleep(0)
        # Who asks the store is a task of the node's own, which tells nobody when it ends.
        while any(lane.looking for one in self.logs.values() for lane in one.lanes):  # noqa: ASYNC110
            await asyncio.sleep(0.0005)
        await asyncio.sleep(0)


__all__ = ["InlineNode", "InlineWorker"]
