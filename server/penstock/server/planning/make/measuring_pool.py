"""The processes of this machine that measure blocks, from the command's side.

Each gets a block at a time. One that dies gets its block again, an item at a time, so that its page
tells which item it is; the third death over one block ends the command.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from penstock.server.core.canonical import canonical
from penstock.server.planning.make.dealt_blocks import BlockTask, Stretches
from penstock.server.processes.background import end_child, short_status
from penstock.server.processes.page import Note, Page
from penstock.server.processes.start import Process, start
from penstock.wire.errors import JobChanged, WorkerCrashed
from penstock.wire.sent_errors import decode_error

MAX_DEATHS = 3
LOOK_S = 0.5
MAX_LINE_BYTES = 1 << 20
STDERR = 2


class Answer(NamedTuple):
    """What a process found of a block.

    Attributes:
        data: The block's bytes.
        drew: Whether processing drew random numbers.
        bad: The items that were left out because they fail, each with why.
    """

    data: bytes
    drew: bool
    bad: list[tuple[str, str]]


class Hears(Protocol):
    """Who is told of what the processes do."""

    async def finished(self, block: BlockTask, answer: Answer) -> None:
        """Take what a block holds; the process gets its next one meanwhile."""

    def progressed(self, block: BlockTask, done: int) -> None:
        """Note that so many positions of a block are measured."""

    def died(self, block: BlockTask, how: str) -> None:
        """Note that a process died, and what it was doing."""


class MeasuringPool:
    """Measures blocks in processes of this machine.

    Args:
        name: The job's name, for messages.
        definition: The job's definition, from which they build it.
        inputs: What the sizes depend on, by the number of each set of roles that is measured: they
            must find the same.
        processes: How many.
        item_deadline_s: How long one may be at an item.
        files_fd: What is known of the job's files (`pack_catalogs`); -1 = nothing.
    """

    def __init__(
        self,
        name: str,
        definition: bytes,
        inputs: Mapping[int, Mapping[str, Any]],
        processes: int,
        item_deadline_s: float,
        files_fd: int = -1,
    ) -> None:
        self._name, self._definition, self._files_fd = name, definition, files_fd
        self._sets, self._inputs = json.dumps([*inputs]), canonical([*inputs.values()])
        self._processes, self._item_deadline_s = processes, item_deadline_s

    async def run(self, blocks: Sequence[BlockTask], hears: Hears) -> None:
        """Measure blocks.

        Raises:
            PenstockError: What a process met.
            WorkerCrashed: Processes died three times over one block.
        """
        count = min(self._processes, len(blocks))
        stretches = Stretches(blocks, count)
        tasks = [
            asyncio.ensure_future(self._keep_working(number, stretches, hears))
            for number in range(count)
        ]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _keep_working(self, number: int, stretches: Stretches, hears: Hears) -> None:
        """Run a process, and another one where it dies, until no block is left."""
        block, deaths = stretches.take(number), 0
        saving: asyncio.Future[None] | None = None
        try:
            while block is not None:
                process = _MeasuringProcess(
                    self._definition, self._sets, self._files_fd, self._item_deadline_s
                )
                try:
                    if await process.start() != self._inputs:
                        raise self._changed()
                    while block is not None:
                        answer = await process.measure(block, deaths > 0, _Telling(hears, block))
                        if saving is not None:
                            await saving
                        # It is kept while the next one is measured.
                        saving = asyncio.ensure_future(hears.finished(block, answer))
                        block, deaths = stretches.take(number), 0
                    await process.end()
                except _Died:
                    note, how = process.page.read(), await process.end()
                    deaths += 1
                    doing = str(note.item) if note.item else f"stage {note.stage or 'start'}"
                    assert block is not None  # it dies while it is asked for one
                    hears.died(block, f"{doing} ended a process, {how}")
                    if deaths == MAX_DEATHS:
                        raise self._crashed(doing, how, note) from None
                finally:
                    await process.kill()
            if saving is not None:
                await saving
        finally:
            if saving is not None:
                await asyncio.wait({saving})
                if not saving.cancelled():
                    saving.exception()  # the error that counts is on its way

    def _crashed(self, doing: str, how: str, note: Note) -> WorkerCrashed:
        remedy = (
            "remove or repair the item" if note.item else "look at what the process said before"
        )
        return WorkerCrashed(
            f"the index of job {self._name!r} cannot be made: {doing} ended the process that "
            f"measures it {MAX_DEATHS} times, at last {how}; {remedy}, then run the command "
            "again, which goes on where it was",
            item=doing,
            deaths=MAX_DEATHS,
        )

    def _changed(self) -> JobChanged:
        return JobChanged(
            f"job {self._name!r} is not what it was when the command started: the files changed "
            "that it names, data or code; run the command again",
            job=self._name,
            differences=["inputs of the index"],
        )


class _Died(Exception):
    """The process has ended before it answered."""


class _Telling:
    """Tells how far one block is."""

    def __init__(self, hears: Hears, block: BlockTask) -> None:
        self._hears, self._block = hears, block

    def __call__(self, done: int) -> None:
        self._hears.progressed(self._block, done)


class _MeasuringProcess:
    """One process, from its start to its end."""

    def __init__(self, definition: bytes, sets: str, files_fd: int, item_deadline_s: float) -> None:
        self._definition, self._sets, self._files_fd = definition, sets, files_fd
        self._deadline_s, self._is_stuck = item_deadline_s, False
        self._child: Process | None = None
        self._writer: asyncio.StreamWriter | None = None

    async def start(self) -> bytes:
        """Return the inputs that its sets of roles have.

        Raises:
            _Died: It has ended.
            PenstockError: It cannot build the job.
        """
        # What code of users prints must not stand among the command's own results.
        self._child = start(
            "penstock.server.commands.measure_blocks",
            self._sets,
            files_fd=self._files_fd,
            definition=self._definition,
            output=STDERR,
        )
        self._reader, self._writer = await asyncio.open_connection(
            sock=self._child.socket, limit=MAX_LINE_BYTES
        )
        _, data = await self._answer()
        return data

    @property
    def page(self) -> Page:
        """Return where it notes what it does."""
        assert self._child is not None
        return self._child.page

    async def measure(self, block: BlockTask, careful: bool, tell: Callable[[int], None]) -> Answer:
        """Return what a block holds.

        Raises:
            _Died: It has ended.
            PenstockError: An item fails.
        """
        assert self._writer is not None
        line = json.dumps([block.source, block.start, block.stop, careful])
        self._writer.write(line.encode() + b"\n")
        while True:
            told, data = await self._answer()
            tell(told["done"])
            if told.get("whole"):
                return Answer(data, told["drew"], [(item, why) for item, why in told["bad"]])

    async def _answer(self) -> tuple[dict[str, Any], bytes]:
        """Return the next line with its bytes; end a process that is at one thing for too long."""
        reading = asyncio.ensure_future(self._read())
        loop = asyncio.get_running_loop()
        serial, since_s = 0, loop.time()
        try:
            while not (await asyncio.wait({reading}, timeout=LOOK_S))[0]:
                note = self.page.read()
                if note.serial != serial:
                    serial, since_s = note.serial, loop.time()
                elif loop.time() - since_s > self._deadline_s and self._child is not None:
                    self._is_stuck = True
                    self._child.process.kill()
            told, data = reading.result()
        finally:
            reading.cancel()
        if "error" in told:
            raise decode_error(data)
        return told, data

    async def _read(self) -> tuple[dict[str, Any], bytes]:
        try:
            told: dict[str, Any] = json.loads(await self._reader.readuntil(b"\n"))
            return told, await self._reader.readexactly(told["bytes"])
        except (asyncio.IncompleteReadError, ConnectionError):
            raise _Died from None

    async def end(self) -> str:
        """Let it end, since nothing more is asked; return in words how it ended."""
        assert self._child is not None
        if self._writer is not None:
            self._writer.close()
            with contextlib.suppress(ConnectionError):
                await self._writer.wait_closed()
        status = short_status(await asyncio.to_thread(end_child, self._child.process))
        if self._is_stuck:
            return f"killed because it was still at it after item_seconds = {self._deadline_s:g}"
        return f"with {status}"

    async def kill(self) -> None:
        """End it, if it has not ended."""
        if self._child is None:
            return
        if self._child.process.poll() is None:
            self._child.process.kill()
        if self._writer is None:
            self._child.socket.close()
        else:
            self._writer.close()
        await asyncio.shield(asyncio.to_thread(self._child.process.wait))
