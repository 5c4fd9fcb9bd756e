"""The rows of a lane's pieces: each waits for a number of further rows that its own number decides.

Row n of a lane waits until d(n) further rows were read, with d(n) random in `[0, buffer_size)`: its
key is `n + d(n)`, and rows are drawn in the order of their keys. So the order is a pure function of
n, and no row is drawn more than `buffer_size` rows of the lane after it was read. What waits at a
draw is known from the last key that was drawn and the first row that waits: these, and the mark
before that row, are the whole state.

Glossary:
    buffer: The rows of a stream that a lane has read and not drawn yet, so that it draws them in
        another order.
"""

from __future__ import annotations

import heapq
from collections import deque
from typing import Any, NamedTuple, Protocol

from penstock.server.core.counter_random import CounterRandom
from penstock.server.core.refs import ItemRef
from penstock.server.roles.draws import LaneDraws
from penstock.server.roles.source import StreamSource
from penstock.server.roles.stream_rows import FIRST, Mark, ReadRow
from penstock.wire.errors import LaneStarved
from penstock.wire.item_numbers import row_index, shard_row

EMPTY_PIECES = 1000
"""A lane gives up after four epochs of pieces without a row, and after at least this many."""

_BITS = 32
"""Keys count parts of 2^-32 of a row, so that two rows hardly ever have one key."""


class ShardPiece(NamedTuple):
    """What a lane reads at a time: a shard, or every so many rows of one.

    Attributes:
        epoch: Which pass over the data.
        shard: The shard's number.
        first: Its first row in this piece.
        apart: How many rows of the shard lie between two of the piece, the first one counted.

    Glossary:
        piece: A shard, or every so many rows of one, which a lane reads at a time; or a part of a
            sample that is longer than a row.
    """

    epoch: int
    shard: int
    first: int
    apart: int


class ShardPieces(Protocol):
    """What a lane reads, piece by piece: see `IterableDistributor`."""

    name: str
    buffer_size: int
    shards: int
    stream: StreamSource

    def piece(self, lane: int, lanes: int, j: int) -> ShardPiece | None:
        """Return piece j of a lane; None after its last one."""

    def pieces_per_shard(self, lanes: int) -> int:
        """Return into how many pieces a shard is cut."""


class _Point(NamedTuple):
    """Where a lane reads.

    Attributes:
        j: Which of its pieces.
        nth: Which row of the piece is next.
        mark: The last mark up to the row after the one before.
    """

    j: int
    nth: int
    mark: Mark


_Key = tuple[int, int]
"""A row's place in the order of draws: when it has waited long enough, then its number."""

_BEFORE_ALL: _Key = (-1, -1)


class _Row:
    """A row that was read.

    Attributes:
        key: Its place in the order of draws.
        item: Its ref.
        at: From where on the lane finds it.
        found: The row, while it waits.
        is_drawn: It waits no more.
    """

    __slots__ = ("at", "found", "is_drawn", "item", "key")

    def __init__(self, key: _Key, item: ItemRef, at: _Point, found: ReadRow | None) -> None:
        self.key, self.item, self.at, self.found = key, item, at, found
        self.is_drawn = found is None

    def __lt__(self, other: _Row) -> bool:
        return self.key < other.key


