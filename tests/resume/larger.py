"""Jobs whose sizes are told wrong, each by some tokens."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

from penstock.server.job.job import Job
from penstock.server.planning.log.job_plan import Plan
from penstock.server.roles import (
    BestFitDecreasingPackingBatcher,
    BestFitPackingBatcher,
    FirstFitPackingBatcher,
    KnapsackPackingBatcher,
    MapDistributor,
    NextFitPackingBatcher,
    PackedCollator,
    ProcessContext,
    RawItemProcessor,
    Sample,
    SampleBatcher,
    SequentialPackingBatcher,
)
from penstock.server.sources import ItemsSource
from planned import with_plan

ROW = 32

Item = tuple[int, int]
"""The size that an item is told to have, and the one that it has."""

ITEMS: Sequence[Item] = tuple(
    (told, max(1, told + more))
    for told, more in zip(
        (3, 17, 8, 1, 29, 12, 25, 5, 9, 31, 2, 40, 14, 6, 22, 11, 4, 19, 28, 7, 10, 16, 13),
        (2, 1, -3, 0, 2, 4, -6, 1, 0, 1, 5, 3, 6, -2, 1, 0, 3, -4, 2, 1, 0, 40, 3),
        strict=True,
    )
)
"""23 items: one is longer than a row as it is told, another when it is there."""

BATCHERS: dict[str, SampleBatcher] = {
    "best_fit": BestFitPackingBatcher(ROW, pool_size=6, rows=2),
    "best_fit_truncate": BestFitPackingBatcher(ROW, pool_size=4, overlong="truncate"),
    "knapsack": KnapsackPackingBatcher(ROW, window=9, packing_ratio=0.8, rows=3),
    "first_fit": FirstFitPackingBatcher(ROW, open_rows=3, rows=4),
    "next_fit": NextFitPackingBatcher(ROW),
    "sequential": SequentialPackingBatcher(ROW + 1, lookahead_limit=3, rows=2),
    "planned": BestFitDecreasingPackingBatcher(ROW, window=12, rows=2),
}


class Estimating(RawItemProcessor):
    """Tells a size, and gives another; the tokens are the item's and of its epoch's chance."""

    version: ClassVar[int | str | None] = 1
    one_to_one: ClassVar[bool] = True

    def process(self, raw: Any, context: ProcessContext) -> Sample:
        """Return as many tokens as there are."""
        shift = int(context.rng.integers(1000))
        return {"input_ids": [raw["number"] * 1000 + shift] * raw["size"]}

    def size(self, raw: Any) -> int:
        """Return the size as it is told."""
        return int(raw["told"])


class Wavering(Estimating):
    """Gives another size in each epoch: it draws it."""

    def process(self, raw: Any, context: ProcessContext) -> Sample:
        """Return some tokens more or fewer."""
        size = max(1, raw["size"] + int(context.rng.integers(-3, 4)))
        return {"input_ids": [raw["number"]] * size}


class Indexed(Estimating):
    """Gives what an index has measured, in jobs without a plan, and else something else."""

    lies: ClassVar[bool] = True

    def process(self, raw: Any, context: ProcessContext) -> Sample:
        """Return as many tokens as there are, or as were told."""
        size = raw["size" if self.lies else "told"]
        return {"input_ids": [raw["number"]] * size}


def make_job(
    batcher: str,
    folder: Path,
    *,
    items: Sequence[Item] = ITEMS,
    processor: type[RawItemProcessor] = Estimating,
    within: int = 4,
    lanes: int = 2,
    epochs: int | None = None,
    policy: str = "quarantine",
    shuffle: str = "full",
    collator: PackedCollator | None = None,
    snapshot_every: int = 4,
) -> Job:
    """Return a job of these roles; `planned` has an index, of the sizes that are told."""
    raws = [
        {"number": number, "told": told, "size": size} for number, (told, size) in enumerate(items)
    ]

    def make(plan: Plan | None) -> Job:
        return Job(
            ItemsSource(raws),
            MapDistributor(shuffle=shuffle),
            Indexed() if batcher == "planned" else processor(),
            BATCHERS[batcher].clone(),
            collator or PackedCollator(pad_to=ROW),
            plan=plan,
            lanes=lanes,
            epochs=epochs,
            on_item_error=policy,
            snapshot_every=snapshot_every,
            later_within=within if plan is not None or batcher != "planned" else 0,
        )

    if batcher != "planned":
        return make(None)
    Indexed.lies = False
    try:
        return with_plan(make, folder / "sizes.index", {"window": 12})
    finally:
        Indexed.lies = True


__all__ = ["BATCHERS", "ITEMS", "ROW", "Estimating", "Indexed", "Item", "Wavering", "make_job"]
