"""A planned log: what each batch of each lane is made of, by arithmetic from an index of sizes.

The items of an epoch are cut into windows, and each window is packed, once for all epochs
(`windows`, `packed`). In an epoch each sample takes the place of one of the same size, so batches
hold other samples in each, and as many tokens; where neither the batcher nor the plan looks at
sizes, any sample takes any place. `order` says which batch of which window has which number; lanes
of a reading group take these in turn. Batches that share samples follow each other in one lane
(`chains`, `together`). So everything follows from (job, lane, offset), and nothing from what was
planned before.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from math import inf
from typing import Any, NamedTuple

import numpy as np

from penstock.server.core.permutation import Permutation
from penstock.server.core.refs import BatchPlan, ItemRef, Row, SampleRef, Span
from penstock.server.job.planned_batches import in_words
from penstock.server.job.role_set import RoleSet
from penstock.server.planning.index.block import QUARANTINED
from penstock.server.planning.index.index_file import KEPT_BYTES, SizeIndex
from penstock.server.planning.index.inputs import check_inputs
from penstock.server.planning.log.batch_order import BatchPlace
from penstock.server.planning.log.group_stream import (
    ARRANGED,
    KEPT_SAMPLES,
    GroupStream,
    Packed,
    Recent,
)
from penstock.server.planning.log.index_windows import (
    Integers,
    Reasons,
    Windows,
    WindowSamples,
    pieces_of,
    run_of,
)
from penstock.server.planning.log.packed_window import PackedWindow
from penstock.server.planning.log.plan_parameters import PlanParameters
from penstock.server.roles.batchers import ConcatPackingBatcher, SimpleBatcher
from penstock.server.roles.batchers.packer import RowPackingBatcher
from penstock.server.roles.distributors import MapDistributor
from penstock.server.roles.reading import Reading
from penstock.server.roles.samples import media_places
from penstock.wire.errors import InvalidJob

SAMPLE_BYTES, FILLED_BYTES = 50, 8
"""Of a sample in a packed window, and of its place in an epoch: measured over epochs of 2 and 8
million samples, 33 to a row."""

ARRANGED_BYTES = 16
"""Of a batch there, and of a piece that shares its sample with another batch: two numbers each."""


class _EpochWindow(NamedTuple):
    """A window in an epoch.

    Attributes:
        samples: Its samples.
        packed: How they are packed.
        filled: int64 (n,): which sample takes the place of each.
    """

    samples: WindowSamples
    packed: PackedWindow
    filled: Integers


class PlannedLog:
    """What the batches of a set of roles are made of; see `PlanParameters`.

    Args:
        roles: The roles, opened.
        plan: What the job says of it.
        seed: The job's seed.
        batches_per_step: The job's; None = it says none.
        may_fail: How many items that fail the index may have left out.

    Attributes:
        index: The sizes.
        streams: The batches of each reading group; most jobs have one group.

    Raises:
        InvalidJob: It cannot be planned so, or the index is of other data; says what to change.
        SourceUnavailable: The index cannot be read.

    Glossary:
        index, plan: An index holds the size of every sample of a job's sources. A planned job packs
            its windows from one, and finds every batch by arithmetic; its plan is what that comes
            to.
    """

    def __init__(
        self,
        roles: RoleSet,
        plan: PlanParameters,
        seed: int,
        batches_per_step: int | None,
        may_fail: int = 0,
    ) -> None:
        self._roles, self._plan, self._seed = roles, plan, seed
        self._names = list(roles.distributor.drawn_from())
        drawer = check_plannable(roles, plan, batches_per_step)
        self.index = SizeIndex.open(plan.index, plan.storage_options)
        check_inputs(plan.index, self.index.inputs, roles, seed)
        self._check_samples(may_fail)
        self._passes = [drawer.drawn.passes(number) for number in range(len(self._names))]
        shuffle, self._drawer = drawer.shuffling, drawer
        is_shuffled = shuffle.kind != "none"
        by_block = shuffle.groups is not None
        groups = 1 if shuffle.groups is None else shuffle.groups.number
        self._step = batches_per_step if plan.balance is not None else None
        self._looks_at_sizes = (
            roles.batcher.needs_sizes or plan.group_by_length or plan.balance is not None
        )
        self._window = plan.window
        if shuffle.groups is not None and not plan.window_given:
            mean = drawer.drawn.items / shuffle.groups.held
            blocks = max(1, shuffle.groups.window // 2)
            self._window = max(1, round(blocks * mean))
        self._order_seed = seed if is_shuffled else None
        run = None if by_block else run_of(self._window)
        pieces = pieces_of(drawer.drawn, self._order_seed, run)
        # So that only the last batch of an epoch is shorter, unless items are filtered.
        align = roles.batcher.batch_size if isinstance(roles.batcher, SimpleBatcher) else 1
        self._packed = Recent[tuple[int, int], Packed]()
        self.streams = [
            GroupStream(
                Windows(
                    drawer.drawn,
                    self.index,
                    self._names,
                    [own[group::groups] for own in pieces],
                    self._window,
                    align,
                    by_block and align == 1 and not plan.window_given,
                    self._order_seed,
                    f"of group {group}",
                ),
                roles,
                plan,
                self._order_seed,
                self._step,
                group,
                roles.lanes // groups,
                self._packed,
            )
            for group in range(groups)
        ]
        self._filled = Recent[tuple[int, int, int], Integers]()

    def _check_samples(self, may_fail: int) -> None:
        """Refuse data that gives no sample, or fails too often, as the index says at its end."""
        drawn = [self.index.sources[name] for name in self._names]
        few, reasons = Reasons(drawn), Counter[str]()
        for source in drawn:
            few.add(source.left_out, reasons)
        if (failing := reasons[QUARANTINED]) > may_fail:
            raise InvalidJob(
                f"the index {self._plan.index!r} leaves out {failing:,} items that fail, and the "
                f"job may leave out {may_fail}: set on_item_error: quarantine and raise "
                "max_quarantined, or repair them and make the index anew",
                key="on_item_error",
            )
        if not any(source.samples for source in drawn):
            raise InvalidJob(
                f"none of the {sum(source.items for source in drawn):,} items in the index "
                f"{self._plan.index!r} gives a sample ({in_words(reasons)}): loosen the filter, or "
                "look at the data",
                key="plan.index",
            )

    @property
    def groups(self) -> int:
        """Return how many reading groups its lanes are dealt to."""
        return len(self.streams)

    def identity(self) -> dict[str, Any]:
        """Return what of the plan decides bytes, JSON-able: with the hash of the index."""
        found = self._plan.parameters()
        found |= {"index": self.index.root.hex(), "window": self._window}
        if self._step is not None:
            found["batches_per_step"] = self._step
        return found

    def reading(self, found: Reading) -> Reading:
        """Return how storage blocks are read: all of a window's at a time, and the next one's.

        Where items are read without the rest of their blocks it is as it is without a plan.
        """
        if found.blocks is None:
            return found
        of_window = max(stream.most_parts for stream in self.streams)
        return found._replace(blocks=min(found.all_blocks, 2 * of_window + 1))

    # --- lanes ---

    def stream_of(self, lane: int) -> int:
        """Return which of `streams` a lane takes its batches from."""
        return lane % len(self.streams)

    def lanes_of(self, stream: int) -> range:
        """Return the lanes that take the batches of a stream, in turn."""
        return range(stream, self._roles.lanes, len(self.streams))

    def kept_bytes(self) -> float:
        """Return about how many bytes packed windows and the index come to take in a process.

        One that has lanes of all streams.
        """
        items = sum(self.index.sources[name].items for name in self._names)
        samples = sum(self.index.sources[name].samples for name in self._names)
        in_epoch = samples * self._drawer.drawn.items / max(1, items)
        passes = inf if self._roles.epochs is None else self._roles.epochs
        return (
            min(KEPT_SAMPLES, in_epoch) * (SAMPLE_BYTES + 8 * len(self.index.measures))
            + min(KEPT_SAMPLES, in_epoch * passes) * FILLED_BYTES
            + min(KEPT_BYTES, self.index.nbytes)
            + self._arranged_bytes(min(self._window, in_epoch))
        )

    def _arranged_bytes(self, samples: float) -> float:
        """Return about what the arranged batches of windows of so many samples take."""
        batcher = self._roles.batcher
        if not self._roles.batcher_facts.may_split:
            return 0.0
        batches = samples
        if isinstance(batcher, RowPackingBatcher | ConcatPackingBatcher):
            batches *= self.mean_tokens / (batcher.rows * batcher.max_tokens)
        return ARRANGED * ARRANGED_BYTES * batches

    @property
    def mean_tokens(self) -> float:
        """Return the tokens of a sample, in the mean; 0 where nothing has a size."""
        every = [self.index.sources[name] for name in self._names]
        return sum(source.tokens for source in every) / sum(source.samples for source in every)

    def kept_tokens(self) -> int:
        """Return about how many tokens of samples all lanes keep for their later batches.

        As many as in the first windows, which are packed for it.
        """
        if not self._roles.keeps_pieces:
            return 0
        every = (stream for stream in self.streams if stream.windows)
        return sum(stream.processed(0, *stream.packed(0)).kept for stream in every)

    def known_end(self, lane: int) -> int | None:
        """Return how many batches a lane holds; None = endless."""
        epochs = self._roles.epochs
        return None if epochs is None else self.batches_of(lane, epochs)

    def batches_of(self, lane: int, epochs: int) -> int:
        """Return how many batches a lane holds of the first epochs."""
        number, lanes = self._turn(lane)
        total = epochs * self.streams[self.stream_of(lane)].batches
        return max(0, -(-(total - number) // lanes))

    def plan(self, lane: int, offset: int) -> BatchPlan | None:
        """Return what a batch is made of; None = no item of the lane's stream comes to a batch.

        Args:
            lane: Its lane.
            offset: Its offset; the lane holds it, if it holds any.

        Raises:
            SourceUnavailable: The index cannot be read.
        """
        stream = self.stream_of(lane)
        number, lanes = self._turn(lane)
        place = self.streams[stream].order.find(offset * lanes + number)
        if place is None:
            return None
        window = self._window_of(stream, place)
        rows = self._rows(window, place)
        counts = self.streams[stream].counts(place.window) if place.bears else Counter[str]()
        bears = tuple(sorted(counts.items()))
        again = self._again(stream, window, place, rows)
        return BatchPlan(lane, offset, rows, self._roles.number, bears, again=again)

    def stands(self, stream: int, epoch: int, window: int, batch: int) -> tuple[int, int]:
        """Return the lane and the offset of a batch.

        Args:
            stream: The number of its reading group.
            epoch: Its epoch.
            window: Its window.
            batch: Its number in the window.
        """
        groups = len(self.streams)
        number = self.streams[stream].order.number_of(epoch, window, batch)
        offset, turn = divmod(number, self._roles.lanes // groups)
        return turn * groups + stream, offset

    def counts(self, lane: int, offset: int) -> Counter[str]:
        """Return what the batches of a lane before an offset bear, added up: see `plan`."""
        stream = self.streams[self.stream_of(lane)]
        number, lanes = self._turn(lane)
        found: Counter[str] = Counter()
        last, epoch, epochs = (offset - 1) * lanes + number, 0, self._roles.epochs
        while (epochs is None or epoch < epochs) and stream.order.least_number(epoch) <= last:
            windows, firsts = stream.order.numbers_of_first(epoch)
            for window in windows[(firsts % lanes == number) & (firsts <= last)].tolist():
                found.update(stream.counts(window))
            epoch += 1
        return found

    def counts_of_epoch(self, lane: int | None = None) -> Counter[str]:
        """Return what the windows count in an epoch: those of a lane's stream, or all."""
        streams = self.streams if lane is None else [self.streams[self.stream_of(lane)]]
        found = Counter[str]()
        for stream in streams:
            for window in range(stream.windows):
                found.update(stream.counts_of(window))
        return found

    def _turn(self, lane: int) -> tuple[int, int]:
        """Return a lane's number among those of its reading group, and how many they are."""
        groups = len(self.streams)
        return lane // groups, self._roles.lanes // groups

    # --- one batch ---

    def _rows(self, window: _EpochWindow, place: BatchPlace) -> list[Row]:
        samples, packed, filled = window
        first, last = packed.batches[place.batch], packed.batches[place.batch + 1]
        bounds = packed.rows[first : last + 1].tolist()
        begin, end = bounds[0], bounds[-1]
        taken = filled[packed.slots[begin:end]]
        sources, items = samples.sources[taken].tolist(), samples.items[taken].tolist()
        copies = samples.copies[taken].tolist()
        parts = None if samples.parts is None else samples.parts[taken].tolist()
        # Where nothing looks at sizes, a sample may take the place of one of another size.
        own = samples.sizes[taken] if packed.starts is None else packed.sizes[begin:end]
        sizes = own.tolist()
        starts = None if packed.starts is None else packed.starts[begin:end].tolist()
        stops = None if packed.stops is None else packed.stops[begin:end].tolist()
        counted = self._counted(samples.measured, taken, starts)
        names, passes = self._names, self._passes
        refs = [
            SampleRef(
                ItemRef(names[source], items[at], place.epoch * passes[source] + copies[at]),
                0 if parts is None else parts[at],
                sizes[at],
                None
                if starts is None or stops is None or starts[at] < 0
                else Span(starts[at], stops[at]),
                () if counted is None else counted[at],
            )
            for at, source in enumerate(sources)
        ]
        return [refs[start - begin : stop - begin] for start, stop in pairwise(bounds)]

    @staticmethod
    def _counted(
        measured: Integers | None, taken: Integers, starts: Sequence[int] | None
    ) -> list[tuple[int, ...]] | None:
        """Return what pieces count: all of it where they begin their sample; None = nothing."""
        if measured is None:
            return None
        found = measured[taken]
        if starts is not None:
            found = found * (np.array(starts) <= 0)[:, np.newaxis]
        return list(map(tuple, found.tolist()))

    def _again(
        self, stream: int, window: _EpochWindow, place: BatchPlace, rows: list[Row]
    ) -> frozenset[ItemRef]:
        """Return the items of a batch that the same lane needs again, later in the window."""
        shared, found = window.packed.shared, self.streams[stream]
        if shared is None or (arranged := found.arranged(place.window, place.epoch)) is None:
            return frozenset()
        at, lanes = int(arranged.places[place.batch]), self._roles.lanes // len(self.streams)
        if at < 0:
            return frozenset()
        first, last = window.packed.rows[
            window.packed.batches[[place.batch, place.batch + 1]]
        ].tolist()
        refs = (ref for row in rows for ref in row)
        again = set()
        for slot, ref in zip(window.packed.slots[first:last].tolist(), refs, strict=True):
            if ref.span is not None:
                others = arranged.places[shared.of(slot)]
                if ((others > at) & (others % lanes == at % lanes)).any():
                    again.add(ref.item)
        return frozenset(again)

    def _window_of(self, stream: int, place: BatchPlace) -> _EpochWindow:
        epoch = (stream, place.window, place.epoch)
        found = self.streams[stream].packed(place.window)
        filled = self._filled.get(epoch)
        if filled is None:
            filled = self.filled(found[0], *epoch)
            self._filled.put(epoch, filled, len(filled))
        return _EpochWindow(*found, filled)

    @property
    def fills_differ(self) -> bool:
        """Tell whether batches hold other sizes in every epoch: any sample takes any place."""
        return self._order_seed is not None and not self._looks_at_sizes

    def filled(self, samples: WindowSamples, stream: int, window: int, epoch: int) -> Integers:
        """Return which sample takes the place of each, in an epoch: another of the same size.

        Of any size, where neither the batcher nor the plan looks at them.

        Args:
            samples: Those of the window.
            stream: The number of the reading group.
            window: The number of the window.
            epoch: The epoch.
        """
        total = len(samples.sizes)
        if self._order_seed is None:
            return np.arange(total)
        purpose = f"places in window {window} of group {stream}"
        order = Permutation(total, self._seed, epoch, purpose).take(np.arange(total))
        if self.fills_differ:
            return order
        sizes = _narrow(_alike(samples, self._roles))
        filled = np.empty(total, np.int64)
        filled[np.argsort(sizes, kind="stable")] = order[np.argsort(sizes[order], kind="stable")]
        return filled


