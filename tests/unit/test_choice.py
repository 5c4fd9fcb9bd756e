"""Which set makes a batch: exact shares, a choice of the step, and counts by arithmetic."""

from __future__ import annotations

import itertools

import pytest

from penstock.server.job.set_choice import Choices, by_largest_remainder, shares_in_block

RATIOS = ([1], [7, 3], [0.2, 0.3, 5])


@pytest.mark.parametrize(("lanes", "together"), [*itertools.product((1, 2, 6, 48), (1, 3, 4, 96))])
def test_uses_count_what_was_chosen(lanes: int, together: int) -> None:
    """At every offset of every lane, by arithmetic, and the offset of every use from its number."""
    for ratios in RATIOS:
        choices = Choices(shares_in_block(ratios), lanes, together, seed=3)
        for lane in {0, 1 % lanes, lanes - 1}:
            uses = [0] * len(ratios)
            for offset in range(130):
                assert choices.uses(lane, offset) == uses
                number = choices.at(lane, offset)
                assert choices.offset_of_use(lane, number, uses[number]) == offset
                uses[number] += 1


def test_all_batches_of_a_step_are_of_one_set_in_exact_shares() -> None:
    """Whatever lanes they are of; each class of steps has its shares in every block."""
    choices = Choices(shares_in_block([7, 3]), lanes=8, together=12, seed=1)
    chosen = []
    for step in range(200):
        of_step = {choices.at(p % 8, p // 8) for p in range(12 * step, 12 * step + 12)}
        assert len(of_step) == 1
        chosen += of_step

    for first in range(0, 200, 20):  # two classes, blocks of ten steps each
        assert chosen[first : first + 20].count(1) == 6
    assert chosen[:20] != chosen[20:40]
    other = Choices(shares_in_block([7, 3]), lanes=8, together=12, seed=2)
    assert [other.of_turn(step) for step in range(200)] != chosen
    assert choices.uses(5, 3 * 10**15) == [21 * 10**14, 9 * 10**14]


def test_ratios_are_taken_as_they_are_written() -> None:
    """Decimals and thirds are exact; what needs long blocks is rounded, and nobody gets nothing."""
    assert shares_in_block([0.1, 0.2, 0.7]) == [1, 2, 7]
    assert shares_in_block([2 / 3, 1 / 3]) == [2, 1]
    assert shares_in_block([1e6, 1]) == [999, 1]
    assert sum(shares_in_block([3.14159, 2.71828])) == 1000
    assert by_largest_remainder([7, 3], 5) == [4, 1]
    assert by_largest_remainder([100, 1, 1], 3) == [1, 1, 1]
    with pytest.raises(ValueError, match="2 cannot be dealt to 3"):
        by_largest_remainder([1, 1, 1], 2)
