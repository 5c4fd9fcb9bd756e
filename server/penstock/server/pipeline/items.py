"""Raw items to samples, with the two classes of errors that purity needs.

`SourceUnavailable` is about here and now: retried with backoff to a deadline, never quarantined.
`BadItem` is about the bytes: the same bytes failed twice, so every node meets it alike, and the
job's policy decides: stop, or a verdict that is durable before anything that depends on it is
released.
"""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple, TypeVar

import numpy as np

from penstock.server.core.contained import contained
from penstock.server.core.frames import error_line, user_traceback
from penstock.server.core.refs import ItemRef, Verdict
from penstock.server.core.seeding import seeded_globals
from penstock.server.job import Job
from penstock.server.roles.base import ProcessContext, RawItem, Sample, item_key
from penstock.wire.errors import BadItem, InvalidJob, PenstockError, SourceUnavailable

logger = logging.getLogger("penstock")

T = TypeVar("T")

RETRY_DEADLINE_S = 60.0
"""How long a source may be unavailable before this node gives up on an item."""

FIRST_BACKOFF_S, MAX_BACKOFF_S = 0.05, 5.0


class Filtered(NamedTuple):
    """The processor gave no sample for an item."""

    reason: str


class Quarantined(NamedTuple):
    """A verdict removes an item."""

    verdict: Verdict


Outcome = list[Sample] | Filtered | Quarantined

Progress = Callable[[str, ItemRef | None], None]
"""Told (stage, item) before anything that may take long or crash."""


