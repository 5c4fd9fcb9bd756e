"""What items hold or name of pictures and sounds, as their processor is given it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

from penstock.server.core.refs import ItemRef
from penstock.server.job.job import Job
from penstock.server.media.file_medium import FileMedium
from penstock.server.media.medium import Medium
from penstock.server.pipeline.kept_items import KeptItems
from penstock.server.roles.context import ProcessContext
from penstock.server.roles.processor import MediaProcessor, RawItemProcessor
from penstock.server.roles.samples import RawItem
from penstock.server.usercode.contained import contained
from penstock.wire.errors import MissingExtra, PenstockError, SourceChanged, SourceUnavailable

logger = logging.getLogger("penstock")


MEDIA_ITEMS_AHEAD = 128
"""How many items after a batch are looked at for media that are far, whole batches at a time: they
may be decoded in less time than one reply takes."""


class ItemMedia:
    """The media of the items of one job in one process; most jobs have none.

    Args:
        job: The job.

    Attributes:
        is_empty: No processor of the job takes media.
    """

    def __init__(self, job: Job) -> None:
        self._job = job
        # Asked for each batch, of most jobs in vain: no property.
        self._sets = [roles for roles in job.role_sets if roles.media is not None]
        self.is_empty = not self._sets

    def of(self, items: Sequence[ItemRef], raws: Sequence[RawItem]) -> list[Sequence[Medium]]:
        """Return the media that items of one set of roles refer to.

        Raises:
            BadItem: A reference is none, or leads where the job does not allow.
            Exception: Whatever `references` raises.
        """
        roles = self._job.roles_of(items[0].source)
        processor, reader = roles.processor, roles.media
        if reader is None or not isinstance(processor, MediaProcessor):
            return [()] * len(items)
        said = contained(lambda: [list(processor.references(raw)) for raw in raws])
        return [
            reader.media(references, item.source)
            for item, references in zip(items, said, strict=True)
        ]

    @property
    def waits(self) -> bool:
        """Tell whether it is worth while to ask for media before they are needed."""
        return any(roles.media is not None and roles.media.fetching.waits for roles in self._sets)

    def ask(
        self,
        items: Sequence[ItemRef],
        raws: Sequence[RawItem],
        *,
        now: bool,
        count: int | None = None,
    ) -> None:
        """Have the media of items of one set of roles fetched; only where it `waits`.

        Parts of media that the processor names are held until `release`.

        Args:
            items: The items.
            raws: What their source gave.
            now: They are needed before all that was asked for earlier.
            count: How many bytes of each medium; None = all.
        """
        roles = self._job.roles_of(items[0].source)
        reader, processor = roles.media, roles.processor
        if reader is None or not isinstance(processor, MediaProcessor):
            return
        wanted: list[FileMedium] = []
        for item, raw in zip(items, raws, strict=True):
            try:
                [media] = self.of([item], [raw])
                said = partial(processor.parts_read, raw, media, for_size=count is not None)
                parts = contained(said)
            except Exception as error:  # of this item: it is named once it is needed
                logger.debug("the media of item %s are not fetched ahead: %s", item, error)
                continue
            for medium, spans in zip(media, parts, strict=True):
                if not isinstance(medium, FileMedium):
                    continue
                if spans:
                    reader.parts.ask(medium, spans, item, now=now)
                elif spans is None and (count is not None or processor.reads_whole):
                    wanted.append(medium)
        if wanted:
            reader.fetching.ask(wanted, count, now=now)

    def release(self, items: Iterable[ItemRef]) -> None:
        """Let others have the room of the parts that were held for these items."""
        for roles in self._sets:
            if roles.media is not None:
                roles.media.parts.release(items)

    def ask_ahead(
        self,
        items: Sequence[ItemRef],
        kept: KeptItems,
        read: Callable[[Sequence[ItemRef]], list[RawItem]] | None,
    ) -> None:
        """Have the media of coming items fetched, as far as their raw items are known.

        Args:
            items: The items, of any source.
            kept: Raw items that were read before.
            read: Reads the others at once; None = that would take long: a thread of `kept` does.
        """
        known = kept.look(items)
        missing = [item for item in items if item not in known]
        if missing and read is not None:
            try:
                raws = read(missing)
            except PenstockError as error:  # they are read again when they are needed
                logger.debug("%s was not read ahead: %s", missing[0], error)
            else:
                kept.keep(missing, raws)
                known.update(zip(missing, raws, strict=True))
        for source in dict.fromkeys(item.source for item in known):
            own = [item for item in items if item in known and item.source == source]
            self.ask(own, [known[item] for item in own], now=False)

    def contexts(self, items: Sequence[ItemRef], raws: Sequence[RawItem]) -> list[ProcessContext]:
        """Return the contexts in which items of one set of roles are processed; raises as `of`."""
        seed = self._job.seed
        if self.is_empty:
            return [ProcessContext(item, seed) for item in items]
        media = self.of(items, raws)
        return [ProcessContext(item, seed, own) for item, own in zip(items, media, strict=True)]

    def size(self, item: ItemRef, raw: RawItem, processor: RawItemProcessor) -> Any:
        """Return what a processor says of an item's size, by the heads of its media if it has any.

        Raises:
            Exception: As `of`, or whatever `size` raises.
        """
        if not isinstance(processor, MediaProcessor):
            return processor.size(raw)
        [media] = self.of([item], [raw])
        size = processor.size(raw, media)
        raise_failure(media)
        return size


def raise_failure(media: Sequence[Medium]) -> None:
    """Raise what is true of the moment or of a file, though the processor caught it.

    Raises:
        SourceUnavailable: One of the media could not be read at the moment.
        SourceChanged: One is not the one that was there.
        MissingExtra: This machine lacks the package that reads one.
    """
    for medium in media:
        if isinstance(medium.failure, SourceUnavailable | SourceChanged | MissingExtra):
            raise medium.failure
