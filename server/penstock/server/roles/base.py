"""What a user writes: a source and the four roles, small classes with one required method each.

```
Source            DataDistributor ->  RawItemProcessor  ->  SampleBatcher  ->  BatchCollator
fetches items     which item next     raw item -> samples   samples -> rows    rows -> named values
```

| class | required | often overridden |
|---|---|---|
| `IndexedSource` | `__len__`, `fetch` | `fingerprint`, `heads`, `sizes`, `blocks`, `close` |
| `StreamSource` | `shards`, `open`, `fingerprint` | `close` |
| `DataDistributor` | `draw` or `open` | `draws` |
| `RawItemProcessor` | `process` | `size`, `process_batch`, `setup`, `cut` |
| `SampleBatcher` | `add` | `flush`, `pending`, `size_of`, `dropped` |
| `BatchCollator` | `collate` | `specs`, `blank` |

Every role is a pure function of what it is given. None of them knows a rank, a worker or a node.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import takewhile
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np
from typing_extensions import override

from penstock.server.core.refs import ItemRef, Row, Rows, SampleRef
from penstock.server.roles import role_state
from penstock.server.roles.condition import Condition, Kept
from penstock.server.roles.context import CollateContext, ProcessContext
from penstock.server.roles.draws import LaneDraws, NumberedDraws
from penstock.server.roles.filling import BatchSizes, Filling
from penstock.server.roles.reading import Blocks, Reading
from penstock.server.roles.role import Role, asked
from penstock.server.roles.stream_rows import ShardRows
from penstock.wire.errors import InvalidJob
from penstock.wire.item_numbers import row_index, shard_row

if TYPE_CHECKING:
    from penstock.server.files.catalog import Catalog

COLUMN_ITEMS = 1 << 16
"""Items whose column is looked at together: long enough that a call costs nothing beside them."""

RawItem = Any
"""What a source gives: a dict of columns, bytes, or whatever its data is."""

Sample = dict[str, Any]
"""What a processor gives: the named values of an example."""


# --- the source -----------------------------------------------------------------------------------


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

    def unseen(self) -> str | None:
        """Return a sentence about content that `fingerprint` does not tell, or None."""
        return None

    def check_identity(self) -> None:
        """Refuse invalid parameters, without the fingerprint, which reads data."""
        self.content()

    def identity(self) -> dict[str, Any]:
        """Return the role's identity with the fingerprint of the content in it."""
        return {**super().identity(), "fingerprint": asked(self, "fingerprint")}

    def hand_over(self) -> Sequence[Catalog]:
        """Return what this process knows of the source's files, for the workers of its node.

        They open the source without looking at the files again. Without any, every process opens
        the files itself.
        """
        return ()

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

    def blocks(self) -> Blocks | None:
        """Return the storage blocks; None = random access is cheap."""
        return None

    def keep_blocks(self, count: int) -> None:  # optional
        """Keep this many decoded blocks, those used last; 0 = forget all.

        Called by the process that fetches, at first and whenever the number changes that it needs.
        """

    def most_kept_bytes(self) -> int | None:
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
        """Tell whether there are no shards; only reading shows whether all of them are empty."""
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


# --- the distributor ------------------------------------------------------------------------------


class Target(NamedTuple):
    """The share that a part of a mixture shall have.

    Attributes:
        part: Its name; of a part of a part `outer/inner`.
        by: What it is a share of: `items`, `tokens`, or `lanes`.
        share: From 0 to 1, of the whole.
    """

    part: str
    by: str
    share: float


