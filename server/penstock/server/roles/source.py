"""What gives raw items: by index, or as a stream of rows."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from typing_extensions import override

from penstock.server.roles.column_runs import ColumnRuns
from penstock.server.roles.condition import Condition, Kept
from penstock.server.roles.episode_table import EpisodeTable
from penstock.server.roles.reading import Blocks
from penstock.server.roles.role import Role, asked
from penstock.server.roles.stream_rows import ShardRows
from penstock.wire.errors import InvalidJob
from penstock.wire.item_numbers import row_index, shard_row

if TYPE_CHECKING:
    from penstock.server.files.catalog import HandedOver
from penstock.server.roles.samples import RawItem

COLUMN_ITEMS = 1 << 16
"""Items whose column is looked at together: long enough that a call costs nothing beside them."""


class Source(Role, ABC):
    """Raw records. Its data never changes while a job exists.

    What a distributor can do with a source is decided by what it offers beside this: derive yours
    from `IndexedSource` where any item can be read by its number, from `StreamSource` where items
    come one after another.

    Class attributes:
        uses_global_rng: True says that `fetch` may draw from the generators of random, numpy or
            torch (a Dataset that augments in `__getitem__`); then items are fetched one by one,
            with these generators seeded before each.
        gives_fresh_items: True promises that `fetch` makes every item anew and keeps no part of
            it. Else items are copied before a processor sees them: one that writes into what it is
            given would change what the source gives the next time.
        may_read_ahead: True says that `fetch` may be called from another thread than the one that
            processes, while that one works: a call at a time, never two at once. Where a call takes
            long, coming items are read meanwhile.

    Glossary:
        source: Where raw items come from: by index, or as a stream of rows. A job has one, or
            several by name.
    """

    uses_global_rng: ClassVar[bool] = False
    gives_fresh_items: ClassVar[bool] = False
    may_read_ahead: ClassVar[bool] = False

    @abstractmethod
    def fetch(self, indices: Sequence[int]) -> list[RawItem]:
        """Return the items of refs: their `index` each, in that order; duplicates are allowed.

        Raises:
            SourceUnavailable: The bytes cannot be read at this moment (OSError, timeout, 5xx).
            SourceChanged: A file is not the one that was opened.
        """

    @abstractmethod
    def is_empty(self) -> bool:
        """Tell whether there is nothing to draw."""

    @abstractmethod
    def spread(self, count: int) -> Iterator[int]:
        """Yield up to `count` items' indices, spread over the data: always the same ones."""

    def reads_anywhere(self) -> bool:
        """Tell whether any process reads an item as cheaply as the one that drew it.

        Otherwise batches are made by the worker that planned them.
        """
        return True

    def heads(self, indices: Sequence[int], columns: Sequence[str] | None = None) -> list[RawItem]:
        """Return what `RawItemProcessor.size` needs of the items at `indices`, in that order.

        By default the items themselves. Override it where a part of an item is cheaper to read than
        the whole, and the sizes are known from it: a header, a column, an index of lengths.

        Args:
            indices: Which items.
            columns: The processor's `size_columns`: the columns that `size` looks at.

        Raises:
            SourceUnavailable, SourceChanged: As `fetch`.
        """
        return self.fetch(indices)

    def has_heads(self, columns: Sequence[str] | None) -> bool:
        """Tell whether `heads` gives less than whole items, where `size` looks at these columns.

        Otherwise items that were read for their sizes are kept until their batch is made.
        """
        return not self.keeps(Source, "heads")

    def check_present(self) -> None:  # optional
        """Check that everything the source reads from is unchanged since it was opened.

        Called when a run begins, in a thread of its own, maybe while others fetch; it reads
        nothing, and makes no network calls.

        Raises:
            SourceChanged: A file is missing or another; names it.
        """

    @abstractmethod
    def fingerprint(self) -> Any:
        """Return what identifies the content, as JSON: names, sizes, hashes; no times or paths."""

    def columns_of_items(self) -> Mapping[str, str] | None:
        """Return the keys that items may have, with Arrow's name of their type; "" = unknown.

        None = items are not dicts, or nothing is known before they are read.
        """
        return None

    def shown_frames(self) -> Mapping[str, tuple[int, int, int]]:
        """Return how many pictures each item shows, by key, with their height and width.

        As far as they are declared before anything is read; keys of which nothing is are left out.
        """
        return {}

    def unseen(self) -> str | None:
        """Return a sentence about content that `fingerprint` does not tell, or None."""
        return None

    def remarks(self) -> list[str]:
        """Return sentences about what is left out, and what reading costs that it need not."""
        return []

    def check_identity(self) -> None:
        """Refuse invalid parameters, without the fingerprint, which reads data."""
        self.content()

    def identity(self) -> dict[str, Any]:
        """Return the role's identity with the fingerprint of the content in it."""
        return {**super().identity(), "fingerprint": asked(self, "fingerprint")}

    def hand_over(self) -> Sequence[HandedOver]:
        """Return what this process knows of the source's files, for the workers of its node.

        They open the source without looking at the files again. Without any, every process opens
        the files itself.
        """
        return ()

    def media_dirs(self) -> Mapping[str, str]:
        """Return directories that its items' media are relative to, by name.

        That of the name "" is for references that name none; others have it as their `dir`. What
        lies there may be read, whatever the job says of media.
        """
        return {}

    def read_bytes(self) -> int:
        """Return how many bytes were read from storage since the last call: a metric."""
        return 0

    def close(self) -> None:  # most sources hold nothing
        """Close files and connections."""


