"""Samples that stand in for those of a batch that quarantine has emptied: shapes without content.

A padding batch must have the keys, dtypes and shapes of a real one, or a collective hangs in the
model. They come from the first of some items, spread over the source, that gives a sample in epoch
0: a pure function of the log, so whoever makes the batch makes the same one. All content is
replaced by zeros and empty texts.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from penstock.server.core.refs import BatchPlan, ItemRef, SampleRef
from penstock.server.pipeline.items import Items
from penstock.server.pipeline.known_verdicts import Bad
from penstock.server.pipeline.processing import Filtered
from penstock.server.pipeline.sizes import sizes_of
from penstock.server.roles.samples import Sample, ref_of
from penstock.wire.errors import LaneStarved

MAX_TRIES = 256
"""Items looked at for one that gives a sample: where so many give none, the data is the matter."""


class StandIns:
    """The stand-ins of one job.

    Args:
        items: Fetches and processes.
    """

    def __init__(self, items: Items) -> None:
        self._items, self._job = items, items.job
        self._samples: dict[str, Sample] = {}

    def rows(self, plan: BatchPlan) -> list[list[Sample]]:
        """Return a stand-in for every sample of a plan, none larger than what it stands for.

        Each is made anew: a collator may write into what it is given.

        Raises:
            LaneStarved: No item tells what a sample looks like.
            SourceUnavailable: A read failed to the deadline.
        """
        return [[self._fitting(ref, plan) for ref in row] for row in plan.rows]

    def _fitting(self, ref: SampleRef, plan: BatchPlan) -> Sample:
        source = ref.item.source
        sample = self._samples.get(source)
        if sample is None:
            sample = self._samples[source] = self._first(source, plan)
        roles = self._job.role_sets[plan.role_set]
        # What models read in Python says which shape other values have: zeros would contradict it.
        told = {spec.name for spec in roles.collator.specs() if spec.place == "host"}
        empty = {name: each if name in told else zeroed(each) for name, each in sample.items()}
        most = ref.size if roles.batcher.needs_sizes else None
        fresh = roles.processor.stand_in(empty, most)
        if most is not None:
            place = plan.lane, plan.offset
            found = sizes_of(self._items, roles, ref.item, fresh, lane=place[0], offset=place[1])
            if (size := ref_of(ref.item, found).size) > ref.size:
                return roles.processor.cut(fresh, 0, ref.size, size)
        return fresh

    def _first(self, source: str, plan: BatchPlan) -> Sample:
        tries = 0
        # Spread over the source: what is damaged often lies together.
        for index in self._job.sources[source].spread(MAX_TRIES):
            tries += 1
            item = ItemRef(source, index, 0)
            [outcome] = self._items.outcomes([item], "exit")
            if not isinstance(outcome, Bad | Filtered):
                return outcome[0]
        raise LaneStarved(
            f"every item of the batch at lane {plan.lane}, offset {plan.offset} of job "
            f"{self._job.name!r} was left out, and none of {tries} items of source {source!r} that "
            "were tried for the shapes of a padding batch gives a sample; look at the data",
            lane=plan.lane,
            drawn=tries,
            reasons={"quarantined:exit": sum(map(len, plan.rows))},
        )


def zeroed(value: Any) -> Any:
    """Return a value of the same keys, kinds, dtypes and shapes, with nothing in it."""
    if isinstance(value, dict):
        return {key: zeroed(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return (
            type(value)(zeroed(inner) for inner in value) if type(value) in (list, tuple) else value
        )
    if isinstance(value, bool | int | float | complex | str | bytes):
        return type(value)()
    if isinstance(value, np.ndarray | np.generic):
        return np.zeros_like(value) if value.dtype != object else value
    torch, image = sys.modules.get("torch"), sys.modules.get("PIL.Image")
    if torch is not None and isinstance(value, torch.Tensor):
        return torch.zeros_like(value)
    if image is not None and isinstance(value, image.Image):
        return image.new(value.mode, value.size)
    if hasattr(value, "__array__"):
        return np.zeros_like(np.asarray(value))
    return value
