"""How the lanes of a job read storage blocks: in reading groups, each from a window of blocks."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.server.roles.distributors.default_windows import (
    UNKNOWN_BYTES,
    blocks_needed,
    default_groups,
    default_window,
    divisors,
)
from penstock.server.roles.distributors.joined_sources import Drawn
from penstock.server.roles.reading import Reading
from penstock.wire.errors import InvalidJob


@dataclass(frozen=True)
class Groups:
    """The reading groups of a job.

    Attributes:
        number: How many there are.
        window: How many blocks a group draws from at a time.
        lanes: The job's lanes.
        held: How many blocks there are, without empty ones.
        block_bytes: About how many bytes a decoded block takes.
    """

    number: int
    window: int
    lanes: int
    held: int
    block_bytes: float

    @classmethod
    def settle(
        cls,
        together: Drawn,
        lanes: int,
        number: int | None,
        window: int | None,
        shared_bytes: float | None = None,
    ) -> Groups:
        """Return the groups that a job asks for, or what suits its sources.

        Args:
            together: What is drawn from.
            lanes: The lanes that draw from it.
            number: How many groups are asked for; None = what suits.
            window: How many blocks a group shall draw from; None = what suits.
            shared_bytes: What others take in memory beside each block of these, and the block;
                None = there are no others.

        Raises:
            InvalidJob: They do not divide the lanes.
        """
        blocks = together.blocks
        held = sum(items > 0 for items in blocks.items)
        known = blocks.nbytes
        block_bytes = float(UNKNOWN_BYTES if known is None else max(1, sum(known)) / held)
        if number is not None and lanes % number:
            raise _uneven(number, lanes)
        taken = shared_bytes or block_bytes
        number = number or default_groups(lanes, held, taken, window)
        window = window or default_window(number, held, taken)
        is_whole = number == 1 and window >= held
        return cls(number, held if is_whole else window, lanes, held, block_bytes)

    def reading(self, together: Drawn, shuffle: str) -> Reading | None:
        """Return how the sources' blocks are read; None if they have none.

        Args:
            together: The sources.
            shuffle: `full`, `blocks` or `none`.
        """
        if not together.blocked:
            return None
        stored = together.blocks.stored
        total = 0 if stored is None else sum(stored)
        block_bytes = 0.0 if together.blocks.nbytes is None else self.block_bytes
        means = (self.held, block_bytes, total / self.held, total / together.items)
        block_items = together.items / self.held
        if shuffle == "full":
            return Reading(together.blocked, None, None, *means)
        if shuffle == "none":
            # All lanes are at one place, and go on from it together: there is no window.
            needed = blocks_needed(1, self.lanes, block_items)
            return Reading(together.blocked, None, min(needed, self.held), *means)
        if self.number == 1 and self.window >= self.held:
            return Reading(together.blocked, None, self.held, *means)
        needed = blocks_needed(self.window, self.lanes // self.number, block_items)
        return Reading(together.blocked, self.number, min(needed, self.held), *means)


def _uneven(groups: int, lanes: int) -> InvalidJob:
    near = sorted(divisors(lanes), key=lambda n: (abs(n - groups), n))[:2]
    return InvalidJob(
        f"reading_groups is {groups}, and {lanes} lanes cannot be dealt to so many groups "
        f"alike: give a number that divides the lanes, such as "
        f"{' or '.join(map(str, sorted(near)))}",
        key="distributor.reading_groups",
    )
