"""The server process's side of counting: processes of its own, so that no reader waits for them."""

from __future__ import annotations

import asyncio
import json
import subprocess
from typing import Any

import structlog

from penstock.server.job import Job
from penstock.server.node.aside import end_aside, short_status, start_aside
from penstock.server.node.count import expected_draws
from penstock.server.node.page import Note, Page
from penstock.wire.errors import ERRORS, Internal, PenstockError, WorkerCrashed

logger = structlog.get_logger("penstock.node")

MAX_DEATHS = 3
LOOK_S, LOG_EVERY_S = 0.5, 10.0
MAX_LINE_BYTES = 4 << 20
"""What a process says at once: where each of `MAX_LANES` lanes ends, at most."""
FIRST_WAIT_S, MAX_WAIT_S = 1.0, 60.0


class Count:
    """Counts the batches of one job, by as many processes as the node has workers.

    Args:
        job: The job, which they build from its definition.
        processes: How many.
        item_deadline_s: How long they may be at one item.
        files_fd: What the node knows of its sources' files (`pack_catalogs`); -1 = nothing.
    """

    def __init__(
        self,
        job: Job,
        processes: int,
        item_deadline_s: float,
        *,
        files_fd: int = -1,
    ) -> None:
        self.job, self.files_fd = job, files_fd
        self.parts = min(processes, job.lanes)
        self.item_deadline_s = item_deadline_s
        self._items = expected_draws(job)
        self._drawn = [0] * self.parts
        self._logged_s = 0.0

    async def run(self) -> list[int]:
        """Return the batches of every lane, in order.

        After temporary errors it is tried again as long as the node runs.

        Raises:
            PenstockError: What a reader of the lanes would be told.
            WorkerCrashed: A process died three times.
        """
        wait_s = FIRST_WAIT_S
        while True:
            self._note(Note(0))
            try:
                found = await self._all_parts()
            except (PenstockError, OSError) as error:
                # The system may have no memory, process or file left for it: nobody waits for it.
                if isinstance(error, PenstockError) and error.status != "UNAVAILABLE":
                    raise
                logger.warning("counting waits", job=self.job.name, error=str(error))
            else:
                return [found[lane] for lane in range(self.job.lanes)]
            await asyncio.sleep(wait_s)
            wait_s = min(2 * wait_s, MAX_WAIT_S)

    async def _all_parts(self) -> dict[int, int]:
        tasks = [asyncio.ensure_future(self._part(part)) for part in range(self.parts)]
        try:
            return {lane: end for ends in await asyncio.gather(*tasks) for lane, end in ends}
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _part(self, part: int) -> list[tuple[int, int]]:
        for death in range(MAX_DEATHS):
            answer, note, code = await self._attempt(part, careful=death > 0)
            if "ends" in answer:
                ends: list[tuple[int, int]] = answer["ends"]
                return ends
            if "code" in answer:
                raise ERRORS.get(answer["code"], Internal)(answer["message"])
            logger.error(
                "a count died", job=self.job.name, exit=code, stage=note.stage, item=str(note.item)
            )
        doing = str(note.item) if note.item else f"stage {note.stage}"
        raise WorkerCrashed(
            f"the batches of job {self.job.name!r} cannot be counted: {doing} ended the process "
            f"that does it {MAX_DEATHS} times, at last with {short_status(code)}; remove or repair "
            "the item, then restart the node",
            item=doing,
            deaths=MAX_DEATHS,
        )

    async def _attempt(self, part: int, *, careful: bool) -> tuple[dict[str, Any], Note, int]:
        """Return what a process said at last, what it was doing then, and its exit status."""
        process, page, ours = start_aside(
            "penstock.server.node.count",
            self.job.definition,
            self.job.log_id.hex(),
            part,
            self.parts,
            int(careful),
            files_fd=self.files_fd,
        )
        lines = asyncio.StreamReader(limit=MAX_LINE_BYTES)
        loop = asyncio.get_running_loop()
        pipe, _ = await loop.connect_accepted_socket(
            lambda: asyncio.StreamReaderProtocol(lines), ours
        )
        try:
            answer = await self._listen(part, process, page, lines)
        except BaseException:
            process.kill()
            raise
        finally:
            pipe.close()
            code = await asyncio.shield(asyncio.to_thread(end_aside, process))
        return answer, page.read(), code

    async def _listen(
        self,
        part: int,
        process: subprocess.Popen[bytes],
        page: Page,
        lines: asyncio.StreamReader,
    ) -> dict[str, Any]:
        loop = asyncio.get_running_loop()
        serial, since_s = 0, loop.time()
        reading = asyncio.ensure_future(lines.readline())
        try:
            while True:
                done, _ = await asyncio.wait({reading}, timeout=LOOK_S)
                note = page.read()
                if note.serial != serial:
                    serial, since_s = note.serial, loop.time()
                elif loop.time() - since_s > self.item_deadline_s:
                    process.kill()
                if done:
                    line = reading.result()
                    if not line:
                        return {}
                    message: dict[str, Any] = json.loads(line)
                    if "drawn" not in message:
                        return message
                    self._drawn[part] = message["drawn"]
                    reading = asyncio.ensure_future(lines.readline())
                self._note(note)
        finally:
            reading.cancel()

    def _note(self, note: Note) -> None:
        """Log how far it is, now and then."""
        now = asyncio.get_running_loop().time()
        if now - self._logged_s >= LOG_EVERY_S:
            self._logged_s = now
            at = f"{note.stage} of item {note.item}" if note.item else note.stage
            done = sum(self._drawn)
            logger.info("counting", job=self.job.name, items_done=done, items=self._items, now=at)


__all__ = ["Count"]
