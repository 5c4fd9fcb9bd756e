"""The streams of a simulated device: what is queued there, and what is done of it, and when.

What each piece of work comes after is kept as a vector of the last work of each stream, so that two
that nothing orders are found whichever is done first.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from penstock.client.testing.misuse import Misuse, Site, site
from penstock.client.testing.schedules import Schedule

Clock = dict[int, int]
"""By the number of a stream: how much of its work is done before."""


class SimulatedStream:
    """A queue of work. `Simulator.stream` makes them.

    Attributes:
        device: Whose it is.
        name: For people.
        site: Where it was made.
    """

    def __init__(self, device: object, number: int, name: str, is_host: bool) -> None:
        self.device, self.number, self.name = device, number, name
        self.site = site(f"stream {name}")
        self.is_host = is_host
        self.work: deque[Work] = deque()
        self.queued = 0  # pieces of work, ever
        self.clock: Clock = {}  # what the next piece of work comes after

    def __repr__(self) -> str:
        return f"<stream {self.name}>"


class SimulatedEvent:
    """A point in a stream.

    Attributes:
        device: Whose it is.
        site: Where it was recorded.
        is_over: Whether it is complete.
    """

    def __init__(self, stream: SimulatedStream, clock: Clock, where: Site) -> None:
        self.device, self.site, self.clock = stream.device, where, clock
        self.is_over = False


class Work:
    """A piece of work: a copy, a kernel, an event that is recorded, or one that is waited for."""

    def __init__(self, stream: SimulatedStream, where: Site, do: Callable[[], None] | None) -> None:
        self.stream, self.number, self.site, self.do = stream, stream.queued, where, do
        self.clock: Clock = dict(stream.clock)
        self.event: SimulatedEvent | None = None
        self.is_record = False

    @property
    def is_queued(self) -> bool:
        """Whether it has not been done."""
        queue = self.stream.work  # in order
        return bool(queue) and queue[0].number <= self.number

    def is_before(self, clock: Clock) -> bool:
        """Tell whether what has this clock comes after it."""
        return clock.get(self.stream.number, -1) >= self.number


class WorkQueues:
    """The streams, and the schedule by which work in them is done.

    Args:
        schedule: When it is done.

    Attributes:
        streams: All of them.
        host: What the host knows to be done.
    """

    def __init__(self, schedule: Schedule) -> None:
        self._schedule = schedule
        self.streams: list[SimulatedStream] = []
        self.host: Clock = {}

    def queue(
        self, stream: SimulatedStream, where: Site, do: Callable[[], None] | None = None
    ) -> Work:
        """Queue a piece of work; None = a mark, which is passed."""
        join(stream.clock, self.host)
        work = Work(stream, where, do)
        stream.queued += 1
        stream.clock[stream.number] = work.number
        stream.work.append(work)
        return work

    def record(self, stream: SimulatedStream, where: Site) -> SimulatedEvent:
        """Queue the event of all that is queued so far."""
        work = self.queue(stream, where)
        work.event, work.is_record = SimulatedEvent(stream, dict(stream.clock), where), True
        return work.event

    def pass_marks(self) -> None:
        """Pass events that are next, and waits for those that are complete."""
        moved = True
        while moved:
            moved = False
            for stream in self.streams:
                while stream.work and stream.work[0].do is None:
                    event = stream.work[0].event
                    if event is not None and not stream.work[0].is_record and not event.is_over:
                        break
                    if event is not None:
                        event.is_over = True
                    stream.work.popleft()
                    moved = True

    def progress(self) -> None:
        """Do as much as the schedule says."""
        self.pass_marks()
        while ready := self._ready():
            choice = self._schedule.choose(len(ready), must=False)
            if choice < 0:
                return
            self._do(ready[choice])

    def until(self, event: SimulatedEvent) -> None:
        """Do work until an event is complete.

        Raises:
            Misuse: Nothing brings it about.
        """
        self.pass_marks()
        while not event.is_over:
            ready = self._ready()
            if not ready:
                raise Misuse("an event that nothing brings about", event.site, site("wait"))
            self._do(ready[self._schedule.choose(len(ready), must=True)])
        join(self.host, event.clock)

    def drain(self) -> None:
        """Do everything that is queued."""
        self.pass_marks()
        while ready := self._ready():
            self._do(ready[self._schedule.choose(len(ready), must=True)])

    def _ready(self) -> list[SimulatedStream]:
        return [stream for stream in self.streams if stream.work and stream.work[0].do]

    def _do(self, stream: SimulatedStream) -> None:
        work = stream.work.popleft()
        do, work.do = work.do, None  # it may hold memory that it used
        assert do is not None
        do()
        self.pass_marks()


def join(clock: Clock, other: Clock) -> None:
    """Have a clock come after another one, too."""
    for number, last in other.items():
        if clock.get(number, -1) < last:
            clock[number] = last
