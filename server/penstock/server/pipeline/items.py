"""Raw items to samples, with the two classes of errors that purity needs.

`SourceUnavailable` is about the moment: retried with backoff to a deadline, never quarantined.
`BadItem` is about the bytes: the same bytes failed twice, so every node meets it alike, and the
job's policy decides: stop, or a verdict that is durable before anything that depends on it is
released.
"""

from __future__ import annotations

import hashlib
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, NamedTuple, TypeVar

import numpy as np

from penstock.server.core.contained import as_exception, contained
from penstock.server.core.copies import own_copy
from penstock.server.core.frames import error_line, user_traceback
from penstock.server.core.refs import ItemRef
from penstock.server.core.seeding import BorrowedGlobals, drawn_since
from penstock.server.core.transient import is_transient
from penstock.server.core.verdict import Verdict, budget_spent
from penstock.server.job import Job
from penstock.server.pipeline.kept import KEPT_BYTES, KeptItems
from penstock.server.roles.base import ProcessContext, RawItem, Role, Sample, Source, item_key
from penstock.wire.errors import (
    BadBatch,
    BadItem,
    InvalidJob,
    MissingExtra,
    PenstockError,
    SourceChanged,
    SourceUnavailable,
    clean_text,
)

logger = logging.getLogger("penstock")

T = TypeVar("T")

RETRY_DEADLINE_S = 60.0
"""How long a source may be unavailable before this node gives up on an item."""

READ_AHEAD_S = 0.001
"""Where a source takes longer than this for a call, what comes next is read meanwhile by a thread;
below it a thread costs more than it saves."""

MAX_KIND_CHARACTERS = 40

FIRST_BACKOFF_S, MAX_BACKOFF_S = 0.05, 5.0

NEVER_ABOUT_AN_ITEM = (SourceUnavailable, SourceChanged, InvalidJob, MissingExtra)
"""What these say is true of a node, of a file or of the job: no item is judged for it."""

MAX_REASON = 200
"""Characters of a verdict's reason: a job may have thousands of verdicts."""


class Call(NamedTuple):
    """A role's code that is called for an item, as errors name it.

    Attributes:
        code: The role.
        method: Which of its methods.
        reading: It brings bytes and does not decode them: an error without an errno is about
            reading then, and not about the bytes.
        what_for: Words after its name.
    """

    code: Role
    method: str
    reading: bool = False
    what_for: str = ""

    @property
    def role(self) -> str:
        """Return the name of the code, as its author knows it."""
        return self.code.code_of(self.method) + self.what_for


class Filtered(NamedTuple):
    """The processor gave no sample for an item."""

    reason: str


class Quarantined(NamedTuple):
    """A verdict removes an item."""

    verdict: Verdict


class Bad(NamedTuple):
    """An item failed twice, and nobody has judged it yet.

    Attributes:
        error: What is wrong with it.
        digest: SHA-256 of its raw bytes, hex.
        every_epoch: Nothing random was drawn before it failed: it fails in every epoch.
    """

    error: BadItem
    digest: str
    every_epoch: bool


Outcome = list[Sample] | Filtered | Quarantined

Progress = Callable[[str, ItemRef | None], None]
"""Told (stage, item) before anything that may take long or crash."""


