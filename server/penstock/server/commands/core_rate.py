"""What one core gives of a job: batches made for some seconds, as a worker makes them.

`penstockd check` asks whether a job is right and says a rate beside it; here the rate is what is
asked for, so it is measured longer, in windows whose spread is told, and with what a run of many
ranks depends on: how fast one lane can be planned, and how large batches and snapshots are.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle

from penstock.server.commands.meter import (
    REAL,
    Clocks,
    Meter,
    Metered,
    lanes_beside,
    pass_start,
    to_their_ends,
)
from penstock.server.commands.progress import Say, silent
from penstock.server.commands.purity import first_lanes
from penstock.server.job.job import Job
from penstock.server.pipeline.items import Items
from penstock.server.pipeline.known_order import KnownOrder
from penstock.server.pipeline.line import Line

WINDOWS = 20
"""Windows that the time is cut into: two are the slowest tenth of them, and two the fastest."""


@dataclass(frozen=True)
class CoreRate:
    """What one core gave.

    Attributes:
        metered: The batches.
        left_out_s: What came before, and does not count: imports, pools that are filled.
        filled: The pools were full when the measurement began; None if the batcher has none.
        whole_lanes: Lanes ended within the time, so they are measured from their beginning to
            their end, again and again.
    """

    metered: Metered
    left_out_s: float = 0.0
    filled: bool | None = None
    whole_lanes: bool = False


def measure_core(job: Job, seconds: float, say: Say = silent, clocks: Clocks = REAL) -> CoreRate:
    """Make batches of a job in this process, and measure.

    Of each set of roles the lanes that a worker reads together take part, past their start. Where
    these end within the time, all lanes are measured, from beginning to end.

    Args:
        job: The job.
        seconds: How long.
        say: Told how far it is.
        clocks: What time is measured by.

    Raises:
        InvalidJob: The job has no batch.
        PenstockError: What a server would stop with at one of these batches.
    """
    begin = clocks.wall()
    say(f"job {job.name}: opening its source, and filling pools")
    sets = [_open(job, lanes_beside(job, lane)) for lane in first_lanes(job)]
    filled = pass_start([line for of_set in sets for line in of_set], clocks.wall)
    meter = Meter(seconds / WINDOWS, clocks)
    for of_set in sets:
        meter.make(of_set[0])  # imports and first calls
    left_out_s = clocks.wall() - begin
    said = 0

    def enough(so_far: Metered) -> bool:
        nonlocal said
        if len(so_far.windows) != said:
            said = len(so_far.windows)
            done = f"{so_far.seconds:.0f} of {seconds:.0f} s"
            say(f"job {job.name}: batches on one core, {done}")
        return so_far.seconds >= seconds

    whole_lanes = not meter.run(_in_turn(job, sets), enough, past_ends=False)
    if whole_lanes:
        meter.run(_whole_lanes(job), enough)
    if not meter.found.batches:
        order = KnownOrder(job)
        order.count()
        job.check_not_empty(order.numbering)
    return CoreRate(meter.found, left_out_s, filled, whole_lanes)


def _open(job: Job, lanes: Sequence[int]) -> list[Line]:
    items = Items(job)
    return [Line(job, lane, items) for lane in lanes]


def _in_turn(job: Job, sets: Sequence[Sequence[Line]]) -> Iterator[Line]:
    """Yield lines without end: of each set in proportion to its share, its own in turn.

    Where each lane has batches of all sets there is one such sequence, and shares are kept there.
    """
    shares = [1.0]
    if len(sets) > 1:
        of_roles = list(job.shares().values())
        shares = [of_roles[job.lane_roles(lines[0].lane)[0].roles.number] for lines in sets]
    turns = [cycle(of_set) for of_set in sets]
    given = [0] * len(sets)
    while True:
        number = min(range(len(sets)), key=lambda each: (given[each] + 1) / shares[each])
        given[number] += 1
        yield next(turns[number])


def _whole_lanes(job: Job) -> Iterator[Line]:
    """Yield lines to their ends, those that a worker has together in turn; then all again.

    Ends where none of them has a batch.
    """
    made = True
    while made:
        made = False
        for lanes in job.lanes_together():
            lines = _open(job, lanes)
            yield from to_their_ends(lines)
            made = made or any(line.offset for line in lines)
