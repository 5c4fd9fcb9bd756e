"""A set of roles: all that makes the batches of some lanes, from their sources to their values."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from functools import cached_property
from math import inf
from typing import Any, Protocol

import numpy as np

from penstock.common.checks import check_choice
from penstock.server import roles as builtin
from penstock.server.job.planned_batches import PlannedBatches
from penstock.server.media.media_files import MediaFiles
from penstock.server.media.media_reader import MediaReader
from penstock.server.roles.batcher import BatcherFacts, SampleBatcher, facts_of
from penstock.server.roles.batchers.packer import no_length
from penstock.server.roles.collator import BatchCollator, KeySpec, ValueLayout
from penstock.server.roles.distributor import DataDistributor
from penstock.server.roles.episode_table import EpisodeTable
from penstock.server.roles.number_columns import (
    ColumnCollator,
    Indices,
    SequenceColumns,
    tells_lengths,
)
from penstock.server.roles.processor import MediaProcessor, RawItemProcessor, measures_of
from penstock.server.roles.reading import Reading
from penstock.server.roles.source import IndexedSource, Source, indexed
from penstock.wire.errors import InvalidJob
from penstock.wire.value_types import DATASET_NAME

DEFAULT_LANES = 48
"""Divided by most world sizes, and enough to keep the lanes' planners from being the bottleneck."""

EXHAUSTED = ("stop", "repeat")

COUNTED_BEFORE = ("_text_tokens", "mm_inputs_meta")
"""Columns in which other loaders keep what they have counted of an item before a run."""


class JobPlan(Protocol):
    """How a job is planned.

    Attributes:
        index: The path or the URL of the index of sizes.
        storage_options: Options of fsspec for it.
        balance: The cost by which batches of a step are put together; None = by no cost.
    """

    index: str
    storage_options: dict[str, Any]
    balance: Any

    def counting(self, measures: Sequence[str]) -> JobPlan:
        """Return this plan for samples that count so much beside their sizes.

        Raises:
            InvalidJob: It names something else.
        """

    def open(
        self, roles: RoleSet, seed: int, batches_per_step: int | None, may_fail: int
    ) -> PlannedBatches:
        """Return the batches of some roles.

        Args:
            roles: The roles, opened.
            seed: The job's seed.
            batches_per_step: The job's; None = it says none.
            may_fail: How many items that fail an index may have left out.

        Raises:
            InvalidJob: They cannot be planned so.
            SourceUnavailable: What the plan is made of cannot be read.
        """


