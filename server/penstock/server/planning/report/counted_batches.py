"""Batches that planners gave one by one, counted many at a time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from penstock.server.core.refs import BatchPlan, SampleRef
from penstock.server.job.job import Job
from penstock.server.job.role_set import RoleSet
from penstock.server.planning.report.known_sizes import KnownSizes, collates_by_size
from penstock.server.planning.report.misfits import refuse, worst
from penstock.server.planning.report.totals import BatchTotals
from penstock.server.roles.distinct_episodes import distinct_episodes
from penstock.server.roles.filling import BatchColumns, BatchSizes, Misfit, Numbers

CHUNK_SLOTS = 1 << 16
"""Samples that are counted together, in array code."""


class Collected:
    """Counts batches as their planners give them.

    Args:
        job: The job.
        known: How sizes are known, for each set of roles.

    Attributes:
        tally: Of all of them.
        sources: By source, samples and tokens in batches.
    """

    def __init__(self, job: Job, known: Sequence[KnownSizes]) -> None:
        self.tally = BatchTotals()
        self.sources: dict[str, list[int]] = {name: [0, 0] for name in job.sources}
        self._chunks = [
            _Chunk(roles, each) for roles, each in zip(job.role_sets, known, strict=True)
        ]
        self._columns: list[tuple[list[int], BatchColumns]] = []
        self._batches = 0
        self._episodes: list[int] = []
        self._misfits: list[tuple[Misfit, int, int]] = []

    def add(self, plan: BatchPlan) -> None:
        """Count one."""
        chunk = self._chunks[plan.role_set]
        chunk.add(plan, self._batches)
        if tables := chunk.roles.episode_tables:
            items = (ref.item for row in plan.rows for ref in row)
            self._episodes.append(distinct_episodes(tables, items))
        self._batches += 1
        if len(chunk.slots) >= CHUNK_SLOTS:
            self._count(chunk)

    def finish(self) -> BatchColumns:
        """Return the columns of all batches, in the order in which they were added.

        Raises:
            BadBatch: The collator cannot make one of them.
        """
        for chunk in self._chunks:
            self._count(chunk)
        if self._episodes:
            self.tally.of_episodes.add(np.array(self._episodes, np.int64))
        if self._misfits:
            every = [found for found, *_ in self._misfits]
            [(lane, offset), *_] = [at for found, *at in self._misfits if found is worst(every)]
            raise refuse(every, self._batches, lane, offset)
        places = np.array([place for places, _ in self._columns for place in places], np.int64)
        found = []
        for number in range(len(BatchColumns._fields)):
            column = np.empty(self._batches, np.int64)
            parts = [columns[number] for _, columns in self._columns]
            column[places] = np.concatenate(parts) if parts else np.empty(0, np.int64)
            found.append(column)
        return BatchColumns(*found)

    def _count(self, chunk: _Chunk) -> None:
        if not chunk.places:
            return
        batches = chunk.sizes()
        collator = chunk.roles.collator if collates_by_size(chunk.roles.batcher) else None
        columns, misfit = self.tally.add(batches, collator)
        if (counts := chunk.counts()) is not None:
            self.tally.add_measured(batches, chunk.roles.measures, counts)
        self._columns.append((chunk.places, columns))
        if misfit is not None:
            self._misfits.append((misfit, *chunk.stands[misfit.batch]))
        for name, (samples, tokens) in chunk.by_source(batches).items():
            self.sources[name][0] += samples
            self.sources[name][1] += tokens
        chunk.clear()


class _Chunk:
    """Batches of one set of roles that are not counted yet.

    Attributes:
        slots: The samples in them.
        places: Which batches of all these are.
        stands: Their lanes and offsets.
    """

    def __init__(self, roles: RoleSet, known: KnownSizes) -> None:
        self.roles, self._known = roles, known
        self.clear()

    def clear(self) -> None:
        """Forget all."""
        self.slots: list[SampleRef] = []
        self.places: list[int] = []
        self.stands: list[tuple[int, int]] = []
        self._rows, self._batches = [0], [0]

    def add(self, plan: BatchPlan, place: int) -> None:
        """Take a batch."""
        for row in plan.rows:
            self.slots += row
            self._rows.append(len(self.slots))
        self._batches.append(len(self._rows) - 1)
        self.places.append(place)
        self.stands.append((plan.lane, plan.offset))

    def sizes(self) -> BatchSizes:
        """Return the sizes in these batches."""
        if self._known.of_samples is None:
            sizes = np.array([ref.size for ref in self.slots], np.int64)
        else:
            sizes = np.zeros(len(self.slots), np.int64)
            for name, numbers in self._slots_by_source().items():
                refs = [self.slots[number] for number in numbers]
                indices, parts = [ref.item.index for ref in refs], [ref.part for ref in refs]
                sizes[numbers] = self._known.of_samples(name, indices, parts)
        return BatchSizes(sizes, np.array(self._rows, np.int64), np.array(self._batches, np.int64))

    def counts(self) -> Numbers | None:
        """Return what samples count, int64 (n, measures); None = nothing, or nothing known."""
        if not (self.slots and self.slots[0].counts):
            return None
        return np.array([ref.counts for ref in self.slots], np.int64)

    def by_source(self, batches: BatchSizes) -> dict[str, tuple[int, int]]:
        """Return samples and tokens by source."""
        return {
            name: (len(numbers), int(batches.sizes[numbers].sum()))
            for name, numbers in self._slots_by_source().items()
        }

    def _slots_by_source(self) -> Mapping[str, Sequence[int]]:
        if len(self.roles.sources) == 1:
            return {next(iter(self.roles.sources)): range(len(self.slots))}
        found: dict[str, list[int]] = {}
        for number, ref in enumerate(self.slots):
            found.setdefault(ref.item.source, []).append(number)
        return found
