"""From where a line goes to a far offset: a snapshot accelerates, and decides nothing."""

from __future__ import annotations

from typing import Any

from penstock.server.core.verdict import Verdict
from penstock.server.job.job import Job
from penstock.server.pipeline.items import Items
from penstock.server.pipeline.known_verdicts import VerdictBook
from penstock.server.pipeline.line import Line, nearest_line
from penstock.server.roles import PaddedCollator, ProcessContext, RawItemProcessor, Sample
from penstock.server.roles.batchers import SimpleBatcher
from penstock.server.sources import ItemsSource
from penstock.wire.errors import BadItem

FAILING: set[int] = set()


class Failing(RawItemProcessor):
    """Fails for some items, for as long as the test says so."""

    version = 1

    def process(self, raw: Any, context: ProcessContext) -> Sample:
        """Return the item."""
        if raw in FAILING:
            raise BadItem(f"item {raw} is damaged", reason="damaged")
        return {"input_ids": [raw] * 3}


def make_job(seed: int = 0) -> Job:
    return Job(
        ItemsSource(list(range(30))),
        processor=Failing(),
        batcher=SimpleBatcher(2),
        collator=PaddedCollator(),
        lanes=1,
        seed=seed,
        snapshot_every=4,
        on_item_error="quarantine",
    )


def snapshot_at(job: Job, items: Items, offset: int) -> bytes:
    line = Line(job, 0, items)
    line.skip_to(offset)
    return line.planner.snapshot()


def test_the_nearest_of_line_and_snapshot_goes_on() -> None:
    """Nobody is asked for a short way; what is damaged, beyond, behind or foreign is not used."""
    job = make_job()
    items = Items(job)
    good, other = (snapshot_at(one, Items(one), 20) for one in (job, make_job(seed=1)))
    asked: list[tuple[int, int]] = []

    def start(offset: int, data: bytes | None, line: Line | None = None) -> int:
        def nearest(lane: int, offset: int) -> bytes | None:
            asked.append((lane, offset))
            return data

        return nearest_line(job, 0, offset, items, line, nearest).offset

    assert start(4, good) == 0
    assert not asked
    assert start(25, good) == 20
    assert start(20, good) == 20
    assert start(19, good) == 0
    assert start(25, None) == 0
    assert start(25, good[:-1] + b"?") == 0
    assert start(25, other) == 0
    ahead = Line(job, 0, items)
    ahead.skip_to(22)
    assert start(27, good, ahead) == 22
    assert start(21, good, ahead) == 20
    assert asked[0] == (0, 25)


def test_verdicts_that_nobody_here_knows_decide_nothing() -> None:
    """A snapshot made under a verdict serves those alone that obey it: items work here again."""
    job = make_job()
    book = VerdictBook((), lambda verdict: verdict._replace(number=1))
    FAILING.add(job.role_sets[0].distributor.draw(0, 1, 5).index)  # type: ignore[union-attr]
    try:
        data = snapshot_at(job, Items(job, book), 20)
    finally:
        FAILING.clear()
    known: list[Verdict] = list(book)

    def start(verdicts: list[Verdict]) -> int:
        items = Items(job, VerdictBook(verdicts))
        return nearest_line(job, 0, 25, items, None, lambda lane, offset: data).offset

    assert len(known) == 1
    assert start([]) == 0
    assert start(known) == 20
