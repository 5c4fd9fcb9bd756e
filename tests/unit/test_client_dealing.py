"""Which node is asked for which lane."""

from __future__ import annotations

import itertools

import pytest

from penstock.client.nodes.dealing import deal
from penstock.wire.errors import InvalidRequest


@pytest.mark.parametrize("count", range(1, 6))
@pytest.mark.parametrize("lanes", [1, 2, 5, 48])
def test_each_lane_is_dealt_once_and_no_node_gets_more_than_its_share(
    lanes: int, count: int
) -> None:
    dealt = deal(lanes, [f"host-{number}/0.0.0.0:50051" for number in range(count)])

    assert sorted(itertools.chain(*dealt)) == list(range(lanes))
    assert max(map(len, dealt)) <= -(-lanes // count)
    assert all(list(part) == sorted(part) for part in dealt)


def test_the_order_of_the_nodes_does_not_matter() -> None:
    """Readers that were given the same nodes in another order ask the same ones."""
    nodes = ["a", "b", "c"]
    usual = dict(zip(nodes, deal(48, nodes), strict=True))

    for order in itertools.permutations(nodes):
        assert dict(zip(order, deal(48, order), strict=True)) == usual


def test_most_lanes_stay_where_they_are_when_a_node_comes() -> None:
    """A fifth node takes its share; of the others' lanes few move between them."""
    nodes = [f"node-{number}" for number in range(5)]
    before, after = deal(480, nodes[:4]), deal(480, nodes)

    stayed = sum(len(set(old) & set(new)) for old, new in zip(before, after[:4], strict=True))

    assert stayed >= 480 * 0.6


@pytest.mark.parametrize("nodes", [[], ["a", "b", "a"]])
def test_nodes_without_an_id_of_their_own_are_refused(nodes: list[str]) -> None:
    with pytest.raises(InvalidRequest, match="name each node once"):
        deal(4, nodes)
