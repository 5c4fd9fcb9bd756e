"""The figures of a plan, however they were found: by running planners, or window by window."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from penstock.server.planning.report.skew import Costs
from penstock.server.planning.report.totals import BatchTotals


class Processing(NamedTuple):
    """How often the samples of a planned job are processed, where batches hold pieces of them.

    Attributes:
        times: So many times the processing that each sample once would take, by tokens, in the
            first epoch; if each lane is read in order, by one worker, and that has room for `kept`.
        kept: Tokens of the samples that all lanes keep for later batches, at most.
    """

    times: float
    kept: int


@dataclass(frozen=True)
class Figures:
    """What a job makes of some epochs.

    Attributes:
        sizes_from: `source`, `size`, `index` or `none`: who told sizes.
        tally: Of all batches.
        costs: By name, what each batch costs, by its position: from the first on, as far as no
            place is missing.
        positions: How many positions of the log these epochs fill from the first on.
        is_all: It is all of a finite job.
        epochs: How many epochs it is.
        counts: As `Planner.counts`, over all lanes.
        held: Samples that batchers hold at the end: they come in batches of the next epoch.
        sources: By source, samples and tokens in batches.
        is_planned: Batches were packed from an index, and found by arithmetic.
        processing: How often samples are processed; None = each once.
        notes: Sentences about what these figures are not.
    """

    sizes_from: str
    tally: BatchTotals
    costs: Mapping[str, Costs]
    positions: int
    is_all: bool
    epochs: int
    counts: Mapping[str, int]
    held: int
    sources: Mapping[str, tuple[int, int]]
    is_planned: bool = False
    processing: Processing | None = None
    notes: tuple[str, ...] = ()
