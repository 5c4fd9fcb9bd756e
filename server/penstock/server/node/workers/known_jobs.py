"""The jobs that a worker knows: each is built when it is first needed, and learns its verdicts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from penstock.server.core.verdict import Verdict
from penstock.server.job.job import Job
from penstock.server.node.protocol.messages import KnowJob, Learn
from penstock.server.node.workers.block_needs import BlockNeeds
from penstock.server.pipeline.items import Items
from penstock.server.pipeline.maker import Maker

Build = Callable[[bytes, bytes], Job]
"""(definition, log id) -> the job, as `penstock.server.jobs.definition.rebuild`."""


@dataclass(eq=False)
class Known:
    """A job that was built.

    Attributes:
        block_needs: How many storage blocks the lines of each set of roles need, for each of the
            ways in which these are read.
        libraries_reported: The server process knows with which versions it is computed.
        drawn: Items drawn that the server process does not know of.
    """

    job: Job
    items: Items
    maker: Maker
    block_needs: Sequence[Sequence[BlockNeeds]]
    libraries_reported: bool = False
    drawn: int = 0


class KnownJobs:
    """Jobs by their logs.

    Args:
        new_items: Makes what fetches and processes for a job.
        note_setup: Called before a job is built: a role's constructor may end or hold up a process.
        build: Builds a job from its definition.
    """

    def __init__(
        self,
        new_items: Callable[[Job, KnowJob], Items],
        note_setup: Callable[[], None],
        build: Build,
    ) -> None:
        self._new_items, self._note_setup, self._build = new_items, note_setup, build
        self._announced: dict[bytes, KnowJob] = {}
        self._changes: dict[bytes, list[Verdict]] = {}  # by log, what it has not learnt yet
        self._known: dict[bytes, Known] = {}

    def __iter__(self) -> Iterator[Known]:
        """Yield every job that was built."""
        return iter(self._known.values())

    def __getitem__(self, log_id: bytes) -> Known:
        """Return a job that was built, or is now.

        What failed is tried again by whoever needs the job: a mount may be back, and if it is not,
        everybody is told why and nobody that a job is missing here.

        Raises:
            JobChanged: It is another job than the server process has.
            PenstockError: It cannot be built.
        """
        known = self._known.get(log_id)
        if known is None:
            known = self._known[log_id] = self._built(self._announced[log_id])
        if log_id in self._changes:
            known.items.verdicts.learn(self._changes.pop(log_id))
        return known

    def hear(self, message: KnowJob | Learn) -> None:
        """Note what the server process says of a job."""
        if isinstance(message, KnowJob):
            self._announced[message.log_id] = message
        self._changes.setdefault(message.log_id, []).extend(message.verdicts)

    def _built(self, message: KnowJob) -> Known:
        self._note_setup()
        job = self._build(message.definition, message.log_id)
        if message.lane_ends:
            ends = dict(message.lane_ends)
            job.set_lane_ends([ends.get(lane) for lane in range(job.lanes)])
        items = self._new_items(job, message)
        needs = [[BlockNeeds(reading) for reading in roles.readings] for roles in job.role_sets]
        return Known(job, items, Maker(job, items), needs)
