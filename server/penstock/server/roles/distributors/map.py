"""Every item of a job's sources exactly once per epoch, over all lanes together."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, ClassVar, Protocol

import numpy as np
import numpy.typing as npt

from penstock.server.core.permutation import ORDER_VERSION, Permutation
from penstock.server.core.refs import ItemRef
from penstock.server.roles.base import DataDistributor, Source, indexed
from penstock.server.roles.distributors.blocks import BlockOrder
from penstock.server.roles.distributors.groups import Groups
from penstock.server.roles.distributors.together import Together
from penstock.server.roles.reading import Reading
from penstock.wire.checks import check_choice, check_whole
from penstock.wire.errors import InvalidJob

SHUFFLES = ("full", "blocks", "none")

_EPOCHS = (
    4  # orders kept in memory: at the end of an epoch, lanes and their look-ahead draw from two
)


class _Order(Protocol):
    def __getitem__(self, position: int, /) -> int: ...

    def take(self, positions: npt.NDArray[np.int64], /) -> npt.NDArray[np.int64]: ...


class _InOrder:
    """Every item at its own position."""

    def __getitem__(self, position: int) -> int:
        return position

    def take(self, positions: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        return positions


class MapDistributor(DataDistributor):
    """Draws from sources by index: draw k of lane l is global draw `g = k * lanes + l`.

    Several sources are drawn from as one: the items of the second follow those of the first, in the
    order of the job file. With N items the draw's epoch is `g div N` and its item `permutation(
    epoch)(g mod N)`: each item exactly once per epoch over all lanes, N < lanes included, and a new
    order every epoch. Any draw is computed in a few microseconds, without the draws before it.

    With `blocks` the lanes are dealt to reading groups, lane l to group `l mod reading_groups`, and
    the blocks of an epoch to the groups: a block is decoded for one group alone, so by one worker,
    and a step that is made of many lanes mixes the blocks of many groups.

    Args:
        shuffle: `full` permutes all items, for sources with cheap random access. `blocks` permutes
            storage blocks (row groups), and then the rows within a sliding window of them. `none`
            keeps the source's order over all lanes, so that each worker reads every block. Default:
            `blocks` where the source has blocks, else `full`.
        window_blocks: How many blocks a reading group draws from at a time. More of them mix the
            batches better and take memory: a node keeps about `reading_groups x (window_blocks +
            1)` decoded blocks. With 2 blocks consecutive rows of a lane lie half as far apart as in
            a full shuffle, with 16 nine tenths (decision 0019). Default: as many as fit into 2 GiB
            over all groups, 2 to 16; all of them where the source is small.
        reading_groups: Into how many groups the lanes are dealt for reading; it divides the lanes.
            At most that many workers of a node have work. More groups also mix a step better, and
            take memory: see `window_blocks`. Default: up to 64, as memory allows; 1 where the
            decoded source takes at most 128 MiB, and every worker then holds all of it.
        source: The name of the only source to draw from, where the job has several; default: all
            of them, each in proportion to its number of items.

    Raises:
        InvalidJob: A parameter has a value that cannot be.
    """

    type_name: ClassVar[str] = "map"
    version: ClassVar[int | str | None] = 2

    def __init__(
        self,
        shuffle: str | None = None,
        window_blocks: int | None = None,
        reading_groups: int | None = None,
        source: str | None = None,
    ) -> None:
        if shuffle is not None:
            check_choice("shuffle", shuffle, SHUFFLES, key="distributor.shuffle")
        for name, value in (("window_blocks", window_blocks), ("reading_groups", reading_groups)):
            if value is not None:
                check_whole(name, value, 1, optional=True, key=f"distributor.{name}")
        self.shuffle, self.source = shuffle, source
        self.window_blocks, self.reading_groups = window_blocks, reading_groups
        self._settled = shuffle
        self._groups: Groups | None = None
        self._names: list[str] = []
        self._only: str | None = None

    def bind(
        self, sources: Mapping[str, Source], seed: int, epochs: int | None, lanes: int
    ) -> None:
        """Take the job's sources and seed, and decide what `shuffle` means for these sources.

        Raises:
            InvalidJob: There is no such source, it gives no items by index, it is empty, its blocks
                do not add up to its length, `full` would decompress a block per row, or the groups
                do not divide the lanes.
        """
        super().bind(sources, seed, epochs, lanes)
        if self.source is not None and self.source not in sources:
            raise InvalidJob(
                f"the distributor draws from a source {self.source!r}, and the job has "
                f"{', '.join(map(repr, sources))}: name one of them with source",
                key="distributor.source",
            )
        names = list(sources) if self.source is None else [self.source]
        parts = indexed(sources, names, self)
        self._together = together = Together(dict(zip(names, parts, strict=True)))
        self._names, self.items = names, together.items
        self._only = names[0] if len(names) == 1 else None
        self._settled = self.shuffle or ("blocks" if together.blocked else "full")
        blocks = len(together.blocks)
        if self._settled == "full" and blocks > 1:
            raise InvalidJob(
                f"shuffle: full over {blocks} storage blocks would decode a whole block for every "
                f"row: use shuffle: blocks (reading_groups: 1 with window_blocks: {blocks} mixes "
                "all of them, and every worker holds them all)",
                key="distributor.shuffle",
            )
        self._groups = Groups.settle(together, lanes, self.reading_groups, self.window_blocks)
        self._order = lru_cache(_EPOCHS)(self._make_order)

    def reading(self) -> Reading | None:
        """Return how the sources' blocks are read; None if they have none."""
        assert self._settled is not None
        assert self._groups is not None
        return self._groups.reading(self._together, self._settled)

    def draw(self, lane: int, lanes: int, k: int) -> ItemRef | None:
        """Return the k-th draw of a lane; None = the lane is over."""
        epoch, position = divmod(k * lanes + lane, self.items)
        if self.epochs is not None and epoch >= self.epochs:
            return None
        index = self._order(epoch)[position]
        if self._only is not None:
            return ItemRef(self._only, index, epoch)
        return ItemRef(*self._together.find(index), epoch)

    def draw_many(self, lane: int, lanes: int, k: int, count: int) -> list[ItemRef]:
        """Return draws k, k + 1, ... of a lane: `count`, or fewer where it ends."""
        if (k + count + 1) * lanes >= 1 << 62:
            return super().draw_many(lane, lanes, k, count)
        epochs, positions = np.divmod(np.arange(k, k + count) * lanes + lane, self.items)
        found: list[ItemRef] = []
        for epoch in range(int(epochs[0]), int(epochs[-1]) + 1):
            if self.epochs is not None and epoch >= self.epochs:
                break
            for index in self._order(epoch).take(positions[epochs == epoch]).tolist():
                if self._only is not None:
                    found.append(ItemRef(self._only, index, epoch))
                else:
                    found.append(ItemRef(*self._together.find(index), epoch))
        return found

    def draws(self, lane: int, lanes: int) -> int | None:
        """Return how many draws a lane has; None = endless."""
        if self.epochs is None:
            return None
        return max(0, -(-(self.epochs * self.items - lane) // lanes))

    def epoch_draws(self, lanes: int) -> int:
        """Return how many draws of one lane make one epoch, rounded up."""
        return -(-self.items // lanes)

    def parameters(self) -> dict[str, Any]:
        """Return the parameters that decide bytes, with defaults resolved."""
        parameters = super().parameters()
        if self.source == "main":  # the name of a source without one
            del parameters["source"]
        if len(self._names) > 1:
            parameters["sources"] = self._names  # their order decides which item has which index
        if self._settled is not None:
            parameters["shuffle"] = self._settled
            parameters.pop("window_blocks", None)
            parameters.pop("reading_groups", None)
            if self._settled == "blocks" and self._groups is not None:
                parameters["window_blocks"] = self._groups.window
                parameters["reading_groups"] = self._groups.number
        return parameters

    def identity(self) -> dict[str, Any]:
        """Return the role's identity with the version of the order's arithmetic in it."""
        return {**super().identity(), "order": ORDER_VERSION}

    def _make_order(self, epoch: int) -> _Order:
        purpose = "+".join(self._names)
        if self._settled == "none":
            return _InOrder()
        if self._settled == "full":
            return Permutation(self.items, self.seed, epoch, f"items {purpose}")
        groups, sizes = self._groups, self._together.blocks.items
        assert groups is not None
        return BlockOrder(sizes, groups.number, groups.window, self.seed, epoch, purpose)


__all__ = ["SHUFFLES", "MapDistributor"]
