"""Where the lanes of a finite job end, found by planning them to their ends.

A processor may filter an item or make several samples of it, so how many batches a lane has is
known only when all of its items were processed. Plans are made, and no batch: samples are dropped
as they come.

The process that does it (`main`) is told where to begin, says where lanes end, and when nothing
more is sent to it, it says where its lanes stand and ends.
"""

from __future__ import annotations

import base64
import json
import os
import socket
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from penstock.common.readable import readable
from penstock.server.core.refs import ItemRef
from penstock.server.core.verdict import Verdict
from penstock.server.files.catalog import take_catalogs
from penstock.server.job.job import Job
from penstock.server.jobs.definition import decode, rebuild
from penstock.server.node.demand.lane_assignment import GroupAssignment
from penstock.server.node.protocol.messages import Snapshot
from penstock.server.pipeline.items import Items
from penstock.server.pipeline.known_order import KnownOrder
from penstock.server.pipeline.known_verdicts import VerdictBook
from penstock.server.pipeline.planner import Planner, open_planner
from penstock.server.processes.child import Inherited
from penstock.server.processes.page import Page
from penstock.wire.errors import BadSnapshot, Internal, PenstockError
from penstock.wire.plain import clean_text

TELL_S, LOOK_S = 1.0, 0.1
"""Seconds between two reports of a count, and between two looks at whether it shall go on."""

YIELDS = 10
"""Readers go first: that much nicer is a process that counts than a worker."""

MAX_TEXT = 4000


Ended = Callable[[int, int, Mapping[str, int]], None]
"""`(lane, batches, in_vain)`: how many batches a lane has, and what was counted of it where that is
none."""


class Count:
    """Plans some lanes to their ends, side by side, as their readers' lines go on.

    So a block of storage is decoded for all of them at once.

    Args:
        job: A finite job.
        lanes: Which lanes.
        items: Fetches and processes; its verdicts are found again when the lanes are read.
        marks: By lane, a snapshot of its planner to go on from.
    """

    def __init__(
        self, job: Job, lanes: Iterable[int], items: Items, marks: Mapping[int, Snapshot]
    ) -> None:
        self._planners = {lane: open_planner(job, lane, items) for lane in lanes}
        for lane, planner in self._planners.items():
            if lane in marks:
                try:
                    planner.restore(marks[lane].data)
                except BadSnapshot:  # it is planned from its beginning
                    self._planners[lane] = open_planner(job, lane, items)
        self._drawn = 0  # in lanes that have ended

    @property
    def drawn(self) -> int:
        """Return how many items of its lanes were drawn, in whatever process."""
        return self._drawn + sum(planner.drawn for planner in self._planners.values())

    @property
    def marks(self) -> dict[int, Snapshot]:
        """Return where each lane stands that has not ended."""
        return {
            lane: Snapshot(planner.offset, planner.snapshot())
            for lane, planner in self._planners.items()
        }

    def run(self, ended: Ended, goes_on: Callable[[], bool]) -> None:
        """Plan until all lanes have ended.

        Args:
            ended: Told of each lane how many batches it has.
            goes_on: Asked after every batch whether to go on.

        Raises:
            BadItem: An item fails and the job's policy is to stop.
            SourceUnavailable: A read failed to the deadline.
        """
        while self._planners:
            for lane, planner in list(self._planners.items()):
                if _is_over(planner):
                    del self._planners[lane]
                    self._drawn += planner.drawn
                    ended(lane, planner.offset, {} if planner.offset else planner.counts())
                if not goes_on():
                    return


def _is_over(planner: Planner) -> bool:
    """Plan a batch; tell whether there was none."""
    is_over = planner.next() is None
    planner.forget()
    return is_over


def ensure_counted(job: Job) -> None:
    """Count a job's batches in this process, if that is needed and was not done.

    Raises:
        PenstockError: As `Count.run`.
    """
    KnownOrder(job).count()


def lanes_of_part(job: Job, part: int, parts: int) -> list[int]:
    """Return the lanes of one of several processes; those of a reading group go into one."""
    groups = job.lanes_together()
    assignment = GroupAssignment(len(groups))
    assignment.settle(range(parts))
    here = (lanes for number, lanes in enumerate(groups) if assignment.of(number) == part)
    return sorted(lane for lanes in here for lane in lanes)


def keep_blocks_of(job: Job, lanes: Iterable[int]) -> None:
    """Have the sources of a job keep what some of its lanes draw from at a time."""
    inner = [part for lane in lanes for part in job.lane_roles(lane)]
    for roles in job.role_sets:
        mine = [part.lane for part in inner if part.roles is roles]
        for reading in roles.readings:
            if reading.groups is not None and reading.blocks is not None:
                own_groups = {reading.group(lane) for lane in mine} - {None}
                roles.keep_blocks(reading, max(1, len(own_groups)) * reading.blocks)