class RoleSet:
    """What makes batches of a job: all of them, unless it is a `JointJob`.

    Args:
        source, distributor, processor, batcher, collator, batch_size, media: As for `Job`.
        ratio: Its share of the batches of a joint job, in proportion to those of the other sets.
        plan: How batches are packed from an index of sizes, before anything is read; None = each
            lane packs what it draws.
        exhausted: What happens after the epochs of a joint job that has any: `stop` ends every lane
            where this set is chosen and has nothing more; `repeat` begins it again, for as long as
            the others last.

    Attributes:
        name: Its name in the job; "" = the job has only this one.
        number: Its number in the job, by which plans and snapshots name it.
        lanes: How many lanes have these roles.
        epochs: After how many epochs its lanes are over; None = never.
        sources: Its sources by name; no other set of the job has one of that name.
        media: Reads what items name, once it is open; None = its processor takes no media.

    Raises:
        InvalidJob: The roles do not hold together; says what to change.

    Glossary:
        set of roles, joint job: Source, distributor, processor, batcher and collator that make
            batches. A job has one; a joint job has several, and one of them makes each batch,
            chosen by the batch's step, by itself, or by its lane.
    """

    def __init__(
        self,
        source: Source | Mapping[str, Source],
        distributor: DataDistributor | None = None,
        processor: RawItemProcessor | None = None,
        batcher: SampleBatcher | None = None,
        collator: BatchCollator | None = None,
        *,
        batch_size: int | None = None,
        plan: JobPlan | None = None,
        media: MediaFiles | None = None,
        ratio: float = 1,
        exhausted: str = "stop",
    ) -> None:
        if not isinstance(ratio, int | float) or isinstance(ratio, bool) or not 0 < ratio < inf:
            raise InvalidJob(f"ratio is {ratio!r}: give a number above 0", key="ratio")
        check_choice("exhausted", exhausted, EXHAUSTED)
        if batch_size is not None and batcher is not None:
            raise InvalidJob(
                "batch_size and batcher are both given: batch_size stands for a simple batcher, so "
                "remove one of them",
                key="batch_size",
            )
        if batcher is None:
            if batch_size is None:
                raise InvalidJob(
                    "neither batcher nor batch_size is given: give one of them", key="batcher"
                )
            batcher = builtin.SimpleBatcher(batch_size)
        self.name, self.number, self.lanes = "", 0, DEFAULT_LANES
        self.ratio, self.exhausted = float(ratio), exhausted
        self.epochs: int | None = None
        self._one_source = not isinstance(source, Mapping)
        self.sources: Mapping[str, Source] = (
            dict(source) if isinstance(source, Mapping) else {"main": source}
        )
        self.distributor = distributor or builtin.MapDistributor()
        self.processor = processor or builtin.IdentityProcessor()
        self.measures = measures_of(self.processor)
        if self.measures or getattr(batcher, "limits", None):
            batcher = batcher.clone()
            batcher.take_measures(self.measures)
        self.batcher: SampleBatcher = batcher
        self.collator = collator or builtin.DefaultBatchCollator()
        self.plan = None if plan is None else plan.counting(self.measures)
        self.media: MediaReader | None = None
        self._media_files = media
        if media is not None and not isinstance(self.processor, MediaProcessor):
            raise InvalidJob(
                f"media is given, and the processor {self.processor.code_of()} takes none: leave "
                "it out, or use a processor of media",
                key="media",
            )

    def placed(self, lanes: int, name: str = "", number: int = 0) -> RoleSet:
        """Return this set as it is in a job.

        Args:
            lanes: How many lanes have these roles.
            name: Its name, as one of several: a source without a name of its own takes it.
            number: Its number there.
        """
        found = copy.copy(self)
        found.lanes, found.name, found.number = lanes, name, number
        if self._one_source and name:
            found.sources = {name: self.sources["main"]}
        return found

    def open(
        self,
        seed: int,
        epochs: int | None,
        batches_per_step: int | None = None,
        may_fail: int = 0,
    ) -> None:
        """Check the roles against the data, and bind the distributor to it.

        Args:
            seed: The job's.
            epochs: The job's; a set that is repeated has none.
            batches_per_step: The job's; None = it says none.
            may_fail: How many items that fail an index may have left out.

        Raises:
            InvalidJob: They do not hold together; says what to change.
        """
        for name, source in self.sources.items():
            if source.is_empty():
                raise InvalidJob(
                    f"source {name!r} holds zero items: a job needs at least one", key="source"
                )
            self._check_columns(source)
        if isinstance(self.processor, MediaProcessor):
            self.media = self._media_reader()
        self.epochs = None if self.exhausted == "repeat" else epochs
        self.distributor.bind(self.sources, seed, self.epochs, self.lanes)
        self._planned_by = seed, batches_per_step, may_fail
        if self.plan is None:
            self._keep_all_blocks()

    def _media_reader(self) -> MediaReader:
        """Return what reads media: below the job's directory, and those of its sources."""
        files = self._media_files or MediaFiles()
        dirs = {name: source.media_dirs() for name, source in self.sources.items()}
        return MediaReader(files, dirs)

    @cached_property
    def planned(self) -> PlannedBatches | None:
        """Return what its batches are made of, where it has a plan; once it is open.

        The index is opened when it is first asked for: it is made for this job, by a command.

        Raises:
            InvalidJob, SourceUnavailable: As `JobPlan.open`.
        """
        if self.plan is None:
            return None
        found = self.plan.open(self, *self._planned_by)
        self.__dict__["planned"] = found  # `readings` looks here
        self._keep_all_blocks()
        return found

    def _keep_all_blocks(self) -> None:
        self._kept = [0] * len(self.readings)
        for reading in self.readings:
            if reading.blocks is not None:
                # A process that reads for a few groups alone says so: a worker does.
                self.keep_blocks(reading, reading.held)

    def _check_columns(self, source: Source) -> None:
        """Refuse what the data's schema tells: that every item would fail."""
        columns = source.columns_of_items()
        if columns is not None:
            self.processor.check_columns(columns)
        keys = self.processor.keys_of_samples(columns)
        if keys is not None:
            key = self.batcher_facts.length_key
            if self.batcher.needs_sizes and key is not None and key not in keys:
                raise no_length(key, keys)

    @property
    def least_batch_bytes(self) -> int:
        """Return how many bytes each full batch takes at least, by what is known unread; 0 = none.

        Known of collators that keep every value: one of a user's may make less of them.
        """
        samples = self.batcher_facts.samples_of_batch
        keeps = type(self.collator) in (builtin.DefaultBatchCollator, builtin.ListsCollator)
        if samples is None or not keeps or not self.sources:
            return 0
        sources = self.sources.values()
        return samples * min(self.processor.least_sample_bytes(source) for source in sources)

    def identity(self) -> dict[str, Any]:
        """Return what of these roles decides bytes, JSON-able."""
        return {
            "source": {name: source.identity() for name, source in sorted(self.sources.items())},
            "distributor": self.distributor.identity(),
            "processor": self.processor.identity(),
            "batcher": self.batcher.identity(),
            "collator": self.collator.identity(),
            **self._media_identity(),
            **({} if self.planned is None else {"plan": self.planned.identity()}),
        }

    def media_cautions(self) -> list[str]:
        """Return sentences about media whose content the log id does not know."""
        if self.media is not None:
            return self.media.cautions()
        return [
            f"source {name!r} names media, and the processor {self.processor.code_of()} takes "
            "none, so nothing fetches them: derive it from MediaProcessor"
            for name, source in self.sources.items()
            if source.media_dirs()
        ]

    def count_cautions(self) -> list[str]:
        """Return sentences about columns of counts, by other loaders, that nothing here reads.

        Of sources that know their columns before an item is read.
        """
        if not isinstance(
            self.processor, builtin.TokenizeProcessor | builtin.ConversationProcessor
        ):
            return []
        return [
            f"source {name!r} has the column {column}, which is not used: tokens are counted from "
            "the data itself"
            for name, source in sorted(self.sources.items())
            for column in COUNTED_BEFORE
            if column in (source.columns_of_items() or ())
        ]

    def _media_identity(self) -> dict[str, Any]:
        found = {} if self.media is None else self.media.identity()
        return {"media": found} if found else {}

    # --- what they need of the data ---

    @property
    def items(self) -> int | None:
        """Return how many items the sources hold; None = not known before they are read."""
        total = 0
        for source in self.sources.values():
            if not isinstance(source, IndexedSource):
                return None
            total += len(source)
        return total

    @cached_property
    def readings(self) -> Sequence[Reading]:
        """Return how the distributor reads storage blocks; none = it reads none.

        Once it is open.
        """
        found = self.distributor.readings()
        return found if self.planned is None else [*map(self.planned.reading, found)]

    def group(self, lane: int) -> tuple[int | None, ...] | None:
        """Return what lanes of one worker have in common: the reading groups of a lane of the set.

        None = it is in none.
        """
        found = tuple(reading.group(lane) for reading in self.readings)
        return None if all(group is None for group in found) else found

    def blocked_sources(self, reading: Reading) -> list[IndexedSource]:
        """Return the sources whose storage blocks are read so."""
        return indexed(self.sources, reading.sources, self.distributor)

    def keep_blocks(self, reading: Reading, count: int) -> None:
        """Have the sources that are read so keep so many decoded blocks each; 0 = forget all."""
        self._kept = [
            count if each is reading else kept
            for each, kept in zip(self.readings, self._kept, strict=True)
        ]
        for name, source in zip(reading.sources, self.blocked_sources(reading), strict=True):
            # Parts may draw other items of one source.
            every = zip(self.readings, self._kept, strict=True)
            source.keep_blocks(sum(kept for each, kept in every if name in each.sources))

    @cached_property
    def batcher_facts(self) -> BatcherFacts:
        """Return what the batcher promises."""
        return facts_of(self.batcher)

    @cached_property
    def episode_tables(self) -> Mapping[str, EpisodeTable]:
        """Return the episodes that frames are drawn from, by source; once the job is built."""
        return self.distributor.episode_tables()

    @cached_property  # asked at every draw
    def needs_sizes(self) -> bool:
        """Tell whether the sizes of samples are looked at, by the batcher or the distributor."""
        return self.batcher.needs_sizes or self.distributor.needs_sizes

    @cached_property
    def has_heads(self) -> bool:
        """Tell whether the sources give less than whole items, where sizes are all that counts."""
        columns = self.processor.size_columns
        return all(source.has_heads(columns) for source in self.sources.values())

    @property
    def plans_from_refs(self) -> bool:
        """Tell whether batches are planned without processing: from refs, and sizes if needed."""
        return self.plan is not None or (
            self.processor.one_to_one
            and not self.batcher.needs_content
            and (not self.needs_sizes or self.processor.knows_size() or bool(self.sized_sources))
        )

    @cached_property
    def makes_anywhere(self) -> bool:
        """Tell whether any worker makes a batch as well as the one that planned it.

        Made of columns it takes no longer than its plan does on the way to another worker; and the
        worker that goes on with a lane may have processed what its next batch is made of.
        """
        anywhere = all(source.reads_anywhere() for source in self.sources.values())
        one_by_one = self.columns or self.keeps_pieces
        return self.plans_from_refs and anywhere and not one_by_one

    @cached_property
    def keeps_pieces(self) -> bool:
        """Tell whether planned batches of a lane may hold pieces of samples that were processed."""
        return self.plan is not None and self.batcher_facts.may_split and not self.columns

    @cached_property
    def sized_sources(self) -> Mapping[str, IndexedSource]:
        """Return the sources, where they tell the sizes of items; else none: the processor does."""
        sized = {
            name: source
            for name, source in self.sources.items()
            if isinstance(source, IndexedSource)
            and (source.knows_sizes() or tells_lengths(source, self.batcher_facts.length_key))
        }
        if self.processor.knows_size() or not self.processor.keeps_sizes() or self.measures:
            return {}  # the processor tells them, or nobody does; sources tell no counts
        return sized if len(sized) == len(self.sources) else {}

    @cached_property
    def planned_column(self) -> str | None:
        """Return the column whose lengths, as its sources tell them, are the planned sizes.

        None = sizes are something else, and a sample's length may differ from the planned one: so
        it may be where a user's source has `sizes` beside its columns.
        """
        told = self.sized_sources.values()
        if not told or any(source.knows_sizes() and source.is_of_user() for source in told):
            return None
        return self.batcher_facts.length_key

    def told_sizes(
        self, source: IndexedSource, indices: Sequence[int]
    ) -> Indices | Sequence[int] | None:
        """Return what one of `sized_sources` tells: lengths as an array, -1 where there is none."""
        if isinstance(source, SequenceColumns) and not source.knows_sizes():
            column = self.batcher_facts.length_key
            assert column is not None
            return source.lengths(column, np.array(indices, np.int64))
        return source.sizes(indices)

    @cached_property
    def columns(self) -> Sequence[str]:
        """Return the columns that batches are made of, where items need not become objects."""
        one_to_one = self.processor.one_to_one and self.processor.passes_items()
        if not (self.plans_from_refs and one_to_one) or self.measures:
            return ()
        if not isinstance(self.collator, ColumnCollator):
            return ()
        found: Sequence[str] | None = None
        for number, source in enumerate(self.sources.values()):
            names = source.columns_of_items()
            if names is None or not isinstance(source, SequenceColumns):
                return ()
            dtypes = {name: source.sequence_dtype(name) for name in names}
            taken = self.collator.takes_columns(dtypes)
            if taken is None or (number and taken != found):
                return ()
            found = taken
        if self.batcher.needs_sizes and self.batcher_facts.length_key not in (found or ()):
            return ()  # what a sample's size is, columns do not tell
        return found or ()

    # --- lanes, by their numbers within the set ---

    def draws(self, lane: int) -> int | None:
        """Return how many draws a lane of the set has; None = no end, or it is not known."""
        if self.planned is not None:  # its lanes take batches, and not items, in turn
            return None
        return self.distributor.draws(lane, self.lanes)

    def batches(self, lane: int) -> int | None:
        """Return how many batches a lane of the set holds, where arithmetic says it.

        So it does where every draw gives a sample, whatever the item is: an item whose size cannot
        be told may be left out before it comes to a batch.
        """
        if self.planned is not None:
            return self.planned.known_end(lane)
        draws = self.draws(lane)
        is_looked_at = self.needs_sizes or self.batcher.needs_content
        if draws is None or is_looked_at or not self.processor.one_to_one:
            return None
        return self.batcher_facts.batches(draws)

    @property
    def ends(self) -> bool:
        """Tell whether every lane of the set is over after the job's epochs."""
        return (
            self.planned is not None or self.distributor.ends_by_epochs or self.draws(0) is not None
        )


