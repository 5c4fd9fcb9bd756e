"""What decides which item a lane draws next."""

from __future__ import annotations

from abc import ABC
from collections.abc import Collection, Mapping, Sequence
from itertools import takewhile
from typing import ClassVar, NamedTuple

from penstock.server.core.refs import ItemRef
from penstock.server.roles.draws import LaneDraws, NumberedDraws
from penstock.server.roles.episode_table import EpisodeTable
from penstock.server.roles.reading import Reading
from penstock.server.roles.role import Role
from penstock.server.roles.source import IndexedSource, Source
from penstock.wire.errors import InvalidJob


class Target(NamedTuple):
    """The share that a part of a mixture shall have.

    Attributes:
        part: Its name; of a part of a part `outer/inner`.
        by: What it is a share of: `items`, `tokens`, or `lanes`.
        share: From 0 to 1, of the whole.
    """

    part: str
    by: str
    share: float


class DataDistributor(Role, ABC):
    """Decides the draws of every lane: which item comes next.

    Most override `draw`, for draws that their number decides. If draws depend on earlier ones,
    override `open`.

    Class attributes:
        ends_by_epochs: True promises that every lane is over after the `epochs` that `bind` is
            given, although `draws` does not say how many draws that takes. Without either a job
            cannot have `epochs`.

    Glossary:
        distributor: Decides which item a lane draws next.
    """

    section: ClassVar[str] = "distributor"
    ends_by_epochs: ClassVar[bool] = False

    sources: Mapping[str, Source]
    seed: int
    epochs: int | None

    def bind(
        self, sources: Mapping[str, Source], seed: int, epochs: int | None, lanes: int
    ) -> None:
        """Take the job's sources, seed and lanes; called once when the job is built.

        Raises:
            InvalidJob: It cannot draw from such sources.
        """
        if self.keeps(DataDistributor, "draw", "open"):
            raise InvalidJob(
                f"{type(self).__name__} draws nothing: give it a method draw(lane, lanes, k), or "
                "open(lane, lanes)",
                key="distributor",
            )
        self.sources, self.seed, self.epochs = sources, seed, epochs

    def reading(self) -> Reading | None:
        """Return how storage blocks are read; None = there are none, or reading is at random."""
        return None

    def readings(self) -> Sequence[Reading]:
        """Return how storage blocks are read, where several parts are read in their own ways.

        By default what `reading` returns, if it is not None.
        """
        found = self.reading()
        return () if found is None else (found,)

    @property
    def needs_sizes(self) -> bool:
        """Tell whether `took` must be told sizes, even if the batcher needs none."""
        return False

    def draw(self, lane: int, lanes: int, k: int) -> ItemRef | None:
        """Return the k-th draw of a lane, purely from the arguments; None = the lane is over."""
        raise TypeError(f"{type(self).__name__} opens lanes and draws nothing by number")

    def draw_many(self, lane: int, lanes: int, k: int, count: int) -> list[ItemRef]:
        """Return draws k, k + 1, ... of a lane: `count`, or fewer where it ends."""
        found = (self.draw(lane, lanes, number) for number in range(k, k + count))
        return list(takewhile(lambda item: item is not None, found))  # type: ignore[arg-type]

    def draws(self, lane: int, lanes: int) -> int | None:
        """Return how many draws a lane has, by arithmetic; None = endless or unknown."""
        return None

    def open(self, lane: int, lanes: int) -> LaneDraws:
        """Return the draws of one lane as a stream with a state; rarely overridden."""
        return NumberedDraws(self, lane, lanes)

    def remarks(self) -> list[str]:
        """Return sentences about what these draws cost that they need not; once it is bound.

        `penstockd check` shows them, and a node logs them at its start.
        """
        return [line for each in self.inner() for line in each.remarks()]

    def drawn_from(self) -> Collection[str]:
        """Return the names of the sources that are drawn from, once it is bound.

        By default the one that an attribute `source` names, else all.
        """
        only = getattr(self, "source", None)
        return (only,) if isinstance(only, str) else tuple(self.sources)

    def targets(self) -> Sequence[Target]:
        """Return the shares that parts of the draws shall have, once it is bound; mostly none."""
        return ()

    def episode_tables(self) -> Mapping[str, EpisodeTable]:
        """Return the episodes that frames are drawn from, by source, once it is bound.

        Batches then say from how many episodes they come. Mostly empty: by default those that the
        distributors know which this one draws by.
        """
        tables: dict[str, EpisodeTable] = {}
        for each in self.inner():
            tables.update(each.episode_tables())
        return tables

    def inner(self) -> Sequence[DataDistributor]:
        """Return the distributors that this one draws by, once it is bound; mostly none."""
        return ()

    def epoch_draws(self, lanes: int) -> int | None:
        """Return about how many draws of a lane make an epoch; None = not known."""
        total = 0
        for source in self.sources.values():
            if not isinstance(source, IndexedSource):
                return None
            total += len(source)
        return max(1, -(-total // lanes))
