"""Every item of a job's sources exactly once per epoch, over all lanes together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar

import numpy as np
from typing_extensions import override

from penstock.server.core.permutation import ORDER_VERSION
from penstock.server.core.refs import ItemRef
from penstock.server.roles.distributor import DataDistributor
from penstock.server.roles.distributors.draw_choice import Choice
from penstock.server.roles.distributors.shuffle import SHUFFLES, Shuffle
from penstock.server.roles.parameters import AtLeast, OneOf, TrueOrFalse, declared
from penstock.server.roles.reading import Reading
from penstock.server.roles.source import Source, indexed


@declared
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
        where: Which items are drawn at all, by columns that the source can read alone: `{language:
            en}`, `{score: {min: 0.5}, site: {not: [forum, ads]}}`. A value, a list of values, or
            `min`, `max`, `above`, `below`, `not`; all must hold.
        sample_ratio: How many draws an epoch has for each item that `where` keeps: 0.1 draws a
            tenth of them, 2.5 each twice and half of them once more; exactly `floor(items *
            ratio)`, at least one. A number, or one for each source by name.
        resample: Every epoch draws another part of the items for the fraction of `sample_ratio`;
            else it is the same part in each.

    Raises:
        InvalidJob: A parameter has a value that cannot be.
    """

    type_name: ClassVar[str] = "map"
    version: ClassVar[int | str | None] = 2

    shuffle: Annotated[str | None, OneOf(SHUFFLES)] = None
    window_blocks: Annotated[int | None, AtLeast(1)] = None
    reading_groups: Annotated[int | None, AtLeast(1)] = None
    source: str | None = None
    where: dict[str, Any] | None = None
    sample_ratio: float | dict[str, float] | None = None
    resample: Annotated[bool, TrueOrFalse()] = False

    def __post_init__(self) -> None:
        self.shuffling = Shuffle(self.shuffle, self.window_blocks, self.reading_groups)
        self.choice = Choice(self.where, self.sample_ratio, self.resample)
        self._names: list[str] = []

    def bind(
        self, sources: Mapping[str, Source], seed: int, epochs: int | None, lanes: int
    ) -> None:
        """Take the job's sources and seed, and decide what `shuffle` means for these sources.

        Raises:
            InvalidJob: A source or a parameter does not fit: see `indexed`, `Choice.of`, and
                `Shuffle.settle`.
        """
        super().bind(sources, seed, epochs, lanes)
        names = list(sources) if self.source is None else [self.source]
        parts = indexed(sources, names, self)
        self.drawn = self.choice.of(dict(zip(names, parts, strict=True)), seed)
        self._names, self.items = names, self.drawn.items
        self.shuffling.settle(self.drawn, lanes, seed, "+".join(names))

    def reading(self) -> Reading | None:
        """Return how the sources' blocks are read; None if they have none."""
        return self.shuffling.reading()

    def drawn_from(self) -> Sequence[str]:
        """Return the names of the sources."""
        return self._names

    def draw(self, lane: int, lanes: int, k: int) -> ItemRef | None:
        """Return the k-th draw of a lane; None = the lane is over."""
        epoch, position = divmod(k * lanes + lane, self.items)
        if self.epochs is not None and epoch >= self.epochs:
            return None
        return self.drawn.ref(self.shuffling.order(epoch)[position], epoch)

    @override
    def draw_many(self, lane: int, lanes: int, k: int, count: int) -> list[ItemRef]:
        # A call in array code costs as much as twenty draws one by one.
        if count < 20 or (k + count + 1) * lanes >= 1 << 62:
            return super().draw_many(lane, lanes, k, count)
        epochs, positions = np.divmod(np.arange(k, k + count) * lanes + lane, self.items)
        found: list[ItemRef] = []
        for epoch in range(int(epochs[0]), int(epochs[-1]) + 1):
            if self.epochs is not None and epoch >= self.epochs:
                break
            indices = self.shuffling.order(epoch).take(positions[epochs == epoch]).tolist()
            found += self.drawn.refs(indices, epoch)
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
        for name in ("window_blocks", "reading_groups", "where", "sample_ratio", "resample"):
            parameters.pop(name, None)
        if self.source == "main":  # the name of a source without one
            del parameters["source"]
        if len(self._names) > 1:
            parameters["sources"] = self._names  # their order decides which item has which index
        return {**parameters, **self.choice.parameters(), **self.shuffling.parameters()}

    def identity(self) -> dict[str, Any]:
        """Return the role's identity with the version of the order's arithmetic in it."""
        return {**super().identity(), "order": ORDER_VERSION}
