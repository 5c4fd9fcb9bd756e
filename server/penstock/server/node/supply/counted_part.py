"""One process that counts some lanes of a job, as the server process sees it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

import structlog

from penstock.server.core.verdict import Verdict
from penstock.server.job.job import Job
from penstock.server.node.protocol.messages import Snapshot
from penstock.server.node.workers.count import Begin, Ended, decode_marks, lanes_of_part
from penstock.server.processes.background import end_child, short_status
from penstock.server.processes.page import Note, Page
from penstock.server.processes.start import COUNT, StartedChild, start
from penstock.wire.errors import ERRORS, Internal, WorkerCrashed

logger = structlog.get_logger("penstock.node")

MAX_DEATHS = 3
LOOK_S = 0.5
LEAVE_S = 10.0
"""How long a process that is told to leave off may take to say where its lanes stand."""

MAX_LINE_BYTES = 128 << 20
"""What a process says at once: where each of its lanes stands, at most."""


class CountedLanes:
    """Some lanes of a job, counted by a process: another one goes on for one that dies.

    Args:
        job: The job, which the process builds from its definition.
        number, parts: Which part of its lanes, of how many.
        missing: The lanes of which it is not known where they end.
        marks: By lane, where to begin.
        verdicts: All that hold.
        files_fd: What the node knows of its sources' files (`pack_catalogs`); -1 = nothing.
        item_deadline_s: How long the process may be at one item.
        ended: Told where a lane ends.
        cost: Told what the process has spent: seconds, bytes read from storage, and how often it
            has tried something again.

    Attributes:
        lanes: Those that it counts.
        drawn: How many of their items were drawn, in whatever process.
        stands: By lane, where the process stood as it was told to leave off.
    """

    def __init__(
        self,
        job: Job,
        number: int,
        parts: int,
        missing: Collection[int],
        marks: Mapping[int, Snapshot],
        verdicts: Iterable[Verdict],
        files_fd: int,
        item_deadline_s: float,
        ended: Ended,
        cost: Callable[[float, int, int, Mapping[str, int]], None],
    ) -> None:
        self._job, self._number, self._parts = job, number, parts
        self._verdicts, self._files_fd = list(verdicts), files_fd
        self._item_deadline_s, self._report_end, self._report_cost = item_deadline_s, ended, cost
        self.lanes = {lane for lane in lanes_of_part(job, number, parts) if lane in missing}
        self.drawn = 0
        self.stands: dict[int, Snapshot] = {}
        self._begin = {lane: mark for lane, mark in marks.items() if lane in self.lanes}
        self._open = set(self.lanes)
        self._pipe: asyncio.WriteTransport | None = None
        self._left_s: float | None = None

    def leave(self) -> None:
        """Have it leave off as soon as it can: it says where its lanes stand, and ends."""
        if self._left_s is None:
            self._left_s = asyncio.get_running_loop().time()
            if self._pipe is not None and not self._pipe.is_closing():
                self._pipe.write_eof()

    async def run(self) -> None:
        """Count until all lanes have ended, or it is told to leave off.

        Raises:
            PenstockError: What a reader of the lanes would be told.
            WorkerCrashed: The process died three times.
            OSError: The system has no memory, process or file left for it.
        """
        for death in range(MAX_DEATHS):
            note, code = await self._attempt(careful=death > 0)
            if not self._open or self._left_s is not None:
                return
            logger.error(
                "a count died", job=self._job.name, exit=code, stage=note.stage, item=str(note.item)
            )
        doing = str(note.item) if note.item else f"stage {note.stage}"
        raise WorkerCrashed(
            f"the batches of job {self._job.name!r} cannot be counted: {doing} ended the process "
            f"that does it {MAX_DEATHS} times, at last with {short_status(code)}; remove or repair "
            "the item, then restart the node",
            item=doing,
            deaths=MAX_DEATHS,
        )

    async def _attempt(self, *, careful: bool) -> tuple[Note, int]:
        """Have a process count; return what it was doing at last, and its exit status."""
        process, page, ours = start(
            COUNT,
            self._job.log_id.hex(),
            self._number,
            self._parts,
            int(careful),
            files_fd=self._files_fd,
            definition=self._job.definition,
        )
        lines = asyncio.StreamReader(limit=MAX_LINE_BYTES)
        loop = asyncio.get_running_loop()
        self._pipe, _ = await loop.connect_accepted_socket(
            lambda: asyncio.StreamReaderProtocol(lines), ours
        )
        try:
            ended = set(range(self._job.lanes)) - self._open
            self._pipe.write(Begin(ended, self._begin, self._verdicts).encode())
            if self._left_s is not None:
                self._pipe.write_eof()
            await self._listen(process, page, lines)
        except BaseException:
            process.kill()
            raise
        finally:
            self._pipe.close()
            self._pipe = None
            code = await asyncio.shield(asyncio.to_thread(end_child, process))
        return page.read(), code

    async def _listen(self, process: StartedChild, page: Page, lines: asyncio.StreamReader) -> None:
        loop = asyncio.get_running_loop()
        serial, since_s = 0, loop.time()
        reading = asyncio.ensure_future(lines.readline())
        try:
            while True:
                done, _ = await asyncio.wait({reading}, timeout=LOOK_S)
                note, now_s = page.read(), loop.time()
                if note.serial != serial:
                    serial, since_s = note.serial, now_s
                elif now_s - since_s > self._item_deadline_s:
                    process.kill()
                if self._left_s is not None and now_s - self._left_s > LEAVE_S:
                    process.kill()
                if done:
                    try:
                        line = reading.result()
                    except ConnectionResetError:  # it died before it had read what it was told
                        return
                    if not line.endswith(b"\n"):  # it has ended, maybe in the middle of a message
                        return
                    self._hear(json.loads(line))
                    reading = asyncio.ensure_future(lines.readline())
        finally:
            reading.cancel()

    def _hear(self, message: dict[str, Any]) -> None:
        if "code" in message:
            raise ERRORS.get(message["code"], Internal)(message["message"])
        if "marks" in message:
            self.stands = decode_marks(message["marks"])
            return
        self.drawn = message.get("drawn", self.drawn)
        of_sources, of_media = message["read_bytes"]
        self._report_cost(message["seconds"], of_sources, of_media, message["retries"])
        for lane, batches, in_vain in message["ends"]:
            if lane in self._open:
                self._open.discard(lane)
                self._report_end(lane, batches, in_vain)
