"""A job: a named plan of source, roles, seed and lanes, and the log id that all of it decides."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, TypeVar

from penstock.server.roles.base import (
    BatchCollator,
    DataDistributor,
    IndexedSource,
    RawItemProcessor,
    SampleBatcher,
    Source,
    indexed,
)
from penstock.server.roles.batchers import SimpleBatcher
from penstock.server.roles.collators import DefaultBatchCollator
from penstock.server.roles.distributors import MapDistributor
from penstock.server.roles.processors import IdentityProcessor
from penstock.wire.checks import check_choice, check_whole
from penstock.wire.errors import Counting, InvalidJob, UnknownJob
from penstock.wire.nearest import hint
from penstock.wire.numbering import Located, Numbering
from penstock.wire.order import Cut, Order

ORDER_FORMAT = 1
"""Version of all in penstock that decides bytes beside the roles: draws, planner, layout."""

DEFAULT_LANES = 48
"""Divided by most world sizes, and enough to keep the lanes' planners from being the bottleneck."""

MAX_LANES = 65_536
"""A node keeps some KiB for each lane of a job; the largest clusters have fewer ranks."""

MAX_SOURCE_NAME = 64
SOURCE_NAME = re.compile(rf"[A-Za-z_][A-Za-z0-9_]{{0,{MAX_SOURCE_NAME - 1}}}")
"""Names of sources stand in refs, commands, metrics and stores."""

ON_ITEM_ERROR = ("stop", "quarantine")

OfJobT = TypeVar("OfJobT")


def find_job(jobs: Mapping[str, OfJobT], name: str) -> OfJobT:
    """Return a job by its name, or what is kept for it.

    Raises:
        UnknownJob: There is none of that name; says which one was probably meant.
    """
    if name not in jobs:
        raise UnknownJob(
            f"there is no job {name!r}: {hint(name, jobs)}", job=name, jobs=sorted(jobs)
        )
    return jobs[name]


