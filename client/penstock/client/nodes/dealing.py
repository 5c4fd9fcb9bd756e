"""Which node is asked for which unit: the same for every reader, whatever order it knows them in.

A unit is what one node makes as a whole: lanes that read the same storage, or one lane. Every
reader finds the same node for a unit without asking anybody, so that each batch is made once; and
where a node comes or goes most units stay where they are.

Engines number what they place, and so the ids of nodes often differ in one number: `penstock-0` to
`penstock-15`. Such ids are places of a row. Units are dealt along it: each place takes its share
from those before it that have most. So a node that comes at the end takes its share and moves
nothing else, and a place of the row that nobody has now keeps its units for whoever comes back to
it; meanwhile others make them. No function of the ids alone can do so for ids of any kind: those
are dealt by rendezvous (Thaler and Ravishankar, "Using name-based mappings to increase hit rates",
1998) with a bound on what one node gets (Mirrokni, Thorup and Zadimoghaddam, "Consistent hashing
with bounded loads", 2016), which moves more.

Glossary:
    unit: The lanes of a job that one node makes together, since they read the same storage.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from hashlib import blake2b
from heapq import heapify, heapreplace
from math import lcm
from typing import NamedTuple

from penstock.wire.errors import InvalidRequest

MOST_PLACES = 2
"""A row has at most so many places for each node: where more are empty, it is not taken for one."""


class _RowPlace(NamedTuple):
    """A place of a row.

    Attributes:
        node: The id of its node.
        per_unit: How full a unit makes it, in a measure that all places share.
        tie: Of places that are equally full the one with the lowest gives first.
        held: Its units, by their numbers in the order in which they are dealt, ascending.
    """

    node: str
    per_unit: int
    tie: int
    held: list[int]


def deal(
    units: int, weights: Mapping[str, int], *, away: Collection[str] = (), salt: bytes = b""
) -> tuple[str, ...]:
    """Return the node of each unit.

    A node gets at most `units * weight / sum of weights`, rounded up, of the nodes that are not
    away.

    Args:
        units: How many units there are.
        weights: The weight of every node that is known, by its id; their order does not matter.
        away: Ids of nodes that get nothing now. What is theirs is dealt to the others, and no other
            unit moves for it: when they are back it is theirs again.
        salt: Deals otherwise for each value, so that jobs of few units do not all lie at the same
            nodes: the log id.

    Raises:
        InvalidRequest: Every node is away, or there is none, or a weight is not above 0.
    """
    present = {node: weight for node, weight in weights.items() if node not in away}
    if not present or min(weights.values()) < 1:
        raise InvalidRequest(
            f"units are dealt to nodes with a weight of at least 1, not to {present or 'none'}"
        )
    order = _order(units, salt)
    row = _row(weights)
    by_row = {} if row is None else _along(order, row, salt)
    base = by_row or _by_rendezvous(order, {}, weights, salt)
    found = _by_rendezvous(order, base, present, salt)
    return tuple(found[unit] for unit in range(units))


@dataclass(frozen=True)
class LaneUnits:
    """The units of a log's lanes.

    Attributes:
        lanes: How many lanes the log has.
        period: The units of lanes, which repeat: lane l is of unit `period[l mod len(period)]`.
            Empty = each lane is a unit of its own.
        salt: As for `deal`: the log id.
        snapshot_every: Reading of a lane begins without a replay at offsets that are multiples of
            it; 0 = at all.
    """

    lanes: int
    period: tuple[int, ...] = ()
    salt: bytes = b""
    snapshot_every: int = 0

    @property
    def row(self) -> int:
        """Positions from one at which every lane has a snapshot to the next such one."""
        return self.lanes * max(1, self.snapshot_every)

    @cached_property
    def of_lane(self) -> Sequence[int]:
        """Return the number of each lane's unit, among `members`."""
        found = [0] * self.lanes
        for number, lanes in enumerate(self.members):
            for lane in lanes:
                found[lane] = number
        return found

    @cached_property
    def members(self) -> Sequence[tuple[int, ...]]:
        """Return the lanes of each unit, ascending, in the order of their first ones."""
        found: dict[int, list[int]] = {}
        for lane in range(self.lanes):
            unit = self.period[lane % len(self.period)] if self.period else lane
            found.setdefault(unit, []).append(lane)
        return [tuple(lanes) for lanes in found.values()]

    def dealt(self, weights: Mapping[str, int], away: Collection[str] = ()) -> tuple[str, ...]:
        """Return the node of each of the `members`.

        Args:
            weights: As for `deal`.
            away: The same.

        Raises:
            InvalidRequest: As `deal`.
        """
        return deal(len(self.members), weights, away=away, salt=self.salt)

    def by_node(
        self, weights: Mapping[str, int], away: Collection[str] = ()
    ) -> dict[str, tuple[int, ...]]:
        """Return the lanes of each node that has any, ascending.

        Args:
            weights: As for `deal`.
            away: The same.

        Raises:
            InvalidRequest: As `deal`.
        """
        found: dict[str, list[int]] = {}
        for node, lanes in zip(self.dealt(weights, away), self.members, strict=True):
            found.setdefault(node, []).extend(lanes)
        return {node: tuple(sorted(found[node])) for node in sorted(found)}


