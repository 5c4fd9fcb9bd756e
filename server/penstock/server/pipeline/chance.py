"""Whether an item may fail by chance: it is tried again, watching for random draws.

A verdict about raw bytes holds in every epoch; one about an augmentation in that of its draws.
"""

from __future__ import annotations

import logging
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from penstock.server.core.refs import ItemRef
from penstock.server.pipeline.raws import RawItems
from penstock.server.pipeline.retry import RoleCall
from penstock.server.roles.context import ProcessContext, item_key
from penstock.server.usercode.frames import error_line
from penstock.server.usercode.seeding import drawn_since
from penstock.wire.errors import SourceUnavailable

logger = logging.getLogger("penstock")


class Chance:
    """Finds that out for the items of one job.

    Args:
        items: Reads them.
    """

    def __init__(self, items: RawItems) -> None:
        self._items, self._job = items, items.job

    def fetch_is_pure(self, item: ItemRef) -> bool:
        """Tell whether fetching an item draws nothing random, even if it fails."""
        source = self._job.sources[item.source]
        if not source.uses_global_rng:
            return True
        key = item_key(self._job.seed, item)
        what = RoleCall(source, "fetch")
        with self._items.globals as borrowed:
            borrowed.seed(key)
            try:
                self._items.retried(lambda: source.fetch([item.index]), what, item)
            except SourceUnavailable:
                raise
            except Exception as error:  # of the user's source: only whether it drew is asked here
                logger.debug("item %s fails again: %s", item, error_line(error))
            return not drawn_since(key)

    def is_chance(self, item: ItemRef, what: RoleCall) -> bool:
        """Tell whether the outcome of an item depends on random draws: it is tried again."""
        if not self.fetch_is_pure(item):
            return True
        [raw] = self._items.raws([item])
        [media] = self._items.media.of([item], [raw])
        context = ProcessContext(item, self._job.seed, media)
        processor = self._job.roles_of(item.source).processor
        borrowed: AbstractContextManager[Any] = nullcontext()
        if processor.uses_global_rng:
            borrowed = self._items.globals
        with borrowed:
            if processor.uses_global_rng:
                self._items.seed(item)
            self._items.retried(lambda: processor.process(raw, context), what, item)
            return self.drew(context, item)

    def drew(self, context: ProcessContext, item: ItemRef) -> bool:
        """Tell, while the generators are borrowed, whether processing drew anything random."""
        processor = self._job.roles_of(item.source).processor
        return context.drew or (
            processor.uses_global_rng and drawn_since(item_key(self._job.seed, item))
        )
