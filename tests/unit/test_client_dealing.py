"""Which node is asked for which unit."""

from __future__ import annotations

import itertools
from collections import Counter

import pytest

from penstock.client.nodes.dealing import LaneUnits, deal
from penstock.wire.errors import InvalidRequest

UNITS, MOST_NODES = range(16, 241), 16
WORKERS = (4, 8, 4, 16, 4)


def pods(count: int) -> list[str]:
    """Return ids as an engine numbers them."""
    return [f"penstock-{number}" for number in range(count)]


def moved(before: tuple[str, ...], after: tuple[str, ...]) -> int:
    """Return how many units have another node."""
    return sum(old != new for old, new in zip(before, after, strict=True))


@pytest.mark.parametrize("kind", ["penstock-{}", "{}", "host-{}-{}/0.0.0.0:50051"])
@pytest.mark.parametrize("units", [1, 2, 5, 48])
def test_no_node_gets_more_than_its_part(units: int, kind: str) -> None:
    """At most units * weight / sum of weights, rounded up, also where nodes are away."""
    for count in range(1, 7):
        ids = [kind.format(number * 13 % 7, number) for number in range(count)]
        for weights in (
            dict.fromkeys(ids, 4),
            dict(zip(ids, WORKERS + WORKERS, strict=False)),
        ):
            for away in ((), ids[:1] if count > 1 else ()):
                dealt = Counter(deal(units, weights, away=away))
                total = sum(weights[node] for node in ids if node not in away)

                assert dealt.total() == units
                assert not dealt.keys() & set(away)
                for node, number in dealt.items():
                    assert number <= -(-units * weights[node] // total), (kind, count, away)


def test_the_order_of_the_nodes_does_not_matter() -> None:
    """Readers that know the same nodes in another order ask the same ones."""
    for ids in (pods(4), ["a", "b", "c", "node-7"]):
        weights = dict(zip(ids, WORKERS, strict=False))
        usual = deal(48, weights, salt=b"log")
        for order in itertools.permutations(weights.items()):
            assert deal(48, dict(order), salt=b"log") == usual


def test_a_node_that_joins_moves_what_it_gets_and_nothing_else() -> None:
    """Nodes as engines number them, 16 to 240 units, 2 to 16 nodes: the least that is possible."""
    for units in UNITS:
        before = deal(units, dict.fromkeys(pods(1), 4))
        for count in range(2, MOST_NODES + 1):
            after = deal(units, dict.fromkeys(pods(count), 4))
            own = after.count(pods(count)[-1])
            assert moved(before, after) == own == units // count, (units, count)
            before = after


def test_a_node_that_leaves_moves_what_it_had_and_nothing_else() -> None:
    """Any one of them: its place in the row is empty, whether or not a reader has ever seen it."""
    for units in UNITS[::4]:
        for count in range(2, MOST_NODES + 1):
            weights = dict.fromkeys(pods(count), 4)
            before = deal(units, weights)
            gone = pods(count)[units % count]
            after = deal(units, {node: 4 for node in weights if node != gone})
            assert moved(before, after) == before.count(gone), (units, count, gone)
            if units % 7 == 0:
                known = deal(units, weights, away=[gone])
                assert moved(before, known) == before.count(gone), (units, count, gone)


@pytest.mark.parametrize("weights", [(4,), WORKERS])
@pytest.mark.parametrize("kind", ["from 0", "from 1", "from 17", "from 29", "without an order"])
def test_of_any_nodes_few_more_units_move_than_have_to(kind: str, weights: tuple[int, ...]) -> None:
    """In sum at most 1.25 times the least; none more where it is known which node is away."""
    moves, least = Counter[str](), Counter[str]()
    for units in UNITS[::75]:
        for count in range(2, MOST_NODES + 1):
            start = int(kind.rpartition(" ")[2]) if kind.startswith("from") else None
            ids = [
                f"gpu{number + start:03}/0.0.0.0:50051"
                if start is not None
                else f"pod-{number * 7919 % 65537:x}q{number * number}"
                for number in range(count)
            ]
            nodes = {node: weights[at % len(weights)] for at, node in enumerate(ids)}
            before = deal(units, nodes)
            for what, gone in ("joins", ids[-1]), ("leaves", ids[units % count]):
                without = {node: nodes[node] for node in ids if node != gone}
                moves[what] += moved(before, deal(units, without))
                least[what] += before.count(gone)
                assert moved(before, deal(units, nodes, away=[gone])) == before.count(gone)

    assert all(moves[what] <= 1.25 * least[what] for what in least), (moves, least)


def test_a_node_of_twice_the_weight_is_the_best_of_twice_as_many_units() -> None:
    """Weights that change a little move little: most units keep their best node."""
    weights = {"a": 4, "b": 8, "c": 4}
    before = Counter(deal(160, weights))
    assert before == {"a": 40, "b": 80, "c": 40}

    heavier = deal(160, {**weights, "c": 5})

    assert moved(deal(160, weights), heavier) <= 2 * (heavier.count("c") - 40)


def test_each_log_is_dealt_otherwise() -> None:
    """Jobs of a single unit do not all lie at one node."""
    weights = dict.fromkeys(pods(4), 4)
    single = Counter(deal(1, weights, salt=bytes([salt]))[0] for salt in range(80))

    assert min(single[node] for node in weights) >= 8


def test_lanes_that_read_the_same_storage_are_dealt_together() -> None:
    """48 lanes in 16 reading groups: each group is one node's, however many nodes there are."""
    units = range(16)
    for count in range(1, 17):
        dealt = LaneUnits(48, tuple(units)).by_node(dict.fromkeys(pods(count), 4))

        assert sorted(itertools.chain(*dealt.values())) == list(range(48))
        assert all(list(own) == sorted(own) for own in dealt.values())
        groups = [{lane % 16 for lane in own} for own in dealt.values()]
        assert sum(map(len, groups)) == 16
        assert max(map(len, groups)) <= -(-16 // count)


def test_units_may_be_named_by_any_numbers_and_a_lane_may_be_one_of_its_own() -> None:
    weights = dict.fromkeys(pods(3), 1)

    named = LaneUnits(6, (7, 3, 7)).by_node(weights)
    assert len(named) == 2
    assert (1, 4) in named.values()
    alone = LaneUnits(5).by_node(weights)
    assert sorted(map(len, alone.values())) == [1, 2, 2]


@pytest.mark.parametrize(("weights", "away"), [({}, ()), ({"a": 1}, ("a",)), ({"a": 0}, ())])
def test_nobody_to_deal_to_is_refused(weights: dict[str, int], away: tuple[str, ...]) -> None:
    with pytest.raises(InvalidRequest, match="with a weight of at least 1"):
        deal(4, weights, away=away)
