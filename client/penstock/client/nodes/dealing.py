"""Which node is asked for which unit: the same for every reader, whatever order it knows them in.

A unit is what one node makes as a whole: lanes that read the same storage, or one lane. Every
reader finds the same node for a unit without asking anybody, so that each batch is made once; and
where a node comes or goes most units stay where they are.

Engines number what they place, and so the ids of nodes often differ in one number: `penstock-0` to
`penstock-15`. Where these have the same weight, they are places of a row. Units are dealt along it:
each place takes its share from those before it that have most. So a node that comes at the end
takes its share and moves nothing else, and a place of the row that nobody has now keeps its units
for whoever comes back to it; meanwhile others make them. No function of the ids alone can do so for
ids of any kind, nor where it is not known which weight a missing place has: there, units and nodes
are paired by rendezvous (Thaler and Ravishankar, "Using name-based mappings to increase hit rates",
1998; with weights Schindelhauer and Schomaker, "Weighted distributed hash tables", 2005), the best
pair of all first, with a bound on what one node gets. That is the stable matching (Gale and
Shapley, 1962), which moves less than units that choose one after another.

Glossary:
    unit: The lanes of a job that one node makes together, since they read the same storage.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from hashlib import blake2b
from heapq import heapify, heapreplace
from typing import Any, NamedTuple

import numpy as np

from penstock.wire.errors import InvalidRequest

RING = 16
"""Places are numbers modulo this, or a power of it that all fit in: which of them is the first one
does not matter then. More would leave more places empty."""

MOST_PLACES = 16
"""A row has at most so many places for each node: where more are empty, it is not taken for one."""

MOST_DRAWS = 256
"""Nodes with more workers are paired as if they had so many: each costs a hash for each unit."""


class _RowPlace(NamedTuple):
    """A place of a row.

    Attributes:
        node: The id of its node.
        tie: Of places that are equally full the one with the lowest gives first.
        held: Its units, by their numbers in the order in which they are dealt, ascending.
    """

    node: str
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
    base = {} if row is None else _along(order, row, salt)
    if len(present) < len(weights):
        base = _paired(order, base, weights, salt)
    found = _paired(order, base, present, salt)
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


def _row(weights: Mapping[str, int]) -> list[str] | None:
    """Return the places of a row of nodes that differ in one number, and in no weight.

    A place that no node has gets a name that none has.

    Returns:
        None: The nodes are of another kind, or there are too many empty places.
    """
    parts = {node: re.split(r"(\d+)", node) for node in weights}
    [first, *others] = parts.values()
    differing = {
        index
        for other in others
        for index in range(max(len(first), len(other)))
        if first[index : index + 1] != other[index : index + 1]
    }
    if len(set(weights.values())) > 1 or len(differing) != 1 or not (index := differing.pop()) % 2:
        return None
    numbers = {node: int(part[index]) for node, part in parts.items()}
    lowest, highest = min(numbers.values()), max(numbers.values())
    ring = RING
    while ring <= highest - lowest:
        ring *= RING
    if highest < 2 * len(numbers):
        ring = highest + 1  # they are places as they are: engines count from 0, or from 1
    places = {number % ring: node for node, number in numbers.items()}
    end = max(places) + 1
    if len(places) < len(numbers) or end > MOST_PLACES * len(places):
        return None
    return [places.get(number, f"\0{number}") for number in range(end)]


def _along(order: Sequence[int], row: Sequence[str], salt: bytes) -> dict[int, str]:
    """Deal units along a row: each place takes its share from those before it that have most."""
    places: list[_RowPlace] = []
    for number, node in enumerate(row):
        share = len(order) // (number + 1)
        # Units that are fewer than nodes would all stay at the first ones.
        if share == 0 and _hash(salt, f"place {number}") % (number + 1) < len(order):
            share = 1
        place = _RowPlace(node, _hash(salt, f"gives {number}"), [])
        if places:
            fullest = [(-len(other.held), other.tie, other) for other in places]
            heapify(fullest)
            for _ in range(share):
                _, tie, other = fullest[0]
                place.held.append(other.held.pop())
                heapreplace(fullest, (-len(other.held), tie, other))
            place.held.sort()
        else:
            place.held.extend(range(len(order)))
        places.append(place)
    return {order[rank]: place.node for place in places for rank in place.held}


def _paired(
    order: Sequence[int], base: Mapping[int, str], weights: Mapping[str, int], salt: bytes
) -> dict[int, str]:
    """Deal the units that have no node in `base`, or one that is not here, or that is too many.

    Of all units and nodes that have room the best pair first.
    """
    total = sum(weights.values())
    room = {node: -(-len(order) * weight // total) for node, weight in weights.items()}
    found: dict[int, str] = {}
    for unit in order:
        node = base.get(unit)
        if node is not None and room.get(node, 0):
            found[unit] = node
            room[node] -= 1
    free = [unit for unit in order if unit not in found]
    nodes = sorted(node for node, left in room.items() if left)
    if not free:
        return found
    scores = _scores(free, {node: weights[node] for node in nodes}, salt)
    for place in np.argsort(~scores, axis=None, kind="stable"):
        row, column = divmod(int(place), len(nodes))
        unit, node = free[row], nodes[column]
        if room[node] and unit not in found:
            found[unit] = node
            room[node] -= 1
            if len(found) == len(order):
                break
    return found


def _scores(units: Sequence[int], weights: Mapping[str, int], salt: bytes) -> Any:
    """Return how well each unit and each node go together: uint64 (units, nodes).

    A node has as many draws as its weight, and the best of them counts: so it is the best one of a
    unit as often as its weight says.
    """
    own = np.array([[_hash(salt, f"unit {unit}")] for unit in units], np.uint64)
    scores = np.empty((len(units), len(weights)), np.uint64)
    for column, (node, weight) in enumerate(weights.items()):
        draws = range(min(weight, MOST_DRAWS))
        others = np.array([_hash(salt, f"draw {draw} of {node}") for draw in draws], np.uint64)
        scores[:, column] = _mixed(own ^ others).max(axis=1)
    return scores


def _mixed(values: Any) -> Any:
    """Return hashes of uint64 values: the last steps of splitmix64.

    Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014.
    """
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def _hash(salt: bytes, what: object) -> int:
    digest = blake2b(f"{what}".encode("utf-8", "surrogatepass"), digest_size=8, key=salt[:64])
    return int.from_bytes(digest.digest(), "big")
