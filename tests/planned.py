"""Planned jobs for tests: the index of a job, made by looking at its items one by one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from penstock.server.core.refs import ItemRef
from penstock.server.job.job import Job
from penstock.server.pipeline.items import Items
from penstock.server.pipeline.processing import Filtered
from penstock.server.planning.index.block import QUARANTINED, ItemSizes, filtered
from penstock.server.planning.index.index_file import SourceBlocks, blocks_of, write_index
from penstock.server.planning.index.inputs import (
    index_inputs,
    indexed_sources,
    kept_items,
    size_rule,
)
from penstock.server.planning.log.job_plan import Plan
from penstock.server.roles.samples import Sample


def sizes_of(job: Job) -> dict[str, ItemSizes]:
    """Return what an index of a job holds of each source: each item is processed for it."""
    [roles] = job.role_sets
    rule, items = size_rule(roles), Items(job)
    found = {}
    for name, source in indexed_sources(roles).items():
        kept = kept_items(roles, name)
        indices = range(len(source)) if kept is None else kept.take(np.arange(len(kept))).tolist()
        counts: list[int] = []
        sizes: list[int] = []
        left_out: dict[int, str] = {}
        for position, index in enumerate(indices):
            [outcome] = items.samples([ItemRef(name, index, 0)], "draw")
            if isinstance(outcome, Filtered):
                left_out[position] = filtered(outcome.reason)
            elif not isinstance(outcome, list):
                left_out[position] = QUARANTINED
            given = outcome if isinstance(outcome, list) else []
            counts.append(len(given))
            sizes += [_size(rule, sample, job) for sample in given]
        found[name] = ItemSizes(np.array(counts, np.uint32), np.array(sizes, np.int64), left_out)
    return found


def _size(rule: Any, sample: Sample, job: Job) -> int:
    if rule is None:
        return 0
    if "length_of" in rule:
        return len(sample[rule["length_of"]]) if rule["length_of"] in sample else rule["else"]
    return job.role_sets[0].batcher.size_of(sample)


def write_index_of(job: Job, path: Path) -> bytes:
    """Write the index of a job; return its root."""
    blocks = [
        SourceBlocks(name, sizes.positions, blocks_of(sizes))
        for name, sizes in sizes_of(job).items()
    ]
    return write_index(str(path), index_inputs(job.role_sets[0], job.seed), blocks)


def with_plan(
    make: Callable[[Plan | None], Job], path: Path, plan: Mapping[str, Any] | None = None
) -> Job:
    """Return a job that is planned from an index, which is made of the same job without a plan.

    Args:
        make: Makes the job with a plan, or without.
        path: Where the index is, or comes to be.
        plan: The other parameters of the plan.
    """
    if not path.exists():
        write_index_of(make(None), path)
    return make(Plan(str(path), **(plan or {})))


__all__ = ["sizes_of", "with_plan", "write_index_of"]