class DataDistributor(Role, ABC):
    """Decides the draws of every lane: which item comes next.

    Most override `draw`, for draws that their number decides. If draws depend on earlier ones,
    override `open`.

    Class attributes:
        ends_by_epochs: True promises that every lane is over after the `epochs` that `bind` is
            given, although `draws` does not say how many draws that takes. Without either a job
            cannot have `epochs`.

    Glossary:
        distributor: Decides which item a lane draws next.
    """

    ends_by_epochs: ClassVar[bool] = False

    sources: Mapping[str, Source]
    seed: int
    epochs: int | None

    def bind(
        self, sources: Mapping[str, Source], seed: int, epochs: int | None, lanes: int
    ) -> None:
        """Take the job's sources, seed and lanes; called once when the job is built.

        Raises:
            InvalidJob: It cannot draw from such sources.
        """
        if self.keeps(DataDistributor, "draw", "open"):
            raise InvalidJob(
                f"{type(self).__name__} draws nothing: give it a method draw(lane, lanes, k), or "
                "open(lane, lanes)",
                key="distributor",
            )
        self.sources, self.seed, self.epochs = sources, seed, epochs

    def reading(self) -> Reading | None:
        """Return how storage blocks are read; None = there are none, or reading is at random."""
        return None

    def readings(self) -> Sequence[Reading]:
        """Return how storage blocks are read, where several parts are read in their own ways.

        By default what `reading` returns, if it is not None.
        """
        found = self.reading()
        return () if found is None else (found,)

    @property
    def needs_sizes(self) -> bool:
        """Tell whether `took` must be told sizes, even if the batcher needs none."""
        return False

    def draw(self, lane: int, lanes: int, k: int) -> ItemRef | None:
        """Return the k-th draw of a lane, purely from the arguments; None = the lane is over."""
        raise TypeError(f"{type(self).__name__} opens lanes and draws nothing by number")

    def draw_many(self, lane: int, lanes: int, k: int, count: int) -> list[ItemRef]:
        """Return draws k, k + 1, ... of a lane: `count`, or fewer where it ends."""
        found = (self.draw(lane, lanes, number) for number in range(k, k + count))
        return list(takewhile(lambda item: item is not None, found))  # type: ignore[arg-type]

    def draws(self, lane: int, lanes: int) -> int | None:
        """Return how many draws a lane has, by arithmetic; None = endless or unknown."""
        return None

    def open(self, lane: int, lanes: int) -> LaneDraws:
        """Return the draws of one lane as a stream with a state; rarely overridden."""
        return NumberedDraws(self, lane, lanes)

    def remarks(self) -> list[str]:
        """Return sentences about what these draws cost that they need not; once it is bound.

        `penstockd check` shows them, and a node logs them at its start.
        """
        return [line for each in self.inner() for line in each.remarks()]

    def drawn_from(self) -> Collection[str]:
        """Return the names of the sources that are drawn from, once it is bound.

        By default the one that an attribute `source` names, else all.
        """
        only = getattr(self, "source", None)
        return (only,) if isinstance(only, str) else tuple(self.sources)

    def targets(self) -> Sequence[Target]:
        """Return the shares that parts of the draws shall have, once it is bound; mostly none."""
        return ()

    def inner(self) -> Sequence[DataDistributor]:
        """Return the distributors that this one draws by, once it is bound; mostly none."""
        return ()

    def epoch_draws(self, lanes: int) -> int | None:
        """Return about how many draws of a lane make an epoch; None = not known."""
        total = 0
        for source in self.sources.values():
            if not isinstance(source, IndexedSource):
                return None
            total += len(source)
        return max(1, -(-total // lanes))


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


# --- the processor --------------------------------------------------------------------------------


class RawItemProcessor(Role, ABC):
    """Turns a raw item into samples. Pure: random numbers come from `context.rng`.

    Class attributes:
        one_to_one: True promises exactly one sample for every item, never a filter. Then, where the
            batcher needs no sizes or `size` knows them, batches are planned from refs alone and
            items are processed only when they leave the pool, by any worker.
        uses_global_rng: The generators of random, numpy and torch are seeded before each item, so
            that existing augmentation code is reproducible without changes; False promises not to
            use them, and saves about 10 us an item.
        size_columns: The columns that `size` looks at, where items are dicts: a source that reads
            columns alone brings only these until the batch is made. None = the whole item.

    Glossary:
        processor: Turns a raw item into samples.
    """

    one_to_one: ClassVar[bool] = False
    uses_global_rng: ClassVar[bool] = True
    size_columns: ClassVar[Sequence[str] | None] = None

    @abstractmethod
    def process(self, raw: RawItem, context: ProcessContext) -> Sample | Sequence[Sample] | None:
        """Return the sample of an item, several samples, or None to filter it.

        Raises:
            Exception: If it raises twice for the same bytes, the item is a `BadItem`. Errors that
                may be temporary are retried, and never make one: see `core.transient`.
        """

    def author(self, source: Source) -> Role:
        """Return the role whose code decides what `process` gives: errors name it.

        Args:
            source: Where the item comes from.
        """
        return self

    def process_batch(
        self, raws: Sequence[RawItem], contexts: Sequence[ProcessContext]
    ) -> list[Sample | Sequence[Sample] | None]:
        """Return what `process` gives for each item; override it if many at once are cheaper."""
        return [self.process(raw, context) for raw, context in zip(raws, contexts, strict=True)]

    def size(self, raw: RawItem) -> int | None:
        """Return the size of the one sample of an item without decoding it; None = not known.

        It must not change `raw`: the same object may go to `process`. With `size_columns`, and
        with a source that has heads of items, it may be given these in place of the whole item.
        """
        return None

    def knows_size(self) -> bool:
        """Tell whether `size` gives an answer: by default whether a subclass overrides it."""
        return not self.keeps(RawItemProcessor, "size")

    def keeps_sizes(self) -> bool:
        """Tell whether a sample is as large as its item, so that the source's `sizes` hold for it.

        It is called if `size` is not overridden; the promise is part of `one_to_one`.
        """
        return False

    def for_lengths(self, key: str) -> RawItemProcessor:
        """Return a processor that filters, splits and fails alike, for who only takes lengths.

        In its samples `key` may hold anything that is as long: an index of sizes needs no more.

        Args:
            key: Whose length is taken.
        """
        return self

    def passes_items(self) -> bool:
        """Tell whether a sample is its item, unchanged: then nothing need be called for it."""
        return False

    def check_columns(self, columns: Mapping[str, str]) -> None:  # optional
        """Refuse a source whose items lack a column that this needs; called with the job's source.

        Args:
            columns: What `Source.columns_of_items` returns, if that is not None.

        Raises:
            InvalidJob: Every item would fail.
        """

    def keys_of_samples(self, columns: Mapping[str, str] | None) -> Sequence[str] | None:
        """Return the keys that samples have, given those of the items; None = not known."""
        return None

    def setup(self) -> None:  # optional
        """Load what processing needs; called once in each worker before the first item."""

    def cut(self, sample: Sample, start: int, stop: int, size: int) -> Sample:
        """Return elements `[start, stop)` of a sample of `size` elements.

        By default every one-dimensional value of exactly `size` elements is sliced and all others
        are kept whole.
        """
        return {
            name: value[start:stop] if _length(value) == size else value
            for name, value in sample.items()
        }


def _length(value: Any) -> int | None:
    if isinstance(value, (str, bytes)):
        return None
    if isinstance(value, list | tuple):
        return len(value)
    shape = getattr(value, "shape", None)
    return int(shape[0]) if shape is not None and len(shape) == 1 else None


# --- the batcher ----------------------------------------------------------------------------------


class SampleBatcher(Role, ABC):
    """Forms batches of rows from a stream of samples: one per lane, in order, on refs and sizes.

    Its attributes between calls must be plain: numbers, strings, lists, tuples, deques, dicts and
    `SampleRef`s in attributes. `state` and `restore` carry exactly these; samples themselves never.

    Class attributes:
        needs_sizes: False promises that sizes are not looked at: they may be 0. A property, where
            parameters decide it.
        needs_content: True asks for the sample in `add`, which may look at it and must not keep it.

    Glossary:
        batcher: Puts samples into rows, and rows into batches.
    """

    needs_content: ClassVar[bool] = False

    @property
    def needs_sizes(self) -> bool:
        """Tell whether sizes are looked at; most subclasses that do not say `needs_sizes = False`.

        Between two calls the answer is the same.
        """
        return True

    @abstractmethod
    def add(self, ref: SampleRef, sample: Sample | None = None) -> list[Rows]:
        """Take one sample (its size is `ref.size`); return the batches it finished, in order."""

    def add_run(self, refs: Sequence[SampleRef]) -> tuple[int, list[Rows]]:
        """Take samples that come one after another, up to the first that finishes a batch.

        It gives and leaves behind what `add` does, one by one. It stops before a sample that it
        would leave out or refuse, which `add` is given then: it is accounted for by itself.

        Args:
            refs: The samples; at least one.

        Returns:
            How many it has taken, and the batches that the last of them finished.
        """
        least, most = self.sizes_kept() or (0, -1)
        for taken, ref in enumerate(refs):
            if not least <= ref.size <= most:
                return taken, []
            if batches := self.add(ref):
                return taken + 1, batches
        return len(refs), []

    def sizes_kept(self) -> tuple[int, float] | None:
        """Return the least and largest size of samples that `add` neither drops nor refuses.

        None = something else decides it, or may.
        """
        return None

    def takes_runs(self) -> bool:
        """Tell whether `add_run` may stand for `add`: a user's class has it itself, if so."""
        if self.needs_content:
            return False
        if self.is_of_user():  # what it inherits does not know of what it overrides
            return "add_run" in vars(type(self))
        return self.sizes_kept() is not None

    def flush(self) -> list[Rows]:
        """Return what is left when the lane is over."""
        return []

    @property
    def pending(self) -> Sequence[SampleRef]:
        """Return the samples that are held and not yet in a finished batch, in any order."""
        return role_state.find_refs(self)

    def chooses_from(self) -> int | None:
        """Return how many samples its pool holds, from which it chooses; None = it has none."""
        return None

    def most_held(self) -> int | None:
        """Return how many samples it may hold, where that is known and not its pool alone."""
        return self.chooses_from()

    @property
    def may_split(self) -> bool:
        """Tell whether pieces of one sample may come to several batches.

        False promises that no ref has a span that begins or ends within its sample; it lets any
        worker make any batch of a planned job.
        """
        return True

    @property
    def may_refuse(self) -> bool:
        """Tell whether `add` may raise: then its state is copied before an item of several samples.

        False promises that it takes every sample; it saves that copy.
        """
        return True

    def check_keys(self, keys: Iterable[str]) -> None:  # optional
        """Refuse samples that lack a value that this needs; called if their keys are known.

        Raises:
            InvalidJob: Every sample would fail.
        """

    def size_of(self, sample: Sample) -> int:
        """Return the size of a processed sample: by default `len(sample["input_ids"])`."""
        return len(sample["input_ids"])

    def size_rule(self) -> Any:
        """Return what `size_of` gives, JSON-able: batchers that agree can share an index of sizes.

        `{"length_of": NAME}` is the length of a value of the sample, and None a size of 0. By
        default of a subclass that overrides `size_of` it is the identity of the whole batcher.
        """
        if self.keeps(SampleBatcher, "size_of"):
            return {"length_of": "input_ids"}
        return {"batcher": self.identity()}

    def length_column(self) -> str | None:
        """Return the value of a sample whose length is its size; None = sizes are something else.

        Where a source has it as a column, batches are planned from its lengths alone.
        """
        return None

    def spare(self, row: Row) -> int:
        """Return by how much the samples of a row may together exceed their sizes.

        Where sizes are told before items are processed, one may turn out larger: it stays in its
        row if there is so much room, and else it is a bad item. By default there is none.
        """
        return 0

    def joins(self, row: Row, ref: SampleRef) -> bool:
        """Tell whether a sample may join a row when that is packed; its state must not matter.

        Where a job says `later_within`, a sample that was larger than told takes room that is left
        in another row. By default no sample may.

        Args:
            row: What lies in it, each with the size that it turned out to have.
            ref: The sample, of its real size.
        """
        return False

    def dropped(self) -> dict[str, int]:
        """Return by reason how many samples were left out since the lane's start.

        A sample that `add` takes and counts here will be in no batch: this alone decides it, not
        the name of a count. Use a few reasons, the same for every lane; those that are known
        beforehand are present from the start, at 0.
        """
        return {}

    def counters(self) -> dict[str, int]:
        """Return other counts since the lane's start, for example truncated samples."""
        return {}

    def batches(self, draws: int) -> int | None:
        """Return how many batches `draws` samples make, flush included; None = unknown."""
        return None

    def draws_before(self, offset: int) -> int | None:
        """Return how many samples precede batch `offset`, if nothing is held across that border.

        If this is known a lane starts at any offset in O(1).
        """
        return None

    def state(self) -> Any:
        """Return the state, JSON-able and canonical."""
        return role_state.capture(self)

    def restore(self, state: Any) -> None:
        """Take back what `state` gave; called on a fresh batcher with the same parameters."""
        role_state.restore(self, state)


# --- the collator ---------------------------------------------------------------------------------


class BatchCollator(Role, ABC):
    """Turns rows of samples into named values. Pure; fixes names, dtypes, order and layout.

    Class attributes:
        uses_global_rng: The generators of random, numpy and torch are seeded before each batch;
            False promises not to use them.
        pads_empty: True promises that `collate` makes of rows that are all empty a batch of padding
            with the keys, dtypes and shapes of every other batch. Otherwise it never gets such
            rows: a batch that quarantine has emptied is collated from samples of zeros in the
            shapes of a real one, and then given to `blank`.

    Glossary:
        collator: Turns rows into named values.
    """

    uses_global_rng: ClassVar[bool] = True
    pads_empty: bool = False

    @abstractmethod
    def collate(self, rows: Sequence[Sequence[Sample]], context: CollateContext) -> dict[str, Any]:
        """Return the values of one batch.

        Args:
            rows: The rows of the batch, each a list of samples. A row may be empty where items were
                quarantined; all of them only with `pads_empty`.
            context: Lane, offset, random generator, counts.
        """

    def collate_to_send(
        self, rows: Sequence[Sequence[Sample]], context: CollateContext
    ) -> dict[str, Any]:
        """Return what `collate` gives; values may be `penstock.wire.packed_rows.Derived`.

        These follow from the token ids of packed rows, so the trainer's process makes them. Nodes
        call this; `packed` overrides it, for itself and for subclasses that keep its `collate`.
        """
        return self.collate(rows, context)

    def blank(self, values: dict[str, Any]) -> dict[str, Any]:
        """Return a batch of the same shapes that must not train: by default the values as they are.

        The header marks it as padding and its counts are zero, whatever this returns.
        """
        return values

    def specs(self) -> list[KeySpec]:
        """Return what is known of the values before any is made; empty = nothing is known."""
        return []

    def value_layout(self) -> ValueLayout:
        """Return how samples lie in the values; by default nothing is known of it."""
        return ValueLayout()

    def filling(self, batches: BatchSizes) -> Filling | None:
        """Return how full batches are that samples of these sizes make; None = it is not known.

        What it says is what `collate` counts as `tokens` and `padding_tokens`. `penstockd plan`
        asks for it; `size` is here the length of a sample's `input_ids`.
        """
        return None


@dataclass(frozen=True)
class KeySpec:
    """What is known about a value of every batch before one is made.

    Attributes:
        name: Its name.
        kind: tensor, list, int, float, bool, str, bytes or json.
        dtype: NumPy's name of the dtype, or bfloat16; empty if it is not a tensor.
        shape: -1 = differs between batches.
        optional: Whether some batches lack it.
        place: `device`, or `host` for what the trainer reads in Python.
        least: No element is below it; None = not known.
        most: No element is above it; None = not known.

    Glossary:
        place: Where in memory a value belongs: on the device, or on the host.
    """

    name: str
    kind: str = "tensor"
    dtype: str = ""
    shape: tuple[int, ...] = ()
    optional: bool = False
    place: str = "device"
    least: int | None = None
    most: int | None = None


@dataclass(frozen=True)
class ValueLayout:
    """How samples lie in a batch's values, for those that show or train on them.

    Attributes:
        name: `padded` (a sample per row), or how documents are packed in rows: `flash`, `megatron`,
            `thd`, `indexed`, `neat`, `seams`; empty = not known.
        labels_shifted: The label of a token is the token that follows it.
        ignore_index: The label that losses leave out; None = it is not known whether there are
            labels.
    """

    name: str = ""
    labels_shifted: bool = False
    ignore_index: int | None = None
