"""Which node is asked for which unit now, and when that changes.

A pure object: it has no clock, thread or socket, so that a simulation can run thousands of it in
virtual time, and a test can go through every order of events. Readers do not hear of each other:
each has a placement of its own, and those that know the same nodes come to the same one.

Units leave a node at once when it is left. They go to a node, be it new or back, only at a
**boundary**: a position at which every lane has a snapshot. That is a rule of position alone, so
readers that stand closely together move there together, and hardly a batch is made by two nodes.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from penstock.client.nodes.dealing import deal
from penstock.wire.v1 import feed_pb2

HEALTHY_S = 30.0
"""So long a node must have answered before units go to it, and so long nothing may have been left:
a node that starts again and again would take its units each time, to leave them half a minute
later. One that has drained was ended on purpose and without a replay: it counts as healthy as soon
as it answers, or an update that is faster than this would pile all units up on the last node."""

FORGOTTEN_S = 300.0
"""A node that was left, and is not known any more, is dealt to as one that is away for so long:
what others make does not move for it, there and back."""

KEPT_DEALS = 8
"""Results of dealing that are kept."""


class Deal(Protocol):
    """Deals units to nodes."""

    def __call__(
        self, units: int, weights: Mapping[str, int], *, away: Collection[str]
    ) -> tuple[str, ...]:
        """Return the node of each unit, see `dealing.deal`."""
        ...


class UnitMove(NamedTuple):
    """A unit that another node is asked for from now on."""

    unit: int
    before: str
    after: str


class PlannedMove(NamedTuple):
    """What will be so as soon as all below a position has come.

    Attributes:
        position: A boundary.
        owners: The node of each unit from there on.
    """

    position: int
    owners: tuple[str, ...]


class LeftNode(NamedTuple):
    """A node that is not asked for anything.

    Attributes:
        why: In words.
        since_s: Since when.
        for_good: It refuses what others serve: it is not tried before it has started again.
        because: The kind of reason, which is counted.
    """

    why: str
    since_s: float
    for_good: bool
    because: feed_pb2.LeftBecause

    @property
    def drained(self) -> bool:
        """Tell whether it has said itself that it shuts down."""
        return self.because == feed_pb2.LEFT_DRAINS


@dataclass
class _NodeHealth:
    """What is known of a node.

    Attributes:
        weight: As it is dealt to.
        healthy_s: Since when it may be asked.
        left: Why it is not; None = it is.
        tried: Why it was not, before it answered again.
        is_known: It is among those that are known now.
        is_new: It has come later than the first ones, and was never healthy for long enough: units
            are dealt as if it was not there. To count it as away would deal what it will get to
            others before: these units would move twice.
        gone_s: Since when it is not known.
    """

    weight: int
    healthy_s: float
    left: LeftNode | None = None
    tried: LeftNode | None = None
    is_known: bool = True
    is_new: bool = False
    gone_s: float = 0.0


class Placement:
    """Which node is asked for which unit. Time is an argument: seconds of any clock.

    Args:
        units: How many units there are.
        row: Boundaries are the multiples of so many positions.
        dealt: How units are dealt to nodes.

    Attributes:
        owners: The node of each unit; empty = none is known yet. One that was left is kept only
            where no node is left to ask: then all are tried.
        planned: What changes at a boundary; None = nothing.
    """

    def __init__(self, units: int, row: int, dealt: Deal = deal) -> None:
        self._units, self._row, self._deal = units, row, dealt
        self._nodes: dict[str, _NodeHealth] = {}
        self._results: dict[object, tuple[str, ...]] = {}  # dealing 10,000 units takes long
        self._troubled_s = -math.inf  # when a node was left last
        self.owners: tuple[str, ...] = ()
        self.planned: PlannedMove | None = None

    # --- what is heard of nodes ---

    def know(self, weights: Mapping[str, int], now_s: float) -> None:
        """Take the nodes that are known now, with their weights; none at all changes nothing.

        The first ones may be asked at once. One that is gone is asked until it breaks, or until a
        boundary.
        """
        if not weights:
            return
        first = not self._nodes
        for name, node in self._nodes.items():
            if node.is_known and name not in weights:
                node.gone_s = now_s
                if node.left is None and now_s - node.healthy_s < HEALTHY_S:
                    node.left = node.tried  # it has not shown for long enough that it is back
            node.is_known = name in weights
        for name, weight in weights.items():
            known = self._nodes.get(name)
            if known is None:
                self._nodes[name] = _NodeHealth(
                    weight, -math.inf if first else now_s, is_new=not first
                )
            else:
                known.weight = weight
        used = {*self.owners, *(self.planned.owners if self.planned else ())}
        for name in [name for name, node in self._nodes.items() if not node.is_known]:
            node = self._nodes[name]
            # One that was left may be back under its name: until then dealing counts it as away.
            is_awaited = node.left is not None and now_s - node.gone_s < FORGOTTEN_S
            if name not in used and not is_awaited:
                del self._nodes[name]

    def leave(
        self,
        name: str,
        why: str,
        now_s: float,
        because: feed_pb2.LeftBecause = feed_pb2.LEFT_BROKE,
        *,
        for_good: bool = False,
    ) -> None:
        """Ask a node for nothing any more: it broke, drains, says nothing, or refuses."""
        node = self._nodes.get(name)
        if node is None:
            return
        since_s = now_s if node.left is None else node.left.since_s
        if not for_good and node.left is not None and node.left.drained:
            because = feed_pb2.LEFT_DRAINS  # what breaks after that is its end
        node.left = LeftNode(why, since_s, for_good, because)
        if not node.left.drained:
            self._troubled_s = now_s

    def answers(self, name: str, now_s: float) -> None:
        """Note that a node that was left answers again, if it is among those that are known now.

        One that is not yet says so again a moment later. Until then it counts as away: dealt
        without it, units of others would move, there and back.
        """
        node = self._nodes.get(name)
        if node is not None and node.left is not None and node.is_known:
            node.healthy_s = now_s - HEALTHY_S if node.left.drained else now_s
            node.left, node.tried = None, node.left

    # --- what is asked of it ---

    @property
    def left(self) -> dict[str, LeftNode]:
        """The nodes that are not asked, and why."""
        return {name: node.left for name, node in self._nodes.items() if node.left is not None}

    @property
    def usable(self) -> list[str]:
        """The nodes that may be asked."""
        return [name for name, node in self._nodes.items() if node.left is None]

    def on_trial(self, now_s: float) -> list[str]:
        """Return the nodes that may be asked, and have not been healthy for long enough."""
        return [
            name
            for name in self.usable
            if now_s - self._nodes[name].healthy_s < HEALTHY_S and name not in self.owners
        ]

    def settle(self, now_s: float, arrived: int, accepted: int) -> list[UnitMove]:
        """Return the moves to be made now: they are made when this returns.

        Args:
            now_s: The time.
            arrived: All of the reader's positions below it have come.
            accepted: Positions below it may have been sent for already.
        """
        before = self.owners
        away = set()
        for name, node in self._nodes.items():
            if node.left is not None or now_s - node.healthy_s < HEALTHY_S:
                away.add(name)
            else:
                node.is_new = False
        new = {name for name, node in self._nodes.items() if node.is_new}
        target = self._dealt(away - new, without=new)
        planned = self.planned
        if planned is not None and planned.owners != target:
            planned = None  # other nodes take part now
        if planned is not None and arrived >= planned.position:
            self.owners, planned = planned.owners, None
        self.planned = planned
        self._repair(target)
        if not target or target == self.owners:
            self.planned = None
        elif self.planned is None and now_s - self._troubled_s >= HEALTHY_S:
            position = -(-max(accepted, arrived) // self._row) * self._row
            self.planned = PlannedMove(position, target)
        return [
            UnitMove(unit, old, new)
            for unit, (old, new) in enumerate(zip(before, self.owners, strict=False))
            if old != new
        ]

    def _repair(self, target: tuple[str, ...]) -> None:
        """Give the units of nodes that were left to others, if there are any; no other ones."""
        usable = set(self.usable)
        if self.owners and (not usable or usable.issuperset(self.owners)):
            return
        # Without any other, nodes on trial are asked; if none of these answers, all are tried.
        left = self._nodes.keys() - usable
        others = target or self._dealt(left) or self._dealt(())
        others = others or (min(usable),) * self._units  # it is not among those known now
        self.owners = tuple(
            owner if owner in usable else other
            for owner, other in zip(self.owners or (None,) * self._units, others, strict=True)
        )

    def _dealt(self, away: Collection[str], without: Collection[str] = ()) -> tuple[str, ...]:
        """Return the node of each unit as dealt to the nodes known now; empty = all are away."""
        weights = {
            name: node.weight
            for name, node in self._nodes.items()
            if name not in without and (node.is_known or node.left is not None)
        }
        if all(name in away for name in weights):
            return ()
        key = frozenset(weights.items()), frozenset(away)
        if key not in self._results:
            if len(self._results) >= KEPT_DEALS:
                self._results.clear()
            self._results[key] = self._deal(self._units, weights, away=away)
        return self._results[key]
