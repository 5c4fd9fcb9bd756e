"""Who comes next when several have shares: never a whole thing away from any share.

A share falls due in time. With W the sum of the weights and T what all were given so far, part i
should have had `T * w_i / W`. Of the parts that have had no more than that, the one is next whose
debt would first grow to a whole thing, the largest that was given so far: the earliest deadline, as
in Liu and Layland's scheduling (1973) and in WF2Q (Bennett and Zhang, "WF2Q: Worst-case Fair
Weighted Fair Queueing", 1996). With two parts that is the part with the largest deficit. With many,
taking the largest deficit lets a large part wait for small ones that lack as much: with 57
beside thirteen parts of 1 it is 1.67 things away from its share, and this never one.

All arithmetic is on whole numbers, so every process chooses alike.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from decimal import Decimal, localcontext
from fractions import Fraction
from math import gcd, lcm

MAX_RATIO = 10_000
"""The most draws of an item in an epoch: each copy of a storage block takes memory."""

TEMPERED = 10**9
"""What the largest weight becomes where a temperature makes irrational ones."""


def exact(number: object) -> Fraction | None:
    """Return a number as it is written, 0.1 as a tenth; None if it is not a finite one."""
    if isinstance(number, bool) or not isinstance(number, int | float | Fraction):
        return None
    try:
        return Fraction(str(number))
    except ValueError:  # infinity and not a number
        return None


def sample_ratio(number: object) -> Fraction | None:
    """Return how often an item is drawn in an epoch; None if that is not above 0 and possible."""
    found = exact(number)
    return found if found is not None and 0 < found <= MAX_RATIO else None


def whole_weights(weights: Sequence[Fraction], temperature: Fraction) -> tuple[int, ...]:
    """Return whole numbers in the proportion of positive weights, the smallest that there are.

    Args:
        weights: The weights.
        temperature: Each is raised to 1 / temperature: 1 keeps them, larger ones bring them nearer
            to each other ("Massively Multilingual Neural Machine Translation in the Wild", 2019).
    """
    if temperature == 1:
        scale = lcm(*(weight.denominator for weight in weights))
        found = [int(weight * scale) for weight in weights]
    else:
        top = max(weights)
        found = [max(1, _power(weight / top, 1 / temperature)) for weight in weights]
    least = gcd(*found)
    return tuple(weight // least for weight in found)


def _power(ratio: Fraction, exponent: Fraction) -> int:
    """Return `ratio ** exponent` in units of 1 / `TEMPERED`.

    Decimal's logarithms are rounded correctly everywhere; those of C differ between libraries.
    """
    with localcontext() as context:
        context.prec = 40
        base = Decimal(ratio.numerator) / Decimal(ratio.denominator)
        power = Decimal(exponent.numerator) / Decimal(exponent.denominator)
        return int(((base.ln() * power).exp() * TEMPERED).to_integral_value())


def next_part(
    weights: Sequence[int], given: Sequence[int], largest: int, among: Collection[int]
) -> int:
    """Return which part comes next.

    Args:
        weights: Their weights, positive.
        given: What each was given so far.
        largest: The largest thing that was given so far, at least 1.
        among: The parts to choose from, in order: the first of those that are alike is taken.
    """
    total = share = 0
    for part in among:
        total += given[part]
        share += weights[part]
    found, due, weight = -1, 0, 1
    for part in among:
        own, had = weights[part], given[part]
        # Not above its share; and due before the one found, had + largest over its weight.
        if own * total >= share * had and (found < 0 or (had + largest) * weight < due * own):
            found, due, weight = part, had + largest, own
    return found


class Rotation:
    """The endless sequence of parts, where all things are alike: each at its share.

    In any beginning of it each part has its share to within one, so in any stretch of it to within
    two; it repeats itself after the sum of the weights.

    Args:
        weights: Their weights, positive.
    """

    def __init__(self, weights: Sequence[int]) -> None:
        self.weights = tuple(weights)
        self.period = sum(self.weights)
        self._among = range(len(self.weights))
        self._parts: list[int] = []
        self._given = [0] * len(self.weights)

    def parts(self, count: int) -> list[int]:
        """Return the first parts of the sequence, `count` of them; kept, so ask for few."""
        while len(self._parts) < count:
            part = next_part(self.weights, self._given, 1, self._among)
            self._given[part] += 1
            self._parts.append(part)
        return self._parts[:count]

    def counts(self, count: int) -> list[int]:
        """Return how often each part is among the first `count`: int for each part."""
        rounds, rest = divmod(count, self.period)
        found = [rounds * weight for weight in self.weights]
        for part in self.parts(rest):
            found[part] += 1
        return found

    def place(self, part: int, number: int) -> int:
        """Return where in the sequence a part comes for the time `number`, from 0 on."""
        rounds, rest = divmod(number, self.weights[part])
        at = -1
        for place, each in enumerate(self.parts(self.period)):
            if each == part:
                rest -= 1
                if rest < 0:
                    at = place
                    break
        return rounds * self.period + at


def largest_remainder(weights: Sequence[int], total: int) -> list[int]:
    """Return how many of `total` whole things each part gets, at least one each.

    Each gets its share rounded down, and at least one. What is left goes to those with the largest
    remainders; what is too much is taken, one at a time, from the part with more than one that is
    furthest above its share, of those the one with most.

    Args:
        weights: Their weights, positive.
        total: How many there are, at least one for each part.
    """
    share = sum(weights)
    ideal = [Fraction(weight * total, share) for weight in weights]
    found = [max(1, int(each)) for each in ideal]
    left = total - sum(found)
    by_remainder = sorted(range(len(found)), key=lambda part: found[part] - ideal[part])
    for part in by_remainder[: max(0, left)]:
        found[part] += 1
    for _ in range(-left):
        above = [(found[p] - ideal[p], found[p], -p) for p in range(len(found)) if found[p] > 1]
        found[-max(above)[2]] -= 1
    return found
