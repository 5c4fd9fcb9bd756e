"""What a run of the tests has resumed, as tables: for each two roles, combinations and offsets."""

from __future__ import annotations

import io
import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from string import ascii_lowercase
from typing import NamedTuple

from resume.matrix import FACTORS, Pair, why_not

COMBINATION, OFFSETS = "resumed combination", "resumed offsets"
"""The properties of a test's report: the roles, in the order of `matrix.Combination`; a number."""

ACROSS = ("distributor", "processor", "collator")
"""What the columns of the first table are; those of the second one are batchers."""

NOT_MET = "."


class Resumed(NamedTuple):
    """A combination of roles, and at how many offsets it was resumed; 0 = it failed."""

    roles: tuple[str, ...]
    offsets: int


def of_reports(properties: Sequence[Mapping[str, object]]) -> list[Resumed]:
    """Return what the properties of tests' reports say; most tests have none of these."""
    found = []
    for each in properties:
        roles, offsets = each.get(COMBINATION), each.get(OFFSETS, 0)
        if isinstance(roles, list) and isinstance(offsets, int):
            found.append(Resumed(tuple(map(str, roles)), offsets))
    return found


def table(found: Sequence[Resumed]) -> list[str]:
    """Return the lines of both tables, with what their cells mean.

    A cell is `combinations/offsets`. Roles that had no part in the run are left out.
    """
    taking = {
        factor: [name for name in names if any(one.roles[n] == name for one in found)]
        for n, (factor, names) in enumerate(FACTORS.items())
    }
    numbers = {name: f"{n:2} {name}" for n, name in enumerate(taking["batcher"], start=1)}
    cells = _Cells(found)
    failed = [one for one in found if not one.offsets]
    return [
        f"{len(found) - len(failed)} combinations were resumed, each at every offset of a lane: "
        f"{sum(one.offsets for one in found)} offsets.",
        "A cell says combinations/offsets of the jobs that have both roles"
        + (f"; ! = {len(failed)} of them failed." if failed else "."),
        "",
        *_grid(taking, ("source", "batcher", *ACROSS[:-1]), ACROSS, cells, numbers),
        "",
        *_grid(taking, ("source",), ("batcher",), cells, numbers),
        "",
        *(f"{mark}: {reason}" for reason, mark in cells.marks.items()),
        *([f"{NOT_MET}: not in this run"] if cells.lacks else []),
    ]


class _Cells:
    """What is said of two roles.

    Attributes:
        marks: What was said to have no job, by the reason.
        lacks: Whether two roles did not meet that might have.
    """

    def __init__(self, found: Sequence[Resumed]) -> None:
        self._resumed: Counter[Pair] = Counter()
        self._failed: Counter[Pair] = Counter()
        self._offsets: Counter[Pair] = Counter()
        for one in found:
            for pair in itertools.permutations(zip(FACTORS, one.roles, strict=True), 2):
                (self._resumed if one.offsets else self._failed)[pair] += 1
                self._offsets[pair] += one.offsets
        self.marks: dict[str, str] = {}
        self.lacks = False

    def cell(self, pair: Pair) -> str:
        """Return what is said of two roles."""
        if pair in self._offsets:
            failed = "!" * bool(self._failed[pair])
            return f"{self._resumed[pair]}/{self._offsets[pair]}{failed}"
        if (reason := why_not(dict(pair))) is not None:
            return self.marks.setdefault(reason, ascii_lowercase[len(self.marks)])
        self.lacks = True
        return NOT_MET


def _grid(
    taking: Mapping[str, Sequence[str]],
    down: Sequence[str],
    across: Sequence[str],
    cells: _Cells,
    numbers: Mapping[str, str],
) -> list[str]:
    """Return the lines of a table; a row has cells for the kinds that come after its own."""
    from rich.console import Console
    from rich.table import Table

    grid = Table(box=None, padding=(0, 1, 0, 0))
    grid.add_column()
    for factor in across:
        for n, name in enumerate(taking[factor]):
            first, line, last = name.rpartition("_")
            if factor == "batcher":
                first, line, last = "", "", numbers[name].split()[0]
            above = f"{first}{line}" if n else factor
            grid.add_column(f"{above}\n{last}", justify="right", no_wrap=True)
    for factor in down:
        grid.add_row(factor)
        after = across[across.index(factor) + 1 :] if factor in across else across
        for name in taking[factor]:
            row = (
                cells.cell(((factor, name), (other, column))) if other in after else ""
                for other in across
                for column in taking[other]
            )
            grid.add_row(f"  {numbers.get(name, name) if factor == 'batcher' else name}", *row)
    out = io.StringIO()
    Console(file=out, width=200).print(grid)
    return [line.rstrip() for line in out.getvalue().splitlines()]


__all__ = ["COMBINATION", "OFFSETS", "Resumed", "of_reports", "table"]
