"""Limits of a row beside its tokens: how many images, patches or seconds its samples may count."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from penstock.common.checks import check_whole
from penstock.server.core.refs import SampleRef
from penstock.server.roles.samples import MAX_SIZE
from penstock.wire.errors import BadItem, InvalidJob


class CountLimits:
    """Names of measures, each with a whole number of at least 1."""

    def check(self, name: str, value: Any, *, key: str, optional: bool) -> None:
        """Refuse anything else."""
        if not isinstance(value, Mapping) or not value:
            raise InvalidJob(
                f"{name} is {value!r}: name what rows may count, each with a number, for example "
                "{images: 8}; or leave it out",
                key=key,
            )
        for measure, most in value.items():
            if not isinstance(measure, str):
                raise InvalidJob(f"{name} has {measure!r}, which is no name of a measure", key=key)
            check_whole(f"{name}.{measure}", most, 1, "what a row may count", key=key)
            if most > MAX_SIZE:
                raise InvalidJob(
                    f"{name}.{measure} is {most}: give a number up to 2^63 - 1, or leave it out",
                    key=key,
                )


class RowLimits:
    """What a row may count, by the places of these measures among the counts of samples.

    Args:
        limits: By name.
        measures: What samples count, in order.

    Attributes:
        names: The measures that have a limit.
        places: Where each is among the counts of a sample.
        most: What a row may count of each.
        pairs: Both, of each.

    Raises:
        InvalidJob: A limit is of no measure.
    """

    def __init__(self, limits: Mapping[str, int], measures: Sequence[str]) -> None:
        for name in limits:
            if name not in measures:
                raise InvalidJob(
                    f"limits has {name!r}, and the processor's samples count "
                    + (
                        f"{', '.join(measures)}: name one of these"
                        if measures
                        else "nothing beside their size: leave limits out, or use a processor that "
                        "counts more"
                    ),
                    key="batcher.limits",
                )
        self.names = tuple(limits)
        self.places = tuple(measures.index(name) for name in self.names)
        self.most = tuple(limits.values())
        self.pairs = tuple(zip(self.places, self.most, strict=True))

    def over(self, counts: Sequence[int]) -> str | None:
        """Return the first limit that a sample is above by itself; None = it is above none."""
        for name, (place, most) in zip(self.names, self.pairs, strict=True):
            if counts[place] > most:
                return name
        return None

    def too_many(
        self, name: str, counts: Sequence[int], item: list[Any] | int, whose: str = ""
    ) -> BadItem:
        """Return the error of a sample that is above a limit, with `overlong: error`."""
        number = self.names.index(name)
        reason = (
            f"its {counts[self.places[number]]} {name} do not fit into a row of "
            f"{self.most[number]}: raise limits.{name}, set overlong to drop or alone, or leave "
            "some out in the processor"
        )
        return BadItem(whose + reason, item=item, stage="draw", reason=reason)

    def used(self, row: Iterable[SampleRef]) -> list[int]:
        """Return what the samples of a row count together, of each limit."""
        refs = list(row)
        return [sum(ref.counts[place] for ref in refs) for place in self.places]

    def add(self, used: list[int], counts: Sequence[int]) -> None:
        """Add a sample to what a row counts."""
        for number, place in enumerate(self.places):
            used[number] += counts[place]

    def fits(self, used: Sequence[int], counts: Sequence[int]) -> bool:
        """Tell whether a row that counts so much has room for a sample."""
        for number, (place, most) in enumerate(self.pairs):
            if used[number] + counts[place] > most:
                return False
        return True

    def tightest(self, used: Sequence[int], size: int, capacity: int) -> str | None:
        """Return the limit of which a row has the largest part; None = it is that of its size."""
        found, part, whole = None, size, capacity
        for name, count, most in zip(self.names, used, self.most, strict=True):
            if count * whole > part * most:
                found, part, whole = name, count, most
        return found