def _alike(samples: WindowSamples, roles: RoleSet) -> Integers:
    """Return numbers that are the same for samples that may take each other's places.

    Those of the same size, which count the same of all that is limited or balanced; and samples
    with pictures in none of others, which may be cut.
    """
    if samples.measured is None:
        return samples.sizes
    places = [place for place, _ in roles.batcher_facts.row_counts]
    balance = None if roles.plan is None else roles.plan.balance
    if balance is not None:
        places += [place for place, name in enumerate(roles.measures) if name in balance.names]
    media = media_places(roles.measures, len(roles.measures))
    has_media = samples.measured[:, media].any(axis=1)
    vectors = np.column_stack([samples.sizes, has_media, samples.measured[:, places]])
    found: Integers = np.unique(vectors, axis=0, return_inverse=True)[1].reshape(-1)
    return found


def _narrow(sizes: Integers) -> Any:
    """Return sizes as the smallest integers that hold them, which NumPy sorts by radix."""
    return sizes.astype(np.uint16) if len(sizes) and sizes.max() < 1 << 16 else sizes


def planned_log(roles: RoleSet) -> PlannedLog:
    """Return what the batches of roles with a `Plan` are made of."""
    found = roles.planned
    assert isinstance(found, PlannedLog)
    return found


def check_plannable(
    roles: RoleSet, plan: PlanParameters, batches_per_step: int | None
) -> MapDistributor:
    """Refuse roles and settings that no plan can be made for.

    Returns:
        The distributor.

    Raises:
        InvalidJob: Says what to change.
    """
    drawer = roles.distributor
    if not isinstance(drawer, MapDistributor) or drawer.is_of_user():
        raise InvalidJob(
            f"a planned job needs all of an epoch's items at once, and the distributor "
            f"{drawer.code_of()} decides them one by one: use {{type: map}}, or leave plan out",
            key="distributor",
        )
    if drawer.choice.resamples:
        raise InvalidJob(
            "resample draws other items in every epoch, and a plan holds for all epochs: leave "
            "resample out, or plan",
            key="distributor.resample",
        )
    if roles.batcher.needs_content:
        raise InvalidJob(
            f"the batcher {roles.batcher.code_of()} looks into samples, and a plan knows their "
            "sizes alone: use another batcher, or leave plan out",
            key="batcher",
        )
    if plan.group_by_length and not isinstance(roles.batcher, SimpleBatcher):
        raise InvalidJob(
            "group_by_length puts samples of like sizes into batches of batch_size, and this job "
            f"has the batcher {roles.batcher.code_of()}: give batch_size, or leave it out",
            key="plan.group_by_length",
        )
    groups = drawer.shuffling.groups
    if plan.balance is None:
        return drawer
    if batches_per_step is None:
        raise InvalidJob(
            "balance puts batches that cost alike into one step, so the job must say how many "
            "batches a step has: give batches_per_step",
            key="batches_per_step",
        )
    if groups is not None and groups.number > 1:
        raise InvalidJob(
            f"balance compares the batches of all lanes, and shuffle: blocks deals them to "
            f"{groups.number} reading groups: give the distributor reading_groups: 1",
            key="plan.balance",
        )
    return drawer
