"""Lane, offset, position, step: checked against their definition by enumerating small cases."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from penstock.wire.errors import InvalidRequest, PastEnd, RankOutOfRange, UnevenStep
from penstock.wire.order import (
    MAX_POSITION,
    LaneOffset,
    Order,
    Share,
    Tail,
    check_divides,
    divisors,
    position_list,
)

MAX_LANES, MAX_END, MAX_STEP = 4, 4, 6


def finite_orders() -> Iterator[Order]:
    """Every log of at most 4 lanes of at most 4 batches each."""
    for lanes in range(1, MAX_LANES + 1):
        for ends in itertools.product(range(MAX_END + 1), repeat=lanes):
            yield Order(lanes, ends)


def shares() -> Iterator[tuple[int, int]]:
    """Every (batches per step, world size) of at most 6 batches per step."""
    for batches_per_step in range(1, MAX_STEP + 1):
        for world_size in divisors(batches_per_step):
            yield batches_per_step, world_size


def test_every_finite_log_is_numbered_as_its_rows_are_walked() -> None:
    """`address` and `position` are the two directions of the definition, without gap or repeat."""
    for order in finite_orders():
        addresses = position_list(order, MAX_LANES * MAX_END + 1)

        assert order.batches == len(addresses) == len(set(addresses))
        assert [order.lane_offset(p) for p in range(len(addresses))] == list(addresses)
        assert [order.position(*a) for a in addresses] == list(range(len(addresses)))


def test_every_batch_of_every_lane_has_a_position() -> None:
    """The positions of a finite log cover each (lane, offset) below the ends, and no other."""
    for order in finite_orders():
        assert order.ends is not None
        there = {
            LaneOffset(lane, offset) for lane, end in enumerate(order.ends) for offset in range(end)
        }

        assert set(position_list(order, MAX_LANES * MAX_END + 1)) == there


@pytest.mark.parametrize("lanes", [1, 2, 3, 48])
def test_an_endless_log_is_numbered_as_its_rows_are_walked(lanes: int) -> None:
    """The number of a batch is offset * lanes + lane."""
    order = Order(lanes)
    addresses = position_list(order, 500)

    assert order.batches is None
    assert [order.lane_offset(p) for p in range(500)] == list(addresses)
    assert [order.position(*a) for a in addresses] == list(range(500))


def test_equal_ends_number_a_finite_log_like_an_endless_one() -> None:
    """Where no lane ends early nothing is closed up."""
    finite, endless = Order(3, (4, 4, 4)), Order(3)

    assert [finite.lane_offset(p) for p in range(12)] == [endless.lane_offset(p) for p in range(12)]


def test_past_the_end_of_a_log_there_is_no_address() -> None:
    """The first position past the end is refused with the number of batches."""
    for order in finite_orders():
        assert order.batches is not None
        with pytest.raises(PastEnd, match=f"holds {order.batches} batches") as caught:
            order.lane_offset(order.batches)
        assert caught.value.fields == {"position": order.batches, "batches": order.batches}


def test_past_the_end_of_a_lane_there_is_no_position() -> None:
    """Each lane refuses its first offset that is not there, also where other lanes go on."""
    for order in finite_orders():
        assert order.ends is not None
        for lane, end in enumerate(order.ends):
            with pytest.raises(PastEnd, match=f"lane {lane} holds {end} batches"):
                order.position(lane, end)


@pytest.mark.parametrize(("lane", "offset"), [(-1, 0), (2, 0), (0, -1)])
def test_what_is_no_address_is_refused(lane: int, offset: int) -> None:
    """A lane outside of the log or a negative offset has no position."""
    for order in (Order(2), Order(2, (3, 3))):
        with pytest.raises(InvalidRequest, match=f"lane {lane}, offset {offset}"):
            order.position(lane, offset)


@pytest.mark.parametrize("position", [-1, MAX_POSITION + 1])
def test_what_is_no_position_is_refused(position: int) -> None:
    """A position is between 0 and 2**63 - 1."""
    for order in (Order(2), Order(2, (3, 3))):
        with pytest.raises(InvalidRequest, match=str(position)):
            order.lane_offset(position)


@pytest.mark.parametrize(
    ("lanes", "ends"), [(0, None), (-1, None), (2, (1,)), (1, (1, 2)), (2, (1, -1))]
)
def test_a_log_that_cannot_be_is_refused(lanes: int, ends: tuple[int, ...] | None) -> None:
    """A log has at least one lane, and one length of at least 0 for each."""
    with pytest.raises(InvalidRequest):
        Order(lanes, ends)


def test_the_last_position_has_an_address_and_back() -> None:
    """The arithmetic holds up to the largest position."""
    order = Order(48)

    assert order.position(*order.lane_offset(MAX_POSITION)) == MAX_POSITION


def test_the_ranks_partition_every_step() -> None:
    """Each position of a step belongs to exactly one rank, and every rank gets G / W, ascending."""
    for batches_per_step, world_size in shares():
        ranks = [Share(batches_per_step, rank, world_size) for rank in range(world_size)]
        for step in range(4):
            taken = [list(share.positions(step)) for share in ranks]

            whole = range(step * batches_per_step, (step + 1) * batches_per_step)
            assert sorted(itertools.chain(*taken)) == list(whole)
            assert all(positions == sorted(positions) for positions in taken)
            assert {len(p) for p in taken} == {ranks[0].batches_per_rank}


def test_a_rank_takes_its_residue_within_the_step() -> None:
    """`positions`, `owns` and `step` say the same as (position - s*G) mod W == r."""
    for batches_per_step, world_size in shares():
        for rank in range(world_size):
            share = Share(batches_per_step, rank, world_size)
            for position in range(4 * batches_per_step):
                step = position // batches_per_step
                mine = (position - step * batches_per_step) % world_size == rank

                assert share.step(position) == step
                assert share.owns(position) == mine == (position in share.positions(step))


def test_steps_hold_the_same_positions_for_every_world_size() -> None:
    """What a step contains does not depend on how many ranks share it."""
    for batches_per_step in range(1, MAX_STEP + 1):
        contents = {
            tuple(
                sorted(
                    p
                    for r in range(world_size)
                    for p in Share(batches_per_step, r, world_size).positions(3)
                )
            )
            for world_size in divisors(batches_per_step)
        }

        assert len(contents) == 1


def test_the_ways_to_walk_a_share_agree() -> None:
    """`at_or_after`, `nth_after` and `walk` give what filtering all positions by `owns` gives."""
    for batches_per_step, world_size in shares():
        for rank in range(world_size):
            share = Share(batches_per_step, rank, world_size)
            for start in range(3 * batches_per_step):
                owned = [p for p in range(start, start + 6 * batches_per_step) if share.owns(p)]

                assert share.at_or_after(start) == owned[0]
                assert list(itertools.islice(share.walk(start), len(owned))) == owned
                assert [share.nth_after(owned[0], n) for n in range(len(owned))] == owned


@pytest.mark.parametrize(("rank", "world_size"), [(2, 2), (-1, 2), (0, 0), (5, -1)])
def test_a_rank_outside_of_its_world_is_refused(rank: int, world_size: int) -> None:
    """Ranks go from 0 to world_size - 1, and the error says so with the values."""
    with pytest.raises(RankOutOfRange, match="ranks go from 0") as caught:
        Share(8, rank, world_size)
    assert caught.value.fields == {"rank": rank, "world_size": world_size}


def test_an_uneven_step_is_told_values_that_work() -> None:
    """Every number that the message proposes would be accepted, and they surround the one given."""
    for batches_per_step in range(-3, 40):
        for world_size in range(1, 20):
            if batches_per_step > 0 and batches_per_step % world_size == 0:
                check_divides(batches_per_step, world_size)
                continue
            with pytest.raises(UnevenStep) as caught:
                check_divides(batches_per_step, world_size)

            text = str(caught.value)
            assert f"{batches_per_step} batches per step" in text
            assert f"{world_size} ranks" in text
            proposal = text.partition("use batches_per_step ")[2].partition("; ")[0]
            steps, _, ranks = proposal.partition(", or ")
            sizes = [int(size) for size in steps.split(" or ")]
            for size in sizes:
                check_divides(size, world_size)
                assert abs(size - max(batches_per_step, 0)) <= world_size
            assert max(sizes) > batches_per_step
            if batches_per_step > 0:
                fewer = int(ranks.split()[0])
                check_divides(batches_per_step, fewer)
                assert fewer < world_size
            else:
                assert not ranks


@pytest.mark.parametrize("world_size", [0, -2])
def test_a_world_without_ranks_is_refused(world_size: int) -> None:
    """No division by nothing: the error names the world size."""
    with pytest.raises(InvalidRequest, match=str(world_size)):
        check_divides(4, world_size)


def test_divisors_are_all_and_ascending() -> None:
    """`divisors` gives what trial division gives."""
    for number in range(1, 200):
        assert divisors(number) == [d for d in range(1, number + 1) if number % d == 0]


UNEVEN_SHARES = [
    [Share(size, rank, world, uneven=True) for rank in range(world)]
    for size, world in itertools.product(range(1, 10), range(1, 22))
]
"""By step and world size the shares of all ranks; more ranks than batches, too."""


def test_uneven_shares_hold_each_position_once_and_are_equally_long() -> None:
    """Every rank has ceil(G / W) of a step; the fillers are of its last batch, and come last."""
    for shares in UNEVEN_SHARES:
        size, world = shares[0].batches_per_step, len(shares)
        real: list[int] = []
        for share in shares:
            own = list(share.positions(3))
            fillers = [p for p in own if share.is_filler(p)]
            assert len(own) == share.batches_per_rank == -(-size // world)
            assert own == sorted(set(own))
            assert fillers in ([], [4 * size - 1])
            assert own[len(own) - len(fillers) :] == fillers
            real += [p for p in own if not share.is_filler(p)]
            assert all((p - 3 * size) % world == share.rank for p in own if p not in fillers)

        assert sorted(real) == list(range(3 * size, 4 * size))


def test_the_ways_to_walk_an_uneven_share_agree() -> None:
    """All of them give what filtering positions by `owns` gives, whatever W and G are."""
    for share in itertools.chain.from_iterable(UNEVEN_SHARES):
        size = share.batches_per_step
        owned = [p for p in range(5 * size) if share.owns(p)]
        assert owned == [p for step in range(5) for p in share.positions(step)]
        for start in range(3 * size):
            rest = [p for p in owned if p >= start]
            assert share.index(start) == len(owned) - len(rest)
            assert share.at_or_after(start) == rest[0]
            assert list(itertools.islice(share.walk(start), len(rest))) == rest
        assert [share.nth_after(owned[0], n) for n in range(len(owned))] == owned
        for step in range(3):
            assert [share.micro(p) for p in share.positions(step)] == list(
                range(share.batches_per_rank)
            )


def test_a_share_that_need_not_be_uneven_is_the_even_one() -> None:
    """Where W divides G nothing is filled, and the arithmetic is the same."""
    for size, world in shares():
        for rank in range(world):
            even, uneven = Share(size, rank, world), Share(size, rank, world, uneven=True)
            assert list(even.positions(2)) == list(uneven.positions(2))
            assert not any(uneven.is_filler(p) for p in range(3 * size))


def test_a_padded_tail_fills_the_last_step() -> None:
    """With padding every batch is in a step, every step is full, and nothing is dropped."""
    for batches, batches_per_step in itertools.product(range(20), range(1, MAX_STEP + 1)):
        tail = Tail(batches, batches_per_step, pad=True)

        assert tail.end == tail.steps * batches_per_step
        assert 0 <= tail.end - batches < batches_per_step
        assert tail.dropped == 0


def test_a_dropped_tail_leaves_out_what_fills_no_step() -> None:
    """Without padding every step is of real batches, and what is left out is counted."""
    for batches, batches_per_step in itertools.product(range(20), range(1, MAX_STEP + 1)):
        tail = Tail(batches, batches_per_step, pad=False)

        assert tail.end + tail.dropped == batches
        assert 0 <= tail.dropped < batches_per_step
        assert all(tail.blanked(position) is None for position in range(tail.end))


def test_padding_positions_blank_real_batches_of_the_end() -> None:
    """A padding position T + k stands for T - 1 - (k mod min(T, G)); a real one for none."""
    for batches, batches_per_step in itertools.product(range(1, 20), range(1, MAX_STEP + 1)):
        tail = Tail(batches, batches_per_step)

        assert [tail.blanked(p) for p in range(batches)] == [None] * batches
        for k in range(tail.end - batches):
            source = tail.blanked(batches + k)
            assert source == batches - 1 - k % min(batches, batches_per_step)
            assert source is not None
            assert 0 <= source < batches


def test_all_ranks_end_at_the_same_step() -> None:
    """Below the end of a log's steps every rank has equally many positions, padded or dropped."""
    for batches, (batches_per_step, world_size), pad in itertools.product(
        range(14), list(shares()), (True, False)
    ):
        tail = Tail(batches, batches_per_step, pad)
        counts = {
            sum(Share(batches_per_step, rank, world_size).owns(p) for p in range(tail.end))
            for rank in range(world_size)
        }

        assert counts == {tail.steps * batches_per_step // world_size}
