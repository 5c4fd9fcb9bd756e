"""The frames of an epoch, episode after episode: those that are drawn at all, as often as they are.

The line holds the frames of the first episode that are drawn, then those of the second, and so on;
then once more those of the episodes whose weight is at least 2, and so on; then a part of each
episode whose weight has a fraction. A copy of an episode is an episode of its own.

The part is exact over all episodes, `floor(sum(fraction * frames))`, and each gives its own share,
rounded up or down with the right chance: systematic sampling from a random start, over the episodes
in random order. Which frames of an episode these are is another choice in every epoch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from functools import lru_cache
from math import lcm
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from penstock.server.core.counter_random import CounterRandom
from penstock.server.core.many_orders import keys_of, take_each
from penstock.server.core.permutation import Permutation
from penstock.server.core.refs import ItemRef
from penstock.server.roles.distributors.episode_order import MAX_FRAMES
from penstock.server.roles.episode_table import EpisodeTable
from penstock.wire.errors import InvalidJob

MAX_COPIES = 1 << 24
"""Episodes with their copies; each takes some 40 bytes in the memory of every worker."""

_EPOCHS = 4
"""Epochs whose parts are kept: lanes may be in different ones, and look ahead."""


class _Parts(NamedTuple):
    """The episodes of the line, and their copies.

    Attributes:
        episodes: int64 (parts,): which episode each is, over all sources.
        copies: int64 (parts,): which pass of the epoch over the episode it is.
        whole: bool (parts,): all its frames are drawn; else a part of them.
    """

    episodes: NDArray[np.int64]
    copies: NDArray[np.int64]
    whole: NDArray[np.bool_]


class EpisodeLine:
    """Frames of episodes in a line, which an order of an epoch names by their row.

    Args:
        tables: The episodes of each source, by its name.
        stride: Of each episode the first frame is drawn and every so many-th after it.
        drop_last_n: How many frames at the end of each episode are never drawn.
        weights: How often each episode is drawn, over all sources.
        seed: The job's seed.

    Attributes:
        names: The names of the sources.
        frames: How many draws an epoch has: in every epoch as many.
        episodes: How many episodes are drawn from.
        too_short: How many have no frame that is drawn.

    Raises:
        InvalidJob: No frame is left, or there are too many.
    """

    def __init__(
        self,
        tables: Mapping[str, EpisodeTable],
        stride: int,
        drop_last_n: int,
        weights: Sequence[Fraction],
        seed: int,
    ) -> None:
        self.names, self._seed, self._stride = list(tables), seed, stride
        every = list(tables.values())
        self._sources = np.repeat(np.arange(len(every)), [len(table) for table in every])
        self._first = np.concatenate([table.starts[:-1] for table in every])
        lengths = np.concatenate([table.lengths() for table in every])
        self._lengths = -(-np.maximum(lengths - drop_last_n, 0) // stride)
        self.too_short = int((self._lengths == 0).sum())
        self._check_some(int(lengths.max()), drop_last_n)
        whole = np.array([int(weight) for weight in weights], np.int64)
        self._passes = max(-(-weight.numerator // weight.denominator) for weight in weights)
        self._fractions = [weight - int(weight) for weight in weights]
        some = np.array([part > 0 for part in self._fractions])
        self._check_number(int(whole.sum()) + int(some.sum()))
        self._parts = _parts(whole, some)
        self._shared = self._in_common_parts()
        self.frames = int((whole * self._lengths).sum()) + self._some()
        if not 0 < self.frames <= MAX_FRAMES:
            raise InvalidJob(
                f"weights makes an epoch of {self.frames:,} frames: it has 1 to {MAX_FRAMES:,}",
                key="distributor.weights",
            )
        self.episodes = int(((self._lengths > 0) & ((whole > 0) | some)).sum())
        self._ends = lru_cache(_EPOCHS)(self._make_ends)

    def lengths(self, epoch: int) -> NDArray[np.int64]:
        """Return how many frames each part of the line has: int64 (parts,)."""
        return np.diff(self._ends(epoch if self._shared else 0), prepend=0)

    def ref(self, row: int, epoch: int) -> ItemRef:
        """Return the frame in a row of the line of an epoch."""
        ends = self._ends(epoch if self._shared else 0)
        part = int(ends.searchsorted(row, side="right"))
        if not self._parts.whole[part]:
            return self.refs([row], epoch)[0]
        episode = self._parts.episodes[part]
        place = row - int(ends[part - 1]) if part else row
        index = int(self._first[episode]) + place * self._stride
        copy = int(self._parts.copies[part])
        return ItemRef(self.names[self._sources[episode]], index, epoch * self._passes + copy)

    def refs(self, rows: Sequence[int], epoch: int) -> list[ItemRef]:
        """Return the frames in some rows of the line of an epoch.

        Their `epoch` counts the passes over an episode: where one weighs 2, each epoch has two, so
        that a copy is processed with random numbers of its own.
        """
        asked = np.asarray(rows, np.int64)
        ends = self._ends(epoch if self._shared else 0)
        part = np.searchsorted(ends, asked, side="right")
        place = asked - np.where(part, ends[part - 1], 0)
        episode = self._parts.episodes[part]
        some = np.flatnonzero(~self._parts.whole[part])
        if some.size:
            chosen = CounterRandom(self._seed, f"frames of a part {epoch}")[0]
            keys = keys_of(chosen, episode[some])
            place[some] = take_each(self._lengths[episode[some]], keys, place[some])
        indices = (self._first[episode] + place * self._stride).tolist()
        if self._passes == 1 and len(self.names) == 1:
            return ItemRef.many(self.names[0], indices, epoch)
        passes = (epoch * self._passes + self._parts.copies[part]).tolist()
        names = [self.names[source] for source in self._sources[episode].tolist()]
        return [*map(ItemRef, names, indices, passes)]

    def _check_some(self, longest: int, drop_last_n: int) -> None:
        if not self._lengths.any():
            raise InvalidJob(
                f"drop_last_n is {drop_last_n} and the longest episode has {longest} frames, so "
                "none is drawn: give a smaller number",
                key="distributor.drop_last_n",
            )

    def _check_number(self, parts: int) -> None:
        if parts > MAX_COPIES:
            raise InvalidJob(
                f"weights makes {parts:,} copies of episodes, and at most {MAX_COPIES:,} are "
                "possible: give smaller weights",
                key="distributor.weights",
            )

    # --- a part of the frames ---

    def _in_common_parts(self) -> list[int]:
        """Return what each episode shall give of its frames, in equal parts of a frame; [] = none.

        Of a fraction of 3/10 beside one of 1/4 these are 6 and 5 twentieths of its frames.
        """
        if not any(self._fractions):
            return []
        scale = lcm(*{part.denominator for part in self._fractions})
        self._scale = scale
        return [
            int(part * scale) * frames
            for part, frames in zip(self._fractions, self._lengths.tolist(), strict=True)
        ]

    def _some(self) -> int:
        return sum(self._shared) // self._scale if self._shared else 0

    def _make_ends(self, epoch: int) -> NDArray[np.int64]:
        """Return where each part of the line ends in an epoch: int64 (parts,)."""
        lengths = self._lengths[self._parts.episodes]
        if self._shared:
            lengths[~self._parts.whole] = self._shares(epoch)[
                self._parts.episodes[~self._parts.whole]
            ]
        return np.cumsum(lengths)

    def _shares(self, epoch: int) -> NDArray[np.int64]:
        """Return how many frames each episode gives for its fraction: int64 (episodes,)."""
        total, some, purpose = sum(self._shared), self._some(), "parts of episodes"
        if not total:
            return np.zeros(len(self._lengths), np.int64)
        order = Permutation(len(self._shared), self._seed, epoch, purpose)
        place = CounterRandom(self._seed, f"start in {purpose} {epoch}")[0] % total
        found = np.zeros(len(self._shared), np.int64)
        for episode in order.take(np.arange(len(self._shared))).tolist():
            after = place + self._shared[episode] * some
            found[episode] = after // total - place // total
            place = after
        return found


def _parts(whole: NDArray[np.int64], some: NDArray[np.bool_]) -> _Parts:
    episodes = [np.flatnonzero(whole > copy) for copy in range(int(whole.max()))]
    copies = [np.full(len(each), copy) for copy, each in enumerate(episodes)]
    fractions = np.flatnonzero(some)
    are_whole = np.ones(sum(map(len, episodes)) + len(fractions), bool)
    are_whole[len(are_whole) - len(fractions) :] = False
    return _Parts(
        np.concatenate([*episodes, fractions]).astype(np.int64),
        np.concatenate([*copies, whole[fractions]]).astype(np.int64),
        are_whole,
    )
