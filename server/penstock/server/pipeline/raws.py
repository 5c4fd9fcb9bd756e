"""Raw items: read from their sources, with what will be needed next read meanwhile."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from penstock.server.core.refs import ItemRef
from penstock.server.job.job import Job
from penstock.server.pipeline.item_media import MEDIA_ITEMS_AHEAD, ItemMedia
from penstock.server.pipeline.kept_items import KEPT_BYTES, KeptItems
from penstock.server.pipeline.retry import RETRY_DEADLINE_S, Progress
from penstock.server.pipeline.source_calls import SourceCalls
from penstock.server.roles.number_columns import SequenceColumns
from penstock.server.roles.samples import RawItem
from penstock.server.roles.source import IndexedSource
from penstock.server.usercode.contained import contained

READ_AHEAD_S = 0.001
"""Where a source takes longer than this for a call, what comes next is read meanwhile by a thread;
below it a thread costs more than it saves."""


class RawItems(SourceCalls):
    """Reads the items of one job in one process, and keeps what will be needed again.

    Args:
        job: The job.
        progress: Told what is being worked on.
        retry_deadline_s: How long a source may be unavailable.

    Attributes:
        kept_bytes: Items that are kept until they are needed again, or were read ahead, take at
            most so much memory.
        media: What items hold or name of pictures and sounds.
        takes_media: Whether any of them do.
    """

    def __init__(
        self,
        job: Job,
        progress: Progress | None = None,
        retry_deadline_s: float = RETRY_DEADLINE_S,
    ) -> None:
        super().__init__(job, progress, retry_deadline_s)
        self.kept_bytes = KEPT_BYTES
        self._may_read_ahead = all(source.may_read_ahead for source in job.sources.values())
        self._warms = self._may_read_ahead and any(
            isinstance(source, SequenceColumns) and source.waits()
            for source in job.sources.values()
        )
        self._kept: KeptItems | None = None
        self.media = ItemMedia(job)
        self.takes_media = not self.media.is_empty

    def raws(self, items: Sequence[ItemRef]) -> list[RawItem]:
        """Return the raw items: read here, unless they were read before.

        Raises:
            SourceUnavailable: After retries to the deadline; names the item.
            BadItem: The source's own code fails twice on the same item.
        """
        if self._kept is None or not items:
            return self.read(items)
        self.progress("fetch", items[0])
        kept = self._kept.take(items)
        if not kept:
            return self.read(items)
        missing = [item for item in items if item not in kept]
        if missing:
            kept.update(zip(missing, self.read(missing), strict=True))
        return [kept[item] for item in items]

    # --- what will be needed next ---

    @property
    def reads_ahead(self) -> bool:
        """Tell whether it is worth while to say what will be needed next."""
        if self.careful:
            return False
        if self._may_read_ahead and self.read_s > READ_AHEAD_S:
            return True
        return self.takes_media and self.media.waits

    @property
    def items_ahead(self) -> int:
        """Return of how many items it is worth while to say that they are next; 1 = a batch's."""
        return MEDIA_ITEMS_AHEAD if self.takes_media and self.media.waits else 1

    @property
    def warms_ahead(self) -> bool:
        """Tell whether it is worth while to say which columns will be needed next."""
        return self._warms and not self.careful

    def read_ahead(self, items: Sequence[ItemRef]) -> None:
        """Have items read by another thread while this one goes on, and their media.

        Only where `reads_ahead`, or `warms_ahead`.
        """
        if not items:
            return
        slow = self._warms or (self._may_read_ahead and self.read_s > READ_AHEAD_S)
        if slow or not self.takes_media:
            self.keeper().ask(items)
        if self.takes_media and self.media.waits:
            read = None if slow else self.read
            self.media.ask_ahead(items, self.keeper(), read)

    def keeper(self) -> KeptItems:
        """Return what keeps items that will be needed."""
        if self._kept is None:
            self._kept = KeptItems(self._read_aside, self.kept_bytes)
        return self._kept

    def _read_aside(self, items: Sequence[ItemRef]) -> list[RawItem]:
        """Read items in another thread: once, for whoever needs them tries again."""
        found: dict[ItemRef, RawItem] = {}
        for name, source in self.job.sources.items():
            own = [item for item in items if item.source == name]
            roles = self.job.roles_of(name)
            if own and roles.columns and isinstance(source, IndexedSource):
                # Only their blocks are wanted: nothing is kept of the items.
                told = partial(roles.told_sizes, source, [item.index for item in own])
                contained(partial(self.of_source, told))
            elif own:
                raws = contained(partial(self.items_of, source, own))
                found.update(zip(own, raws, strict=True))
        return [found[item] for item in items] if found else []
