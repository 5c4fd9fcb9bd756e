"""What every source checks: indices and column names."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from penstock.common.nearest import listed, nearest
from penstock.wire.errors import InvalidJob
from penstock.wire.plain import clean_text


def check_indices(indices: Sequence[int], length: int) -> None:
    """Refuse an index that no item has.

    Raises:
        IndexError: An index is negative or not below `length`.
    """
    for index in indices:
        if not 0 <= index < length:
            raise IndexError(
                f"there is no item {index}: this source holds {length} items, from 0 on"
            )


def invalid_files(said: str) -> InvalidJob:
    """Return the error of a source whose files are not what it reads."""
    return InvalidJob(said, key="source.files")


def check_columns(columns: Any, existing: Sequence[str], where: str) -> list[str]:
    """Return the columns to read: those asked for, or all.

    Raises:
        InvalidJob: `columns` is not a list of names, is empty, or names a column that is not there.
    """
    if columns is None:
        return list(existing)
    if isinstance(columns, str) or not all(isinstance(column, str) for column in columns):
        raise InvalidJob(
            f"columns is {columns!r}: give a list of names, for example [{listed(existing[:1])}]",
            key="source.columns",
        )
    if not columns:
        raise InvalidJob(
            f"columns is empty: leave it out, or choose from {listed(existing)}",
            key="source.columns",
        )
    known = frozenset(existing)
    for column in columns:
        if column not in known:
            near = nearest(column, existing, 1)
            hint = f"did you mean {near[0]!r}? It" if near else "it"
            wanted = clean_text(repr(column), 100)
            raise InvalidJob(
                f"{where} has no column {wanted}: {hint} has {listed(existing)}",
                key="source.columns",
            )
    return list(dict.fromkeys(columns))


def refuse_more_columns(
    file: str, existing: Sequence[str], known: Collection[str], first: str
) -> None:
    """Refuse a file that has more columns than the first one, where all are to be read.

    Raises:
        InvalidJob: Names them.
    """
    if more := [name for name in existing if name not in known]:
        raise InvalidJob(
            f"{file} has columns that {first} lacks ({listed(more)}): name those to read with "
            "columns",
            key="source.columns",
        )
