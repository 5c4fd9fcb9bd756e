"""Frames from a pool of whole episodes: every frame exactly once per epoch, over all lanes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Annotated, Any, ClassVar

import numpy as np
from typing_extensions import override

from penstock.server.core.counter_random import RANDOM_VERSION
from penstock.server.core.many_orders import MANY_ORDERS_VERSION
from penstock.server.core.permutation import ORDER_VERSION
from penstock.server.core.refs import ItemRef
from penstock.server.roles.distributor import DataDistributor
from penstock.server.roles.distributors.episode_column import episodes_by
from penstock.server.roles.distributors.episode_line import EpisodeLine
from penstock.server.roles.distributors.episode_order import EpisodeOrder
from penstock.server.roles.distributors.episode_reading import PoolReading
from penstock.server.roles.distributors.episode_weights import EpisodeWeights
from penstock.server.roles.distributors.shuffle import ItemOrder, Unshuffled
from penstock.server.roles.episode_table import EpisodeTable
from penstock.server.roles.parameters import AtLeast, OneOf, TrueOrFalse, declared
from penstock.server.roles.reading import Reading
from penstock.server.roles.role import asked
from penstock.server.roles.source import IndexedSource, Source, indexed
from penstock.wire.errors import InvalidJob

DEFAULT_POOL = 1024
"""Episodes in the pool of a lane, where the job does not say how many."""

_EPOCHS = 4
"""Orders kept in memory: at the end of an epoch, lanes and their look-ahead draw from two."""

_POOL = "pool is how many whole episodes a lane draws from at a time"
_ANY = "files and row groups are read wherever frames lie, and no number of them limits mixing"
REPLACED = {
    "buffer_size": _POOL,
    "episode_pool_size": _POOL,
    "frame_shuffle_buffer_size": _POOL,
    "rng": "the seed of the job decides the order",
    "seed": "the seed of the job decides the order",
    "max_num_shards": _ANY,
    "max_buffer_input_shards": _ANY,
}
"""Settings of other readers of episodes, with what takes their place."""


@declared
class EpisodesDistributor(DataDistributor):
    """Draws frames from pools of whole episodes: an item is a frame, and each comes once per epoch.

    The episodes of an epoch are shuffled and dealt to the lanes, to each the same number of frames:
    an episode at the border of two lanes is cut. A lane draws from `pool` of its episodes at a
    time, from each in proportion to what is left of it, and where one ends another takes its place;
    the pool is full until the epoch ends. Draw k of lane l is draw `g = k * lanes + l` of all, its
    epoch `g div N`, and its frame is computed from `g mod N` alone. So nothing of a pool is stored:
    any draw is reached at once, and no number of episodes, files, lanes or ranks must divide
    another.

    Args:
        pool: How many episodes each lane draws from at a time. A batch that is smaller than the
            pool has nearly as many episodes as frames, so a pool of a few times the batch is
            enough. A larger one mixes over a longer stretch of the data, and the node keeps the
            rows of `lanes x pool` episodes, and opens their videos again and again; a smaller one
            lets decoders go on in the videos that they have open. Default: 1,024.
        shuffle: Draw in random order; else in the order of the source, over all lanes, in every
            epoch alike, and without a pool.
        frames: In which order an episode in the pool gives its frames: `shuffled`, or `in_order`,
            from a random one of them on to its last and then from its first. In order, a decoder
            goes on from where it is; with key frames far apart and a pool of no more episodes than
            decoders stay open, each frame is decoded once. Batches are mixed over episodes alike.
        stride: Of each episode the first frame is drawn and every so many-th after it: where
            frames follow so closely that they are nearly alike.
        drop_last_n: How many frames at the end of each episode are not drawn: those whose windows
            of actions would be padding.
        weights: How often the frames of an episode are drawn in an epoch, by task or by the number
            that the data give the episode: `{tasks: {open the drawer: 2}, episodes: {"17": 0}}`. An
            episode's own weight is taken before that of its tasks, and of several tasks the largest
            one; what is not named weighs 1. With 2 each frame comes twice, with 0 never, with 1.5
            once and for half of them, another half in every epoch, twice.
        episode_column: The column whose equal values make rows that follow each other an episode,
            where the source does not know its episodes by itself.
        source: The name of the only source to draw from, where the job has several; default: all
            of them, as one.

    Raises:
        InvalidJob: A parameter has a value that cannot be.
    """

    type_name: ClassVar[str] = "episodes"
    version: ClassVar[int | str | None] = 1
    replaced_params: ClassVar[Mapping[str, str]] = REPLACED

    pool: Annotated[int | None, AtLeast(1)] = None
    shuffle: Annotated[bool, TrueOrFalse()] = True
    frames: Annotated[str, OneOf(("shuffled", "in_order"))] = "shuffled"
    stride: Annotated[int, AtLeast(1)] = 1
    drop_last_n: Annotated[int, AtLeast(0)] = 0
    weights: dict[str, Any] | None = None
    episode_column: str | None = None
    source: str | None = None

    def __post_init__(self) -> None:
        self._weights = EpisodeWeights(self.weights)
        if not self.shuffle:
            for name, is_given in (("pool", self.pool), ("frames", self.frames != "shuffled")):
                if is_given:
                    raise InvalidJob(
                        f"{name} says how frames are mixed, and with shuffle: false they come in "
                        f"the order of the source: leave {name} out, or shuffle",
                        key=f"distributor.{name}",
                    )
        self._names: list[str] = []
        self._tables: dict[str, EpisodeTable] = {}

    def bind(
        self, sources: Mapping[str, Source], seed: int, epochs: int | None, lanes: int
    ) -> None:
        """Take the job's sources and seed, and deal their episodes to the lanes.

        Raises:
            InvalidJob: A source has no episodes, or a parameter does not fit.
        """
        super().bind(sources, seed, epochs, lanes)
        names = list(sources) if self.source is None else [self.source]
        parts = dict(zip(names, indexed(sources, names, self), strict=True))
        self._tables = {name: self._table(name, source) for name, source in parts.items()}
        weights = self._weights.of(self._tables)
        self.line = EpisodeLine(self._tables, self.stride, self.drop_last_n, weights, seed)
        self._names, self._lanes = names, lanes
        self._pool = self.pool or DEFAULT_POOL
        self._order = lru_cache(_EPOCHS)(self._make_order)
        pool = self._pool if self.shuffle else None
        self._reading = PoolReading.of(parts, self._tables, lanes, pool, self.line.frames)

    def _table(self, name: str, source: IndexedSource) -> EpisodeTable:
        """Return the episodes of a source.

        Raises:
            InvalidJob: It has none, or the column does not say.
        """
        if self.episode_column is not None:
            return episodes_by(name, source, self.episode_column)
        table: EpisodeTable | None = asked(source, "episode_table")
        if table is None:
            raise InvalidJob(
                f"source {name!r} ({source.type_name or type(source).__name__}) does not know "
                "which of its items make an episode: name the column that tells episodes apart "
                "with episode_column, or draw from it with `map`",
                key="distributor.episode_column",
            )
        return table

    # --- draws ---

    def draw(self, lane: int, lanes: int, k: int) -> ItemRef | None:
        """Return the k-th draw of a lane; None = the lane is over."""
        epoch, position = divmod(k * lanes + lane, self.line.frames)
        if self.epochs is not None and epoch >= self.epochs:
            return None
        return self.line.ref(self._order(epoch)[position], epoch)

    @override
    def draw_many(self, lane: int, lanes: int, k: int, count: int) -> list[ItemRef]:
        if (k + count + 1) * lanes >= 1 << 62:
            return super().draw_many(lane, lanes, k, count)
        epochs, positions = np.divmod(np.arange(k, k + count) * lanes + lane, self.line.frames)
        found: list[ItemRef] = []
        for epoch in range(int(epochs[0]), int(epochs[-1]) + 1) if count else ():
            if self.epochs is not None and epoch >= self.epochs:
                break
            rows = self._order(epoch).take(positions[epochs == epoch])
            found += self.line.refs(rows.tolist(), epoch)
        return found

    def draws(self, lane: int, lanes: int) -> int | None:
        """Return how many draws a lane has; None = endless."""
        if self.epochs is None:
            return None
        return max(0, -(-(self.epochs * self.line.frames - lane) // lanes))

    def epoch_draws(self, lanes: int) -> int:
        """Return how many draws of one lane make one epoch, rounded up."""
        return -(-self.line.frames // lanes)

    def drawn_from(self) -> Sequence[str]:
        """Return the names of the sources."""
        return self._names

    @override
    def episode_tables(self) -> Mapping[str, EpisodeTable]:
        return self._tables

    def _make_order(self, epoch: int) -> ItemOrder:
        if not self.shuffle:
            return Unshuffled()
        return EpisodeOrder(
            self.line.lengths(epoch),
            self._lanes,
            self._pool,
            self.frames == "in_order",
            self.seed,
            epoch,
            "+".join(self._names),
        )

    # --- what it costs, and what it is ---

    def reading(self) -> Reading | None:
        """Return how the sources' blocks are read; None if they have none."""
        return None if self._reading is None else self._reading.reading

    def remarks(self) -> list[str]:
        """Tell what reading costs, and which episodes are never drawn."""
        found = [] if self._reading is None else self._reading.remarks()
        if self.line.too_short:
            found.append(
                f"{self.line.too_short:,} episodes have no more than {self.drop_last_n} frames, "
                "and drop_last_n leaves none of them"
            )
        return found

    def parameters(self) -> dict[str, Any]:
        """Return the parameters that decide bytes, with defaults resolved."""
        parameters = super().parameters()
        parameters.pop("pool", None)
        parameters.pop("weights", None)
        if self.source == "main":  # the name of a source without one
            del parameters["source"]
        if self.shuffle:
            parameters["pool"] = self.pool or DEFAULT_POOL
        if len(self._names) > 1:
            parameters["sources"] = self._names  # their order decides which item has which index
        weights = self._weights.parameters()
        return {**parameters, **({"weights": weights} if weights else {})}

    def identity(self) -> dict[str, Any]:
        """Return the role's identity with the versions of the order's arithmetic in it."""
        versions = {
            "order": ORDER_VERSION,
            "random": RANDOM_VERSION,
            "many_orders": MANY_ORDERS_VERSION,
        }
        return {**super().identity(), **versions}
