"""The order of frames from a pool of whole episodes, computed and not stored.

The episodes of an epoch are dealt to the lanes (`DealtBlocks`). A lane deals its own to as many
slots as the pool has, consecutive ones to each, so every slot has a chain of whole episodes. All
slots are drawn from from the first draw to the last, each in proportion to its frames: the pool is
full until the epoch ends, an episode enters it where the one before it in its chain has ended, and
none is read twice.

```
slot 0   e0 e0 e0 e0 | e1 e1 e1            7 frames
slot 1   e2 e2 e2 e2 e2                    5 frames        pool = 3
slot 2   e3 e3 | e4 e4 e4 e4               6 frames
rounds   1     2     3      ...
```

Draws are computed in rounds of about as many frames as there are slots. By the end of round r of R
a slot with F frames has given `(r * F + c) div R` of them, c being a random number below R of the
slot. Within a round the frames of a slot are spread: each stands somewhere in its own part of the
round. So frames of a pool that is larger than a batch are nearly all of different episodes.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from penstock.server.core.counter_random import CounterRandom
from penstock.server.core.many_orders import keys_of, take_each
from penstock.server.roles.distributors.block_segments import DealtBlocks

ROUND_FRAMES = 512
"""Frames of a round, at least: it takes some 0.3 ms to compute, whatever it holds."""

MOST_ROUNDS = 1 << 20
"""Rounds of a lane in an epoch, at most: with `MAX_FRAMES` no product leaves 63 bits."""

MAX_FRAMES = 1 << 42
"""Frames that an epoch can have."""

_ROUNDS_KEPT = 2
"""Rounds kept for each lane: draws and the look-ahead stand in one, or in two that follow."""


class _Chains(NamedTuple):
    """What one lane draws from in an epoch.

    Attributes:
        items: int64 (pieces,): the first row of each piece of an episode, in the order of chains.
        starts: int64 (pieces + 1,): where each begins among the lane's frames.
        slots: int64 (slots + 1,): where each slot's chain begins among the lane's frames.
        phases: int64 (slots,): from which part of a frame each slot begins.
        rounds: How many rounds there are.
    """

    items: NDArray[np.int64]
    starts: NDArray[np.int64]
    slots: NDArray[np.int64]
    phases: NDArray[np.int64]
    rounds: int

    def given(self, number: int) -> NDArray[np.int64]:
        """Return how many frames each slot has given before a round: int64 (slots,)."""
        return (np.diff(self.slots) * number + self.phases) // self.rounds


class _Round(NamedTuple):
    """One round of a lane.

    Attributes:
        start: Its first draw in the lane's epoch.
        rows: int64 (draws,): the rows that it gives, in order.
    """

    start: int
    rows: NDArray[np.int64]


class EpisodeOrder:
    """The order of one epoch: `order[position]` is a row, each row at exactly one position.

    Position p is draw `p div lanes` of segment `p mod lanes`. Memory is O(episodes), and a position
    is found in O(pool) where the draw before it was another lane's or far away.

    Args:
        lengths: How many rows each episode has, in the order of rows.
        lanes: How many lanes draw from them.
        pool: How many episodes each lane draws from at a time.
        in_order: An episode gives its frames in the order of time, from a random one of them on and
            then from its first; else in random order.
        seed: The job's seed.
        epoch: Every epoch has an order of its own.
        purpose: Keeps the orders of several distributors of one job apart.
    """

    def __init__(
        self,
        lengths: NDArray[np.int64],
        lanes: int,
        pool: int,
        in_order: bool,
        seed: int,
        epoch: int,
        purpose: str,
    ) -> None:
        self._lanes, self._pool, self._in_order = lanes, pool, in_order
        self._dealt = DealtBlocks(lengths, lanes, seed, epoch, purpose)  # type: ignore[arg-type]
        random = CounterRandom(seed, f"episodes {epoch} {purpose}")
        self._of_episodes, self._of_slots, self._of_rounds = random[0], random[1], random[2]
        self._chains: dict[int, _Chains] = {}
        self._rounds: dict[int, dict[int, _Round]] = {}

    def __len__(self) -> int:
        return self._dealt.items

    def __getitem__(self, position: int) -> int:
        """Return the row at `position`.

        Raises:
            IndexError: The position is not below the number of rows.
        """
        if not 0 <= position < len(self):
            raise IndexError(f"position {position} is not in [0, {len(self)})")
        draw, slot = divmod(position, self._lanes)
        found = self._round_of(slot, draw)
        return int(found.rows[draw - found.start])

    def take(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the rows at many positions, equal to `[self[p] for p in positions]`.

        Raises:
            IndexError: A position is not below the number of rows.
        """
        if positions.size and not (positions.min() >= 0 and positions.max() < len(self)):
            raise IndexError(
                f"positions {positions.min()} to {positions.max()} are not in [0, {len(self)})"
            )
        draws, slots = np.divmod(positions, self._lanes)
        found = np.empty(len(positions), np.int64)
        left = np.arange(len(positions))
        while left.size:  # a round at a time
            slot = int(slots[left[0]])
            each = self._round_of(slot, int(draws[left[0]]))
            at = draws[left] - each.start
            here = (slots[left] == slot) & (at >= 0) & (at < len(each.rows))
            found[left[here]] = each.rows[at[here]]
            left = left[~here]
        return found

    def _round_of(self, lane: int, draw: int) -> _Round:
        """Return the round of a lane that a draw of it is in."""
        kept = self._rounds.setdefault(lane, {})
        for found in kept.values():
            if 0 <= draw - found.start < len(found.rows):
                return found
        chains = self._chains.get(lane)
        if chains is None:
            chains = self._chains[lane] = self._make_chains(lane)
        # A round begins less than a frame of each slot away from its even part of the draws.
        number = draw * chains.rounds // self._dealt.items_of(lane)
        before = chains.given(number)
        while int(before.sum()) > draw:
            number -= 1
            before = chains.given(number)
        after = chains.given(number + 1)
        while int(after.sum()) <= draw:
            number, before = number + 1, after
            after = chains.given(number + 1)
        found = kept[number] = self._make_round(lane, chains, number, before, after)
        while len(kept) > _ROUNDS_KEPT:
            del kept[next(iter(kept))]
        return found

    def _make_chains(self, lane: int) -> _Chains:
        items, counts = self._dealt.piece(lane)
        pieces, frames = len(items), int(counts.sum())
        slots = min(self._pool, pieces)
        starts = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])
        of_slots = starts[np.arange(slots + 1) * pieces // slots]
        rounds = max(1, min(MOST_ROUNDS, frames // max(ROUND_FRAMES, slots)))
        keys = keys_of(self._of_slots, lane * self._pool + np.arange(slots))
        phases = (keys % np.uint64(rounds)).astype(np.int64)
        return _Chains(items, starts, of_slots, phases, rounds)

    def _make_round(
        self,
        lane: int,
        chains: _Chains,
        number: int,
        before: NDArray[np.int64],
        after: NDArray[np.int64],
    ) -> _Round:
        counts = after - before
        slots = np.repeat(np.arange(len(counts)), counts)
        start, frames = int(before.sum()), len(slots)
        which = np.arange(frames) - np.repeat(np.cumsum(counts) - counts, counts)
        # Frame `which` of n that a slot gives stands in the same part of n parts of the round.
        of_lane = int(keys_of(self._of_rounds, np.array([lane]))[0])
        dice = keys_of(of_lane, start + np.arange(frames))
        spread = ((which.astype(np.uint64) << _BITS) + (dice >> _BITS)) // counts[slots].astype(
            np.uint64
        )
        turn = np.argsort(spread, kind="stable")
        frame = (chains.slots[slots] + before[slots] + which)[turn]
        piece = np.searchsorted(chains.starts, frame, side="right") - 1
        first, place = chains.items[piece], frame - chains.starts[piece]
        lengths = np.diff(chains.starts)[piece]
        keys = keys_of(self._of_episodes, first)
        if self._in_order:
            turned = (keys % lengths.astype(np.uint64)).astype(np.int64)
            return _Round(start, first + (place + turned) % lengths)
        return _Round(start, first + take_each(lengths, keys, place))


_BITS = np.uint64(32)