class Job:
    """A named plan: what decides every byte of its log, and a few policies that decide none.

    Args:
        source: Where raw items come from; or a mapping of names to several sources, in whose order
            a distributor may draw.
        distributor: Decides the draws; default `MapDistributor()`.
        processor: Turns a raw item into samples; default `IdentityProcessor()`.
        batcher: Puts samples into rows and batches. This or `batch_size` is required.
        collator: Turns rows into named values; default `DefaultBatchCollator()`.
        batch_size: How many samples a batch has; stands for a `simple` batcher of this size.
        seed: Decides everything random: the order of the items, and what roles draw. Another seed
            is another log.
        lanes: Into how many independent sequences of batches the job is split. Packed batches of a
            lane are planned in order by one worker at a time, so have at least as many lanes as
            workers, over all nodes. More lanes cost memory and a longer start, since each fills a
            pool of its own. They are part of the log id: a run that has begun keeps its number.
        epochs: How often each item is drawn; left out, drawing goes on without end, as packers
            need it. Where items give any number of samples, the batches are counted while the
            first of them are read, and the length is known once that is done.
        batches_per_step: The global batch, in batches over all ranks, for groups that do not say
            their own; left out, it is the group's first world size. Every world size must divide
            it, so choose a number with many divisors, such as 48, if that size may change. A group
            keeps the number that it began with.
        on_item_error: What happens when the same item fails twice: `stop` stops its lane with an
            error that names it, until you have repaired the item or the role; `quarantine` leaves
            it out by a verdict that every node obeys, so that a run goes on over a few broken
            items.
        max_quarantined: How many items verdicts may leave out, over all lanes, stages and restarts;
            the next one that fails is an error. A larger number lets runs go on over worse data, a
            smaller one stops them sooner where something is wrong with all of it.
        max_replay: How many batches of a lane may be planned again, from the nearest snapshot, to
            reach a position that a reader asks for; one that lies further is refused with
            `position_far`. Planning a packed batch takes as long as processing its items, unless
            the processor has a `size`: a larger number lets readers go further and wait longer.
            Jobs with `batch_size` and a `one_to_one` processor reach every position at once.
        snapshot_every: How many batches of a lane lie between two of its snapshots, and so about
            how many of each lane are planned again after a crash. A smaller number makes that
            faster, and costs writes: each snapshot takes at least 4 KiB of the store, which keeps
            at most 512 for a lane.
        name: Its name; given by the job file's key.

    Attributes:
        definition: What other processes build it from, see `penstock.server.jobs.definition`;
            empty = it was built by code that nobody named.
        stored_definition: The same, without what may hold credentials.

    Raises:
        InvalidJob: The plan does not hold together; says what to change.
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
        seed: int = 0,
        lanes: int = DEFAULT_LANES,
        epochs: int | None = None,
        batches_per_step: int | None = None,
        on_item_error: str = "stop",
        max_quarantined: int = 1000,
        max_replay: int = 100_000,
        snapshot_every: int = 16,
        name: str = "job",
    ) -> None:
        for key, value, least in (
            ("lanes", lanes, 1),
            ("epochs", epochs, 1),
            ("batches_per_step", batches_per_step, 1),
            ("snapshot_every", snapshot_every, 1),
            ("max_replay", max_replay, 1),
        ):
            if value is not None:
                check_whole(key, value, least)
        if lanes > MAX_LANES:
            raise InvalidJob(f"lanes is {lanes}: give at most {MAX_LANES:,}", key="lanes")
        check_choice("on_item_error", on_item_error, ON_ITEM_ERROR)
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
            batcher = SimpleBatcher(batch_size)

        self.name = name
        self.sources: dict[str, Source] = (
            dict(source) if isinstance(source, Mapping) else {"main": source}
        )
        self.distributor = distributor or MapDistributor()
        self.processor = processor or IdentityProcessor()
        self.batcher: SampleBatcher = batcher
        self.collator = collator or DefaultBatchCollator()
        self.seed, self.lanes, self.epochs = seed, lanes, epochs
        self.batches_per_step = batches_per_step
        self.on_item_error, self.max_quarantined = on_item_error, max_quarantined
        self.max_replay, self.snapshot_every = max_replay, snapshot_every
        self.definition = self.stored_definition = b""
        self._lane_ends: tuple[int | None, ...] | None = None
        self._check_names()
        for source_name, opened in self.sources.items():
            if opened.is_empty():
                raise InvalidJob(
                    f"source {source_name!r} holds zero items: a job needs at least one",
                    key="source",
                )
            self._check_columns(opened)
        self.distributor.bind(self.sources, seed, epochs, lanes)
        reading = self.distributor.reading()
        if reading is not None and reading.blocks is not None:
            # A process that reads for a few groups alone says so: a worker does.
            self.keep_blocks(reading.held)

    def _check_names(self) -> None:
        """Refuse names of sources that cannot stand in refs, commands and metrics unquoted."""
        if not self.sources:
            raise InvalidJob("there is no source: give at least one", key="source")
        for name in self.sources:
            if not (isinstance(name, str) and SOURCE_NAME.fullmatch(name)):
                raise InvalidJob(
                    f"{name!r} is not a name for a source: use letters, digits and underscores, "
                    f"and no digit first, at most {MAX_SOURCE_NAME} characters",
                    key="source",
                )

    def blocked_sources(self) -> list[IndexedSource]:
        """Return the sources whose storage blocks the distributor reads."""
        reading = self.distributor.reading()
        return [] if reading is None else indexed(self.sources, reading.sources, self.distributor)

    def keep_blocks(self, count: int) -> None:
        """Have the sources keep so many decoded blocks each; 0 = forget all."""
        for source in self.blocked_sources():
            source.keep_blocks(count)

    @property
    def items(self) -> int | None:
        """Return how many items the sources hold; None = not known before they are read."""
        total = 0
        for source in self.sources.values():
            if not isinstance(source, IndexedSource):
                return None
            total += len(source)
        return total

    def _check_columns(self, source: Source) -> None:
        """Refuse what the data's schema tells: that every item would fail."""
        columns = source.columns_of_items()
        if columns is not None:
            self.processor.check_columns(columns)
        keys = self.processor.keys_of_samples(columns)
        if keys is not None:
            self.batcher.check_keys(keys)

    @property
    def plans_from_refs(self) -> bool:
        """Tell whether batches are planned without processing: from refs, and sizes if needed."""
        return (
            self.processor.one_to_one
            and not self.batcher.needs_content
            and (
                not self.batcher.needs_sizes
                or self.processor.knows_size()
                or bool(self.sized_sources)
            )
        )

    @cached_property
    def makes_anywhere(self) -> bool:
        """Tell whether any worker makes a batch as well as the one that planned it."""
        anywhere = all(source.reads_anywhere() for source in self.sources.values())
        return self.plans_from_refs and anywhere

    @cached_property
    def sized_sources(self) -> Mapping[str, IndexedSource]:
        """Return the sources, where they tell the sizes of items; else none: the processor does."""
        sized = {
            name: source
            for name, source in self.sources.items()
            if isinstance(source, IndexedSource) and source.knows_sizes()
        }
        if self.processor.knows_size() or not self.processor.keeps_sizes():
            return {}
        return sized if len(sized) == len(self.sources) else {}

    @property
    def order(self) -> Order:
        """Return the order of this job's batches.

        Raises:
            InvalidJob, Counting: As `locate`.
        """
        return self._numbered.order

    def locate(self, position: int, cut: Cut | None = None) -> Located:
        """Return which batch stands at a position, where it is known where all lanes end.

        A node learns that as it goes: see `penstock.server.node.books.Log.numbering`.

        Args:
            position: Its number.
            cut: As for `Numbering.locate`.

        Raises:
            PastEnd: It lies past the end.
            InvalidJob, Counting: The order is not known.
        """
        found = self._numbered.locate(position, cut)
        assert found is not None
        return found

    @cached_property
    def _numbered(self) -> Numbering:
        """Return the numbering where nothing is left to be learned.

        Raises:
            InvalidJob: The job is finite, and nobody can know how many batches it has.
            Counting: It is finite, and it is not known where all of its lanes end.
        """
        self.check_end()
        numbering = self.numbering()
        if not numbering.is_complete:
            raise Counting(
                f"the batches of job {self.name!r} are not counted yet: which items give a sample "
                "is known after one pass over them",
                job=self.name,
            )
        self.check_not_empty(numbering)
        return numbering

    def numbering(self) -> Numbering:
        """Return what is known of this job's order before anything of it is planned.

        By arithmetic, where that says it; else what was found out before, see `set_lane_ends`.
        """
        if self.epochs is None:
            return Numbering(self.lanes)
        if self.needs_counting:
            return Numbering(self.lanes, self._lane_ends or (None,) * self.lanes)
        return Numbering(self.lanes, [self._batches(lane) or 0 for lane in range(self.lanes)])

    def check_not_empty(self, numbering: Numbering) -> None:
        """Refuse a finite job without any batch.

        Raises:
            InvalidJob: With what to change.
        """
        if numbering.batches == 0:
            raise InvalidJob(
                f"the job holds no batch at all: {self.items} items over {self.lanes} lanes fill "
                "none; lower lanes or the batch size",
                key="lanes",
            )

    def check_end(self) -> None:
        """Refuse a finite job whose number of batches can be known neither way.

        Raises:
            InvalidJob: With what to change.
        """
        if self.epochs is None or self._batches(0) is not None:
            return
        if self._draws(0) is None:
            raise InvalidJob(
                f"epochs: {self.epochs} needs a number of draws that is known before they are "
                f"drawn, and {type(self.distributor).__name__} does not give one: use epochs: null",
                key="epochs",
            )
        raise InvalidJob(
            f"epochs: {self.epochs} needs a batch count that is known before the batches are, and "
            f"{type(self.batcher).__name__} does not give one: use epochs: null, or a batcher of "
            "one sample per row, such as simple",
            key="epochs",
        )

    @property
    def needs_counting(self) -> bool:
        """Tell whether where its lanes end takes a pass over all items.

        So it is for a finite job whose processor does not promise one sample for each item.
        """
        return self.epochs is not None and not self.processor.one_to_one

    def lane_end(self, lane: int) -> int | None:
        """Return how many batches a lane was found to hold; None where that was not found out."""
        return None if self._lane_ends is None else self._lane_ends[lane]

    def set_lane_ends(self, ends: Sequence[int | None]) -> None:
        """Take what was found out of the batches of every lane; None = nothing of that lane."""
        self._lane_ends = tuple(ends)
        self.__dict__.pop("_numbered", None)

    def _draws(self, lane: int) -> int | None:
        return self.distributor.draws(lane, self.lanes)

    def _batches(self, lane: int) -> int | None:
        draws = self._draws(lane)
        return None if draws is None else self.batcher.batches(draws)

    @cached_property
    def plan(self) -> dict[str, Any]:
        """Return everything that decides bytes, JSON-able: the log id is its hash."""
        return {
            "format": ORDER_FORMAT,
            "seed": self.seed,
            "lanes": self.lanes,
            "epochs": self.epochs,
            "source": {name: source.identity() for name, source in sorted(self.sources.items())},
            "distributor": self.distributor.identity(),
            "processor": self.processor.identity(),
            "batcher": self.batcher.identity(),
            "collator": self.collator.identity(),
        }

    @cached_property
    def log_id(self) -> bytes:
        """Return the SHA-256 of the canonical plan, 32 bytes.

        Raises:
            InvalidJob: A role's parameter is not JSON-able, so it has no canonical form.
        """
        return hashlib.sha256(canonical(self.plan)).digest()

    def cautions(self) -> list[str]:
        """Return sentences about what the log id does not know of this job's content."""
        found = ((name, source.unseen()) for name, source in sorted(self.sources.items()))
        return [f"source {name!r}: {sentence}" for name, sentence in found if sentence]

    def close(self) -> None:
        """Let go of the sources' files."""
        for source in self.sources.values():
            source.close()


def canonical(plan: Any) -> bytes:
    """Return the one JSON text of a plan: sorted keys, no spaces, exact numbers, UTF-8.

    Raises:
        InvalidJob: A value has no JSON form; names where it stands.
    """
    _refuse_foreign(plan, "")
    return json.dumps(
        plan, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
    ).encode()


def _refuse_foreign(value: Any, where: str) -> None:
    if value is None or isinstance(value, str | int | float | bool):
        return
    if isinstance(value, list | tuple):
        for index, inner in enumerate(value):
            _refuse_foreign(inner, f"{where}[{index}]")
        return
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        for key, inner in value.items():
            _refuse_foreign(inner, f"{where}.{key}" if where else key)
        return
    raise InvalidJob(
        f"{where} is of type {type(value).__name__}, which has no canonical JSON form: give "
        "numbers, strings, lists or dicts, or give the role a `version` and override parameters()",
        key=where,
    )


__all__ = [
    "DEFAULT_LANES",
    "MAX_LANES",
    "MAX_SOURCE_NAME",
    "ORDER_FORMAT",
    "SOURCE_NAME",
    "Job",
    "canonical",
]
