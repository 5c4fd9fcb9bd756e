"""The rows of a stream source by shard and number, read on from where they were read last.

Which row a number names is decided by the content alone; marks, open shards and kept rows only save
reading. So nothing here is part of a job's state but the mark before a row, which the content
decides as well.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, Protocol

from penstock.server.usercode.copies import own_copy
from penstock.server.usercode.frames import error_line, user_traceback
from penstock.server.usercode.held_bytes import held_bytes
from penstock.server.usercode.transient import is_transient
from penstock.wire.errors import BadBatch, PenstockError, SourceChanged, SourceUnavailable

OPEN_SHARDS = 128
"""Places at which shards are open at a time: more than a worker has lanes in most jobs, and far
below the usual 1,024 file descriptors of a process."""

KEPT_BYTES = 16 << 20
"""Rows that were read for a draw and not fetched yet: some look ahead of every lane. What does not
fit is read again."""

MAX_MARKS, KNOWN_SHARDS = 1024, 4096
"""Marks that are remembered of a shard, beyond which every second one is forgotten, and shards of
which any are."""


class Shards(Protocol):
    """What the rows are read from: see `StreamSource`."""

    def shards(self) -> Sequence[str]:
        """Return the names of the shards, in order."""

    def open(self, shard: int, mark: Any) -> Iterator[tuple[Any, Any]]:
        """Yield (raw item, mark of the row after it) of a shard, from a mark on."""

    def code_of(self, method: str = "") -> str:
        """Return what errors call its code."""


class Mark(NamedTuple):
    """A row at which reading can begin.

    Attributes:
        row: Its number in the shard.
        at: What `StreamSource.open` needs; None for the first row.

    Glossary:
        shard, mark: A shard is a part of a stream, read from its start. A mark is a point within it
            from which reading can begin as well.
    """

    row: int
    at: Any


FIRST = Mark(0, None)


class ReadRow(NamedTuple):
    """A row as it was read.

    Attributes:
        raw: The item.
        after: The last mark up to the row after it: decided by the content alone.
    """

    raw: Any
    after: Mark


class _KeptRow:
    """A row that was looked at, and how often it will be fetched: lanes may be at the same row."""

    def __init__(self, row: ReadRow) -> None:
        self.row, self.nbytes, self.wanted = row, held_bytes(row.raw), 0


class _Open:
    """A shard that is open at some row."""

    def __init__(self, rows: Iterator[tuple[Any, Any]], mark: Mark) -> None:
        self._rows, self.next, self._mark = rows, mark.row, mark

    def read(self) -> ReadRow | None:
        """Return the next row; None at the end of the shard."""
        found = next(self._rows, None)
        if found is None:
            return None
        raw, at = found
        self.next += 1
        if at is not None:
            self._mark = Mark(self.next, at)
        return ReadRow(raw, self._mark)

    def close(self) -> None:
        close = getattr(self._rows, "close", None)
        if close is not None:
            close()


class _KnownShard:
    """What is known of one shard: some marks in order, and its rows once its end was reached."""

    def __init__(self) -> None:
        self.end: int | None = None
        self._marks, self._apart = [FIRST], 1

    def add(self, mark: Mark) -> None:
        """Remember a mark, unless there is one near before it."""
        at = bisect_right(self._marks, mark.row, key=_row_of)
        if mark.row < self._marks[at - 1].row + self._apart:
            return
        self._marks.insert(at, mark)
        if len(self._marks) > MAX_MARKS:
            self._apart *= 2
            del self._marks[1::2]

    def before(self, row: int) -> Mark:
        """Return the last known mark up to a row."""
        return self._marks[bisect_right(self._marks, row, key=_row_of) - 1]


def _row_of(mark: Mark) -> int:
    return mark.row


class ShardRows:
    """Reads the rows of one source in one process, for one thread at a time.

    Args:
        source: The source.
    """

    def __init__(self, source: Shards) -> None:
        self._source = source
        self._lock = threading.Lock()
        self._open: OrderedDict[tuple[int, int], list[_Open]] = OrderedDict()  # by the next row
        self._places = 0
        self._kept: OrderedDict[tuple[int, int], _KeptRow] = OrderedDict()
        self._kept_bytes = 0
        self._known: OrderedDict[int, _KnownShard] = OrderedDict()

    def look(self, shard: int, row: int) -> ReadRow | None:
        """Return a row and keep it, for the fetch that follows; None = the shard has ended.

        Raises:
            SourceUnavailable: The shard cannot be read at this moment.
            SourceChanged: The source says so.
            BadBatch: Its code fails.
        """
        found = self.read(shard, row)
        if found is not None:
            self.keep(shard, row, found)
        return found

    def read(self, shard: int, row: int) -> ReadRow | None:
        """Return a row, for the caller alone; None = the shard has ended.

        Raises:
            SourceUnavailable, SourceChanged, BadBatch: As `look`.
        """
        with self._lock:
            kept = self._kept.get((shard, row))
            if kept is None:
                return self._read(shard, row)
            return ReadRow(own_copy(kept.row.raw), kept.row.after)

    def keep(self, shard: int, row: int, found: ReadRow) -> None:
        """Keep a row that was read, for the fetch that follows."""
        with self._lock:
            kept = self._kept.get((shard, row)) or self._keep(shard, row, found)
            kept.wanted += 1

    def take(self, shard: int, row: int) -> Any:
        """Return the item of a row, and keep it no longer.

        Raises:
            SourceUnavailable, SourceChanged, BadBatch: As `look`; also if there is no such row.
        """
        with self._lock:
            kept = self._kept.get((shard, row))
            if kept is not None:
                kept.wanted -= 1
                if kept.wanted:  # others must not see what a processor makes of it
                    return own_copy(kept.row.raw)
                self._kept_bytes -= self._kept.pop((shard, row)).nbytes
                return kept.row.raw
            found = self._read(shard, row)
        if found is None:
            raise SourceChanged(
                f"{self._name(shard)} ends before row {row}, which was there: data is immutable; "
                "restart with the new data as a new job",
                path=self._source.shards()[shard],
            )
        return found.raw

    def note(self, shard: int, mark: Mark) -> None:
        """Take a mark that a snapshot knows."""
        with self._lock:
            self._about(shard).add(mark)

    def close(self) -> None:
        """Close all shards, and forget what is kept."""
        with self._lock:
            for readings in self._open.values():
                for reading in readings:
                    reading.close()
            self._open.clear()
            self._places = 0
            self._kept.clear()
            self._kept_bytes = 0

    # --- reading ---

    def _read(self, shard: int, row: int) -> ReadRow | None:
        known = self._about(shard)
        if known.end is not None and row >= known.end:
            return None
        reading = self._take_out(shard, row) or self._nearest(shard, row, known)
        found: ReadRow | None = None
        try:
            if reading is None:
                mark = known.before(row)
                reading = _Open(iter(self._source.open(shard, mark.at)), mark)
            while reading.next <= row:
                found = reading.read()
                if found is None:
                    known.end = reading.next
                    reading.close()
                    return None
                if found.after.row == reading.next:
                    known.add(found.after)
        except Exception as error:
            if reading is not None:
                reading.close()
            raise self._failure(shard, row, error) from error
        self._put_back(shard, reading)
        return found

    def _nearest(self, shard: int, row: int, known: _KnownShard) -> _Open | None:
        """Take out the reading that is open nearest before a row, unless a mark is nearer."""
        best = max((at for name, at in self._open if name == shard and at < row), default=-1)
        return self._take_out(shard, best) if best >= known.before(row).row else None

    def _take_out(self, shard: int, row: int) -> _Open | None:
        readings = self._open.get((shard, row))
        if readings is None:
            return None
        reading = readings.pop()
        self._places -= 1
        if not readings:
            del self._open[shard, row]
        return reading

    def _put_back(self, shard: int, reading: _Open) -> None:
        # Two lanes at one row have a reading each: they go on at different times.
        self._open.setdefault((shard, reading.next), []).append(reading)
        self._open.move_to_end((shard, reading.next))
        self._places += 1
        if self._places > OPEN_SHARDS:
            (oldest, row), _ = next(iter(self._open.items()))
            closed = self._take_out(oldest, row)
            assert closed is not None
            closed.close()

    def _keep(self, shard: int, row: int, found: ReadRow) -> _KeptRow:
        kept = self._kept[shard, row] = _KeptRow(found)
        self._kept_bytes += kept.nbytes
        while self._kept_bytes > KEPT_BYTES and len(self._kept) > 1:
            self._kept_bytes -= self._kept.popitem(last=False)[1].nbytes
        return kept

    def _about(self, shard: int) -> _KnownShard:
        found = self._known.get(shard)
        if found is None:
            found = self._known[shard] = _KnownShard()
            if len(self._known) > KNOWN_SHARDS:
                self._known.popitem(last=False)
        else:
            self._known.move_to_end(shard)
        return found

    def _failure(self, shard: int, row: int, error: Exception) -> PenstockError:
        if isinstance(error, PenstockError):
            return error
        cls = SourceUnavailable if is_transient(error, reading=True) else BadBatch
        return cls(
            f"{self._name(shard)} cannot be read at row {row}: {self._source.code_of('open')} "
            f"fails with {error_line(error)}",
            traceback=user_traceback(error),
        )

    def _name(self, shard: int) -> str:
        return f"shard {self._source.shards()[shard]!r}"
