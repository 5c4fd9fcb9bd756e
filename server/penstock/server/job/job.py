"""A job: a named plan of source, roles, seed and lanes, and the log id that all of it decides.

Glossary:
    log id: The SHA-256 of everything that decides the bytes of the log: seed, lanes, roles and
        their parameters, the content of the source. Workers, byte bounds, batches per step and
        error policies are not part of it.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, NamedTuple, TypeVar

from penstock.common.checks import check_choice, check_whole
from penstock.common.nearest import hint
from penstock.server.core.canonical import canonical
from penstock.server.core.shown import shown
from penstock.server.files.catalog import HandedOver
from penstock.server.job.planned_batches import in_words
from penstock.server.job.role_set import DEFAULT_LANES, JobPlan, RoleSet, joint_layout
from penstock.server.media.media_files import MediaFiles
from penstock.server.media.video.frame_counts import FrameCounts
from penstock.server.roles.batcher import SampleBatcher
from penstock.server.roles.collator import BatchCollator, KeySpec, ValueLayout
from penstock.server.roles.distributor import DataDistributor
from penstock.server.roles.draws import LaneDraws
from penstock.server.roles.processor import MediaProcessor, RawItemProcessor
from penstock.server.roles.reading import Reading
from penstock.server.roles.source import Source
from penstock.wire.errors import Counting, InvalidJob, InvalidRequest, UnknownJob
from penstock.wire.numbering import Located, Numbering
from penstock.wire.order import MAX_LANES, Cut, Order

ORDER_FORMAT = 1
"""Version of all in penstock that decides bytes beside the roles: draws, planner, layout."""

MAX_SOURCE_NAME = 64
SOURCE_NAME = re.compile(rf"[A-Za-z_][A-Za-z0-9_]{{0,{MAX_SOURCE_NAME - 1}}}")
"""Names of sources stand in refs, commands, metrics and stores."""

ON_ITEM_ERROR = ("stop", "quarantine")

MAX_LATER = 1024
"""Batches that a line may have to process before the first that it is asked for."""

SET_KEYS = ("batcher", "distributor", "plan")
"""What a plan may be refused for that each set of a joint job says for itself."""

OfJobT = TypeVar("OfJobT")


class LaneRoles(NamedTuple):
    """A set of roles that makes batches of a lane: an inner line of it.

    Attributes:
        roles: The set of roles.
        lane: The lane's number among those of the set.
    """

    roles: RoleSet
    lane: int

    def open_draws(self) -> LaneDraws:
        """Return the draws, at their beginning."""
        return self.roles.distributor.open(self.lane, self.roles.lanes)

    def can_seek(self, draws: LaneDraws) -> bool:
        """Tell whether arithmetic leads such draws, and the batcher, to any offset."""
        return (
            self.roles.plans_from_refs
            and draws.can_seek()
            and self.roles.batcher_facts.samples_of_batch is not None
            # Beyond an end that nobody knows a lane would be taken for one that ends there.
            and (self.roles.epochs is None or self.batches is not None)
        )

    @property
    def draws(self) -> int | None:
        """Return how many draws there are; None = no end, or it is not known."""
        return self.roles.draws(self.lane)

    @property
    def batches(self) -> int | None:
        """Return how many batches there are, where arithmetic says it."""
        return self.roles.batches(self.lane)


def find_job(jobs: Mapping[str, OfJobT], name: str) -> OfJobT:
    """Return a job by its name, or what is kept for it.

    Raises:
        UnknownJob: There is none of that name; says which one was probably meant.
    """
    if name not in jobs:
        raise UnknownJob(
            f"there is no job {shown(name)}: {hint(name, jobs)}", job=name, jobs=sorted(jobs)
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
        plan: How batches are packed from an index of sizes, over large windows, before anything is
            read; left out, each lane packs what it draws.
        media: Where the pictures and sounds lie that items name, for processors that take media;
            left out, items hold them.
        seed: Decides everything random: the order of the items, and what roles draw. Another seed
            is another log.
        lanes: Into how many independent sequences of batches the job is split. Packed batches of a
            lane are planned in order by one worker at a time, so have at least as many lanes as
            workers, over all nodes. More lanes cost memory and a longer start, since each fills a
            pool of its own. They are part of the log id: a run that has begun keeps its number.
        epochs: How often each item is drawn; then the job ends, and the last step is filled, or
            left out, as its readers say. Left out, drawing goes on without end. With a packer, or
            where items give any number of samples, the length is known once the last of them is
            planned, or once they were counted for a reader who asks for it.
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
        later_within: Where sizes are told before items are processed, by `size` of a processor,
            `sizes` of a source or the index of a plan, and some are larger than told: samples for
            which their row has no room then join another row of their batch, or one of the next so
            many batches of their lane, whichever has room first. With 0 a sample that is larger
            than its row has room for is a bad item at once. A larger number brings more of them
            back; each lane then processes so many batches more where somebody starts to read it in
            the middle, and planner and maker of a lane share a worker. It is part of the log id.
        name: Its name; given by the job file's key.

    Attributes:
        role_sets: The sets of roles of its lanes, by their numbers: one, but for a `JointJob`.
        sources: The sources of all sets by name.
        definition: What other processes build it from, see `penstock.server.jobs.definition`;
            empty = it was built by code that nobody named.
        stored_definition: The same, without what may hold credentials.

    Raises:
        InvalidJob: The plan does not hold together; says what to change.

    Glossary:
        job: A named plan: seed, lanes, source, and four roles with their parameters.
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
        seed: int = 0,
        lanes: int = DEFAULT_LANES,
        epochs: int | None = None,
        batches_per_step: int | None = None,
        on_item_error: str = "stop",
        max_quarantined: int = 1000,
        max_replay: int = 100_000,
        snapshot_every: int = 16,
        later_within: int = 0,
        name: str = "job",
    ) -> None:
        policies = (batches_per_step, on_item_error, max_quarantined, max_replay, snapshot_every)
        self._take_numbers(name, seed, lanes, epochs, *policies)
        roles = RoleSet(
            source,
            distributor,
            processor,
            batcher,
            collator,
            batch_size=batch_size,
            plan=plan,
            media=media,
        )
        self._take_roles((roles.placed(lanes),))
        if later_within:
            self._check_later(later_within)
            self.later_within = later_within

    def _take_numbers(
        self,
        name: str,
        seed: int,
        lanes: int,
        epochs: int | None,
        batches_per_step: int | None,
        on_item_error: str,
        max_quarantined: int,
        max_replay: int,
        snapshot_every: int,
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
        self.name = name
        self.seed, self.lanes, self.epochs = seed, lanes, epochs
        self.batches_per_step = batches_per_step
        self.on_item_error, self.max_quarantined = on_item_error, max_quarantined
        self.max_replay, self.snapshot_every = max_replay, snapshot_every
        self.definition = self.stored_definition = b""
        self._lane_ends: tuple[int | None, ...] | None = None
        self.later_within = 0

    def _check_later(self, batches: int) -> None:
        """Refuse that samples come later where none can.

        Raises:
            InvalidJob: Says why.
        """
        check_whole("later_within", batches, 0, "the batches in which a sample may come later")
        if batches > MAX_LATER:
            raise InvalidJob(
                f"later_within is {batches}: give at most {MAX_LATER:,}", key="later_within"
            )
        batcher = self.role_sets[0].batcher
        if not (self.role_sets[0].plans_from_refs and batcher.needs_sizes):
            raise InvalidJob(
                f"later_within is {batches}, and no size that this job is packed by was told "
                "before an item is processed, so none can be wrong: leave later_within out",
                key="later_within",
            )
        if self.role_sets[0].batcher_facts.row_limit is None:
            raise InvalidJob(
                f"later_within is {batches}, and {batcher.code_of()} lets no sample join a row "
                "that is packed: use a batcher that does, such as best_fit, or let its "
                "facts() have a row_limit",
                key="later_within",
            )

    def _take_roles(self, role_sets: tuple[RoleSet, ...]) -> None:
        self.role_sets = role_sets
        self.sources: dict[str, Source] = {
            name: source for roles in role_sets for name, source in roles.sources.items()
        }
        self._set_of = {name: roles for roles in role_sets for name in roles.sources}
        self._check_names()
        may_fail = self.max_quarantined if self.on_item_error == "quarantine" else 0
        for roles in role_sets:
            roles.open(self.seed, self.epochs, self.batches_per_step, may_fail)

    def open_plans(self) -> None:
        """Open the indexes of plans, which are else opened when something first depends on them.

        Raises:
            InvalidJob: There is none, it is of other data, or the job cannot be planned.
            SourceUnavailable: It cannot be read.
        """
        for roles in self.role_sets:
            try:
                _ = roles.planned
            except InvalidJob as error:
                key = str(error.key or "")
                if not roles.name or key.partition(".")[0] not in SET_KEYS:
                    raise
                # As the job file has it: what a set says stands under its name.
                fields = {**error.fields, "key": f"joint.{roles.name}.{key}"}
                raise InvalidJob.with_fields(error.message, fields) from error

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

    # --- the roles of its lanes ---

    def lane_roles(self, lane: int) -> Sequence[LaneRoles]:
        """Return the sets of roles that make batches of a lane, with its number in each: one.

        A `JointJob` may have several, of which `choice` makes a batch.
        """
        return (LaneRoles(self.role_sets[0], lane),)

    def choice(self, lane: int, offset: int) -> int:
        """Return which of the `lane_roles` of a lane makes the batch at an offset."""
        return 0

    def uses(self, lane: int, offset: int) -> Sequence[int]:
        """Return how many batches before an offset each of the `lane_roles` has made."""
        return (offset,)

    def known_end(self, lane: int) -> int | None:
        """Return how many batches a lane holds, where arithmetic says it."""
        return self.lane_roles(lane)[0].batches

    def makes_anywhere(self, lane: int) -> bool:
        """Tell whether any worker makes a batch of a lane as well as the one that planned it.

        Where samples may come later, that one knows which wait; others would process the batches
        before it to find that out.
        """
        return not self.later_within and all(
            part.roles.makes_anywhere for part in self.lane_roles(lane)
        )

    def needs_sizes(self, lane: int) -> bool:
        """Tell whether planning a lane looks at sizes of samples."""
        return any(part.roles.needs_sizes for part in self.lane_roles(lane))

    def check_steps(self, batches_per_step: int) -> None:
        """Refuse a global batch that this job's batches do not go with: parts of balanced steps.

        Raises:
            InvalidRequest: With those that they do.
        """
        own, plan = self.batches_per_step, self.role_sets[0].plan
        if plan is None or plan.balance is None or own is None or own % batches_per_step == 0:
            return
        fitting = [number for number in range(1, own + 1) if own % number == 0]
        raise InvalidRequest(
            f"batches_per_step is {batches_per_step}, and job {self.name!r} balances steps of "
            f"{own} batches: use {', '.join(map(str, fitting))}, or change it in the job, whose "
            "log is another one then",
            field="batches_per_step",
            value=batches_per_step,
        )

    def shares(self) -> dict[str, float]:
        """Return which part of all batches each set of a joint job makes; of others nothing."""
        return {}

    def layout_of(self, name: str) -> ValueLayout:
        """Return how samples lie in the values of the batches of a set of roles."""
        [found] = [roles for roles in self.role_sets if roles.name == name]
        return found.collator.value_layout()

    def labelled(self, values: dict[str, Any], role_set: int) -> dict[str, Any]:
        """Return the values of a batch with what says which set of roles has made it, if any."""
        return values

    def roles_of(self, source: str) -> RoleSet:
        """Return the set of roles that a source is one of: no two sets share a source."""
        return self._set_of[source]

    def readings(self) -> list[Reading]:
        """Return how storage blocks are read, by each of the sets that read any."""
        return [reading for roles in self.role_sets for reading in roles.readings]

    @cached_property
    def reading_groups(self) -> Sequence[int | None]:
        """Return the reading group of each lane, numbered over all sets.

        None = the lane is in none: any worker may have it.
        """
        groups = [
            max((reading.groups or 0 for reading in roles.readings), default=0)
            for roles in self.role_sets
        ]
        # Of several sets of a lane, the one with most groups: each of theirs has one worker then.
        leading = [
            max(self.lane_roles(lane), key=lambda part: groups[part.roles.number])
            for lane in range(self.lanes)
        ]
        numbers: dict[tuple[int, tuple[int | None, ...]], int] = {}
        for roles, inner in sorted(leading, key=lambda part: (part.roles.number, part.lane)):
            if (group := roles.group(inner)) is not None:
                numbers.setdefault((roles.number, group), len(numbers))
        found = ((roles.number, roles.group(inner)) for roles, inner in leading)
        return [None if group is None else numbers[number, group] for number, group in found]

    def lanes_together(self) -> list[list[int]]:
        """Return the lanes that one worker reads together: those of a reading group, or just one.

        In the order of their first lanes.
        """
        found: dict[int, list[int]] = {}
        for lane, group in enumerate(self.reading_groups):
            found.setdefault(~lane if group is None else group, []).append(lane)
        return list(found.values())

    @cached_property
    def unit_of_lane(self) -> Sequence[int]:
        """Return the number of each lane's unit, in the order of `lanes_together`."""
        found = [0] * self.lanes
        for number, lanes in enumerate(self.lanes_together()):
            for lane in lanes:
                found[lane] = number
        return found

    @cached_property
    def units(self) -> Sequence[int]:
        """Return the units of the lanes, as nodes are dealt them; lane l has `units[l mod len]`.

        Lanes that read the same storage are one unit: two nodes would both read it. The lanes of a
        planned job are, too, if they read its windows by storage blocks; else any node fetches the
        items of any batch. As short as it can be; empty = each lane is a unit of its own.
        """
        of_lane = self.unit_of_lane
        if len(set(of_lane)) == self.lanes:
            return ()
        for period in range(1, self.lanes):
            if of_lane[period:] == of_lane[:-period]:
                return of_lane[:period]
        return of_lane

    def specs(self) -> Sequence[KeySpec]:
        """Return what is known about the values of every batch before one is made."""
        return self.role_sets[0].collator.specs()

    def value_layout(self) -> ValueLayout:
        """Return how samples lie in the values of a batch."""
        return joint_layout(self.role_sets)

    @property
    def items(self) -> int | None:
        """Return how many items the sources hold; None = not known before they are read."""
        found = [roles.items for roles in self.role_sets]
        known = [items for items in found if items is not None]
        return sum(known) if len(known) == len(found) else None

    @property
    def order(self) -> Order:
        """Return the order of this job's batches.

        Raises:
            InvalidJob, Counting: As `locate`.
        """
        return self._numbered.order

    def locate(self, position: int, cut: Cut | None = None) -> Located:
        """Return which batch stands at a position, where it is known where all lanes end.

        A node learns that as it goes: see `penstock.server.node.demand.ledger.Log.numbering`.

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
            InvalidJob: The job is finite, and its lanes may never end; or it holds no batch.
            Counting: It is finite, and it is not known where all of its lanes end.
        """
        self.check_end()
        numbering = self.numbering()
        if not numbering.is_complete:
            raise Counting(
                f"the batches of job {self.name!r} are not counted yet: how many the items make is "
                "known after one pass over them",
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
        return Numbering(
            self.lanes,
            [
                self.lane_end(lane) if (end := self.known_end(lane)) is None else end
                for lane in range(self.lanes)
            ],
        )

    def check_not_empty(self, numbering: Numbering) -> None:
        """Refuse a finite job without any batch.

        Raises:
            InvalidJob: With what to change.
        """
        if numbering.batches != 0:
            return
        log = self.role_sets[0].planned
        if log is not None and len(self.role_sets) == 1:
            raise InvalidJob(
                "the job holds no batch at all: by its plan an epoch has "
                f"{in_words(log.counts_of_epoch())}; lower the batch size, or look at the data",
                key="plan",
            )
        counts = Counter[str]()
        for of_lane in numbering.in_vain.values():
            counts.update(of_lane)
        drawn = counts.pop("drawn", 0)
        if reasons := in_words(counts):
            raise InvalidJob(
                f"the job holds no batch at all: its lanes drew {drawn:,} items in vain "
                f"({reasons}); loosen the filter, lower lanes or the batch size, or look at the "
                "data",
                key="lanes",
            )
        raise InvalidJob(
            f"the job holds no batch at all: {self.items} items over {self.lanes} lanes fill "
            "none; lower lanes or the batch size",
            key="lanes",
        )

    def check_end(self) -> None:
        """Refuse a finite job whose lanes may never end.

        Raises:
            InvalidJob: With what to change.
        """
        if self.epochs is None:
            return
        for roles in self.role_sets:
            if roles.epochs is not None and not roles.ends:
                raise InvalidJob(
                    f"epochs: {self.epochs} needs draws that end, and "
                    f"{type(roles.distributor).__name__} does not say that its do: use epochs: "
                    "null; or, if it draws nothing after its epochs, set ends_by_epochs",
                    key="epochs",
                )

    @property
    def needs_counting(self) -> bool:
        """Tell whether planning alone says where its lanes end.

        So it is for a finite job, but where each item gives one sample, and the batcher knows how
        many batches so many samples make.
        """
        if self.epochs is None:
            return False
        return any(
            roles.epochs is not None and roles.batches(0) is None for roles in self.role_sets
        )

    def lane_end(self, lane: int) -> int | None:
        """Return how many batches a lane was found to hold; None where that was not found out."""
        return None if self._lane_ends is None else self._lane_ends[lane]

    def set_lane_ends(self, ends: Sequence[int | None]) -> None:
        """Take what was found out of the batches of every lane; None = nothing of that lane."""
        self._lane_ends = tuple(ends)
        self.__dict__.pop("_numbered", None)

    @cached_property
    def plan(self) -> dict[str, Any]:
        """Return everything that decides bytes, JSON-able: the log id is its hash."""
        return {
            "format": ORDER_FORMAT,
            "seed": self.seed,
            "lanes": self.lanes,
            "epochs": self.epochs,
            **({"later_within": self.later_within} if self.later_within else {}),
            **self._identity(),
        }

    def _identity(self) -> dict[str, Any]:
        return self.role_sets[0].identity()

    @cached_property
    def log_id(self) -> bytes:
        """Return the SHA-256 of the canonical plan, 32 bytes.

        Raises:
            InvalidJob: A role's parameter is not JSON-able, so it has no canonical form.
        """
        return hashlib.sha256(canonical(self.plan)).digest()

    def cautions(self) -> list[str]:
        """Return sentences about what people should know before they run this job.

        What the log id does not know of its content, columns of counts that are not used, and what
        its draws cost that they need not.
        """
        found = ((name, source.unseen()) for name, source in sorted(self.sources.items()))
        unseen = [f"source {name!r}: {sentence}" for name, sentence in found if sentence]
        for roles in self.role_sets:
            unseen += roles.media_cautions() + roles.count_cautions()
        return unseen + self.remarks()

    def remarks(self) -> list[str]:
        """Return what sources leave out, and what draws cost that they need not."""
        said = [
            f"source {name!r}: {line}"
            for name, source in sorted(self.sources.items())
            for line in source.remarks()
        ]
        return said + [line for roles in self.role_sets for line in roles.distributor.remarks()]

    def hand_over(self) -> list[HandedOver]:
        """Return what this process knows of the files of sources and media, for other processes."""
        found: list[HandedOver] = []
        for source in self.sources.values():
            found += source.hand_over()
        for roles in self.role_sets:
            found += () if roles.media is None else roles.media.hand_over()
        return found

    def read_bytes(self) -> int:
        """Return how many bytes sources have read from storage since the last call."""
        return sum(source.read_bytes() for source in self.sources.values())

    def media_bytes(self) -> int:
        """Return how many bytes of media that items name were read since the last call."""
        media = (roles.media for roles in self.role_sets if roles.media is not None)
        return sum(reader.read_bytes() for reader in media)

    @property
    def decodes_videos(self) -> bool:
        """Tell whether a processor counts frames of videos."""
        found = [roles.processor for roles in self.role_sets]
        return any(isinstance(p, MediaProcessor) and p.frame_counts is not None for p in found)

    def video_frames(self) -> Counter[str]:
        """Return what was decoded of videos since the last call: as `FrameCounts`, by name."""
        found: Counter[str] = Counter()
        for roles in self.role_sets:
            processor = roles.processor
            now = processor.frame_counts if isinstance(processor, MediaProcessor) else None
            if now is not None:
                before = self._frames_before.get(id(processor), FrameCounts())
                self._frames_before[id(processor)] = replace(now)
                found += now.since(before)
        return found

    @cached_property
    def _frames_before(self) -> dict[int, FrameCounts]:
        return {}

    @cached_property
    def least_batch_bytes(self) -> int:
        """Return how many bytes the largest of its batches take at least; 0 = nothing is known."""
        return max(roles.least_batch_bytes for roles in self.role_sets)

    def check_fits(self, ready_bytes: int) -> None:
        """Refuse a job of which a node cannot hold one batch.

        Args:
            ready_bytes: How many bytes of batches may be ready there.

        Raises:
            InvalidJob: Its batches are larger.
        """
        if self.least_batch_bytes > ready_bytes:
            raise InvalidJob(
                f"a batch of job {self.name!r} takes {self.least_batch_bytes:,} bytes or more, and "
                f"ready_bytes of the server is {ready_bytes:,}: not even one fits; raise it, or "
                "take a smaller batch_size, fewer frames or smaller pictures",
                key="batch_size",
            )

    def close(self) -> None:
        """Let go of the sources' files."""
        for source in self.sources.values():
            source.close()
