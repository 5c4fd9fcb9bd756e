"""What a lane counts, each name with its kind; few names, whatever a role makes of its reasons."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from functools import lru_cache

from penstock.server.roles.base import SampleBatcher
from penstock.wire.errors import clean_text

MAX_REASONS, MAX_REASON_CHARACTERS = 32, 80
"""A reason that a role makes of each item anew (`too short: 17`) must not let snapshots and metrics
grow with the run: what comes after so many of them is counted together."""


def count_filtered(counters: Counter[str], reason: str) -> None:
    """Count an item that the processor gave no sample for."""
    name = f"filtered:{_cut(reason)}"
    if name not in counters and len(counters) >= MAX_REASONS:
        name = "filtered:other reasons"
    counters[name] += 1


def all_counts(counters: Mapping[str, int], batcher: SampleBatcher) -> dict[str, int]:
    """Return all that was counted of a lane since its beginning, each name with its kind.

    `drawn`; `filtered:REASON` and `quarantined:STAGE`, of items; `dropped:REASON`, of samples
    that the batcher has left out; `batcher:NAME`, what else it counts.
    """
    return {
        **counters,
        **{f"dropped:{_cut(reason)}": n for reason, n in batcher.dropped().items()},
        **{f"batcher:{_cut(name)}": n for name, n in batcher.counters().items()},
    }


@lru_cache(1024)  # the same few words at every batch
def _cut(reason: str) -> str:
    return clean_text(reason[:MAX_REASON_CHARACTERS], MAX_REASON_CHARACTERS)


__all__ = ["MAX_REASONS", "MAX_REASON_CHARACTERS", "all_counts", "count_filtered"]
