"""Raw items to samples, with the processor: what happens to every item that is drawn.

What is about the moment is retried, see `penstock.server.pipeline.retry`. What fails twice on the
same bytes is a bad item, named here and judged elsewhere.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

from penstock.server.core.refs import ItemRef
from penstock.server.job.job import Job
from penstock.server.media.medium import Medium
from penstock.server.pipeline.chance import Chance
from penstock.server.pipeline.item_media import raise_failure
from penstock.server.pipeline.known_verdicts import Bad, content_hash
from penstock.server.pipeline.raws import RawItems
from penstock.server.pipeline.retry import RETRY_DEADLINE_S, Progress, RoleCall
from penstock.server.roles.context import ProcessContext
from penstock.server.roles.processor import RawItemProcessor
from penstock.server.roles.samples import RawItem, Sample
from penstock.server.usercode.contained import contained
from penstock.server.usercode.frames import error_line, user_traceback
from penstock.wire.errors import (
    BadItem,
    InvalidJob,
    MissingExtra,
    PenstockError,
    SourceChanged,
    SourceUnavailable,
)

NEVER_ABOUT_AN_ITEM = (SourceUnavailable, SourceChanged, InvalidJob, MissingExtra)
"""What these say is true of a node, of a file or of the job: no item is judged for it."""


class Filtered(NamedTuple):
    """The processor gave no sample for an item."""

    reason: str


class ProcessedItems(RawItems):
    """Fetches and processes the items of one job in one process.

    Args:
        job: The job.
        progress: Told what is being worked on.
        retry_deadline_s: How long a source may be unavailable.

    Attributes:
        processed: How often `process` was called.
        process_s: How long that usually takes for an item that a planner draws.
        watches_draws: Ask of each item whether it drew random numbers, until one did.
        drew: Whether one did, since this was set to False.
    """

    def __init__(
        self,
        job: Job,
        progress: Progress | None = None,
        retry_deadline_s: float = RETRY_DEADLINE_S,
    ) -> None:
        super().__init__(job, progress, retry_deadline_s)
        self.processed, self.process_s = 0, 0.0
        self.watches_draws = self.drew = False
        self.chance = Chance(self)
        self._ready = False
        self._drew_first = False  # the last item that failed drew random numbers before
        self._processed_by: dict[str, RoleCall] = {}  # by source, asked once

    def outcomes(
        self, items: Sequence[ItemRef], stage: str, coming: Sequence[ItemRef] = ()
    ) -> list[list[Sample] | Filtered | Bad]:
        """Return what processing gives for each item; nobody is judged, no verdict looked up.

        Args:
            items: The items, each once; all of sources of one set of roles, as a lane draws them.
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
        if self.takes_media and self.media.waits and not self.careful:
            self.media.ask(items, raws, now=True)
        if coming:
            self.read_ahead(coming)
        began_s = time.perf_counter()
        found = self._process(items, raws, stage)
        item_s = (time.perf_counter() - began_s) / len(items)
        self.process_s += 0.1 * (item_s - self.process_s)
        if self.takes_media:
            self.media.release(items)
        return found

    def _alone(self, item: ItemRef, stage: str) -> list[Sample] | Filtered | Bad:
        """Fetch and process one item whose neighbours must not suffer from it."""
        try:
            [raw] = self.raws([item])
        except BadItem as error:
            return Bad(error, content_hash(None), self.chance.fetch_is_pure(item))
        return self._process([item], [raw], stage)[0]

    def _process(
        self, items: Sequence[ItemRef], raws: Sequence[RawItem], stage: str
    ) -> list[list[Sample] | Filtered | Bad]:
        # A lane draws from the sources of one set of roles, so all of these are of one.
        processor = self.job.roles_of(items[0].source).processor
        if len(items) > 1 and not processor.uses_global_rng and not self.careful:
            self.progress("process", items[0])
            try:
                if self.takes_media:
                    contexts = self.media.contexts(items, raws)
                else:
                    contexts = [ProcessContext(item, self.job.seed) for item in items]
                results = contained(lambda: processor.process_batch(raws, contexts))
                if self.takes_media:
                    raise_failure([medium for context in contexts for medium in context.media])
            except Exception as error:
                # One of them fails, and is named when it is alone.
                outcomes = self._one_by_one(items, raws, stage, processor)
                if not any(isinstance(outcome, Bad) for outcome in outcomes):
                    self.tell_of(RoleCall(processor, "process_batch"), error)
                return outcomes
            self.processed += len(items)
            if self.watches_draws and not self.drew:
                self.drew = any(context.drew for context in contexts)
            return [
                outcome_of(result, context)
                for result, context in zip(results, contexts, strict=True)
            ]
        return self._one_by_one(items, raws, stage, processor)

    def _one_by_one(
        self,
        items: Sequence[ItemRef],
        raws: Sequence[RawItem],
        stage: str,
        processor: RawItemProcessor,
    ) -> list[list[Sample] | Filtered | Bad]:
        pairs = zip(items, raws, strict=True)
        if not processor.uses_global_rng:
            return [self._process_one(item, raw, stage, processor) for item, raw in pairs]
        with self.globals:
            return [self._process_one(item, raw, stage, processor) for item, raw in pairs]

    def _process_one(
        self, item: ItemRef, raw: RawItem, stage: str, processor: RawItemProcessor
    ) -> list[Sample] | Filtered | Bad:
        what = self.processing(item)
        self.progress("process", item)
        media: Sequence[Medium] = ()
        try:
            media = self.media.of([item], [raw])[0] if self.takes_media else ()
        except NEVER_ABOUT_AN_ITEM:
            raise
        except Exception as error:
            bad = self.bad_item(stage, RoleCall(processor, "references"), item, error)
            return Bad(bad, content_hash(raw), every_epoch=True)
        try:
            process = partial(self._process_once, item, raw, processor, media)
            return self.twice(process, what, item, NEVER_ABOUT_AN_ITEM)
        except NEVER_ABOUT_AN_ITEM:
            raise
        except Exception as error:
            bad = self.bad_item(stage, what, item, error)
            return Bad(bad, content_hash(raw), every_epoch=not self._drew_first)

    def _process_once(
        self, item: ItemRef, raw: RawItem, processor: RawItemProcessor, media: Sequence[Medium]
    ) -> list[Sample] | Filtered:
        """Process an item; where that fails, note whether anything random was drawn before."""
        context = ProcessContext(item, self.job.seed, media)
        self.processed += 1
        if processor.uses_global_rng:
            self.seed(item)
        try:
            outcome = outcome_of(processor.process(raw, context), context)
            if media:
                raise_failure(media)
        except BaseException:
            self._drew_first = self.chance.drew(context, item)
            raise
        if self.watches_draws and not self.drew:
            self.drew = self.chance.drew(context, item)
        return outcome

    def processing(self, item: ItemRef) -> RoleCall:
        """Return the code that decides what processing an item gives."""
        found = self._processed_by.get(item.source)
        if found is None:
            processor = self.job.roles_of(item.source).processor
            author = processor.author(self.job.sources[item.source])
            found = RoleCall(author, "process" if author is processor else "fetch")
            self._processed_by[item.source] = found
        return found

    def set_up(self) -> None:
        """Have the processors set up what they need, once.

        Raises:
            InvalidJob: One fails.
            SourceUnavailable, MissingExtra: As `retried`.
        """
        if not self._ready:
            for roles in self.job.role_sets:
                self._set_up(roles.processor)
            self._ready = True

    def _set_up(self, processor: RawItemProcessor) -> None:
        what = RoleCall(processor, "setup")
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
