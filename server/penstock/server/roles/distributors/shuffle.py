"""How the line of an epoch is reordered, and which lanes read its storage blocks."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from penstock.server.core.permutation import Permutation
from penstock.server.roles.distributors.block_shuffle import BlockOrder
from penstock.server.roles.distributors.joined_sources import Drawn
from penstock.server.roles.distributors.reading_groups import Groups
from penstock.server.roles.reading import Reading
from penstock.wire.errors import InvalidJob

SHUFFLES = ("full", "blocks", "none")

_EPOCHS = (
    4  # orders kept in memory: at the end of an epoch, lanes and their look-ahead draw from two
)


class ItemOrder(Protocol):
    """An order of `[0, n)`."""

    def __getitem__(self, position: int, /) -> int:
        """Return what stands at a position."""
        ...

    def take(self, positions: npt.NDArray[np.int64], /) -> npt.NDArray[np.int64]:
        """Return what stands at many positions."""
        ...


class Unshuffled:
    """The order in which items lie."""

    def __getitem__(self, position: int) -> int:
        """Return the position."""
        return position

    def take(self, positions: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return the positions."""
        return positions


class Shuffle:
    """The shuffle that a distributor was asked for, and what it means for its sources.

    Args:
        kind: `full`, `blocks` or `none`; None = what suits the sources.
        window_blocks: How many blocks a reading group draws from; None = what suits.
        reading_groups: Into how many groups the lanes are dealt; None = what suits.
    """

    def __init__(
        self, kind: str | None, window_blocks: int | None, reading_groups: int | None
    ) -> None:
        self._asked, self._settled = kind, kind
        self.window_blocks, self.reading_groups = window_blocks, reading_groups
        self._groups: Groups | None = None

    def settle(self, drawn: Drawn, lanes: int, seed: int, purpose: str) -> None:
        """Decide what it means for these sources.

        Args:
            drawn: What an epoch draws from.
            lanes: How many lanes draw from it.
            seed: The job's seed.
            purpose: Keeps the orders of several sources apart.

        Raises:
            InvalidJob: `full` would decode a block per row, or the groups do not divide the lanes.
        """
        self._drawn, self.lanes, self._seed, self._purpose = drawn, lanes, seed, purpose
        self._settled = self._asked or ("blocks" if drawn.blocked else "full")
        decoded = drawn.blocks.decoded
        if self._settled == "full" and drawn.blocked and decoded > 1:
            raise InvalidJob(
                f"shuffle: full over {decoded} storage blocks would decode a whole block for every "
                f"row: use shuffle: blocks (reading_groups: 1 with window_blocks: "
                f"{len(drawn.blocks)} mixes all of them, and every worker holds them all)",
                key="distributor.shuffle",
            )
        self.order = lru_cache(_EPOCHS)(self._make_order)
        self._groups = Groups.settle(drawn, lanes, self.reading_groups, self.window_blocks)

    def beside(self, number: int | None, window: int | None, shared_bytes: float) -> None:
        """Read by as many groups as others that are drawn from at the same time; once settled.

        Args:
            number: How many groups all of them have; None = as asked for.
            window: How many blocks a group draws from, where that was not asked for.
            shared_bytes: What a block of each takes in memory.
        """
        self._groups = Groups.settle(
            self._drawn,
            self.lanes,
            number or self.reading_groups,
            self.window_blocks or window,
            shared_bytes,
        )
        self.order.cache_clear()

    @property
    def kind(self) -> str:
        """Return `full`, `blocks` or `none`; once settled."""
        assert self._settled is not None
        return self._settled

    @property
    def groups(self) -> Groups | None:
        """Return the reading groups; None = it reads by none."""
        return self._groups if self._drawn.blocked and self._settled == "blocks" else None

    def reading(self) -> Reading | None:
        """Return how the sources' blocks are read; None if they have none."""
        assert self._settled is not None
        assert self._groups is not None
        return self._groups.reading(self._drawn, self._settled)

    def parameters(self) -> dict[str, Any]:
        """Return what decides the order, with defaults resolved."""
        if self._settled is None:
            return {}
        if self._settled != "blocks" or self._groups is None:
            return {"shuffle": self._settled}
        return {
            "shuffle": self._settled,
            "window_blocks": self._groups.window,
            "reading_groups": self._groups.number,
        }

    def _make_order(self, epoch: int) -> ItemOrder:
        if self._settled == "none":
            return Unshuffled()
        if self._settled == "full":
            purpose = f"items {self._purpose}"
            return Permutation(self._drawn.items, self._seed, epoch, purpose)
        groups, sizes = self._groups, self._drawn.sizes(epoch)
        assert groups is not None
        return BlockOrder(sizes, groups.number, groups.window, self._seed, epoch, self._purpose)