def deal_lanes(counts: Sequence[int]) -> list[int]:
    """Return for each lane of a job the number of its set, when sets have so many lanes each.

    Each next lane goes to the set that lacks most of its share, the first of those that lack as
    much: so steps hold all sets as evenly as whole batches allow.
    """
    total, dealt, found = sum(counts), [0] * len(counts), []
    for lane in range(total):
        lacks = [count * (lane + 1) - dealt[n] * total for n, count in enumerate(counts)]
        number = lacks.index(max(lacks))
        dealt[number] += 1
        found.append(number)
    return found


def joint_specs(sets: Sequence[RoleSet]) -> list[KeySpec]:
    """Return what is known about the values of a batch that any of some sets may have made.

    Raises:
        InvalidJob: Two sets give one name to different kinds of values.
    """
    found: dict[str, tuple[RoleSet, KeySpec]] = {}
    counted: dict[str, int] = {}
    for roles in sets:
        for spec in roles.collator.specs():
            if spec.name == DATASET_NAME:
                raise name_taken(roles)
            counted[spec.name] = counted.get(spec.name, 0) + 1
            first, known = found.setdefault(spec.name, (roles, spec))
            if _form(known) != _form(spec):
                raise InvalidJob(
                    f"value {spec.name!r} is {_words(known)} in batches of {first.name!r} and "
                    f"{_words(spec)} in those of {roles.name!r}: have their collators give one "
                    "form, or other names",
                    key="collator",
                )
            found[spec.name] = first, _both(known, spec)
    return [
        *(
            KeySpec(**{**vars(spec), "optional": spec.optional or counted[name] < len(sets)})
            for name, (_, spec) in found.items()
        ),
        KeySpec(DATASET_NAME, "str", place="host"),
    ]