class VerdictBook:
    """The verdicts that hold for one log.

    Args:
        known: What the store had when the line started.
        insert: Makes a verdict durable, if none holds at its place, and returns the one that does.
            None keeps verdicts in this process: for a reader that has no store, which finds the
            same ones again.
        limit: How many items may be left out, where there is no store to count them.

    Attributes:
        left_out: How many items are left out, by stage and kind of reason.
    """

    def __init__(
        self,
        known: Iterable[Verdict] = (),
        insert: Callable[[Verdict], Verdict] | None = None,
        limit: int | None = None,
    ) -> None:
        self._known: dict[tuple[str, str, int], list[Verdict]] = {}
        self._insert, self._limit = insert, limit
        self.left_out: Counter[tuple[str, str]] = Counter()
        self.learn(known)

    def __iter__(self) -> Iterator[Verdict]:
        """Yield every verdict, released ones too."""
        for verdicts in self._known.values():
            yield from verdicts

    @property
    def is_empty(self) -> bool:
        """Tell whether it has no verdict, not even a released one: then `find` finds none."""
        return not self._known

    def __contains__(self, verdict: object) -> bool:
        """Tell whether this very verdict is known."""
        return isinstance(verdict, Verdict) and verdict in self._known.get(_place(verdict), ())

    def find(self, stage: str, item: ItemRef, lane: int = 0, offset: int = 0) -> Verdict | None:
        """Return the verdict that leaves an item out of the batch at `offset` of `lane`."""
        for verdict in self._known.get((stage, item.source, item.index), ()):
            if verdict.holds(item, lane, offset):
                return verdict
        return None

    def add(self, verdict: Verdict) -> Verdict:
        """Make a verdict durable and return the one that holds.

        Raises:
            BadItem: As many items as may be are left out already.
            LogDiverged: It would move what readers were given.
        """
        if self._insert is not None:
            held = self._insert(verdict)
        elif self._limit is not None and self.left_out.total() >= self._limit:
            raise budget_spent(self._limit, verdict, self)
        else:
            held = verdict
        self.learn([held])
        return held

    def learn(self, verdicts: Iterable[Verdict]) -> None:
        """Take over verdicts that are durable already; of one number the later news holds."""
        for verdict in verdicts:
            place = _place(verdict)
            before = self._known.get(place, [])
            after = [one for one in before if not one.number or one.number != verdict.number]
            self._known[place] = [*after, verdict]
            self.left_out.subtract(_counted(before))
            self.left_out.update(_counted(self._known[place]))


def _place(verdict: Verdict) -> tuple[str, str, int]:
    return verdict.stage, verdict.item.source, verdict.item.index


def _counted(verdicts: Iterable[Verdict]) -> Iterator[tuple[str, str]]:
    """Yield (stage, kind of reason) for each that counts, however many lanes have met the item."""
    seen: set[int | None] = set()
    for verdict in verdicts:
        epoch = None if verdict.every_epoch else verdict.item.epoch
        if verdict.released is None and epoch not in seen:
            seen.add(epoch)
            yield verdict.stage, kind_of(verdict.reason)


def kind_of(reason: str) -> str:
    """Return the class of error that a reason begins with, or `other`: few, for metrics."""
    kind = reason.partition(":")[0]
    return kind if kind.isidentifier() and len(kind) <= MAX_KIND_CHARACTERS else "other"


