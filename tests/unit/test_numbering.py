"""What is known of an order, held against every order that the known facts allow."""

from __future__ import annotations

import itertools
import random

import pytest

from penstock.wire.errors import InvalidRequest, LogDiverged, PastEnd
from penstock.wire.numbering import Located, Numbering
from penstock.wire.order import MAX_POSITION, Cut, LaneOffset, Order, position_list

CASES = 4000
MAX_LANES, MAX_END, MAX_STEP = 4, 4, 5
LONG = MAX_LANES * (MAX_END + 1) + MAX_STEP
"""More batches than all lanes have together, with padding."""

Fact = tuple[int, int, bool]
"""A lane, a number of batches, and whether it holds exactly so many, or at least."""


def facts_of(chance: random.Random, ends: list[int]) -> list[Fact]:
    """Return facts about lanes, each end among them, in an order in which they may become known."""
    facts = [(lane, end, True) for lane, end in enumerate(ends)]
    facts += [(lane, chance.randint(0, end), False) for lane, end in enumerate(ends) for _ in "abc"]
    chance.shuffle(facts)
    return facts


def answer(numbering: Numbering, position: int, cut: Cut | None) -> Located | str | None:
    """Return what is answered; an error by its code."""
    try:
        return numbering.locate(position, cut)
    except PastEnd as error:
        return error.code


def defined(order: Order, position: int, cut: Cut | None) -> Located | str:
    """Return what stands at a position of a log that is wholly known: the definition."""
    assert order.ends is not None
    total = sum(end or 0 for end in order.ends)
    if cut is not None:
        step = cut.batches_per_step
        end = -(-total // step) * step if cut.pad else total // step * step
        if position >= end:
            return "past_end"
        if position >= total:
            source = total - 1 - (position - total) % min(total, step)
            return Located(*position_list(order, source + 1)[-1], True)
    if position >= total:
        return "past_end"
    return Located(*position_list(order, position + 1)[-1])


def possible(lanes: int, facts: list[Fact]) -> list[Order]:
    """Return orders that some facts allow, enough of them to tell apart what is not known."""
    choices = []
    for lane in range(lanes):
        exact = [number for of, number, is_end in facts if of == lane and is_end]
        least = max([number for of, number, _ in facts if of == lane], default=0)
        choices.append(exact[:1] or [least, LONG])
    return [Order(lanes, ends) for ends in itertools.product(*choices)]


def test_it_never_answers_wrongly_and_as_soon_as_it_can() -> None:
    """After a fact: what all possible logs have in common is said, and nothing else is."""
    chance = random.Random(3)
    for _ in range(CASES):
        lanes = chance.randint(1, MAX_LANES)
        ends = [chance.randint(0, MAX_END) for _ in range(lanes)]
        cut = chance.choice([None, Cut(chance.randint(1, MAX_STEP), chance.random() < 0.5)])
        numbering, facts = Numbering(lanes, [None] * lanes), facts_of(chance, ends)
        told: list[Fact] = []
        last = sum(ends) + MAX_STEP
        for fact in facts:
            lane, number, is_end = fact
            (numbering.end if is_end else numbering.reach)(lane, number)
            told.append(fact)
            if chance.random() < 0.5:
                continue
            position = chance.randint(0, last)
            answers = {defined(order, position, cut) for order in possible(lanes, told)}
            expected = answers.pop() if len(answers) == 1 else None

            assert answer(numbering, position, cut) == expected, (ends, told, position, cut)

        complete = Order(lanes, tuple(ends))
        assert numbering.is_complete
        assert numbering.order == complete
        assert numbering.batches == numbering.least == sum(ends)
        for position in range(last):
            assert answer(numbering, position, cut) == defined(complete, position, cut)


def test_positions_below_what_is_known_are_located_and_none_above() -> None:
    """`known` says of every position whether `locate` answers; it never decreases."""
    chance = random.Random(7)
    for _ in range(500):
        lanes = chance.randint(1, MAX_LANES)
        ends = [chance.randint(0, MAX_END) for _ in range(lanes)]
        cut = chance.choice([None, Cut(3), Cut(3, pad=False)])
        numbering, before = Numbering(lanes, [None] * lanes), 0
        for lane, number, is_end in facts_of(chance, ends):
            (numbering.end if is_end else numbering.reach)(lane, number)
            known = numbering.known(cut)
            assert known >= before
            before = known
            for position in range(sum(ends) + 4):
                assert (answer(numbering, position, cut) is None) == (position >= known)


def test_whoever_learns_what_is_missing_knows_the_position() -> None:
    """By asking for what is missing, again and again, every position becomes known."""
    chance = random.Random(11)
    for _ in range(500):
        lanes = chance.randint(1, MAX_LANES)
        ends = [chance.randint(0, MAX_END) for _ in range(lanes)]
        numbering, asked = Numbering(lanes, [None] * lanes), 0
        for position in range(sum(ends) + 2):
            while (missing := next(numbering.missing(position), None)) is not None:
                lane, offset = missing
                asked += 1
                if offset < ends[lane]:
                    numbering.reach(lane, offset + 1)
                else:
                    numbering.end(lane, ends[lane])

            assert numbering.known() > position
        assert asked <= sum(ends) + lanes


def test_an_endless_log_is_known_throughout() -> None:
    """Nothing is to be learned, and facts about lanes say nothing new."""
    numbering = Numbering(3)
    numbering.reach(2, 1 << 40)

    assert numbering.is_complete
    assert not numbering.is_finite
    assert numbering.batches is None
    assert numbering.frontier is None
    assert numbering.locate(7) == Located(1, 2)
    assert numbering.locate(MAX_POSITION) == Located(*Order(3).lane_offset(MAX_POSITION))
    assert list(numbering.missing(9)) == []
    with pytest.raises(InvalidRequest):
        numbering.end(0, 3)
    with pytest.raises(InvalidRequest):
        numbering.locate(-1)


def test_two_ends_of_a_lane_are_an_error() -> None:
    """A lane that was known to hold more, or another number, has two contents."""
    numbering = Numbering(2, [None, 4])
    numbering.reach(0, 3)
    numbering.end(1, 4)
    for lane, batches in ((0, 2), (1, 3), (1, 5)):
        with pytest.raises(LogDiverged, match=f"lane {lane} was counted to hold"):
            numbering.end(lane, batches)
    with pytest.raises(LogDiverged):
        numbering.reach(1, 5)

    assert numbering.frontier == LaneOffset(0, 3)
    assert numbering.end_of(0) is None
