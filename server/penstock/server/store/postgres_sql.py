"""The tables of a store in PostgreSQL, what is asked of them, and what is written: all as text.

Tables and columns are those of `rows`: a class of rows that is added needs nothing here. Names are
quoted, since `offset` is a reserved word, and texts compare by their bytes, as in every other store
(`COLLATE "C"`). There are no seals: PostgreSQL has checksums of its pages.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any, NamedTuple, get_type_hints

from penstock.server.store.rows import (
    DELETED,
    TABLES,
    Add,
    Change,
    CursorRow,
    Drop,
    MetaRow,
    Put,
    Row,
    Value,
)
from penstock.server.store.sqlite_schema import FORMAT, columns

SINCE = 7
"""The oldest format whose programs may write to a store of this one, beside programs of this one:
they know neither the tables nor the rows that this one has more, and need not. A change that they
must know of raises it to `FORMAT`: of what nodes of format 6 plan and change others do not hear."""

_KINDS = {int: "bigint", str: 'text COLLATE "C"', bytes: "bytea"}

NUMBERS = "numbers"
"""The sequence that numbers come from: one transaction waits for no other, and gaps mean nothing.
"""

WRITERS = "writers"
"""What each process has written last: a store that is behind what it has answered lacks it."""

OF_MANY = ("some", "count_each")
"""Queries about many keys or prefixes: their answers are not kept."""

Statement = tuple[str, tuple[Any, ...]]
"""A text and its values."""


class RowQuery(NamedTuple):
    """Something that is asked of the rows of a class.

    Attributes:
        how: The method of `Tables`.
        kind: The class.
        key: A key, or the first columns of keys; of those of `OF_MANY`, many of them.
        bound: `at_most` or `after`.
        limit: As of `all`.
        where: As of `all`.
        column: As of `highest`; of `steps`, nothing.
        rank: Of `steps`.
    """

    how: str
    kind: type[Row]
    key: tuple[Any, ...]
    bound: Value | None = None
    limit: int | None = None
    where: tuple[tuple[str, Value], ...] = ()
    column: str = ""
    rank: int = 0

    @property
    def plain(self) -> bool:
        """Tell whether it is about every row with a prefix."""
        return self.how == "all" and self[3:6] == (None, None, ())


# --- tables --------------------------------------------------------------------------------------


def quoted(name: str) -> str:
    """Return a name as it is written in a statement."""
    return '"' + name.replace('"', '""') + '"'


def creation(schema: str) -> list[str]:
    """Return the statements that make the tables of a store."""
    place = quoted(schema)
    found = [create_table(schema, kind) for kind in TABLES]
    found.append(f"CREATE SEQUENCE {place}.{NUMBERS}")
    lines = 'id text COLLATE "C" PRIMARY KEY, answered bigint NOT NULL'
    found.append(f"CREATE TABLE {place}.{WRITERS} ({lines})")
    return found


def create_table(schema: str, kind: type[Row]) -> str:
    """Return the statement that makes the table of a class of rows."""
    table, key = TABLES[kind]
    names = columns(kind)
    lines = [f"{quoted(n)} {_KINDS[hint]} NOT NULL" for n, hint in get_type_hints(kind).items()]
    lines.append(f"PRIMARY KEY ({', '.join(map(quoted, names[:key]))})")
    return f"CREATE TABLE {quoted(schema)}.{quoted(table)} ({', '.join(lines)})"


def followed_before(schema: str) -> list[str]:
    """Return the statements that note what nodes follow, of a store of format 6."""
    into, of = f"INSERT INTO {quoted(schema)}.followed", quoted(schema)
    return [
        f"{into} SELECT 'log', encode(log_id, 'hex'), '', max(change) FROM (SELECT log_id, change "
        f"FROM {of}.verdicts UNION ALL SELECT log_id, change FROM {of}.halts) c GROUP BY log_id "
        "ON CONFLICT DO NOTHING",
        f"{into} SELECT 'group', g.job, g.name, max(n.generation) FROM {of}.groups g "
        f"JOIN {of}.generations n ON n.group_id = g.id GROUP BY g.job, g.name "
        "ON CONFLICT DO NOTHING",
    ]


def fresh_meta() -> list[MetaRow]:
    """Return the rows of a store that begins: an identity of its own among them."""
    values = {"uuid": str(uuid.uuid4()), DELETED: "0", "format": str(FORMAT), "since": str(SINCE)}
    return [MetaRow(key, value) for key, value in values.items()]


SHAPE = (
    "SELECT c.relname, a.attname, format_type(a.atttypid, a.atttypmod), coalesce(l.collname, '') "
    "FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace "
    "JOIN pg_attribute a ON a.attrelid = c.oid LEFT JOIN pg_collation l ON l.oid = a.attcollation "
    "WHERE n.nspname = %s AND c.relkind IN ('r', 'p', 'v', 'm', 'f') AND a.attnum > 0 "
    "AND NOT a.attisdropped ORDER BY c.relname, a.attnum"
)
"""What the tables of a schema look like."""


def shape() -> dict[str, list[tuple[str, str, str]]]:
    """Return what `SHAPE` gives of a store, by table."""
    kinds = {int: ("bigint", ""), str: ("text", "C"), bytes: ("bytea", "")}
    found = {
        TABLES[kind].name: [(name, *kinds[hint]) for name, hint in get_type_hints(kind).items()]
        for kind in TABLES
    }
    found[WRITERS] = [("id", "text", "C"), ("answered", "bigint", "")]
    return found


# --- reading -------------------------------------------------------------------------------------


def asking(schema: str, query: RowQuery) -> Statement:
    """Return the statement of a query."""
    how, kind, key, bound, limit, where, column, rank = query
    if how in OF_MANY:
        text = _some(schema, kind) if how == "some" else _count_each(schema, kind, len(key[0]))
        return text, tuple(map(array, zip(*key, strict=True)))
    if how == "steps":
        return _steps(schema), (*key, rank) * 3
    shape = (len(key), bound is not None, tuple(name for name, _ in where), limit is not None)
    values = [*key, *([] if bound is None else [bound]), *(value for _, value in where)]
    if limit is not None:
        values.append(limit)
    return _text(schema, how, kind, column, *shape), tuple(values)


def answer(query: RowQuery, rows: Sequence[tuple[Any, ...]]) -> Any:
    """Return what a method of `Tables` returns for the rows of its statement."""
    how, kind = query.how, query.kind
    if how in ("get", "last"):
        return kind(*rows[0]) if rows else None
    if how == "all":
        return [kind(*row) for row in rows]
    if how == "some":
        found = {place: kind(*row) for place, *row in rows}
        return [found.get(place) for place in range(1, len(query.key) + 1)]
    if how == "counts":
        return dict(rows)
    if how == "count_each":
        return [count for _, count in sorted(rows)]
    if how == "steps":
        own, *others = rows[0]
        return own, min((step for step in others if step is not None), default=None)
    return max(0, rows[0][0] or 0)


def numbering(schema: str, count: int) -> Statement:
    """Return the statement that draws numbers."""
    text = f"SELECT nextval('{quoted(schema)}.{NUMBERS}') FROM generate_series(1, %s)"
    return text, (count,)


@cache
def _text(
    schema: str,
    how: str,
    kind: type[Row],
    column: str,
    prefix: int,
    bounded: bool,
    where: tuple[str, ...],
    limited: bool,
) -> str:
    names, (table, key) = columns(kind), TABLES[kind]
    conditions = [f"{quoted(name)} = %s" for name in names[:prefix]]
    if bounded:
        conditions.append(f"{quoted(names[prefix])} {'<=' if how == 'last' else '>'} %s")
    conditions += [f"{quoted(name)} = %s" for name in where]
    source = f"{quoted(schema)}.{quoted(table)}"
    if conditions:
        source += f" WHERE {' AND '.join(conditions)}"
    every = ", ".join(map(quoted, names))
    order = ", ".join(f"{quoted(name)}{' DESC' * (how == 'last')}" for name in names[:key])
    if how == "last":
        return f"SELECT {every} FROM {source} ORDER BY {order} LIMIT 1"
    if how == "all":
        return f"SELECT {every} FROM {source} ORDER BY {order}" + " LIMIT %s" * limited
    if how == "highest":
        return f"SELECT max({quoted(column)}) FROM {source}"
    if how == "count":
        return f"SELECT count(*) FROM {source}"
    if how == "counts":
        by = quoted(names[prefix])
        return f"SELECT {by}, count(*) FROM {source} GROUP BY {by}"
    return f"SELECT {every} FROM {source}"


@cache
def _some(schema: str, kind: type[Row]) -> str:
    names, (table, key) = columns(kind), TABLES[kind]
    keys = ", ".join(map(quoted, names[:key]))
    every = ", ".join(f"t.{quoted(name)}" for name in names)
    same = " AND ".join(f"t.{quoted(name)} = k.{quoted(name)}" for name in names[:key])
    return (
        f"SELECT k.place, {every} FROM unnest({_arrays(kind, key)}) WITH ORDINALITY "
        f"AS k({keys}, place) JOIN {quoted(schema)}.{quoted(table)} t ON {same}"
    )


@cache
def _count_each(schema: str, kind: type[Row], prefix: int) -> str:
    names = list(map(quoted, columns(kind)[:prefix]))
    same = " AND ".join(f"t.{name} = k.{name}" for name in names)
    table = f"{quoted(schema)}.{quoted(TABLES[kind].name)}"
    return (
        f"SELECT k.place, (SELECT count(*) FROM {table} t WHERE {same}) "
        f"FROM unnest({_arrays(kind, prefix)}) WITH ORDINALITY AS k({', '.join(names)}, place)"
    )


@cache
def _steps(schema: str) -> str:
    source = f"{quoted(schema)}.{TABLES[CursorRow].name} WHERE group_id = %s AND generation = %s"
    return (
        f"SELECT (SELECT step FROM {source} AND rank = %s), "
        f"(SELECT min(step) FROM {source} AND rank < %s), "
        f"(SELECT min(step) FROM {source} AND rank > %s)"
    )


def array(values: Sequence[Value]) -> str | list[Value]:
    """Return the values of a column as one value.

    psycopg gives a list of integers the smallest type that holds its last one, and a statement that
    was prepared for small ones refuses larger ones.
    """
    if isinstance(values[0], int):
        return "{" + ",".join(map(str, values)) + "}"
    return list(map(_storable, values))


def _storable(value: Value) -> Value:
    """Return a value as a column takes it: in messages of others may be NUL, and in no text."""
    return value.replace("\0", "\N{REPLACEMENT CHARACTER}") if isinstance(value, str) else value


def _arrays(kind: type[Row], count: int) -> str:
    types = {int: "bigint", str: "text", bytes: "bytea"}
    hints = list(get_type_hints(kind).values())[:count]
    return ", ".join(f"%s::{types[hint]}[]" for hint in hints)


# --- writing -------------------------------------------------------------------------------------


def key_of(change: Change) -> tuple[Value, ...]:
    """Return the key of a row that is written, or the prefix of those that are removed."""
    if isinstance(change, Drop):
        return change.prefix
    return tuple(change.row[: TABLES[type(change.row)].key])


def kind_of(change: Change) -> type[Row]:
    """Return the class that a change is about."""
    return change.kind if isinstance(change, Drop) else type(change.row)


def writing(schema: str, changes: Sequence[Change]) -> Iterator[Statement]:
    """Return the statements of changes: one per table and kind of change, where order allows it.

    Tables know nothing of each other, so only changes of one table keep their order.
    """
    tables: dict[type[Row], list[tuple[str, dict[Any, Change]]]] = {}
    for number, change in enumerate(changes):
        runs = tables.setdefault(kind_of(change), [])
        how, key = _how(change), key_of(change)
        if how == "drop":
            key = (*key, number)  # each is a statement of its own
        if not runs or runs[-1][0] != how or (how == "add" and key in runs[-1][1]):
            runs.append((how, {}))
        runs[-1][1][key] = change
    for kind, runs in tables.items():
        for how, run in runs:
            if how == "drop":
                yield from (_dropping(schema, change) for change in run.values())
            elif how == "remove":
                yield _remove(schema, kind), tuple(map(array, zip(*run, strict=True)))
            else:
                rows = [change.row for change in run.values() if not isinstance(change, Drop)]
                if len(rows) == 1:
                    yield _write(schema, kind, how, True), tuple(map(_storable, rows[0]))
                else:
                    values = tuple(map(array, zip(*rows, strict=True)))
                    yield _write(schema, kind, how, False), values


def _how(change: Change) -> str:
    if isinstance(change, Put):
        return "put"
    if isinstance(change, Add):
        return "add"
    whole = len(change.prefix) == TABLES[change.kind].key
    return "remove" if whole else "drop"


@cache
def _write(schema: str, kind: type[Row], how: str, one: bool) -> str:
    names, (table, key) = columns(kind), TABLES[kind]
    every = ", ".join(map(quoted, names))
    values = f"VALUES ({', '.join(['%s'] * len(names))})"
    if not one:
        values = f"SELECT * FROM unnest({_arrays(kind, len(names))})"
    text = f"INSERT INTO {quoted(schema)}.{quoted(table)} ({every}) {values}"
    if how == "put":
        keys = ", ".join(map(quoted, names[:key]))
        others = [f"{quoted(name)} = excluded.{quoted(name)}" for name in names[key:]]
        text += f" ON CONFLICT ({keys}) DO " + (
            f"UPDATE SET {', '.join(others)}" if others else "NOTHING"
        )
    return text


@cache
def _remove(schema: str, kind: type[Row]) -> str:
    names, (table, key) = columns(kind), TABLES[kind]
    keys = ", ".join(map(quoted, names[:key]))
    return (
        f"DELETE FROM {quoted(schema)}.{quoted(table)} WHERE ({keys}) IN "
        f"(SELECT * FROM unnest({_arrays(kind, key)}))"
    )


def _dropping(schema: str, change: Change) -> Statement:
    assert isinstance(change, Drop)
    names = columns(change.kind)
    conditions = [f"{quoted(name)} = %s" for name in names[: len(change.prefix)]]
    values: list[Value] = [*change.prefix]
    if change.up_to is not None:
        conditions.append(f"{quoted(names[len(change.prefix)])} <= %s")
        values.append(change.up_to)
    table = f"{quoted(schema)}.{quoted(TABLES[change.kind].name)}"
    where = f" WHERE {' AND '.join(conditions)}" if conditions else ""
    return f"DELETE FROM {table}{where}", tuple(values)
