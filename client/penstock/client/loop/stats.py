"""What a Loader did, in numbers: above all the share of time that training waited for data."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

from penstock.client.bodies.stages import Waited


class FeedCounts(Protocol):
    """What a feed counts."""

    @property
    def reconnects(self) -> int:
        """How often a stream was opened again."""
        ...

    @property
    def failovers(self) -> Mapping[str, int]:
        """How often a node was left, by the name of the reason."""
        ...


class GivenCounts(NamedTuple):
    """Counts of what a Loader has given; replaced as a whole, so it never counts half a batch.

    Attributes:
        batches: How many batches were given.
        padding_batches: How many of them were padding.
        skipped_batches: How many batches of steps the training loop did not take.
        bytes: The bytes of their bodies.
        samples: The sum of their counts `samples`.
        tokens: The sum of their counts `tokens`.
        reconnects: How often a stream that is over now was opened again.
        failovers: How often feeds that are over now have left a node, by the name of the reason.
        first_at: When the first was given, on the monotonic clock, in seconds.
        last_at: When the last was given.
    """

    batches: int = 0
    padding_batches: int = 0
    skipped_batches: int = 0
    bytes: int = 0
    samples: int = 0
    tokens: int = 0
    reconnects: int = 0
    failovers: Mapping[str, int] = MappingProxyType({})
    first_at: float = 0.0
    last_at: float = 0.0

    def with_feed(self, feed: FeedCounts) -> GivenCounts:
        """Return the counts with those of the open feed."""
        return self._replace(
            reconnects=self.reconnects + feed.reconnects,
            failovers=Counter(self.failovers) + Counter(feed.failovers),
        )

    def given(self, nbytes: int, counts: Mapping[str, int], is_padding: bool) -> GivenCounts:
        """Return the counts with one more batch, which goes to the training loop now."""
        now = time.monotonic()
        return GivenCounts(
            self.batches + 1,
            self.padding_batches + is_padding,
            self.skipped_batches,
            self.bytes + nbytes,
            self.samples + counts.get("samples", 0),
            self.tokens + counts.get("tokens", 0),
            self.reconnects,
            self.failovers,
            self.first_at if self.batches else now,
            now,
        )


class Waits:
    """How long the training loop waited. The time before its first batch is not part of it."""

    def __init__(self) -> None:
        self.first_batch_s = 0.0
        self.later = Waited()

    def add(self, waited: Waited, *, is_first: bool) -> None:
        """Count time that the training loop spent waiting, for its first batch or a later one."""
        if is_first:
            self.first_batch_s += sum(waited)
        else:
            self.later = self.later.plus(waited)


def report(tally: GivenCounts, waits: Waits) -> dict[str, Any]:
    """Return the counts, and the rates since the first batch."""
    elapsed = tally.last_at - tally.first_at
    later = max(0, tally.batches - 1)

    def rate(amount: float) -> float:
        return amount / elapsed if elapsed > 0 else 0.0

    return {
        "batches": tally.batches,
        "padding_batches": tally.padding_batches,
        "skipped_batches": tally.skipped_batches,
        "bytes": tally.bytes,
        "samples": tally.samples,
        "tokens": tally.tokens,
        "reconnects": tally.reconnects,
        "failovers": sum(tally.failovers.values()),
        "first_batch_s": waits.first_batch_s,
        "wait_s": sum(waits.later),
        "wait_network_s": waits.later.network_s,
        "wait_memory_s": waits.later.memory_s,
        "wait_copy_s": waits.later.copy_s,
        "wait_decode_s": waits.later.decode_s,
        "wait_share": min(1.0, rate(sum(waits.later))),
        "batches_per_s": rate(later),
        "bytes_per_s": rate(tally.bytes * later / tally.batches) if tally.batches else 0.0,
        "tokens_per_s": rate(tally.tokens * later / tally.batches) if tally.batches else 0.0,
    }
