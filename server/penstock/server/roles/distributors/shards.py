"""Every row of a stream exactly once per epoch: shards are dealt to lanes, and read through."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, ClassVar, NamedTuple

from penstock.server.core.permutation import ORDER_VERSION, Permutation
from penstock.server.core.refs import ItemRef
from penstock.server.roles.base import DataDistributor, Source, StreamSource, streaming
from penstock.server.roles.draws import LaneDraws
from penstock.server.roles.stream import FIRST, Mark
from penstock.wire.errors import InvalidJob, LaneStarved
from penstock.wire.refs import MAX_SHARDS, row_index

EMPTY_SHARDS = 1000
"""A lane gives up after four epochs of shards without a row, and after at least this many
shards."""


class ShardsDistributor(DataDistributor):
    """Deals the shards of a stream to the lanes: shard j of lane l is global shard `j * lanes + l`.

    With S shards its epoch is `g div S` and its shard `permutation(epoch)(g mod S)`: each shard
    exactly once per epoch over all lanes, and a new order every epoch. A lane reads its shards to
    their ends, one after another, row by row; rows are not shuffled within a shard. With fewer
    shards than lanes, lanes are in different epochs.

    Args:
        shuffle: Permute the shards of every epoch; else they are dealt in the source's order.
        source: The name of the source to draw from, where the job has several.

    Raises:
        InvalidJob: A parameter has a value that cannot be.
    """

    type_name: ClassVar[str] = "shards"
    version: ClassVar[int | str | None] = 1
    ends_by_epochs: ClassVar[bool] = True

    def __init__(self, shuffle: bool = True, source: str | None = None) -> None:
        if not isinstance(shuffle, bool):
            raise InvalidJob(
                f"shuffle is {shuffle!r}: give true or false", key="distributor.shuffle"
            )
        self.shuffle, self.source = shuffle, source

    def bind(
        self, sources: Mapping[str, Source], seed: int, epochs: int | None, lanes: int
    ) -> None:
        """Take the job's source and seed.

        Raises:
            InvalidJob: There is no such source, it is not a stream, or it has too many shards.
        """
        super().bind(sources, seed, epochs, lanes)
        if self.source is None and len(sources) > 1:
            raise InvalidJob(
                f"shards deals the shards of one source, and the job has "
                f"{', '.join(map(repr, sources))}: name one of them with source",
                key="distributor.source",
            )
        self.name = self.source or next(iter(sources))
        if self.name not in sources:
            raise InvalidJob(
                f"the distributor draws from a source {self.name!r}, and the job has "
                f"{', '.join(map(repr, sources))}: name one of them with source",
                key="distributor.source",
            )
        self.stream: StreamSource = streaming(sources, self.name, self)
        self.shards = len(self.stream.shards())
        if not 0 < self.shards <= MAX_SHARDS:
            raise InvalidJob(
                f"source {self.name!r} has {self.shards} shards: a job needs 1 to {MAX_SHARDS:,}",
                key="source",
            )
        self._order = lru_cache(4)(self._make_order)

    def shard(self, lane: int, lanes: int, j: int) -> tuple[int, int] | None:
        """Return epoch and number of the j-th shard of a lane; None = the lane is over."""
        epoch, position = divmod(j * lanes + lane, self.shards)
        if self.epochs is not None and epoch >= self.epochs:
            return None
        return epoch, self._order(epoch)[position]

    def open(self, lane: int, lanes: int) -> LaneDraws:
        """Return the rows of the lane's shards."""
        return ShardDraws(self, lane, lanes)

    def epoch_draws(self, lanes: int) -> int | None:
        """Return None: how many rows there are is not known."""
        return None

    def identity(self) -> dict[str, Any]:
        """Return the role's identity with the version of the order's arithmetic in it."""
        return {**super().identity(), "order": ORDER_VERSION}

    def _make_order(self, epoch: int) -> Permutation | range:
        if not self.shuffle:
            return range(self.shards)
        return Permutation(self.shards, self.seed, epoch, f"shards {self.name}")


class _Point(NamedTuple):
    """Where a lane is.

    Attributes:
        j: Which of its shards.
        row: The next row of it.
        mark: The last mark up to that row.
    """

    j: int
    row: int
    mark: Mark


class ShardDraws(LaneDraws):
    """The rows of a lane's shards; the state is the shard's number, the row and the mark before it.

    Args:
        distributor: Which deals the shards.
        lane: The lane.
        lanes: The job's lanes.
    """

    def __init__(self, distributor: ShardsDistributor, lane: int, lanes: int) -> None:
        self._distributor, self._lane, self._lanes = distributor, lane, lanes
        self._rows = distributor.stream.rows
        self._at = _Point(0, 0, FIRST)
        self._ahead: deque[tuple[ItemRef, _Point]] = deque()  # peeked at: with the point after it

    def next(self) -> ItemRef | None:
        """Return the next row, or None when the lane is over.

        Raises:
            SourceUnavailable: It cannot be read at this moment.
            LaneStarved: The shards hold no rows at all.
        """
        found = self._ahead.popleft() if self._ahead else self._look(self._at)
        if found is None:
            return None
        item, self._at = found
        return item

    def peek(self, count: int) -> list[ItemRef]:
        """Return up to `count` coming rows."""
        while len(self._ahead) < count:
            found = self._look(self._ahead[-1][1] if self._ahead else self._at)
            if found is None:
                break
            self._ahead.append(found)
        return [item for item, _ in self._ahead][:count]

    def state(self) -> Any:
        """Return shard, row and mark."""
        shard, row, mark = self._at
        state = {"shard": shard, "row": row}
        return state if mark == FIRST else {**state, "mark": list(mark)}

    def restore(self, state: Any) -> None:
        """Go on where `state` was taken, reading from its mark on."""
        mark = Mark(*state["mark"]) if "mark" in state else FIRST
        point = _Point(int(state["shard"]), int(state["row"]), mark)
        if point == self._at:
            return
        self._at = point
        self._ahead.clear()
        dealt = self._distributor.shard(self._lane, self._lanes, point.j)
        if dealt is not None and mark != FIRST:
            self._rows.note(dealt[1], mark)

    def _look(self, point: _Point) -> tuple[ItemRef, _Point] | None:
        """Return the first row from a point on, and the point after it."""
        shards = self._distributor.shards
        for _ in range(max(EMPTY_SHARDS, 4 * shards)):
            dealt = self._distributor.shard(self._lane, self._lanes, point.j)
            if dealt is None:
                return None
            epoch, shard = dealt
            found = self._rows.look(shard, point.row)
            if found is not None:
                item = ItemRef(self._distributor.name, row_index(shard, point.row), epoch)
                return item, _Point(point.j, point.row + 1, found.after)
            point = _Point(point.j + 1, 0, FIRST)
        raise LaneStarved(
            f"lane {self._lane} read {max(EMPTY_SHARDS, 4 * shards)} shards of source "
            f"{self._distributor.name!r} without finding one row: look at the data",
            lane=self._lane,
            drawn=0,
            reasons={},
        )


__all__ = ["ShardDraws", "ShardsDistributor"]