class Begin:
    """What a process that counts is told at first: one line of JSON.

    Args:
        ended: Lanes whose ends are known.
        marks: By lane, where to begin.
        verdicts: All that hold.
    """

    def __init__(
        self, ended: Iterable[int], marks: Mapping[int, Snapshot], verdicts: Iterable[Verdict]
    ) -> None:
        self.ended, self.marks, self.verdicts = set(ended), dict(marks), list(verdicts)

    def encode(self) -> bytes:
        """Return the line."""
        told = {
            "ended": sorted(self.ended),
            "marks": encode_marks(self.marks),
            "verdicts": [verdict.encode() for verdict in self.verdicts],
        }
        return json.dumps(told).encode() + b"\n"

    @classmethod
    def decode(cls, line: bytes) -> Begin:
        """Return what a line says."""
        told = json.loads(line)
        verdicts = [Verdict.decode(each) for each in told["verdicts"]]
        return cls(told["ended"], decode_marks(told["marks"]), verdicts)


def encode_marks(marks: Mapping[int, Snapshot]) -> list[list[Any]]:
    """Return snapshots by lane as JSON has them."""
    return [[lane, at, base64.b64encode(data).decode()] for lane, (at, data) in marks.items()]


def decode_marks(rows: Iterable[Any]) -> dict[int, Snapshot]:
    """Return snapshots by lane of what `encode_marks` gave."""
    return {lane: Snapshot(at, base64.b64decode(data)) for lane, at, data in rows}


class Telling:
    """Tells the server process how a count goes, and hears whether it shall go on.

    Args:
        sock: What it is told through.
        write: Writes a message to it.
        page: Where the process notes what it does.
        job: The job.
        items: What it works with.
    """

    def __init__(
        self,
        sock: socket.socket,
        write: Callable[[dict[str, Any]], None],
        page: Page,
        job: Job,
        items: Items,
    ) -> None:
        self._socket, self._write = sock, write
        self._page, self._job, self._items = page, job, items
        self._ends: list[tuple[int, int, Mapping[str, int]]] = []
        self._reported_s = self._looked_s = time.monotonic()
        self.count: Count | None = None

    def ended(self, lane: int, batches: int, in_vain: Mapping[str, int]) -> None:
        """Note where a lane ends."""
        self._ends.append((lane, batches, in_vain))

    def goes_on(self) -> bool:
        """Tell how far it is, now and then; return whether the count is still wanted."""
        now = time.monotonic()
        if now - self._reported_s >= TELL_S:
            self._reported_s = now
            self.tell()
        if now - self._looked_s < LOOK_S:
            return True
        self._looked_s = now
        return not readable([self._socket], 0)

    def tell(self) -> None:
        """Tell how far it is, and what that has cost since the last time."""
        told: dict[str, Any] = {
            "ends": self._ends,
            "seconds": sum(self._page.take_spent().values()),
            "read_bytes": (self._job.read_bytes(), self._job.media_bytes()),
            "retries": self._items.take_retries(),
        }
        if self.count is not None:
            told["drawn"] = self.count.drawn
        self._ends = []
        self._write(told)


def main(inherited: Inherited) -> None:
    """Count the lanes of a part and write JSON lines to the socket that was inherited.

    Args:
        inherited: Its arguments are the log, the part, of how many, and whether to be careful.
    """
    log_id, part, parts, careful = inherited.arguments
    take_catalogs(inherited.files_fd)
    os.nice(YIELDS)
    sock, page, definition = inherited.socket, inherited.page, inherited.definition
    name = decode(definition).name

    def progress(stage: str, item: ItemRef | None) -> None:
        page.note(stage, name, None, item)

    with sock, sock.makefile("rb") as heard, sock.makefile("w") as out:

        def write(message: dict[str, Any]) -> None:
            out.write(json.dumps(message) + "\n")
            out.flush()

        def fail(error: PenstockError) -> None:
            write({"code": error.code, "message": clean_text(error.message, MAX_TEXT)})

        try:
            page.note("build", name)
            begin = Begin.decode(heard.readline())
            job = rebuild(definition, bytes.fromhex(log_id))
            verdicts = VerdictBook(begin.verdicts, limit=job.max_quarantined)
            items = Items(job, verdicts, progress)
            items.careful = careful == "1"
            lanes = lanes_of_part(job, int(part), int(parts))
            keep_blocks_of(job, lanes)
            telling = Telling(sock, write, page, job, items)
            try:
                wanted = [lane for lane in lanes if lane not in begin.ended]
                telling.count = count = Count(job, wanted, items, begin.marks)
                count.run(telling.ended, telling.goes_on)
            finally:
                telling.tell()
            write({"marks": encode_marks(count.marks)})
        except PenstockError as error:
            fail(error)
        except Exception as error:
            fail(Internal(f"a bug in penstock: {type(error).__name__}"))
            raise
