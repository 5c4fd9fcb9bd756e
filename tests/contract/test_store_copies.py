"""A store is copied whole, with its identity, between SQLite and PostgreSQL, or not at all."""

from __future__ import annotations

import asyncio
from pathlib import Path

import psycopg
import pytest

import postgres
from penstock.server.core.refs import ItemRef
from penstock.server.core.verdict import Verdict
from penstock.server.store import SqliteStore, Store, open_store
from penstock.server.store.records import Halt, SnapshotRecord
from penstock.server.store.rows import TABLES
from penstock.server.store.store_copy import copy
from penstock.server.testing.store import JOB, LOG, NOTHING, ask
from penstock.wire.errors import InvalidRequest, StoreLocked, StoreUnavailable


async def _fill(store: Store) -> None:
    """Do something of every kind."""
    await store.open()
    await store.add_verdict(LOG, Verdict("draw", ItemRef("s", 3, 0), "", "b\0ad"), NOTHING)
    await store.begin(ask(world_size=3))
    await store.commit("code", "run", "t1", 1, 0, 7, all_rows=True)
    await store.checkpoint("code", "run", "then", 5)
    await store.begin(ask(group="other"))
    await store.delete_group("code", "other")
    await store.add_lane_ends(LOG, {0: 11})
    await store.add_halt(LOG, Halt(1, 9, "bad_item", "no", {"a": 1}, "n1"))
    await store.note_libraries(LOG, {"numpy": "2.1.0"})
    await store.put_snapshots([SnapshotRecord(LOG, o % 11, o, b"%d" % o) for o in range(1100)])
    await store.close()


async def _content(store: Store) -> dict[str, list[tuple[object, ...]]]:
    await store.open()
    found = {
        table.name: await store.transact(lambda tables, kind=kind: tables.all(kind))
        for kind, table in TABLES.items()
    }
    await store.close()
    kept = {"format", "since"}
    found["meta"] = [row for row in found["meta"] if row[0] not in kept]
    return {name: [tuple(row) for row in rows] for name, rows in found.items()}


async def test_a_store_moves_to_postgresql_and_back(tmp_path: Path) -> None:
    """Every row is there, the identity among them, and numbers go on above those that are used."""
    url = postgres.in_schema(postgres.postgres_18(), postgres.new_schema())
    await _fill(SqliteStore(tmp_path / "one.db"))

    counts = await copy("sqlite:///one.db", url, tmp_path)
    await copy(url, "sqlite:///two.db", tmp_path)

    first = await _content(SqliteStore(tmp_path / "one.db"))
    there = await _content(open_store(url, tmp_path))
    assert await _content(SqliteStore(tmp_path / "two.db")) == there
    assert [row[-2] for row in there["verdicts"]] == ["b\N{REPLACEMENT CHARACTER}ad"]
    del first["verdicts"], there["verdicts"]
    assert there == first
    assert counts["groups"] == 1
    assert counts["snapshots"] == len(first["snapshots"]) > 500

    store = open_store(url, tmp_path)
    await store.open()
    await store.put_snapshots([SnapshotRecord(LOG, 12, 0, b"new")])
    begun = await store.begin(ask(group="later"))
    assert (await store.nearest_snapshot(LOG, 12, 0)) == SnapshotRecord(LOG, 12, 0, b"new")
    assert begun.generation == 2, "above all that were deleted"
    await store.close()


async def test_a_place_that_is_not_empty_is_left_alone(tmp_path: Path) -> None:
    """Be it a file, a store in a schema, or another program's tables."""
    url = postgres.in_schema(postgres.postgres_18(), postgres.new_schema())
    await _fill(SqliteStore(tmp_path / "one.db"))
    await _fill(SqliteStore(tmp_path / "two.db"))
    await copy("sqlite:///one.db", url, tmp_path)
    before = (tmp_path / "two.db").read_bytes()

    for target in (url, "sqlite:///two.db"):
        with pytest.raises(InvalidRequest, match="is not empty"):
            await copy("sqlite:///one.db", target, tmp_path)
    with pytest.raises(InvalidRequest, match="there is no store"):
        await copy("sqlite:///none.db", "sqlite:///three.db", tmp_path)

    assert (tmp_path / "two.db").read_bytes() == before
    assert not (tmp_path / "none.db").exists()


async def test_a_file_that_a_node_has_open_is_not_copied(tmp_path: Path) -> None:
    """What it writes from then on would not be in the copy."""
    node = SqliteStore(tmp_path / "one.db")
    await node.open()

    with pytest.raises(StoreLocked):
        await copy("sqlite:///one.db", "sqlite:///two.db", tmp_path)

    await node.close()
    assert not (tmp_path / "two.db").exists()


async def test_a_copy_that_is_killed_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its backend is ended before the last rows: the schema is as empty as before."""
    server, schema = postgres.postgres_18(), postgres.new_schema()
    url = postgres.in_schema(server, schema)
    await _fill(SqliteStore(tmp_path / "one.db"))
    from penstock.server.store.postgres_copy import CopyTarget

    add, calls = CopyTarget.add, 0

    async def add_or_end(self: CopyTarget, rows: object) -> None:
        nonlocal calls
        calls += 1
        if calls == 5:
            await asyncio.to_thread(_end_backends, server, "penstockd")
        await add(self, rows)  # type: ignore[arg-type]

    monkeypatch.setattr(CopyTarget, "add", add_or_end)
    with pytest.raises(StoreUnavailable):
        await copy("sqlite:///one.db", url, tmp_path)
    monkeypatch.undo()

    await copy("sqlite:///one.db", url, tmp_path)
    assert (await _content(open_store(url, tmp_path)))["groups"]
    assert JOB.name == "code"


def _end_backends(server: str, name: str) -> None:
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = %s",
            (name,),
        )
