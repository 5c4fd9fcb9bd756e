"""What items hold or name of pictures and sounds, as their processor is given it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from penstock.server.core.refs import ItemRef
from penstock.server.job.job import Job
from penstock.server.media.medium import Medium
from penstock.server.roles.context import ProcessContext
from penstock.server.roles.processor import MediaProcessor, RawItemProcessor
from penstock.server.roles.samples import RawItem
from penstock.server.usercode.contained import contained
from penstock.wire.errors import MissingExtra, SourceChanged, SourceUnavailable


class ItemMedia:
    """The media of the items of one job in one process; most jobs have none.

    Args:
        job: The job.
    """

    def __init__(self, job: Job) -> None:
        self._job = job

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
        return [reader.media(references) for references in said]

    def contexts(self, items: Sequence[ItemRef], raws: Sequence[RawItem]) -> list[ProcessContext]:
        """Return the contexts in which items of one set of roles are processed; raises as `of`."""
        media = self.of(items, raws)
        seed = self._job.seed
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