class RowDraws(LaneDraws):
    """The draws of one lane of an `IterableDistributor`.

    The state: the first row that waits, by the number of its piece, its number in that and the mark
    before it; with a buffer its number in the lane, too, and the key that was drawn last.

    Args:
        distributor: Which deals the pieces.
        lane: The lane.
        lanes: The job's lanes.
        delays: By a row's number in the lane, how long it waits.
    """

    def __init__(
        self, distributor: ShardPieces, lane: int, lanes: int, delays: CounterRandom
    ) -> None:
        self._distributor, self._lane, self._lanes = distributor, lane, lanes
        self._rows, self._delays = distributor.stream.rows, delays
        self._buffer = distributor.buffer_size
        self._begin(_Point(0, 0, FIRST), 0, _BEFORE_ALL)

    def _begin(self, at: _Point, number: int, drawn: _Key) -> None:
        """Read on from a row that is not drawn, if its key is above the one that was drawn last."""
        self._at, self._number, self._drawn = at, number, drawn
        self._is_over = False
        self._read: deque[_Row] = deque()  # in the order of reading, from the first that waits on
        self._waiting: list[_Row] = []  # a heap
        self._ahead: deque[_Row] = deque()  # taken from the heap for those that look ahead

    def next(self) -> ItemRef | None:
        """Return the next row, or None when the lane is over.

        Raises:
            SourceUnavailable: It cannot be read at this moment.
            LaneStarved: The shards hold no rows at all.
        """
        row = self._ahead.popleft() if self._ahead else self._pop()
        if row is None:
            return None
        row.is_drawn, self._drawn = True, row.key
        while self._read and self._read[0].is_drawn:
            self._read.popleft()
        return row.item

    def peek(self, count: int) -> list[ItemRef]:
        """Return up to `count` coming rows."""
        while len(self._ahead) < count:
            row = self._pop()
            if row is None:
                break
            self._ahead.append(row)
        return [row.item for row in self._ahead][:count]

    def state(self) -> Any:
        """Return the place of the first row that waits, and what was drawn of those after it."""
        first = self._read[0] if self._read else None
        point = self._at if first is None else first.at
        state: dict[str, Any] = {"shard": point.j, "row": point.nth}
        if point.mark != FIRST:
            state["mark"] = list(point.mark)
        if self._buffer:
            state["number"] = self._number if first is None else first.key[1]
            state["drawn"] = list(self._drawn)
        return state

    def restore(self, state: Any) -> None:
        """Go on where `state` was taken, reading from its mark on."""
        if state == self.state():
            return
        mark = Mark(*state["mark"]) if "mark" in state else FIRST
        point = _Point(int(state["shard"]), int(state["row"]), mark)
        key, of = state.get("drawn", _BEFORE_ALL)
        self._begin(point, int(state.get("number", 0)), (int(key), int(of)))
        piece = self._distributor.piece(self._lane, self._lanes, point.j)
        if piece is not None and mark != FIRST:
            self._rows.note(piece.shard, mark)

    def _pop(self) -> _Row | None:
        """Return the row with the least key of those not drawn; None = the lane is over.

        If it raises, nothing is lost: what was read waits.
        """
        waiting = self._waiting
        # A row that is not read yet has at least the key of its number.
        while not self._is_over and not (
            waiting and waiting[0].key <= (self._number << _BITS, self._number)
        ):
            self._read_one()
        if not waiting:
            return None
        row = heapq.heappop(waiting)
        assert row.found is not None
        self._rows.keep(*shard_row(row.item.index), row.found)
        row.found = None
        return row

    def _read_one(self) -> None:
        """Read the lane's next row, and let it wait unless it was drawn before the restart."""
        read = self._look()
        if read is None:
            self._is_over = True
            return
        item, at, found = read
        number = self._number
        delay = (self._delays[number] >> (64 - _BITS)) * self._buffer if self._buffer else 0
        key = ((number << _BITS) + delay, number)
        # The place before the search and not after it, which passes over pieces without a row: a
        # lane that was restored there has not searched yet, and must have the same state.
        row = _Row(key, item, self._at, found if key > self._drawn else None)
        self._read.append(row)
        if not row.is_drawn:
            heapq.heappush(self._waiting, row)
        self._number, self._at = number + 1, _Point(at.j, at.nth + 1, found.after)

    def _look(self) -> tuple[ItemRef, _Point, ReadRow] | None:
        """Return the first row from where the lane reads, and where that is."""
        point, distributor = self._at, self._distributor
        pieces = distributor.shards * distributor.pieces_per_shard(self._lanes)
        for _ in range(max(EMPTY_PIECES, 4 * pieces)):
            piece = distributor.piece(self._lane, self._lanes, point.j)
            if piece is None:
                return None
            row = piece.first + point.nth * piece.apart
            found = self._rows.read(piece.shard, row)
            if found is not None:
                item = ItemRef(distributor.name, row_index(piece.shard, row), piece.epoch)
                return item, point, found
            point = _Point(point.j + 1, 0, FIRST)
        raise LaneStarved(
            f"lane {self._lane} read {max(EMPTY_PIECES, 4 * pieces)} shards, or pieces of them, of "
            f"source {distributor.name!r} without finding one row: look at the data",
            lane=self._lane,
            drawn=0,
            reasons={},
        )