class VerdictBook:
    """The verdicts that hold for one log.

    Args:
        known: What the store had when the line started.
        insert: Makes a verdict durable, if its item has none, and returns the one that holds. None
            keeps verdicts in this process: for a reader that has no store, which finds the same
            ones again.
    """

    def __init__(
        self,
        known: Iterable[Verdict] = (),
        insert: Callable[[Verdict], Verdict] | None = None,
    ) -> None:
        self._known = {(verdict.stage, verdict.item): verdict for verdict in known}
        self._insert = insert

    def find(self, stage: str, item: ItemRef) -> Verdict | None:
        """Return the verdict of an item at a stage."""
        return self._known.get((stage, item))

    def add(self, verdict: Verdict) -> Verdict:
        """Make a verdict durable and return the one that holds."""
        held = self._insert(verdict) if self._insert else verdict
        self._known[(held.stage, held.item)] = held
        return held

    def learn(self, verdicts: Iterable[Verdict]) -> None:
        """Take over verdicts that are durable already."""
        for verdict in verdicts:
            self._known[(verdict.stage, verdict.item)] = verdict


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
        self.verdicts = verdicts or VerdictBook()
        self.progress: Progress = progress or (lambda stage, item: None)
        self.retry_deadline_s = retry_deadline_s
        self.may_wait: Callable[[], bool] = lambda: True
        self.warn: Callable[[str], None] = logger.warning
        self._told: set[tuple[str, type[Exception]]] = set()
        self.processed = 0
        self.careful = False
        self._ready = False

    def raws(self, items: Sequence[ItemRef]) -> list[RawItem]:
        """Return the raw items.

        Raises:
            SourceUnavailable: After retries to the deadline; names the item.
            BadItem: The source's own code fails twice on the same item.
        """
        found: list[RawItem] = [None] * len(items)
        by_source: dict[str, list[int]] = {}
        for place, item in enumerate(items):
            by_source.setdefault(item.source, []).append(place)
        for name, places in by_source.items():
            source = self.job.sources[name]
            if source.uses_global_rng:
                # A torch Dataset augments in __getitem__: every item is seeded on its own.
                for place in places:
                    found[place] = self._fetch(name, [items[place]])[0]
            else:
                for place, raw in zip(
                    places, self._fetch(name, [items[place] for place in places]), strict=True
                ):
                    found[place] = raw
        return found

    def _fetch(self, name: str, items: list[ItemRef]) -> list[RawItem]:
        source = self.job.sources[name]
        self.progress("fetch", items[0])

        def fetch() -> list[RawItem]:
            if not source.uses_global_rng:
                return source.fetch([item.index for item in items])
            with seeded_globals(item_key(self.job.seed, items[0])):
                return source.fetch([item.index for item in items])

        if len(items) > 1:
            try:
                return self._retried(fetch, items[0])
            except PenstockError:
                raise
            except Exception as error:
                # One of them fails, and is named when it is alone.
                found = [self._fetch(name, [item])[0] for item in items]
                self._tell_of(f"{type(source).__name__}.fetch() of several items", error)
                return found
        try:
            return self._twice(fetch, items[0], PenstockError)
        except PenstockError:
            raise
        except Exception as error:
            raise self._bad("draw", items[0], error) from error

    def samples(self, items: Sequence[ItemRef], stage: str) -> list[Outcome]:
        """Return what processing gives for each item.

        Args:
            items: The items, each known to be wanted.
            stage: `draw` where the planner asks, `exit` where a maker does.

        Raises:
            SourceUnavailable: A read failed to the deadline.
            BadItem: An item failed twice and the job's policy is to stop.
        """
        outcomes: dict[ItemRef, Outcome] = {}
        wanted: list[ItemRef] = []
        for item in dict.fromkeys(items):
            verdict = self.verdicts.find(stage, item)
            if verdict is None:
                wanted.append(item)
            else:
                outcomes[item] = Quarantined(verdict)
        if wanted:
            self._prepare()
            try:
                raws = self.raws(wanted)
            except BadItem:
                raws = None
            if raws is None:
                for item in wanted:
                    outcomes[item] = self._alone(item, stage)
            else:
                outcomes.update(zip(wanted, self._process(wanted, raws, stage), strict=True))
        return [outcomes[item] for item in items]

    def sizes(self, items: Sequence[ItemRef]) -> list[int | Quarantined]:
        """Return the sizes of items as the processor knows them without processing.

        Returns:
            One for each item; for the first item alone, if one of them is bad.

        Raises:
            SourceUnavailable: A read failed to the deadline.
            BadItem: The first item is bad and the job's policy is to stop.
        """
        self._prepare()
        try:
            raws = self.raws(items)
        except BadItem as error:
            if len(items) > 1:
                return self.sizes(items[:1])
            return [self._judge("draw", items[0], error, content_hash(None))]
        try:
            return [self._size(item, raw) for item, raw in zip(items, raws, strict=True)]
        except BadItem as error:
            if len(items) > 1:
                return self.sizes(items[:1])
            return [self._judge("draw", items[0], error, content_hash(raws[0]))]

    def _size(self, item: ItemRef, raw: RawItem) -> int:
        processor = self.job.processor
        try:
            size = self._retried(lambda: processor.size(raw), item)
        except PenstockError:
            raise
        except Exception as error:
            raise self._bad("draw", item, error) from error
        if isinstance(size, bool) or not isinstance(size, int) or size < 0:
            raise BadItem(
                f"{type(processor).__name__}.size() gave {size!r} for item {item}: a processor "
                "that overrides size() must know it for every item",
                item=list(item),
                stage="draw",
                reason=f"size() gave {size!r}",
            )
        return size

    def _alone(self, item: ItemRef, stage: str) -> Outcome:
        """Fetch and process one item whose neighbours must not suffer from it."""
        try:
            [raw] = self.raws([item])
        except BadItem as error:
            return self._judge(stage, item, error, content_hash(None))
        return self._process([item], [raw], stage)[0]

    def _process(
        self, items: Sequence[ItemRef], raws: Sequence[RawItem], stage: str
    ) -> list[Outcome]:
        processor = self.job.processor
        if len(items) > 1 and not processor.uses_global_rng and not self.careful:
            contexts = [ProcessContext(item, self.job.seed) for item in items]
            self.progress("process", items[0])
            try:
                results = contained(lambda: processor.process_batch(raws, contexts))
            except Exception as error:
                # One of them fails, and is named when it is alone.
                outcomes = self._one_by_one(items, raws, stage)
                if not any(isinstance(outcome, Quarantined) for outcome in outcomes):
                    self._tell_of(f"{type(processor).__name__}.process_batch()", error)
                return outcomes
            self.processed += len(items)
            return [
                outcome_of(result, context)
                for result, context in zip(results, contexts, strict=True)
            ]
        return self._one_by_one(items, raws, stage)

    def _one_by_one(
        self, items: Sequence[ItemRef], raws: Sequence[RawItem], stage: str
    ) -> list[Outcome]:
        return [self._process_one(item, raw, stage) for item, raw in zip(items, raws, strict=True)]

    def _process_one(self, item: ItemRef, raw: RawItem, stage: str) -> Outcome:
        def process() -> Outcome:
            context = ProcessContext(item, self.job.seed)
            self.processed += 1
            with self._seeded(item):
                return outcome_of(self.job.processor.process(raw, context), context)

        self.progress("process", item)
        try:
            return self._twice(process, item, (SourceUnavailable, InvalidJob))
        except (SourceUnavailable, InvalidJob):
            raise
        except Exception as error:
            return self._judge(stage, item, self._bad(stage, item, error), content_hash(raw))

    def _seeded(self, item: ItemRef) -> AbstractContextManager[None]:
        if self.job.processor.uses_global_rng:
            return seeded_globals(item_key(self.job.seed, item))
        return nullcontext()

    def judge(self, stage: str, item: ItemRef, error: BadItem, raw: RawItem = None) -> Quarantined:
        """Apply the job's policy to an item that failed: a durable verdict, or the error.

        Raises:
            BadItem: The policy is to stop.
        """
        return self._judge(stage, item, error, content_hash(raw))

    def _judge(self, stage: str, item: ItemRef, error: BadItem, digest: str) -> Quarantined:
        if self.job.on_item_error != "quarantine":
            raise error
        held = self.verdicts.find(stage, item)
        if held is None:
            reason = str(error.fields.get("reason", error.message))[:200]
            held = self.verdicts.add(Verdict(stage, item, digest, reason))
        return Quarantined(held)

    def _bad(self, stage: str, item: ItemRef, error: Exception) -> BadItem:
        if isinstance(error, BadItem):
            return error
        reason = (
            f"{type(error).__name__}: {error}"
            if not isinstance(error, PenstockError)
            else str(error)
        )
        return BadItem(
            f"item {item} of job {self.job.name!r} fails in {type(self.job.processor).__name__} "
            f"with {reason}; fix the role or the data, or set on_item_error: quarantine",
            item=list(item),
            stage=stage,
            reason=reason,
            traceback=user_traceback(error),
        )

    def _twice(
        self,
        call: Callable[[], T],
        item: ItemRef,
        final: type[Exception] | tuple[type[Exception], ...],
    ) -> T:
        """Call, and again if it fails: once may be chance, the same bytes twice are the bytes.

        Args:
            call: A role's own code.
            item: What it is called for.
            final: Errors that a second try would not change.
        """
        try:
            return self._retried(call, item)
        except final:
            raise
        except Exception as error:
            found = self._retried(call, item)
            self._tell_of("the first of two tries", error, item)
            return found

    def _tell_of(self, what: str, error: Exception, item: ItemRef | None = None) -> None:
        """Warn of an error that went away: nothing is wrong with the data, but maybe with a role.

        Once for each kind of error: a role that always does so must not fill the log.
        """
        kind = what, type(error)
        if kind not in self._told and not about_here_and_now(error):
            self._told.add(kind)
            where = "" if item is None else f" of item {item}"
            self.warn(
                f"job {self.job.name!r}: {what}{where} failed, and what came after it did not: "
                f"{error_line(error)}"
            )

    def _retried(self, call: Callable[[], T], item: ItemRef) -> T:
        """Call; retry what is about here and now, with backoff to the deadline."""
        failed_s, backoff_s = None, FIRST_BACKOFF_S
        while True:
            try:
                return contained(call)
            except Exception as error:
                if not about_here_and_now(error):
                    raise
                now = time.monotonic()
                failed_s = failed_s or now
                if now + backoff_s > failed_s + self.retry_deadline_s or not self.may_wait():
                    raise SourceUnavailable(
                        f"item {item} of job {self.job.name!r} could not be read, and was tried "
                        f"for {now - failed_s:.0f} s: {error}; check the storage, then read again",
                        item=list(item),
                    ) from error
                self.progress("retrying", item)
                time.sleep(backoff_s)
                backoff_s = min(2 * backoff_s, MAX_BACKOFF_S)

    def _prepare(self) -> None:
        if not self._ready:
            self.progress("setup", None)
            try:
                contained(self.job.processor.setup)
            except PenstockError:
                raise
            except Exception as error:
                raise InvalidJob(
                    f"{type(self.job.processor).__name__}.setup() of job {self.job.name!r} raises "
                    f"{error_line(error)}; correct the role",
                    key="processor",
                    traceback=user_traceback(error),
                ) from error
            self._ready = True


def about_here_and_now(error: Exception) -> bool:
    """Tell whether an error says nothing about the bytes: reading failed, and may work in a moment.

    A missing file is one, as on a flaky mount it comes back. Decoders raise an OSError without an
    errno for damaged bytes (Pillow does): that is about the bytes.
    """
    if isinstance(error, SourceUnavailable | TimeoutError | ConnectionError):
        return True
    return isinstance(error, OSError) and error.errno is not None


def outcome_of(result: Any, context: ProcessContext) -> Outcome:
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
    "Filtered",
    "Items",
    "Outcome",
    "Progress",
    "Quarantined",
    "VerdictBook",
    "about_here_and_now",
    "content_hash",
    "outcome_of",
]
