"""Draws that depend on what was taken: two sources by their shares of tokens, exactly resumed."""

from __future__ import annotations

from collections import Counter
from typing import Any, ClassVar

import pytest

from penstock.server.core.refs import ItemRef
from penstock.server.job.job import Job
from penstock.server.pipeline.line import Line
from penstock.server.roles import DataDistributor, LaneDraws, PackedCollator
from penstock.server.sources import ItemsSource
from resume.plans import BATCHERS, PROCESSORS, raw_items
from resume.test_every_offset import step

SHARES = {"short": 3, "long": 1}
"""Tokens of the short items for each token of the long ones."""


class Shares(DataDistributor):
    """Draws from the source that has had least of its share of tokens."""

    version: ClassVar[int | str | None] = 1

    def open(self, lane: int, lanes: int) -> LaneDraws:
        """Return draws that count tokens."""
        return ShareDraws(self, lane, lanes)


class ShareDraws(LaneDraws):
    """Each source's next item, and the tokens that were taken of it."""

    def __init__(self, distributor: Shares, lane: int, lanes: int) -> None:
        self.lengths = {name: len(source) for name, source in distributor.sources.items()}  # type: ignore[arg-type]
        self.lane, self.lanes = lane, lanes
        self.drawn = dict.fromkeys(SHARES, 0)
        self.tokens = dict.fromkeys(SHARES, 0)
        self.heard: list[tuple[ItemRef, int]] = []

    def next(self) -> ItemRef:
        """Return the next item of the source that is behind."""
        name = min(SHARES, key=lambda one: (self.tokens[one] / SHARES[one], one))
        epoch, index = divmod(self.drawn[name] * self.lanes + self.lane, self.lengths[name])
        self.drawn[name] += 1
        return ItemRef(name, index, epoch)

    def took(self, item: ItemRef, size: int) -> None:
        """Count what was taken; an item that was left out costs a token, so that draws go on."""
        self.heard.append((item, size))
        self.tokens[item.source] += size or 1

    def state(self) -> Any:
        """Return both counts."""
        return {"drawn": self.drawn, "tokens": self.tokens}

    def restore(self, state: Any) -> None:
        """Take both counts back."""
        self.drawn, self.tokens = dict(state["drawn"]), dict(state["tokens"])


def make_job(processor: str, lanes: int = 2) -> Job:
    items = raw_items()
    return Job(
        {
            "short": ItemsSource([item for item in items if len(item["input_ids"]) < 12]),
            "long": ItemsSource([item for item in items if len(item["input_ids"]) >= 12]),
        },
        Shares(),
        PROCESSORS[processor](),
        BATCHERS["best_fit_split"].clone(),
        PackedCollator(),
        seed=5,
        lanes=lanes,
        on_item_error="quarantine",
    )


@pytest.mark.parametrize("processor", PROCESSORS)
def test_every_offset_restores_exactly_where_sizes_decide_draws(processor: str) -> None:
    """With sizes known before processing and after it, filters, and items of several samples."""
    line = Line(make_job(processor), 1)
    truth = [step(line) for _ in range(25)]

    for offset in range(24):
        restored = Line(make_job(processor), 1, snapshot=truth[offset].snapshot)
        assert [step(restored), step(restored)] == truth[offset : offset + 2], f"offset {offset}"


@pytest.mark.parametrize("processor", PROCESSORS)
def test_each_draw_is_heard_of_once_with_its_size(processor: str) -> None:
    """In the order of the draws, before the next one; what was left out has size 0."""
    line = Line(make_job(processor), 0)
    for _ in range(25):
        step(line)

    draws, counters = line.planner.draws, line.counters()
    assert isinstance(draws, ShareDraws)
    assert len(draws.heard) == counters["drawn"]
    left_out = sum(
        count for name, count in counters.items() if name.startswith(("filtered:", "quarantined:"))
    )
    assert sum(size == 0 for _, size in draws.heard) == left_out
    taken = Counter(dict.fromkeys(SHARES, 0))
    for item, size in draws.heard:
        taken[item.source] += size
    assert taken["short"] / taken["long"] == pytest.approx(3, rel=0.15)
