"""Every item of one source exactly once per epoch, over all lanes together."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, ClassVar, Protocol

from penstock.server.core.permutation import MAX_ITEMS, ORDER_VERSION, Permutation
from penstock.server.core.refs import ItemRef
from penstock.server.roles.base import DataDistributor, Source, asked
from penstock.server.roles.distributors.blocks import BlockOrder
from penstock.wire.errors import InvalidJob

SHUFFLES = ("full", "blocks", "none")

_EPOCHS = 4  # orders kept at hand: around a seam, lanes and their look-ahead draw from two


class _Order(Protocol):
    def __getitem__(self, position: int, /) -> int: ...


class MapDistributor(DataDistributor):
    """Draws from a source by index: draw k of lane l is global draw `g = k * lanes + l`.

    With N items its epoch is `g div N` and its item `permutation(epoch)(g mod N)`: each item
    exactly once per epoch over all lanes, N < lanes included, and a new order every epoch. Any draw
    is computed in a few microseconds, without the draws before it.

    Args:
        shuffle: `full` permutes all items alike (for sources of cheap random access), `blocks`
            permutes storage blocks and then the rows within a window of them, `none` keeps the
            source's order. Default: `blocks` where the source has blocks, else `full`.
        window_blocks: How many blocks are mixed at a time by `blocks`. All of a window's decoded
            blocks should fit into the source's cache, or they are read more than once.
        source: The name of the source to draw from, where a job that is built in Python has
            several; in a job file there is one, `main`.

    Raises:
        InvalidJob: A parameter has a value that cannot be.
    """

    type_name: ClassVar[str] = "map"
    version: ClassVar[int | str | None] = 1

    def __init__(
        self, shuffle: str | None = None, window_blocks: int = 16, source: str = "main"
    ) -> None:
        if shuffle is not None and shuffle not in SHUFFLES:
            near = difflib.get_close_matches(str(shuffle), SHUFFLES, n=1)
            hint = f"did you mean {near[0]}? " if near else ""
            raise InvalidJob(
                f"shuffle is {shuffle!r}: {hint}Choose full, blocks or none",
                key="distributor.shuffle",
            )
        whole = isinstance(window_blocks, int) and not isinstance(window_blocks, bool)
        if not whole or window_blocks < 1:
            raise InvalidJob(
                f"window_blocks is {window_blocks!r}: give a whole number of at least 1",
                key="distributor.window_blocks",
            )
        self.shuffle, self.window_blocks, self.source = shuffle, window_blocks, source
        self._settled = shuffle

    def bind(self, sources: Mapping[str, Source], seed: int, epochs: int | None) -> None:
        """Take the job's sources and seed, and settle what `shuffle` means for this source.

        Raises:
            InvalidJob: There is no such source, it is empty, its blocks do not add up to its
                length, or `full` would decompress a block per row.
        """
        super().bind(sources, seed, epochs)
        if self.source not in sources:
            raise InvalidJob(
                f"the distributor draws from a source {self.source!r}, and the job has "
                f"{', '.join(map(repr, sources))}: name one of them with source",
                key="distributor.source",
            )
        source = sources[self.source]
        self.items = len(source)
        if not 0 < self.items <= MAX_ITEMS:
            raise InvalidJob(
                f"source {self.source!r} holds {self.items} items: a job needs 1 to {MAX_ITEMS}",
                key="source",
            )
        blocks = asked(source, "blocks")
        if blocks is not None and sum(blocks) != self.items:
            raise InvalidJob(
                f"the blocks of source {self.source!r} hold {sum(blocks)} items, its length is "
                f"{self.items}: blocks() and __len__ must agree",
                key="source",
            )
        self._settled = self.shuffle or ("full" if blocks is None else "blocks")
        if self._settled == "full" and blocks is not None and len(blocks) > 1:
            raise InvalidJob(
                f"shuffle: full over {len(blocks)} storage blocks would decode a whole block for "
                f"every row: use shuffle: blocks (window_blocks: {len(blocks)} mixes all of them)",
                key="distributor.shuffle",
            )
        self._blocks = [self.items] if blocks is None else list(blocks)
        self._order = lru_cache(_EPOCHS)(self._make_order)

    def draw(self, lane: int, lanes: int, k: int) -> ItemRef | None:
        """Return the k-th draw of a lane; None = the lane is over."""
        epoch, position = divmod(k * lanes + lane, self.items)
        if self.epochs is not None and epoch >= self.epochs:
            return None
        return ItemRef(self.source, self._order(epoch)[position], epoch)

    def draws(self, lane: int, lanes: int) -> int | None:
        """Return how many draws a lane has; None = endless."""
        if self.epochs is None:
            return None
        return max(0, -(-(self.epochs * self.items - lane) // lanes))

    def epoch_draws(self, lanes: int) -> int:
        """Return how many draws of one lane make one epoch, rounded up."""
        return -(-self.items // lanes)

    def parameters(self) -> dict[str, Any]:
        """Return the parameters that decide bytes: what was settled, not how it was written."""
        parameters = super().parameters()
        if self._settled is not None:
            parameters["shuffle"] = self._settled
            if self._settled != "blocks":
                parameters.pop("window_blocks", None)
        return parameters

    def identity(self) -> dict[str, Any]:
        """Return the role's identity with the version of the order's arithmetic in it."""
        return {**super().identity(), "order": ORDER_VERSION}

    def _make_order(self, epoch: int) -> _Order:
        if self._settled == "none":
            return range(self.items)
        if self._settled == "full":
            return Permutation(self.items, self.seed, epoch, f"items {self.source}")
        return BlockOrder(self._blocks, self.window_blocks, self.seed, epoch, self.source)


__all__ = ["SHUFFLES", "MapDistributor"]
