"""Workers that run in the test's own process: real tickets, lines and arenas, any order, any death.

`InlineWorker` keeps the whole contract of `WorkerProcess` but the process: what it is sent waits in
its inbox until the test lets it answer one message, or kills it.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections import defaultdict, deque
from collections.abc import Mapping, Sequence

from penstock.server.core.refs import ItemRef, Verdict
from penstock.server.job import Job
from penstock.server.node.arena import ArenaReader, Arenas, ArenaWriter
from penstock.server.node.channel import Message, Unpacker, pack
from penstock.server.node.crew import Hear, Lose
from penstock.server.node.node import Node
from penstock.server.node.page import PAGE_BYTES, Page
from penstock.server.node.process import WorkerProcess
from penstock.server.node.worker import Worker
from penstock.server.store import Store


class _Side(Worker):
    """The worker's own code, without a socket: its answers are put on a list."""

    def __init__(self, jobs: Mapping[str, Job], page: Page, arenas: dict[int, ArenaReader]) -> None:
        self.page, self.readers, self.pid = page, arenas, os.getpid()
        self.config = _Config(jobs)  # type: ignore[assignment]  # all that a worker asks is `jobs`
        self.arenas = Arenas(self._announce)
        self.jobs, self.items, self.makers, self.lines, self.broken = {}, {}, {}, {}, {}
        self.places, self._drawn = {}, defaultdict(int)
        self.announced, self._told = {}, set()
        self.lane, self._unreported = None, 0
        self._told = set()
        self.answers: deque[Message] = deque()
        self.inbox = deque()

    def _send(self, message: Message, blobs: Sequence[bytes] = (), *, hold: bool = False) -> None:
        [answer] = Unpacker().feed(pack(message, blobs))
        self.answers.append(answer)

    def _may_hold(self) -> bool:
        return False  # the test alone says when an answer comes

    def _announce(self, arena: ArenaWriter) -> None:
        self.readers[arena.number] = ArenaReader(os.dup(arena.fd), arena.size_bytes)

    def _verdict(self, job: str, verdict: Verdict) -> Verdict:
        return verdict  # every worker of these tests finds the same ones again


class _Config:
    def __init__(self, jobs: Mapping[str, Job]) -> None:
        self.jobs = jobs


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
    """A `WorkerProcess` whose worker the test moves by hand."""

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Be ready at the loop's next turn."""
        self._loop = loop
        self.process: subprocess.Popen[bytes] = _Ended()  # type: ignore[assignment]
        fd = os.memfd_create("page")
        os.ftruncate(fd, PAGE_BYTES)
        self.page = Page(fd, write=True)
        os.close(fd)
        self.inbox: deque[Message] = deque()
        self._frees, self._free_scheduled = [], False
        self.started = True
        self.answered: list[Message] = []
        self.side = _Side(InlineNode.current_jobs, self.page, self.arenas)
        loop.call_soon(self.on_message, self, {"op": "ready"})

    def send(self, message: Message, blobs: Sequence[bytes] = ()) -> None:
        """Put a message, as it goes over the socket, into the inbox."""
        if not self.dead:
            frees, self._frees = self._frees, []
            self.inbox += Unpacker().feed(pack({**message, "frees": frees}, blobs))

    def answer_one(self) -> bool:
        """Let the worker take one message and answer it; tell whether there was one."""
        if self.dead or not self.inbox:
            return False
        message = self.inbox.popleft()
        for number, start in message["frees"]:
            self.side.arenas.give_back(number, start)
        self.answered.append(message)
        self.side.handle(message)
        while self.side.answers:
            self.hear(self.side.answers.popleft())
        return True

    def die(
        self,
        *,
        stage: str = "idle",
        job: str | None = None,
        lane: int | None = None,
        item: ItemRef | None = None,
    ) -> None:
        """End the worker: what is in its inbox is lost, what it answered is not."""
        self.page.note(stage, job, lane, item)
        self._gone()
        self.on_death(self)

    def _gone(self) -> None:
        self.dead = True
        for number, reader in list(self.arenas.items()):
            if reader.spans == 0:
                del self.arenas[number]
                reader.close()

    def close(self) -> None:
        """Let go of the arenas."""
        if not self.dead:
            self._gone()


class InlineNode(Node):
    """A node whose workers the test moves by hand."""

    current_jobs: Mapping[str, Job] = {}

    def __init__(
        self, jobs: Mapping[str, Job], store: Store, *, workers: int, bound_bytes: int
    ) -> None:
        InlineNode.current_jobs = jobs
        super().__init__(
            "", jobs, store, workers=workers, bound_bytes=bound_bytes, snapshot_seconds=3600.0
        )

    def _new_worker(self, number: int, hear: Hear, lose: Lose) -> InlineWorker:
        return InlineWorker(number, "", hear, lose)

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
