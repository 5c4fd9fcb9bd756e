"""Episodes of a table of rows: those that follow each other with the same value in a column."""

from __future__ import annotations

import numpy as np

from penstock.server.roles.column_runs import ColumnRuns
from penstock.server.roles.episode_table import EpisodeTable
from penstock.server.roles.source import IndexedSource
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
    what = f"column {column!r} of source {name!r}"
    try:
        runs = source.runs(column)
    except ValueError as error:
        raise InvalidJob(
            f"{what} is {error}, and names no episode: it needs a whole number or a text in each",
            key=_KEY,
        ) from error
    _check_apart(runs, what)
    values, count = runs.values, len(runs.values)
    numbers = np.array(values) if isinstance(values[0], int) else np.arange(count)
    starts = np.append(runs.starts, len(source))
    return EpisodeTable(starts, numbers.astype(np.int64), [()] * count)


def _check_apart(runs: ColumnRuns, what: str) -> None:
    """Refuse items of one episode that do not lie together.

    Raises:
        InvalidJob: Names the episode, and where.
    """
    if len({type(value) for value in runs.values}) > 1:
        raise InvalidJob(f"{what} has whole numbers and texts: write one kind of them", key=_KEY)
    seen: dict[object, int] = {}
    for value, start in zip(runs.values, runs.starts.tolist(), strict=True):
        before = seen.setdefault(value, start)
        if before != start:
            raise InvalidJob(
                f"{what} is {value!r} from item {before} on and again from item {start} on, with "
                "other episodes between: sort the rows, so that those of an episode lie together",
                key=_KEY,
            )