@lru_cache(maxsize=64)
def _order(units: int, salt: bytes) -> Sequence[int]:
    """Return the units in the order of their hashes, in which they are dealt."""
    return sorted(range(units), key=lambda unit: _hash(salt, unit))


def _row(weights: Mapping[str, int]) -> list[tuple[str, int]] | None:
    """Return the places of a row of nodes that differ in one number, each with its weight.

    A place that no node has gets the weight that most nodes have, and a name that none has.

    Returns:
        None: The ids are of another kind, or there are more empty places than nodes.
    """
    parts = {node: re.split(r"(\d+)", node) for node in weights}
    [first, *others] = parts.values()
    differing = {
        index
        for other in others
        for index in range(max(len(first), len(other)))
        if first[index : index + 1] != other[index : index + 1]
    }
    if not others:
        return [*weights.items()]
    if len(differing) != 1 or not (index := differing.pop()) % 2:
        return None
    places = {int(part[index]): node for node, part in parts.items()}
    begin, end, most = min(places), max(places) + 1, MOST_PLACES * len(places)
    if len(places) < len(parts) or end - begin > most:
        return None
    if end <= most:
        begin = 0  # engines count from 0: the first one is missed as any other is
    usual = min(Counter(weights.values()).items(), key=lambda found: (-found[1], found[0]))[0]
    return [
        (places.get(number, f"\0{number}"), weights.get(places.get(number, ""), usual))
        for number in range(begin, end)
    ]


def _along(order: Sequence[int], row: Sequence[tuple[str, int]], salt: bytes) -> dict[int, str]:
    """Deal units along a row: each place takes its share from those before it that have most."""
    whole = lcm(*(weight for _, weight in row))
    places: list[_RowPlace] = []
    total = 0
    for number, (node, weight) in enumerate(row):
        total += weight
        share = len(order) * weight // total
        # Units that are fewer than nodes would all stay at the first ones.
        if share == 0 and _hash(salt, f"place {number}") % total < len(order) * weight:
            share = 1
        place = _RowPlace(node, whole // weight, _hash(salt, f"gives {number}"), [])
        if places:
            fullest = [(-len(other.held) * other.per_unit, other.tie, other) for other in places]
            heapify(fullest)
            for _ in range(share):
                _, tie, other = fullest[0]
                place.held.append(other.held.pop())
                heapreplace(fullest, (-len(other.held) * other.per_unit, tie, other))
            place.held.sort()
        else:
            place.held.extend(range(len(order)))
        places.append(place)
    return {order[rank]: place.node for place in places for rank in place.held}


def _by_rendezvous(
    order: Sequence[int], base: Mapping[int, str], weights: Mapping[str, int], salt: bytes
) -> dict[int, str]:
    """Deal the units that have no node in `base`, or one that is not here, or that is too many.

    In the order of the units' hashes, each to its best node below the node's bound.
    """
    total = sum(weights.values())
    room = {node: -(-len(order) * weight // total) for node, weight in weights.items()}
    found: dict[int, str] = {}
    for unit in order:
        node = base.get(unit)
        if node is not None and room.get(node, 0):
            found[unit] = node
            room[node] -= 1
    for unit in order:
        if unit not in found:
            free = [node for node, left in room.items() if left]
            best = max(free, key=lambda node: (_hash(salt, f"{unit} {node}"), node))
            found[unit] = best
            room[best] -= 1
    return found


def _hash(salt: bytes, what: object) -> int:
    digest = blake2b(f"{what}".encode("utf-8", "surrogatepass"), digest_size=8, key=salt[:64])
    return int.from_bytes(digest.digest(), "big")