def name_taken(roles: RoleSet) -> InvalidJob:
    """Return the error of a collator that gives a value of the reserved name."""
    return InvalidJob(
        f"{roles.collator.code_of('collate')} of {roles.name!r} gives a value "
        f"{DATASET_NAME!r}, which in a joint job is the name of the set that made a batch: have it "
        "give another name",
        key="collator",
    )


def _form(spec: KeySpec) -> tuple[str, str, int, str]:
    return spec.kind, spec.dtype, len(spec.shape), spec.place


def _words(spec: KeySpec) -> str:
    dtype = f" of {spec.dtype}" if spec.dtype else ""
    return f"a {spec.kind}{dtype} with {len(spec.shape)} dimensions on the {spec.place}"


def _both(one: KeySpec, other: KeySpec) -> KeySpec:
    """Return what is true of both."""
    shape = tuple(a if a == b else -1 for a, b in zip(one.shape, other.shape, strict=True))
    least = None if None in (one.least, other.least) else min(one.least or 0, other.least or 0)
    most = None if None in (one.most, other.most) else max(one.most or 0, other.most or 0)
    optional = one.optional or other.optional
    return KeySpec(one.name, one.kind, one.dtype, shape, optional, one.place, least, most)


def joint_layout(sets: Sequence[RoleSet]) -> ValueLayout:
    """Return how samples lie in a batch that any of some sets may have made; if they agree."""
    layouts = {roles.collator.value_layout() for roles in sets}
    return layouts.pop() if len(layouts) == 1 else ValueLayout()
