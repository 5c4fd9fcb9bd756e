"""Items of files that lie in blocks, each of which is read and decoded as one and kept a while."""

from __future__ import annotations

import json
import logging
import sys
import threading
import time
from abc import abstractmethod
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import accumulate
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from penstock.server.roles.column_runs import ColumnRuns
from penstock.server.roles.condition import Condition, Kept, as_text, from_text
from penstock.server.sources.cache import CACHE_BYTES, BlockCache, BlockRows, gathered
from penstock.server.sources.file_source import FileSource
from penstock.server.sources.files import refusing
from penstock.server.sources.patterns import DataFile
from penstock.server.sources.requirements import check_indices

logger = logging.getLogger("penstock")

_SAVE_S = 20.0


class FileBlocks(FileSource):
    """A table of blocks, in the order of the items.

    A subclass notes what it has to know of each file (`note_all`), says where the blocks lie
    (`take_blocks`), and reads one (`load`). `fetch` may be called from several threads; calls run
    one at a time.

    Attributes:
        shards: The files that hold items, in order.
        places: Of each block the number of its file, and its own number in that.
        block_items: How many items each block holds.
        starts: The first item of each block, and the number of all items.
        keeps_read_blocks: Whether `keep_blocks` has asked for any.
    """

    threads_of_conditions: ClassVar[int] = 1
    """Files that are looked at together for a condition."""

    shards: list[DataFile]

    def find_blocks(self, fact: str) -> None:
        """Begin to open: nothing is known of the files but what was noted.

        Args:
            fact: Under which name what is found in a file is noted; other parameters have others.
        """
        self._fact = fact
        self._looked: list[DataFile] = []
        self._lock = threading.Lock()
        bound = CACHE_BYTES if self.cache_bytes is None else self.cache_bytes
        self._cache: BlockCache[BlockRows] = BlockCache(bound)
        self.keeps_read_blocks = False

        def watch(file: DataFile) -> None:
            with refusing(file):
                self.file_set.watch(file)

        self.file_set.map(watch, self.file_set.files)

    def take_blocks(self, items: Sequence[Sequence[int]]) -> None:
        """Take the blocks; those of no items are left out.

        Args:
            items: Of each file how many items its blocks hold.
        """
        self.places = [
            (shard, number)
            for shard, counts in enumerate(items)
            for number, count in enumerate(counts)
            if count
        ]
        self.block_items = [items[shard][number] for shard, number in self.places]
        self.starts = [0, *accumulate(self.block_items)]

    # --- what a subclass says ---

    @abstractmethod
    def load(self, number: int, index: int) -> tuple[BlockRows, int]:
        """Read a block; the caller holds the lock.

        Args:
            number: Its number, in index order.
            index: An item of it, for messages.

        Returns:
            What makes items of it, and how many bytes that takes.
        """

    @abstractmethod
    def kept_of(self, where: Condition, blocks: range) -> list[NDArray[np.bool_]]:
        """Return which items of the blocks of a file a condition keeps: bool (items,) each."""

    @abstractmethod
    def digests(self) -> Mapping[str, str]:
        """Return what stands for the content of a file beside its bytes, by path."""

    # --- items ---

    def __len__(self) -> int:
        return self.starts[-1]

    def keep_blocks(self, count: int) -> None:
        """Keep so many blocks in memory, and no more bytes of them than `cache_bytes`."""
        with self._lock:
            self.keeps_read_blocks = count > 0
            if self.cache_bytes is None:
                self._cache.max_bytes = sys.maxsize
            self._cache.bound(count)

    def fetch(self, indices: Sequence[int]) -> list[Any]:
        """Return the items at `indices`, in that order; each block is read at most once.

        Raises:
            IndexError: An index is negative or not below the length.
            SourceUnavailable: A block cannot be read at the moment; `item` is an index in it.
            SourceChanged: A file is not the one that was opened.
            BadItem: It was read, and cannot be decoded: names the file and the place.
        """
        check_indices(indices, len(self))
        with self._lock:
            return gathered(indices, self.starts, self.rows)

    def rows(self, number: int, index: int) -> BlockRows:
        """Return a block, from memory if it is kept; arguments and lock as of `load`."""
        if (kept := self._cache.get(number)) is not None:
            return kept
        # Before reading and not after: else a worker would hold one block more than it may.
        self._cache.make_room()
        rows, nbytes = self.load(number, index)
        self._cache.put(number, rows, nbytes)
        return rows

    def block_of(self, index: int) -> tuple[int, int]:
        """Return the number of the block that holds an item, and where the item is in it."""
        number = bisect_right(self.starts, index) - 1
        return number, index - self.starts[number]

    def matching(self, where: Condition) -> Kept:
        """Return which items a condition keeps; each block is read once.

        What is found is kept with the files' hashes: the next start, and the workers of a node,
        read nothing.

        Raises:
            InvalidJob, SourceUnavailable, SourceChanged: As `column`.
        """
        fact = f"where {self._fact} {json.dumps(where.to_json(), sort_keys=True)}"
        blocks = self._blocks_of_shards()

        def look(shard: int) -> str:
            kept = self.kept_of(where, blocks[shard])
            return as_text(np.concatenate([np.ones(0, bool), *kept]))

        found = [
            from_text(known, sum(self.block_items[n] for n in own))
            for known, own in zip(self._known_of_shards(fact, look), blocks, strict=True)
        ]
        return Kept.of(np.concatenate(found))

    @override
    def runs(self, column: str) -> ColumnRuns:
        fact = f"runs {self._fact} {column}"
        blocks = self._blocks_of_shards()
        firsts = [self.starts[own.start] for own in blocks]

        def look(shard: int) -> list[list[Any]]:
            parts, first = [], firsts[shard]
            for part in self.column_parts(column, blocks[shard]):
                parts.append(ColumnRuns.of(part, first))
                first += len(part)
            found = ColumnRuns.joined(parts)
            return [(found.starts - firsts[shard]).tolist(), found.values]

        return ColumnRuns.joined(
            ColumnRuns(np.array(starts, np.int64) + first, values)
            for (starts, values), first in zip(
                self._known_of_shards(fact, look), firsts, strict=True
            )
        )

    def column_parts(self, column: str, blocks: range) -> Iterator[Any]:
        """Yield a column of the blocks of a file, in order, as `column` gives it."""
        for number in blocks:
            yield self.column(column, self.starts[number], self.starts[number + 1])

    def _blocks_of_shards(self) -> list[range]:
        """Return which blocks each file has."""
        shards = [shard for shard, _ in self.places]
        return [
            range(bisect_left(shards, shard), bisect_right(shards, shard))
            for shard in range(len(self.shards))
        ]

    def _known_of_shards(self, fact: str, look: Callable[[int], Any]) -> list[Any]:
        """Return what is noted of each file; what is not is looked for, and noted.

        Args:
            fact: Under which name.
            look: Looks at a file, by its number.
        """
        unread = [
            shard
            for shard, file in enumerate(self.shards)
            if self.file_set.known(file, fact) is None
        ]

        def note(shard: int) -> None:
            self.file_set.note(self.shards[shard], fact, look(shard))
            self._looked.append(self.shards[shard])

        with ThreadPoolExecutor(self.threads_of_conditions) as pool:
            list(pool.map(note, unread))
        return [self.file_set.known(file, fact) for file in self.shards]

    def fingerprint(self) -> dict[str, Any]:
        """Return names, sizes, and hashes of each file's content and of where its items lie.

        Up to 64 MiB in all every byte counts; above it each file's head and tail, up to 16 blocks
        between them, fewer where there are many files, and what was noted as it was opened.

        Raises:
            SourceUnavailable: A file cannot be read at the moment.
        """
        known = self.digests()
        fingerprint = self.file_set.fingerprint(lambda file: known.get(file.path, ""), self._looked)
        self._looked.clear()
        return fingerprint

    def close(self) -> None:
        """Release the blocks in memory."""
        with self._lock:
            self._cache.clear()

    # --- opening ---

    def noted(self, file: DataFile, fact: str, look: Callable[[DataFile], Any]) -> Any:
        """Return what is known of a file; at the first time, what a look at it gives.

        Raises:
            InvalidJob: It is not of the format.
            SourceUnavailable: It cannot be read at the moment.
        """
        if (known := self.file_set.known(file, fact)) is not None:
            return known
        with refusing(file):
            found = look(file)
        self.file_set.note(file, fact, found)
        self._looked.append(file)
        return found

    def note_all(self, look: Callable[[DataFile], Any], threads: int) -> None:
        """Note of every shard what a look at it gives, where that is not known.

        Args:
            look: As of `noted`.
            threads: How many files are looked at together.
        """
        unknown = [file for file in self.shards if self.file_set.known(file, self._fact) is None]
        total, done, saved = sum(file.size for file in unknown), 0, time.monotonic()
        with ThreadPoolExecutor(threads) as pool:
            found = pool.map(lambda file: self.noted(file, self._fact, look), unknown)
            for file, _ in zip(unknown, found, strict=True):
                done += file.size
                if time.monotonic() - saved > _SAVE_S:  # a start that is killed goes on from here
                    self.file_set.remember(list(self._looked))
                    saved = time.monotonic()
                    logger.info(
                        "looking for the items of %s files: %d of %d MB read",
                        self.type_name,
                        done // 10**6,
                        total // 10**6,
                    )


class RowFiles(FileBlocks):
    """Files of rows that are dicts, all with the same columns.

    Attributes:
        names: The columns that are read.
    """

    names: list[str]

    def has_heads(self, columns: Sequence[str] | None) -> bool:
        """Tell whether these are some of the columns that are read, and not all."""
        return columns is not None and set(columns) < set(self.names)

    def heads(
        self, indices: Sequence[int], columns: Sequence[str] | None = None
    ) -> list[dict[str, Any]]:
        """Return only some columns of the rows at `indices`.

        Raises:
            IndexError, SourceUnavailable, SourceChanged, BadItem: As `fetch`.
        """
        items = self.fetch(indices)
        if columns is None or not self.has_heads(columns):
            return items
        return [{name: item[name] for name in item if name in columns} for item in items]
