"""Episodes of a table of rows: those that follow each other with the same value in a column."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.server.roles.episode_table import EpisodeTable
from penstock.server.roles.source import COLUMN_ITEMS, IndexedSource
from penstock.wire.errors import InvalidJob

_KEY = "distributor.episode_column"


def episodes_by(name: str, source: IndexedSource, column: str) -> EpisodeTable:
    """Return the episodes of a source by a column that names the episode of each item.

    Whole numbers are the episodes' numbers; of texts the first is 0.

    Args:
        name: The source's name.
        source: The source.
        column: The column.

    Raises:
        InvalidJob: There is no such column, it has something else than whole numbers or texts, or
            the items of an episode do not lie together.
        SourceUnavailable, SourceChanged: As `column` of the source.
    """
    if not source.has_column(column):
        known = ", ".join(source.columns_of_items() or ()) or "none that can be read alone"
        raise InvalidJob(
            f"episode_column is {column!r}, and source {name!r} ({source.type_name}) has no such "
            f"column to read alone: it has {known}",
            key=_KEY,
        )
    starts: list[NDArray[np.int64]] = []
    values: list[Any] = []
    for start in range(0, len(source), COLUMN_ITEMS):
        stop = min(start + COLUMN_ITEMS, len(source))
        each = _checked(source.column(column, start, stop), start, f"column {column!r}")
        begins = np.flatnonzero(np.concatenate([[True], each[1:] != each[:-1]]))
        if values and each[0] == values[-1]:
            begins = begins[1:]
        starts.append(begins + start)
        values += each[begins].tolist()
    found = np.concatenate([*starts, [len(source)]]).astype(np.int64)
    _check_apart(values, found, f"column {column!r} of source {name!r}")
    are_numbers = isinstance(values[0], int)
    numbers = np.array(values, np.int64) if are_numbers else np.arange(len(values))
    return EpisodeTable(found, numbers, [()] * len(values))


def _checked(values: Any, start: int, what: str) -> NDArray[Any]:
    """Return values as an array of whole numbers, or of texts.

    Raises:
        InvalidJob: They are something else.
    """
    found = np.asarray(values)  # of an Arrow array, too
    if found.dtype.kind in "iu" and (not found.size or found.max() < 1 << 63):
        return found.astype(np.int64)
    listed = np.asarray(values, dtype=object)
    for place, value in enumerate(listed.tolist()):
        if not isinstance(value, str):
            raise InvalidJob(
                f"{what} is {value!r} in row {start + place}, and names no episode: it needs a "
                "whole number or a text in each row",
                key=_KEY,
            )
    return listed


def _check_apart(values: list[Any], starts: NDArray[np.int64], what: str) -> None:
    """Refuse items of one episode that do not lie together.

    Raises:
        InvalidJob: Names the episode, and where.
    """
    kinds = {type(value) for value in values}
    if len(kinds) > 1:
        raise InvalidJob(f"{what} has whole numbers and texts: write one kind of them", key=_KEY)
    seen: dict[Any, int] = {}
    for number, value in enumerate(values):
        before = seen.setdefault(value, number)
        if before != number:
            raise InvalidJob(
                f"{what} is {value!r} in row {starts[before]} and again in row {starts[number]}, "
                "with other episodes between: sort the rows, so that those of an episode lie "
                "together",
                key=_KEY,
            )
