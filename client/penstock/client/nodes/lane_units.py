"""Lanes that belong together: one node makes all of a unit, as they read the same storage."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import gcd

from penstock.wire.order import Share
from penstock.wire.v1 import feed_pb2


@dataclass(frozen=True)
class LaneUnits:
    """The lanes of a log, by the units that are dealt to nodes.

    Attributes:
        lanes: How many lanes the log has.
        units: Lane l belongs to unit `units[l mod len(units)]`; empty = each lane is a unit.
        snapshot_every: Reading of a lane begins without a replay at offsets that are multiples of
            it; 0 = at all.
    """

    lanes: int
    units: tuple[int, ...] = ()
    snapshot_every: int = 0

    @staticmethod
    def described(info: feed_pb2.DescribeReply) -> LaneUnits:
        """Return what a node says of them."""
        return LaneUnits(info.lanes, tuple(info.units), info.snapshot_every)

    @cached_property
    def _numbers(self) -> dict[int, int]:
        return {unit: number for number, unit in enumerate(dict.fromkeys(self.units[: self.lanes]))}

    @property
    def count(self) -> int:
        """How many units there are: they are numbered from 0 on, as their first lanes are."""
        return len(self._numbers) or self.lanes

    @property
    def row(self) -> int:
        """Positions from one at which every lane has a snapshot to the next such one."""
        return self.lanes * max(1, self.snapshot_every)

    def unit_of(self, lane: int) -> int:
        """Return the number of the unit of a lane."""
        return self._numbers[self.units[lane % len(self.units)]] if self.units else lane


def read_lanes(lanes: int, share: Share) -> frozenset[int]:
    """Return the lanes of an endless log that a rank's positions ever meet: often few of them."""
    apart = gcd(share.batches_per_step, lanes)
    met = {position % apart for position in share.positions(0)}
    return frozenset(lane for lane in range(lanes) if lane % apart in met)
