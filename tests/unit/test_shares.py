"""Shares as close as whole things allow: bounds that hold at every prefix, over many mixtures."""

from __future__ import annotations

import random
from fractions import Fraction

import pytest

from penstock.server.core.shares import (
    Rotation,
    exact,
    largest_remainder,
    next_part,
    whole_weights,
)


def some_weights(rng: random.Random, parts: int) -> list[int]:
    """Return weights from alike to very unlike."""
    skew = rng.choice([1, 3, 6])
    return [max(1, int(200 * rng.random() ** skew)) for _ in range(parts)]


def test_every_part_is_within_one_of_its_share_at_every_prefix() -> None:
    """And comes out even after each period: then the sequence repeats itself."""
    rng = random.Random(3)
    for _ in range(120):
        weights = some_weights(rng, rng.randint(1, 20))
        rotation, given = Rotation(weights), [0] * len(weights)
        for count, part in enumerate(rotation.parts(rotation.period), 1):
            given[part] += 1
            for had, weight in zip(given, weights, strict=True):
                assert abs(had * rotation.period - weight * count) < rotation.period
        assert given == weights
        twice = Rotation(weights).parts(2 * rotation.period)
        assert twice[rotation.period :] == twice[: rotation.period]


def test_the_largest_deficit_alone_is_further_away() -> None:
    """Small parts that lack as much come one after another, and a large one waits for all."""
    weights = [1] * 13 + [57]
    given, furthest = [0] * 14, 0.0
    for count in range(70):
        lacks = [weight * count - 70 * had for weight, had in zip(weights, given, strict=True)]
        given[lacks.index(max(lacks))] += 1
        furthest = max(furthest, abs(given[13] - 57 * (count + 1) / 70))

    assert furthest == pytest.approx(1.671, abs=0.001)


def test_counts_and_places_are_those_of_the_sequence() -> None:
    """Over several periods, by arithmetic."""
    rng = random.Random(4)
    for _ in range(10):
        weights = some_weights(rng, rng.randint(1, 5))
        rotation = Rotation(weights)
        sequence = Rotation(weights).parts(3 * rotation.period)
        for count in range(0, len(sequence), 7):
            found = rotation.counts(count)
            assert found == [sequence[:count].count(part) for part in range(len(weights))]
        for part in range(len(weights)):
            places = [at for at, each in enumerate(sequence) if each == part]
            assert [rotation.place(part, n) for n in range(0, len(places), 11)] == places[::11]


def test_every_part_is_within_the_largest_document_of_its_share_of_tokens() -> None:
    """At every prefix, whatever the sizes: alike, or with rare long ones."""
    rng = random.Random(5)
    draws_of = [
        lambda: 1,
        lambda: 100,
        lambda: rng.randint(1, 100),
        lambda: 100 if rng.random() < 0.01 else 1,
    ]
    for _ in range(60):
        parts = rng.choice([2, 3, 5, 10, 30])
        weights = some_weights(rng, parts)
        sizes = [rng.choice(draws_of) for _ in weights]
        given, largest, whole = [0] * parts, 1, sum(weights)
        for _ in range(400):
            part = next_part(weights, given, largest, range(parts))
            size = sizes[part]()
            given[part] += size
            largest = max(largest, size)
            total = sum(given)
            for had, weight in zip(given, weights, strict=True):
                assert abs(had * whole - weight * total) <= largest * whole


@pytest.mark.parametrize(
    ("weights", "lanes", "dealt"),
    [
        ([7, 2, 1], 8, [6, 1, 1]),
        ([1, 1, 1], 8, [3, 3, 2]),
        ([97, 1, 1, 1], 5, [2, 1, 1, 1]),
        ([50, 50, 1, 1], 4, [1, 1, 1, 1]),
        ([9, 9, 1, 1], 6, [2, 2, 1, 1]),
        ([1], 3, [3]),
    ],
)
def test_lanes_go_to_parts_by_largest_remainder(
    weights: list[int], lanes: int, dealt: list[int]
) -> None:
    """At least one each; what that is too much is taken from those furthest above their share."""
    assert largest_remainder(weights, lanes) == dealt


def test_weights_are_taken_as_they_are_written() -> None:
    """A tenth is a tenth, and a temperature gives the same numbers on every machine."""
    tenths = [Fraction("0.7"), Fraction("0.2"), Fraction("0.1")]

    assert exact(0.29) == Fraction(29, 100)
    assert exact(float("inf")) is exact(float("nan")) is exact(True) is exact("1") is None
    assert whole_weights(tenths, Fraction(1)) == (7, 2, 1)
    assert whole_weights([Fraction(1), Fraction(100)], Fraction(2)) == (1, 10)
    assert whole_weights([Fraction(3), Fraction(7)], Fraction(10, 3)) == (
        193_886_233,
        250_000_000,
    )
