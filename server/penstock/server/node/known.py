"""The jobs that a worker knows: each is built when it is first needed, and learns its verdicts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from penstock.server.job import Job
from penstock.server.node.messages import KnowJob
from penstock.server.node.places import Places
from penstock.server.pipeline.items import Items
from penstock.server.pipeline.maker import Maker
from penstock.wire.errors import JobChanged


@dataclass(eq=False)
class Known:
    """A job that was built.

    Attributes:
        places: How many storage blocks its lines need; None = it reads none.
        libraries_told: The server process knows with which versions it is computed.
        drawn: Items drawn that the server process does not know of.
    """

    job: Job
    items: Items
    maker: Maker
    places: Places | None
    libraries_told: bool = False
    drawn: int = 0


class KnownJobs:
    """Jobs by name.

    Args:
        jobs: Those of the job file; to look one up builds it.
        new_items: Makes what fetches and processes for a job.
        note_setup: Called before a job is built: a role's constructor may end or hold up a process.
    """

    def __init__(
        self,
        jobs: Mapping[str, Job],
        new_items: Callable[[Job, KnowJob], Items],
        note_setup: Callable[[], None],
    ) -> None:
        self._jobs, self._new_items, self._note_setup = jobs, new_items, note_setup
        self._announced: dict[str, list[KnowJob]] = {}  # by job, what is not yet done about it
        self._known: dict[str, Known] = {}

    def __iter__(self) -> Iterator[Known]:
        """Yield every job that was built."""
        return iter(self._known.values())

    def __getitem__(self, name: str) -> Known:
        """Return a job that was built, or is now.

        What failed is tried again by whoever needs the job: a mount may be back, and if it is not,
        everybody is told why and nobody that a job is missing here.

        Raises:
            JobChanged: It is another job than the server process has.
            PenstockError: It cannot be built.
        """
        if waiting := self._announced[name]:
            if name not in self._known:
                self._known[name] = self._built(waiting[0])
            for message in waiting:
                self._known[name].items.verdicts.learn(message.verdicts)
            waiting.clear()
        return self._known[name]

    def announce(self, message: KnowJob) -> None:
        """Note what the server process says of a job."""
        self._announced.setdefault(message.job, []).append(message)

    def _built(self, message: KnowJob) -> Known:
        self._note_setup()
        name = message.job
        job = self._jobs[name]
        if job.log_id.hex() != message.log_id:
            raise JobChanged(
                f"job {name!r} is not what it was when the server started: its files changed; "
                "restart the server, and put the old files back if its cursors shall go on",
                job=name,
                differences=["log id"],
            )
        if message.lane_ends:
            ends = dict(message.lane_ends)
            job.set_lane_ends([ends.get(lane) for lane in range(job.lanes)])
        items = self._new_items(job, message)
        reading = job.distributor.reading()
        return Known(job, items, Maker(job, items), reading and Places(reading))


__all__ = ["Known", "KnownJobs"]
