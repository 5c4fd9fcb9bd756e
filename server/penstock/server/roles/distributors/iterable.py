"""Every row of a stream exactly once per epoch: shards are dealt to lanes, and read through."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Annotated, Any, ClassVar

from penstock.server.core.counter_random import RANDOM_VERSION, CounterRandom
from penstock.server.core.permutation import ORDER_VERSION, Permutation
from penstock.server.roles.distributor import DataDistributor
from penstock.server.roles.distributors.waiting_rows import RowDraws, ShardPiece
from penstock.server.roles.draws import LaneDraws
from penstock.server.roles.parameters import TrueOrFalse, declared
from penstock.server.roles.source import Source, StreamSource, streaming
from penstock.wire.errors import InvalidJob
from penstock.wire.item_numbers import MAX_SHARDS

MAX_BUFFER = 1 << 20
"""Rows that wait in the shuffle buffer of one lane. Each is in memory, raw."""


@declared
class IterableDistributor(DataDistributor):
    """Draws from a stream: its shards are dealt to the lanes, each read by one lane in an epoch.

    With S shards, and at least as many as lanes, shard j of lane l is global shard
    `g = j * lanes + l`, its epoch `g div S`, and its number `permutation(epoch)(g mod S)`: each
    shard exactly once per epoch over all lanes, and a new order every epoch. A lane reads its
    shards to their ends, one after another.

    With fewer shards than lanes, a shard is dealt in `P = ceil(lanes / S)` pieces: piece p holds
    the rows r with `r mod P == p`. Each row is still drawn once per epoch, but a shard is read P
    times, since the lane of a piece passes over the rows of the others: `check` and the node's
    log say so. Have at least as many shards as lanes.

    With a `buffer_size` the rows of a lane are shuffled: each waits until a random number of
    further rows were read, from 0 to `buffer_size`. How long a row waits is decided by its number
    in the lane alone (`CounterRandom`); so a lane that restarts reads again from the first row that
    still waited, which is at most `buffer_size` rows of the lane back, and goes on exactly.

    Args:
        shuffle: Permute the shards of every epoch; else they are dealt in the source's order.
        buffer_size: How many rows of a lane may wait, to be drawn in another order than they are
            read in. Half as many wait in the mean, and each takes memory in the worker that plans
            its lane: 1,000 rows of 10 KB in 24 lanes of a worker take about 120 MB. A larger one
            mixes rows over a longer stretch, and lets a restart read more of them again; 0 keeps
            the order, where shards are mixed already, or the batcher's pool mixes enough.
        source: The name of the source to draw from, where the job has several.

    Raises:
        InvalidJob: A parameter has a value that cannot be.
    """

    type_name: ClassVar[str] = "iterable"
    version: ClassVar[int | str | None] = 1
    ends_by_epochs: ClassVar[bool] = True

    shuffle: Annotated[bool, TrueOrFalse()] = True
    buffer_size: int = 0
    source: str | None = None

    def __post_init__(self) -> None:
        if type(self.buffer_size) is not int or not 0 <= self.buffer_size <= MAX_BUFFER:
            raise InvalidJob(
                f"buffer_size is {self.buffer_size!r}: give a whole number from 0 to "
                f"{MAX_BUFFER:,}; a buffer holds raw rows in memory, for every lane of a worker",
                key="distributor.buffer_size",
            )

    def bind(
        self, sources: Mapping[str, Source], seed: int, epochs: int | None, lanes: int
    ) -> None:
        """Take the job's source, seed and lanes.

        Raises:
            InvalidJob: There is no such source, it is not a stream, or it has too many shards.
        """
        super().bind(sources, seed, epochs, lanes)
        if self.source is None and len(sources) > 1:
            raise InvalidJob(
                f"iterable deals the shards of one source, and the job has "
                f"{', '.join(map(repr, sources))}: name one of them with source",
                key="distributor.source",
            )
        self.name = self.source or next(iter(sources))
        self.stream: StreamSource = streaming(sources, self.name, self)
        self.shards = len(self.stream.shards())
        if not 0 < self.shards <= MAX_SHARDS:
            raise InvalidJob(
                f"source {self.name!r} has {self.shards} shards: a job needs 1 to {MAX_SHARDS:,}",
                key="source",
            )
        self._lanes = lanes
        self._order = lru_cache(4)(self._make_order)

    def pieces_per_shard(self, lanes: int) -> int:
        """Return in how many pieces a shard is dealt: 1 where there are enough of them."""
        return -(-lanes // self.shards)

    def piece(self, lane: int, lanes: int, j: int) -> ShardPiece | None:
        """Return the j-th piece of a lane; None = the lane is over."""
        apart = self.pieces_per_shard(lanes)
        epoch, place = divmod(j * lanes + lane, self.shards * apart)
        if self.epochs is not None and epoch >= self.epochs:
            return None
        number, position = divmod(place, self.shards)
        # Another one every epoch: where a shard has fewer rows than pieces, no lane is always the
        # one that finds nothing.
        return ShardPiece(epoch, self._order(epoch)[position], (number + epoch) % apart, apart)

    def open(self, lane: int, lanes: int) -> LaneDraws:
        """Return the rows of the lane's pieces."""
        delays = CounterRandom(self.seed, f"buffer {self.name} {lane}")
        return RowDraws(self, lane, lanes, delays)

    def epoch_draws(self, lanes: int) -> int | None:
        """Return None: how many rows there are is not known."""
        return None

    def remarks(self) -> list[str]:
        """Tell how often a shard is read, where that is more than once per epoch."""
        apart = self.pieces_per_shard(self._lanes)
        if apart == 1:
            return []
        return [
            f"source {self.name!r} has {self.shards} shard{'s' * (self.shards > 1)} for "
            f"{self._lanes} lanes, so a shard is read {apart} times in every epoch, each time for "
            f"one row of {apart}: split the data into at least {self._lanes} files, or give the "
            f"job at most {self.shards} lane{'s' * (self.shards > 1)}"
        ]

    def identity(self) -> dict[str, Any]:
        """Return the role's identity with the versions of the order's arithmetic in it."""
        versions = {"order": ORDER_VERSION}
        if self.buffer_size:
            versions["random"] = RANDOM_VERSION
        return {**super().identity(), **versions}

    def _make_order(self, epoch: int) -> Permutation | range:
        if not self.shuffle:
            return range(self.shards)
        return Permutation(self.shards, self.seed, epoch, f"shards {self.name}")
