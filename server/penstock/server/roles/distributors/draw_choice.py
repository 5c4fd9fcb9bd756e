"""Which items of a job's sources are drawn at all, and how often: what was asked for.

Glossary:
    ratio: How often an epoch draws each item of a source (`sample_ratio`); in a joint job the share
        of the batches that a set makes.
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from penstock.common.nearest import hint
from penstock.server.core.refs import ItemRef
from penstock.server.core.shares import MAX_RATIO, sample_ratio
from penstock.server.roles.condition import Condition, Kept
from penstock.server.roles.distributors.joined_sources import Drawn, JoinedSources
from penstock.server.roles.distributors.selection import Selection
from penstock.server.roles.source import IndexedSource
from penstock.wire.errors import InvalidJob

SELECTION_VERSION = 1
"""Version of what `where` and `sample_ratio` draw, part of the log id of jobs that have them."""


class Choice:
    """A condition and ratios as they were asked for, and what they choose.

    Args:
        where: A condition on columns, see `Condition`; None = all items.
        sample_ratio: How many draws an epoch has for each item: a number, or one by source.
        resample: Choose another part in every epoch.

    Raises:
        InvalidJob: One has a value that cannot be.
    """

    def __init__(
        self,
        where: Mapping[str, Any] | None,
        sample_ratio: float | Mapping[str, float] | None,
        resample: bool,
    ) -> None:
        self._where = None if where is None else Condition(where)
        self._asked = _ratios(sample_ratio)
        self._resample = resample
        self._names: list[str] = []
        self._ratios: list[Fraction] = []
        self._selection: Selection | None = None

    def of(self, sources: Mapping[str, IndexedSource], seed: int) -> Drawn:
        """Return what an epoch draws from.

        Raises:
            InvalidJob: It does not fit the sources, or one of them is empty.
        """
        asked = self._asked
        if isinstance(asked, dict) and (unknown := [name for name in asked if name not in sources]):
            raise InvalidJob(
                f"sample_ratio names a source {unknown[0]!r}: {hint(unknown[0], sources)}",
                key="distributor.sample_ratio",
            )
        self._names = list(sources)
        self._ratios = [
            asked.get(name, Fraction(1)) if isinstance(asked, dict) else asked for name in sources
        ]
        self._selection = None
        if self._where is None and all(ratio == 1 for ratio in self._ratios):
            return JoinedSources(sources)
        self._selection = Selection(sources, self._where, self._ratios, self._resample, seed)
        return self._selection

    @property
    def resamples(self) -> bool:
        """Tell whether epochs may draw other items each."""
        return self._resample and any(ratio.denominator > 1 for ratio in self._ratios)

    def meets(self, other: Choice) -> ItemRef | None:
        """Return an item that another choice may draw, too; None = there is none."""
        for name in self._names:
            if name not in other._names:
                continue
            mine, theirs = self.kept(name), other.kept(name)
            if mine is None or theirs is None:
                kept = mine or theirs
                return ItemRef(name, 0 if kept is None else kept[0], 0)
            if (index := mine.meets(theirs)) is not None:
                return ItemRef(name, index, 0)
        return None

    def kept(self, name: str) -> Kept | None:
        """Return which items of a source the condition keeps; None = all of them."""
        return None if self._selection is None else self._selection.kept[name]

    def draws_each(self, name: str) -> bool:
        """Tell whether an epoch draws all items of a source that the condition keeps."""
        return self._ratios[self._names.index(name)] >= 1

    def parameters(self) -> dict[str, Any]:
        """Return what decides which items are drawn; empty = all, once."""
        if self._selection is None:
            return {}
        found: dict[str, Any] = {
            "selection": SELECTION_VERSION,
            "sample_ratio": [str(ratio) for ratio in self._ratios],
        }
        if self._where is not None:
            found["where"] = self._where.to_json()
        if self._resample:
            found["resample"] = True
        return found


def _ratios(asked: Any) -> Fraction | dict[str, Fraction]:
    """Return a `sample_ratio` as exact numbers: 0.29 of 100 items is 29 of them.

    Raises:
        InvalidJob: It is not a number above 0, or numbers by name.
    """
    if asked is None:
        return Fraction(1)
    if isinstance(asked, Mapping):
        return {str(name): _ratio(each, f"sample_ratio.{name}") for name, each in asked.items()}
    return _ratio(asked, "sample_ratio")


def _ratio(asked: Any, name: str) -> Fraction:
    found = sample_ratio(asked)
    if found is None:
        raise InvalidJob(
            f"{name} is {asked!r}: give a number above 0 and up to {MAX_RATIO:,}, such as 0.5; a "
            "source that is not to be drawn from is left out of the job",
            key="distributor.sample_ratio",
        )
    return found
