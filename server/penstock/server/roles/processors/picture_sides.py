"""How a job says the size of a picture: pixels of both sides, or height and width."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from penstock.server.media.geometry import NONE, Extent
from penstock.wire.errors import InvalidJob


@dataclass(frozen=True)
class Sides:
    """A number of pixels for both sides, or height and width."""

    def check(self, name: str, value: Any, *, key: str, optional: bool) -> None:
        """Refuse anything else."""
        sides = value if isinstance(value, list | tuple) else [value]
        if len(sides) not in (1, 2) or not all(
            isinstance(side, int) and not isinstance(side, bool) and side > 0 for side in sides
        ):
            raise InvalidJob(
                f"{name} is {value!r}: give pixels, such as 224, or height and width, such as "
                "[224, 320]",
                key=key,
            )


def extent_of(given: int | Sequence[int] | None) -> Extent:
    """Return it as height and width."""
    if given is None:
        return NONE
    if isinstance(given, int):
        return Extent(given, given)
    return Extent(given[0], given[-1])
