"""What a user's collator counts goes over the wire, whatever kind of integer it is."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import pytest

from penstock.server.core.verdict import Verdict
from penstock.server.job.job import Job
from penstock.server.pipeline.items import Items
from penstock.server.pipeline.known_verdicts import VerdictBook
from penstock.server.pipeline.line import Line
from penstock.server.roles import (
    BestFitPackingBatcher,
    PackedCollator,
    ProcessContext,
    RawItemProcessor,
    SimpleBatcher,
)
from penstock.server.roles.collator import BatchCollator
from penstock.server.roles.context import CollateContext
from penstock.server.roles.samples import Sample
from penstock.server.sources import ItemsSource
from penstock.wire.errors import BadBatch


class Counting(BatchCollator):
    """Counts as NumPy does, without asking `count`."""

    version: ClassVar[int | str | None] = 1
    tokens: ClassVar[Any] = 0

    def collate(self, rows: Sequence[Sequence[Sample]], context: CollateContext) -> dict[str, Any]:
        """Return an array, and count."""
        context.counts["tokens"] = self.tokens
        return {"x": np.arange(4)}


class Liar(RawItemProcessor):
    """Declares sizes below what it gives."""

    version: ClassVar[int | str | None] = 1
    one_to_one: ClassVar[bool] = True

    def process(self, raw: Any, context: ProcessContext) -> Sample:
        """Return more tokens than was said."""
        return {"input_ids": [raw] * 5}

    def size(self, raw: Any) -> int:
        """Return a size that is too small."""
        return 4


def test_a_verdict_is_asked_for_once_however_often_its_batch_is_made() -> None:
    """The store and the other workers hear of an item once, not at every replay."""
    asked: list[Verdict] = []

    def insert(verdict: Verdict) -> Verdict:
        asked.append(verdict)
        return verdict

    job = Job(
        ItemsSource([1, 2]),
        None,
        Liar(),
        BestFitPackingBatcher(4, pool_size=1),
        PackedCollator(),
        lanes=1,
        on_item_error="quarantine",
    )
    line = Line(job, 0, Items(job, VerdictBook((), insert)))
    plan = line.advance()

    for _ in range(5):
        line.make(plan)

    items = [verdict.item for verdict in asked]
    assert items
    assert len(items) == len(set(items))
    assert {verdict.stage for verdict in asked} == {"size"}


def make(tokens: Any) -> dict[str, int]:
    """Return what is counted."""
    Counting.tokens = tokens
    job = Job(ItemsSource([1, 2]), batcher=SimpleBatcher(1), collator=Counting(), lanes=1)
    line = Line(job, 0)
    return dict(line.make(line.advance()).counts)


@pytest.mark.parametrize("tokens", [5, np.int64(5), np.uint8(5), np.array(5)])
def test_any_integer_may_be_counted(tokens: Any) -> None:
    """It arrives as a plain one, which every message can carry."""
    counts = make(tokens)

    assert json.loads(json.dumps(counts)) == {"samples": 1, "tokens": 5}


def test_what_is_no_integer_is_the_collators_failure() -> None:
    """With the batch and the value, not a bug of penstock."""
    with pytest.raises(BadBatch, match=r"lane 0, offset 0.*'many'"):
        make("many")
