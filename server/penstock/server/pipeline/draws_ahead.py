"""Items of coming draws are fetched and processed together with the one that is drawn."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from math import gcd

from penstock.server.core.refs import ItemRef
from penstock.server.job.role_set import RoleSet
from penstock.server.pipeline.items import Items
from penstock.server.pipeline.known_verdicts import Bad
from penstock.server.pipeline.processing import Filtered
from penstock.server.roles.draws import LaneDraws
from penstock.server.roles.samples import Sample, SampleSizes
from penstock.server.usercode.frames import error_line
from penstock.server.usercode.held_bytes import held_bytes
from penstock.wire.errors import BadItem

logger = logging.getLogger("penstock")

LOOK_AHEAD, BATCHES_PER_ITEM_AHEAD = 16, 16
"""Items fetched and processed at once, at most: coalesced reads, and processors' batch calls. What
is processed for later batches delays the next one, so a lane begins with one item, and looks ahead
of as many as a batch takes, or as one for so many batches that it made."""

SIZES_AHEAD = 256
"""Sizes asked for at once of sources that tell them: they take no memory, and a call of a source
costs as much as several."""

AHEAD_BYTES = 4 << 20
"""Memory that a lane may take for what it has processed ahead, beyond the item that it needs: large
samples gain nothing from company, and every lane of a node holds some."""

ALONE_S = 0.002
"""Seconds of processing at once where the processor has no `process_batch` of its own: company
saves such items some 30 us each, and more of it is work that a young lane does not need yet. Of
source code, 5 ms a document, the first 10 rows of 48 lanes took 1.25 times their tokens without it,
and 1.16 times with it."""


def waiting_samples(roles: RoleSet, sample_bytes: float) -> int:
    """Return how many samples the lanes of a set of roles hold at a time, where each gives one.

    Those that wait in the batcher, and what a lane has left of items processed together.
    """
    if roles.plans_from_refs:
        return 0
    ahead = max(1, min(LOOK_AHEAD, int(AHEAD_BYTES / max(1.0, sample_bytes))))
    facts = roles.batcher_facts
    pool = facts.most_held or facts.pool or 0
    size = getattr(roles.batcher, "batch_size", 1)
    return roles.lanes * (pool + ahead - gcd(ahead, size))


class LookAhead:
    """What is known of the coming draws of one lane, before they are drawn.

    Args:
        lane: The lane.
        items: Fetches and processes.
        draws: The lane's draws.
        roles: What makes samples of them.
    """

    def __init__(self, lane: int, items: Items, draws: LaneDraws, roles: RoleSet) -> None:
        self._lane, self._items, self._draws = lane, items, draws
        self._gains_together = roles.processor.gains_together()
        # Else an item is read for its size.
        self._sizes_at_once = SIZES_AHEAD if roles.sized_sources else LOOK_AHEAD
        # A torch Dataset decodes what it reads: what is not needed yet would cost as much.
        sources = items.job.sources.values()
        self._reads_together = not any(source.uses_global_rng for source in sources)
        self._known: dict[ItemRef, list[Sample] | Filtered | Bad | int | SampleSizes] = {}
        self._read: list[ItemRef] = []  # the latest that were read together, unprocessed
        self._outcome_bytes = 0.0  # memory that an item takes once it is processed, in the mean

    def __len__(self) -> int:
        """Return of how many items something is known."""
        return len(self._known)

    def outcome(
        self, item: ItemRef, offset: int, useful: int, made: int
    ) -> list[Sample] | Filtered | Bad:
        """Return what processing gives for a drawn item.

        Args:
            item: The item, of the lane's last draw.
            offset: The lane's, for verdicts.
            useful: How many items to process at once, so that the next batch is soon there.
            made: How many batches the lane has made.
        """
        if item not in self._known:
            room = AHEAD_BYTES / max(1.0, self._outcome_bytes)
            useful = max(useful, made // BATCHES_PER_ITEM_AHEAD)
            # After so many draws, some too many are few beside them.
            is_alone = not (made or self._gains_together) and useful < 4 * LOOK_AHEAD
            if not (is_alone or self._gains_together):
                room = min(room, ALONE_S / max(1e-9, self._items.process_s))
            count = max(1, min(useful, LOOK_AHEAD, int(room)))
            if is_alone and item in self._read:  # those that come were looked at with it
                count = 1
            items = [item, *self._coming(item, offset, count)]
            # What follows these is read while they are processed; this draw is one of them.
            later = self._later(count - 1)
            if is_alone:
                items = self._alone(items)
            outcomes = self._items.outcomes(items, "draw", later)
            # One of them will do: they are many, and alike.
            taken = held_bytes(outcomes[-1])
            before = self._outcome_bytes or taken
            self._outcome_bytes = before + 0.25 * (taken - before)
            self._known.update(zip(items, outcomes, strict=True))
        outcome = self._known.pop(item)
        assert not isinstance(outcome, int | SampleSizes)
        return outcome

    def _later(self, past: int) -> list[ItemRef]:
        """Return the draws to be read meanwhile, those after the next `past`; none where quick."""
        if not self._items.reads_ahead:
            return []
        return self.peek(past, max(LOOK_AHEAD, self._items.items_ahead))

    def _alone(self, items: list[ItemRef]) -> list[ItemRef]:
        """Have items read together, and return the first to be processed alone.

        So it is before a lane's first batch: which item completes it is not known, and every lane
        would process a few too many while a trainer waits for the first batches of all lanes.
        """
        if self._reads_together and len(items) > 1 and items[0] not in self._read:
            self._read = []
            with contextlib.suppress(BadItem):  # it is named once it is needed itself
                self._items.keeper().keep(items, self._items.raws(items))
                self._read = items
        return items[:1]

    def size(self, item: ItemRef, offset: int) -> int | SampleSizes | Bad:
        """Return a drawn item's size from its raw form, unprocessed; arguments as for `outcome`."""
        if item not in self._known:
            items = [item, *self._coming(item, offset, self._sizes_at_once)]
            later = self.peek(SIZES_AHEAD - 1, SIZES_AHEAD) if self._items.warms_ahead else []
            self._known.update(zip(items, self._items.sizes(items), strict=True))
            self._items.read_ahead(later)
        size = self._known.pop(item)
        assert isinstance(size, int | SampleSizes | Bad)
        return size

    def peek(self, past: int, count: int) -> list[ItemRef]:
        """Return up to `count` coming draws, those after the next `past`."""
        return self._looked(lambda: self._draws.peek(past + count)[past:])

    def run(self, count: int) -> list[ItemRef]:
        """Return up to `count` coming draws, as far as they can be taken together."""
        return self._looked(lambda: self._draws.run(count))

    def _looked(self, look: Callable[[], list[ItemRef]]) -> list[ItemRef]:
        try:
            return look()
        except Exception as error:  # of a user's distributor
            # It stops the lane, by name, when that draw is the next one.
            logger.debug("lane %d looks no further ahead: %s", self._lane, error_line(error))
            return []

    def forget(self, item: ItemRef) -> None:
        """Forget what is known of an item."""
        self._known.pop(item, None)

    def clear(self) -> None:
        """Forget all: the lane goes on elsewhere."""
        self._known.clear()
        self._read = []

    def _coming(self, item: ItemRef, offset: int, count: int) -> list[ItemRef]:
        """Return the items to fetch together with this one: distinct, and not known to be bad.

        Args:
            item: The item that is drawn.
            offset: The lane's.
            count: How many to fetch together, with this one.
        """
        if self._items.careful or count == 1:
            return []
        coming = dict.fromkeys(self.peek(0, count - 1))
        coming.pop(item, None)
        find = self._items.verdicts.find
        return [
            each
            for each in coming
            if each not in self._known and find("draw", each, self._lane, offset) is None
        ]