class Items:
    """Fetches and processes the items of one job in one process.

    Args:
        job: The job.
        verdicts: The verdicts that hold.
        progress: Told what is being worked on.
        retry_deadline_s: How long a source may be unavailable.

    Attributes:
        processed: How often `process` was called.
        careful: One item at a time, none ahead: something here has ended a worker, and `progress`
            shall name it.
        may_wait: Asked before a retry; False ends it, with the error, for those who wait behind.
        kept_bytes: Raw items that are kept until they are needed again, or were read ahead, take at
            most so much memory.
        warn: Told, as a sentence, what people should know of although nothing failed for good.
    """

    def __init__(
        self,
        job: Job,
        verdicts: VerdictBook | None = None,
        progress: Progress | None = None,
        retry_deadline_s: float = RETRY_DEADLINE_S,
    ) -> None:
        self.job = job
        self.verdicts = verdicts or VerdictBook(limit=job.max_quarantined)
        self.progress: Progress = progress or (lambda stage, item: None)
        self.retry_deadline_s = retry_deadline_s
        self.may_wait: Callable[[], bool] = lambda: True
        self.warn: Callable[[str], None] = logger.warning
        self._told: set[tuple[str, type[Exception]]] = set()
        self.processed = 0
        self.careful = False
        self.kept_bytes = KEPT_BYTES
        self._globals = BorrowedGlobals()
        self._may_read_ahead = all(source.may_read_ahead for source in job.sources.values())
        self._reading = threading.Lock()  # a source is called by one thread at a time
        self._read_s = 0.0  # how long a call of fetch() usually takes
        self._kept: KeptItems | None = None
        columns = job.processor.size_columns
        self._heads = all(source.has_heads(columns) for source in job.sources.values())
        self._ready = False
        # A torch Dataset decodes what it reads: an error of its own is like one of process().
        self._fetching = {
            name: Call(source, "fetch", reading=not source.uses_global_rng)
            for name, source in job.sources.items()
        }
        self._chance = False  # the last item that failed drew random numbers first
        self._processed_by: dict[str, Call] = {}  # by source, asked once
        pure = [name for name, source in job.sources.items() if not source.uses_global_rng]
        self._only_source = pure[0] if len(pure) == len(job.sources) == 1 else None

    # --- raw items ---

    def raws(self, items: Sequence[ItemRef]) -> list[RawItem]:
        """Return the raw items: read here, unless they were read before.

        Raises:
            SourceUnavailable: After retries to the deadline; names the item.
            BadItem: The source's own code fails twice on the same item.
        """
        if self._kept is None or not items:
            return self._read(items)
        self.progress("fetch", items[0])
        kept = self._kept.take(items)
        if not kept:
            return self._read(items)
        missing = [item for item in items if item not in kept]
        if missing:
            kept.update(zip(missing, self._read(missing), strict=True))
        return [kept[item] for item in items]

    @property
    def reads_ahead(self) -> bool:
        """Tell whether it is worth while to say what will be needed next."""
        return self._may_read_ahead and self._read_s > READ_AHEAD_S and not self.careful

    def read_ahead(self, items: Sequence[ItemRef]) -> None:
        """Have items read by another thread while this one goes on; only where `reads_ahead`."""
        if items:
            self._keeper().ask(items)

    def _keeper(self) -> KeptItems:
        if self._kept is None:
            self._kept = KeptItems(self._read_aside, self.kept_bytes)
        return self._kept

    def _read_aside(self, items: Sequence[ItemRef]) -> list[RawItem]:
        """Read items in another thread: once, for whoever needs them tries again."""
        found: dict[ItemRef, RawItem] = {}
        for name, source in self.job.sources.items():
            own = [item for item in items if item.source == name]
            if own:
                raws = contained(partial(self._of_source, source, own))
                found.update(zip(own, raws, strict=True))
        return [found[item] for item in items]

    def _of_source(
        self, source: Source, items: Sequence[ItemRef], heads: bool = False
    ) -> list[RawItem]:
        indices = [item.index for item in items]
        began_s = time.perf_counter()
        with self._reading:
            if heads:
                raws = source.heads(indices, self.job.processor.size_columns)
            else:
                raws = source.fetch(indices)
        self._read_s += 0.1 * (time.perf_counter() - began_s - self._read_s)
        # A processor may write into what it is given: that must not be the source's own.
        return raws if source.gives_fresh_items else [own_copy(raw) for raw in raws]

    def _seeded(
        self, source: Source, items: Sequence[ItemRef], heads: bool = False
    ) -> list[RawItem]:
        """Read an item for which the borrowed generators are seeded."""
        self._seed(items[0])
        return self._of_source(source, items, heads)

    def _read(self, items: Sequence[ItemRef], *, heads: bool = False) -> list[RawItem]:
        if self._only_source is not None and items:
            return self._fetch(self._only_source, items, heads)
        found: list[RawItem] = [None] * len(items)
        by_source: dict[str, list[int]] = {}
        for place, item in enumerate(items):
            by_source.setdefault(item.source, []).append(place)
        for name, places in by_source.items():
            source = self.job.sources[name]
            if source.uses_global_rng:
                # A torch Dataset augments in __getitem__: every item is seeded on its own.
                with self._globals:
                    for place in places:
                        found[place] = self._fetch(name, [items[place]], heads)[0]
            else:
                for place, raw in zip(
                    places,
                    self._fetch(name, [items[place] for place in places], heads),
                    strict=True,
                ):
                    found[place] = raw
        return found

    def _fetch(self, name: str, items: Sequence[ItemRef], heads: bool = False) -> list[RawItem]:
        source, what = self.job.sources[name], self._fetching[name]
        self.progress("fetch", items[0])

        read = self._seeded if source.uses_global_rng else self._of_source
        fetch = partial(read, source, items, heads)
        if len(items) > 1:
            try:
                return self.retried(fetch, what, items[0])
            except PenstockError:
                raise
            except Exception as error:
                # One of them fails, and is named when it is alone.
                found = [self._fetch(name, [item], heads)[0] for item in items]
                self._tell_of(what._replace(what_for=" of several items"), error)
                return found
        try:
            return self._twice(fetch, what, items[0], PenstockError)
        except BadItem as error:
            raise self._damaged(items[0], error) from error
        except PenstockError:
            raise
        except Exception as error:
            raise self._bad("draw", what, items[0], error) from error

    def samples(
        self, items: Sequence[ItemRef], stage: str, lane: int = 0, offset: int = 0
    ) -> list[Outcome]:
        """Return what processing gives for each item, judged.

        Args:
            items: The items, each known to be wanted.
            stage: `draw` where the planner asks, `exit` where a maker does.
            lane: The lane of the batch that they are for.
            offset: Its offset.

        Raises:
            SourceUnavailable: A read failed to the deadline.
            BadItem: An item failed twice and the job's policy is to stop.
        """
        outcomes: dict[ItemRef, Outcome] = {}
        wanted: list[ItemRef] = []
        for item in dict.fromkeys(items):
            verdict = self.verdicts.find(stage, item, lane, offset)
            if verdict is None:
                wanted.append(item)
            else:
                outcomes[item] = Quarantined(verdict)
        for item, outcome in zip(wanted, self.outcomes(wanted, stage), strict=True):
            if isinstance(outcome, Bad):
                outcomes[item] = self.judge(stage, item, outcome, lane, offset)
            else:
                outcomes[item] = outcome
        return [outcomes[item] for item in items]

    def outcomes(
        self, items: Sequence[ItemRef], stage: str, coming: Sequence[ItemRef] = ()
    ) -> list[list[Sample] | Filtered | Bad]:
        """Return what processing gives for each item; nobody is judged, no verdict looked up.

        Args:
            items: The items, each once.
            stage: `draw` where the planner asks, `exit` where a maker does.
            coming: Items that will be needed next: they are read while these are processed.

        Raises:
            SourceUnavailable: A read failed to the deadline.
        """
        if not items:
            return []
        if not self._ready:
            self.set_up()
        try:
            raws = self.raws(items)
        except BadItem:
            return [self._alone(item, stage) for item in items]
        if coming:
            self.read_ahead(coming)
        return self._process(items, raws, stage)

    def sizes(self, items: Sequence[ItemRef]) -> list[int | Bad]:
        """Return the sizes of items as the processor knows them without processing.

        Where a source has no heads of items the whole items are read, and kept for who makes the
        batch: most often it is this worker.

        Raises:
            SourceUnavailable: A read failed to the deadline.
        """
        if not self._ready:
            self.set_up()
        try:
            raws = self._read(items, heads=True) if self._heads else self.raws(items)
        except BadItem as error:
            if len(items) > 1:
                return [self.sizes([item])[0] for item in items]
            return [Bad(error, content_hash(None), self._fetch_is_pure(items[0]))]
        found = [self._size(item, raw) for item, raw in zip(items, raws, strict=True)]
        if not self._heads:
            self._keeper().keep(items, raws)
        return found

    def _size(self, item: ItemRef, raw: RawItem) -> int | Bad:
        processor = self.job.processor
        what = Call(processor, "size")
        try:
            size = self.retried(lambda: processor.size(raw), what, item)
        except NEVER_ABOUT_AN_ITEM:
            raise
        except Exception as error:
            bad = self._bad("draw", what, item, error)
            return Bad(bad, content_hash(raw), every_epoch=True)
        if isinstance(size, bool) or not isinstance(size, int) or size < 0:
            wrong = BadItem(
                f"{type(processor).__name__}.size() gave {size!r} for item {item}: a processor "
                "that overrides size() must know it for every item",
                item=list(item),
                stage="draw",
                reason=f"size() gave {size!r}",
            )
            return Bad(wrong, content_hash(raw), every_epoch=True)
        return size

    def _alone(self, item: ItemRef, stage: str) -> list[Sample] | Filtered | Bad:
        """Fetch and process one item whose neighbours must not suffer from it."""
        try:
            [raw] = self.raws([item])
        except BadItem as error:
            return Bad(error, content_hash(None), self._fetch_is_pure(item))
        return self._process([item], [raw], stage)[0]

    def _fetch_is_pure(self, item: ItemRef) -> bool:
        """Tell whether fetching an item draws nothing random, be it that it fails."""
        source = self.job.sources[item.source]
        if not source.uses_global_rng:
            return True
        key = item_key(self.job.seed, item)
        what = Call(source, "fetch")
        with self._globals as borrowed:
            borrowed.seed(key)
            try:
                self.retried(lambda: source.fetch([item.index]), what, item)
            except SourceUnavailable:
                raise
            except Exception as error:  # of the user's source: only whether it drew is asked here
                logger.debug("item %s fails again: %s", item, error_line(error))
            return not drawn_since(key)

    def _is_chance(self, item: ItemRef) -> bool:
        """Tell whether what becomes of an item depends on random draws: it is tried anew."""
        if not self._fetch_is_pure(item):
            return True
        [raw] = self.raws([item])
        context = ProcessContext(item, self.job.seed)
        what = self._processing(item)
        with self._borrowed():
            if self.job.processor.uses_global_rng:
                self._seed(item)
            self.retried(lambda: self.job.processor.process(raw, context), what, item)
            return self._drew(context, item_key(self.job.seed, item))

    def _drew(self, context: ProcessContext, key: int) -> bool:
        """Tell, inside of `_borrowed`, whether anything random was drawn."""
        return context.drew or (self.job.processor.uses_global_rng and drawn_since(key))

    def _process(
        self, items: Sequence[ItemRef], raws: Sequence[RawItem], stage: str
    ) -> list[list[Sample] | Filtered | Bad]:
        processor = self.job.processor
        if len(items) > 1 and not processor.uses_global_rng and not self.careful:
            contexts = [ProcessContext(item, self.job.seed) for item in items]
            self.progress("process", items[0])
            try:
                results = contained(lambda: processor.process_batch(raws, contexts))
            except Exception as error:
                # One of them fails, and is named when it is alone.
                outcomes = self._one_by_one(items, raws, stage)
                if not any(isinstance(outcome, Bad) for outcome in outcomes):
                    self._tell_of(Call(processor, "process_batch"), error)
                return outcomes
            self.processed += len(items)
            return [
                outcome_of(result, context)
                for result, context in zip(results, contexts, strict=True)
            ]
        return self._one_by_one(items, raws, stage)

    def _one_by_one(
        self, items: Sequence[ItemRef], raws: Sequence[RawItem], stage: str
    ) -> list[list[Sample] | Filtered | Bad]:
        pairs = zip(items, raws, strict=True)
        if not self.job.processor.uses_global_rng:
            return [self._process_one(item, raw, stage) for item, raw in pairs]
        with self._globals:
            return [self._process_one(item, raw, stage) for item, raw in pairs]

    def _process_one(
        self, item: ItemRef, raw: RawItem, stage: str
    ) -> list[Sample] | Filtered | Bad:
        what = self._processing(item)
        self.progress("process", item)
        try:
            process = partial(self._process_once, item, raw)
            return self._twice(process, what, item, NEVER_ABOUT_AN_ITEM)
        except NEVER_ABOUT_AN_ITEM:
            raise
        except Exception as error:
            bad = self._bad(stage, what, item, error)
            return Bad(bad, content_hash(raw), every_epoch=not self._chance)

    def _process_once(self, item: ItemRef, raw: RawItem) -> list[Sample] | Filtered:
        """Process an item; where that fails, note whether anything random was drawn before."""
        processor = self.job.processor
        context = ProcessContext(item, self.job.seed)
        self.processed += 1
        if processor.uses_global_rng:
            self._seed(item)
        try:
            return outcome_of(processor.process(raw, context), context)
        except BaseException:
            self._chance = self._drew(context, item_key(self.job.seed, item))
            raise

    def _processing(self, item: ItemRef) -> Call:
        """Return the code that decides what processing an item gives."""
        found = self._processed_by.get(item.source)
        if found is None:
            processor = self.job.processor
            author = processor.author(self.job.sources[item.source])
            found = Call(author, "process" if author is processor else "fetch")
            self._processed_by[item.source] = found
        return found

    def _borrowed(self) -> AbstractContextManager[Any]:
        """Borrow the global generators for a run of items, where the processor may draw."""
        return self._globals if self.job.processor.uses_global_rng else nullcontext()

    def _seed(self, item: ItemRef) -> None:
        self._globals.seed(item_key(self.job.seed, item))

    def judge(self, stage: str, item: ItemRef, bad: Bad, lane: int, offset: int) -> Quarantined:
        """Apply the job's policy to an item that failed: a durable verdict, or the error.

        Args:
            stage: `draw`, `exit` or `size`.
            item: The item.
            bad: What is wrong with it.
            lane: The lane of the batch that is being planned or made.
            offset: Its offset: the verdict holds from here on.

        Raises:
            BadItem: The policy is to stop, or the budget is spent.
            LogDiverged: The item was good when what lies behind it was given out.
        """
        if self.job.on_item_error != "quarantine":
            raise bad.error
        held = self.verdicts.find(stage, item, lane, offset)
        if held is None:
            reason = clean_text(str(bad.error.fields.get("reason", bad.error.message)), MAX_REASON)
            held = self.verdicts.add(
                Verdict(stage, item, bad.digest, reason, bad.every_epoch, lane, offset)
            )
        return Quarantined(held)

    def refuse(
        self, stage: str, item: ItemRef, error: BadItem, lane: int, offset: int
    ) -> Quarantined:
        """Judge an item that was processed well, and that whoever got it next cannot use.

        Raises:
            BadItem, LogDiverged: As `judge`.
            SourceUnavailable: It cannot be read again, to see whether it depends on random draws.
        """
        if self.job.on_item_error != "quarantine":
            raise error
        held = self.verdicts.find(stage, item, lane, offset)
        if held is not None:
            return Quarantined(held)
        # What is planned from refs has its size from the raw form alone.
        chance = not (stage == "draw" and self.job.plans_from_refs) and self._is_chance(item)
        bad = Bad(error, content_hash(None), every_epoch=not chance)
        return self.judge(stage, item, bad, lane, offset)

    def _bad(self, stage: str, what: Call, item: ItemRef, error: Exception) -> BadItem:
        if isinstance(error, BadItem) and "item" in error.fields:
            return error
        reason = error.message if isinstance(error, PenstockError) else error_line(error)
        return BadItem(
            f"item {item} of job {self.job.name!r} fails in {what.role} with {reason}; fix the "
            "role or the data, or set on_item_error: quarantine",
            item=list(item),
            stage=stage,
            reason=reason,
            traceback=user_traceback(error),
        )

    def _damaged(self, item: ItemRef, error: BadItem) -> BadItem:
        """Name the item of bytes that its source has read and cannot decode."""
        return BadItem(
            f"item {item} of job {self.job.name!r}: {error.message}; put an undamaged copy of the "
            "file there, or set on_item_error: quarantine",
            **{"stage": "draw", "reason": error.message, **error.fields, "item": list(item)},
        )

    def _twice(
        self,
        call: Callable[[], T],
        what: Call,
        item: ItemRef,
        final: type[Exception] | tuple[type[Exception], ...],
    ) -> T:
        """Call, and again if it fails: once may be chance, the same bytes twice are the bytes.

        Args:
            call: Calls a role's own code.
            what: Which code.
            item: What it is called for.
            final: Errors that a second try would not change.
        """
        try:
            return self.retried(call, what, item)
        except final:
            raise
        except Exception as error:
            found = self.retried(call, what, item)
            self._tell_of(what, error, item)
            return found

    def _tell_of(self, what: Call, error: Exception, item: ItemRef | None = None) -> None:
        """Warn of an error that went away: nothing is wrong with the data, but maybe with a role.

        Once for each kind of error: a role that always does so must not fill the log.
        """
        kind = what.role, type(error)
        if kind not in self._told and not is_transient(error, reading=what.reading):
            self._told.add(kind)
            where = "" if item is None else f", the first of two tries of item {item},"
            self.warn(
                f"job {self.job.name!r}: {what.role}{where} failed, and what came after it did "
                f"not: {error_line(error)}"
            )

    def retried(self, call: Callable[[], T], what: Call, item: ItemRef | None = None) -> T:
        """Call; retry what may be gone in a moment, with backoff to the deadline.

        Raises:
            SourceUnavailable: It was not gone by then; names the item, and the role where that was
                doing more than to read.
            MissingExtra: It imports what this machine has not: that is no item's fault.
            Exception: Whatever else the role raises, at once.
        """
        failed_s, backoff_s = None, FIRST_BACKOFF_S
        while True:
            try:
                return call()
            except ImportError as missing:
                raise MissingExtra(
                    f"{what.role} of job {self.job.name!r} fails with {error_line(missing)}; "
                    "install it wherever this job is computed",
                    package=missing.name or "",
                    extra="",
                    traceback=user_traceback(missing),
                ) from missing
            except BaseException as raised:
                error = as_exception(raised)
                if not is_transient(error, reading=what.reading):
                    if error is raised:
                        raise
                    raise error from raised
                now = time.monotonic()
                failed_s = failed_s or now
                if now + backoff_s > failed_s + self.retry_deadline_s or not self.may_wait():
                    raise self._unavailable(what, item, error, now - failed_s) from error
                self.progress("retrying", item)
                time.sleep(backoff_s)
                backoff_s = min(2 * backoff_s, MAX_BACKOFF_S)

    def failure(self, error: Exception, what: str, lane: int, offset: int) -> PenstockError:
        """Return what an error means that a role raised where no item is judged.

        It is not called again here: its state may be half changed.

        Args:
            error: What it raised, other than a `PenstockError`, which says enough.
            what: What fails where, as the beginning of a sentence; `of job ... with ...` follows.
            lane: The lane of the batch that it was called for.
            offset: Its offset.

        Returns:
            `SourceUnavailable` for what may be gone in a moment, so that whoever reads tries again;
            else `BadBatch` with the user's line.
        """
        cls = SourceUnavailable if is_transient(error) else BadBatch
        return cls(
            f"{what} of job {self.job.name!r} with {error_line(error)}",
            lane=lane,
            offset=offset,
            traceback=user_traceback(error),
        )

    def _unavailable(
        self, what: Call, item: ItemRef | None, error: Exception, tried_s: float
    ) -> SourceUnavailable:
        fields = {} if item is None else {"item": list(item)}
        where = f"job {self.job.name!r}"
        if item is not None:
            where = f"item {item} of {where}"
        said = error.message if isinstance(error, PenstockError) else error_line(error)
        if isinstance(error, MemoryError):
            what_failed, remedy = "found no memory", "give this node more memory, or fewer workers"
        elif what.reading:
            what_failed, remedy = "could not be read", "check the storage, then read again"
        else:
            what_failed = f"could not be finished by {what.role}"
            remedy = "check what that code reads, as this node finds it, then read again"
        return SourceUnavailable(
            f"{where} {what_failed}, and was tried for {tried_s:.0f} s: {said}; {remedy}",
            **fields,
            **({} if what.reading else {"role": what.role, "traceback": user_traceback(error)}),
        )

    def set_up(self) -> None:
        """Have the processor set up what it needs, once.

        Raises:
            InvalidJob: It fails.
            SourceUnavailable, MissingExtra: As `retried`.
        """
        if not self._ready:
            processor = self.job.processor
            what = Call(processor, "setup")
            self.progress("setup", None)
            try:
                self.retried(processor.setup, what)
            except PenstockError:
                raise
            except Exception as error:
                raise InvalidJob(
                    f"{what.role} of job {self.job.name!r} fails with {error_line(error)}",
                    key="processor",
                    traceback=user_traceback(error),
                ) from error
            self._ready = True


