"""Which lanes a rank reads at all: it opens streams only to nodes that make some of these."""

from __future__ import annotations

from math import gcd

from penstock.wire.order import Share


def read_lanes(lanes: int, share: Share) -> frozenset[int]:
    """Return the lanes of an endless log that a rank's positions ever meet: often few of them."""
    apart = gcd(share.batches_per_step, lanes)
    met = {position % apart for position in share.positions(0)}
    return frozenset(lane for lane in range(lanes) if lane % apart in met)