class IndexedSource(Source):
    """Items by their numbers, from 0 on: any of them can be read at any time."""

    @abstractmethod
    def __len__(self) -> int:
        """Return how many items there are."""

    @abstractmethod
    def fetch(self, indices: Sequence[int]) -> list[RawItem]:
        """Return the items at `indices`, in that order; reads are coalesced, duplicates allowed.

        Raises:
            SourceUnavailable: The bytes cannot be read at this moment (OSError, timeout, 5xx).
            SourceChanged: A file is not the one that was opened.
        """

    def sizes(self, indices: Sequence[int]) -> Sequence[int] | None:
        """Return the sizes of items as batchers count them, such as tokens, without reading them.

        Override it if there is an index of lengths beside the data: if the processor leaves items
        as they are (`keeps_sizes`), batches are planned without reading anything. None = there is
        no index.

        Raises:
            SourceUnavailable, SourceChanged: As `fetch`.
        """
        return None

    def knows_sizes(self) -> bool:
        """Tell whether `sizes` gives an answer: by default whether a subclass overrides it."""
        return not self.keeps(IndexedSource, "sizes")

    def has_column(self, name: str) -> bool:
        """Tell whether `column` gives this column, so that items can be chosen by it.

        By default whether `heads` does.
        """
        return name in (self.columns_of_items() or ()) and self.has_heads((name,))

    def column(self, name: str, start: int, stop: int) -> Any:
        """Return one column of the items `[start, stop)`, read without the rest of them.

        Override it, and `has_column`, where that is much cheaper than the items, and than `heads`,
        which it calls by default.

        Returns:
            An Arrow array, or a sequence of Python values; None where an item has no such value.

        Raises:
            SourceUnavailable, SourceChanged: As `fetch`.
        """
        return [head.get(name) for head in self.heads(range(start, stop), (name,))]

    def matching(self, where: Condition) -> Kept:
        """Return which items a condition on columns keeps; rarely overridden.

        Args:
            where: It looks at columns that this has (`has_column`).

        Raises:
            InvalidJob: The values cannot be compared with what is asked for.
            SourceUnavailable, SourceChanged: As `fetch`.
        """
        kept = np.ones(len(self), dtype=bool)
        for name in where.columns:
            for start in range(0, len(self), COLUMN_ITEMS):
                stop = min(start + COLUMN_ITEMS, len(self))
                kept[start:stop] &= where.holds(name, self.column(name, start, stop))
        return Kept.of(kept)

    def runs(self, column: str) -> ColumnRuns:
        """Return where a column has another value than before; rarely overridden.

        Args:
            column: One that this has (`has_column`).

        Raises:
            ValueError: It has something else than whole numbers and texts; names the item.
            SourceUnavailable, SourceChanged: As `fetch`.
        """
        return ColumnRuns.joined(
            ColumnRuns.of(self.column(column, start, min(start + COLUMN_ITEMS, len(self))), start)
            for start in range(0, len(self), COLUMN_ITEMS)
        )

    def blocks(self) -> Blocks | None:
        """Return the storage blocks; None = random access is cheap."""
        return None

    def episode_table(self) -> EpisodeTable | None:
        """Return which items make an episode each; None = they are not known to belong together.

        The same in every process, and part of what `fingerprint` identifies.
        """
        return None

    def keep_blocks(self, count: int) -> None:  # optional
        """Keep this many decoded blocks, those used last; 0 = forget all.

        Called by the process that fetches, at first and whenever the number changes that it needs.
        """

    def most_cached_bytes(self) -> int | None:
        """Return the most bytes that `keep_blocks` keeps; None = as many as are needed."""
        return None

    def fingerprint(self) -> Any:
        """Return what identifies the content, as JSON: by default only the length."""
        return {"length": len(self)}

    @override
    def unseen(self) -> str | None:
        if self.keeps(IndexedSource, "fingerprint"):
            return unseen_sentence(type(self).__name__)
        return None

    def is_empty(self) -> bool:
        """Tell whether the length is 0."""
        return len(self) == 0

    def spread(self, count: int) -> Iterator[int]:
        """Yield numbers at equal distances."""
        total = len(self)
        tries = min(count, total)
        yield from (number * total // tries for number in range(tries))


class StreamSource(Source):
    """Items that come one after another: shards of rows, each read from its start or from a mark.

    A ref names shard and row (`penstock.wire.item_numbers`), so a row that is needed again, after a
    restart or by another worker, is found by reading on from the nearest mark before it. Marks only
    save
    time: a source that gives none is read from the start of the shard. How many rows a shard holds
    is known when its end is reached.

    Glossary:
        stream: A source whose rows are read one after another; its items have no index.
    """

    @abstractmethod
    def shards(self) -> Sequence[str]:
        """Return the shards' names, in an order that the content decides."""

    @abstractmethod
    def open(self, shard: int, mark: Any) -> Iterator[tuple[RawItem, Any]]:
        """Yield the rows of a shard in order, each with the mark of the row after it.

        Which rows have a mark depends on the content alone, never on where reading began: marks are
        part of snapshots. Files are closed with the iterator. A row that cannot be decoded
        should be given as its bytes, for the processor to refuse: an error here ends the lane.

        Args:
            shard: Its number.
            mark: Where to begin: JSON-able, as this has given it; None = at the first row.

        Yields:
            The item, and what `open` needs to begin with the next row; None = reading cannot begin
            there.

        Raises:
            OSError: It cannot be read at this moment: it is opened again.
        """

    def reads_anywhere(self) -> bool:
        """Return False: another process would have to read the shard up to the row again."""
        return False

    @cached_property
    def rows(self) -> ShardRows:
        """Return this process's reader of rows by shard and number."""
        return ShardRows(self)

    def fetch(self, indices: Sequence[int]) -> list[RawItem]:
        """Return rows, in the order of their refs' `index`.

        Raises:
            SourceUnavailable: A shard cannot be read at this moment.
            SourceChanged: A shard has no such row any more.
        """
        # Read in order: a row that is read before those that lie before it has them read again.
        found: list[RawItem] = [None] * len(indices)
        for at in sorted(range(len(indices)), key=indices.__getitem__):
            found[at] = self.rows.take(*shard_row(indices[at]))
        return found

    def is_empty(self) -> bool:
        """Tell whether it has no shards; that all of them are empty shows only as they are read."""
        return len(self.shards()) == 0

    def spread(self, count: int) -> Iterator[int]:
        """Yield the first rows of shards at equal distances, then the second ones, and so on."""
        total = len(self.shards())
        tries = min(count, total)
        going = [number * total // tries for number in range(tries)]
        found = row = 0
        while going:
            going = [shard for shard in going if self.rows.look(shard, row) is not None]
            for shard in going[: count - found]:
                yield row_index(shard, row)
            found, row = found + len(going), row + 1
            if found >= count:
                return

    def close(self) -> None:
        """Close the shards that are open."""
        self.rows.close()


def unseen_sentence(name: str) -> str:
    """Return the warning about a source or a Dataset without a fingerprint of its content."""
    return (
        f"{name} has no fingerprint(), so the log id does not know the data that it reads: where "
        "that changes, a run goes on in the changed data without an error; give it a method "
        "fingerprint() that returns names, sizes and hashes of its files, or a version"
    )


def indexed(sources: Mapping[str, Source], names: Iterable[str], user: Role) -> list[IndexedSource]:
    """Return sources of a job whose items can be read by number.

    Args:
        sources: The job's sources.
        names: Which of them.
        user: The role that needs them.

    Raises:
        InvalidJob: There is no such source, or it cannot; names both roles.
    """
    found: list[IndexedSource] = []
    for name in names:
        source = _named(sources, name)
        if not isinstance(source, IndexedSource):
            raise InvalidJob(
                f"{_called(user)} draws items by number, and source {name!r} ({_called(source)}) "
                "does not give them so: use a distributor that reads streams, or derive the source "
                "from penstock.server.roles.IndexedSource",
                key="distributor",
            )
        found.append(source)
    return found


def streaming(sources: Mapping[str, Source], name: str, user: Role) -> StreamSource:
    """Return a source of a job that is read row after row.

    Raises:
        InvalidJob: There is no such source, or it is not; names both roles.
    """
    source = _named(sources, name)
    if not isinstance(source, StreamSource):
        raise InvalidJob(
            f"{_called(user)} deals the shards of a stream, and source {name!r} "
            f"({_called(source)}) has none: use the distributor map, or derive the source from "
            "penstock.server.roles.StreamSource",
            key="distributor",
        )
    if source.uses_global_rng:
        raise InvalidJob(
            f"source {name!r} ({_called(source)}) says uses_global_rng, and a stream has no item "
            "to seed the generators for when it reads: draw what is random in the processor",
            key="source",
        )
    return source


def _named(sources: Mapping[str, Source], name: str) -> Source:
    if name not in sources:
        raise InvalidJob(
            f"the distributor draws from a source {name!r}, and the job has "
            f"{', '.join(map(repr, sources))}: name one of them with source",
            key="distributor.source",
        )
    return sources[name]


def _called(role: Role) -> str:
    return str(vars(type(role)).get("type_name") or type(role).__name__)