def outcome_of(result: Any, context: ProcessContext) -> list[Sample] | Filtered:
    """Return what a processor's result means."""
    if context.skipped is not None:
        return Filtered(context.skipped)
    if result is None:
        return Filtered("none")
    if isinstance(result, dict):
        return [result]
    samples = list(result)
    return samples if samples else Filtered("empty")


def content_hash(raw: Any) -> str:
    """Return the SHA-256 of a raw item, hex; arrays by their bytes, dicts in sorted order."""
    digest = hashlib.sha256()

    def feed(value: Any) -> None:
        digest.update(type(value).__name__.encode() + b"\0")
        if isinstance(value, dict):
            for key in sorted(value, key=str):
                feed(str(key))
                feed(value[key])
        elif isinstance(value, list | tuple):
            for inner in value:
                feed(inner)
        elif isinstance(value, bytes | bytearray | memoryview):
            digest.update(value)
        elif hasattr(value, "__array__"):
            array = np.ascontiguousarray(value)
            digest.update(f"{array.dtype}{array.shape}".encode())
            digest.update(array.tobytes())
        elif isinstance(value, str | int | float | bool) or value is None:
            digest.update(str(value).encode())
        # anything else is known by its type alone: its repr may hold an address of this process
        digest.update(b"\1")

    feed(raw)
    return digest.hexdigest()


__all__ = [
    "Bad",
    "Call",
    "Filtered",
    "Items",
    "Outcome",
    "Progress",
    "Quarantined",
    "VerdictBook",
    "content_hash",
    "kind_of",
    "outcome_of",
]
