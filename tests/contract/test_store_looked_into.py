"""Commands look into a store in PostgreSQL as they do into a file: nothing is changed by it."""

from __future__ import annotations

from pathlib import Path

import psycopg

import ports
import postgres
from penstock.server.store import open_store
from penstock.server.store.recorded import Recorded
from penstock.server.store.records import SnapshotRecord
from penstock.server.testing.store import LOG


async def test_what_a_node_has_recorded_is_found_while_it_goes_on(tmp_path: Path) -> None:
    """Snapshots, ends and versions; a snapshot whose bytes are damaged is passed over."""
    server, schema = postgres.postgres_18(), postgres.new_schema()
    url = postgres.in_schema(server, schema)
    store = open_store(url, tmp_path)
    await store.open()
    await store.put_snapshots([SnapshotRecord(LOG, 1, at, b"%d" % at) for at in (3, 6, 9)])
    await store.add_lane_ends(LOG, {0: 4, 1: 5})
    await store.note_libraries(LOG, {"numpy": "2.1.0"})
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(f"UPDATE {schema}.bodies SET data = 'x' WHERE data = '9'")

    found = Recorded(url, tmp_path)

    assert found.snapshot(LOG, 1, 100) == SnapshotRecord(LOG, 1, 6, b"6")
    assert found.snapshot(LOG, 1, 2) is None
    assert found.why_none() == f"the store {store.where} has no snapshot of this log near it"
    assert found.lane_ends(LOG, 2) == [4, 5]
    assert found.libraries(LOG) == {"numpy": "2.1.0"}
    await store.close()


def test_where_there_is_no_store_nothing_is_made(tmp_path: Path) -> None:
    """Nor is a database that is away tried for each lane again; the sentence has no password."""
    server, schema = postgres.postgres_18(), postgres.new_schema()
    empty = Recorded(postgres.in_schema(server, schema), tmp_path)
    away = Recorded(f"postgresql://u:open-sesame@127.0.0.1:{ports.free_port()}/db", tmp_path)

    assert empty.snapshot(LOG, 0, 5) is None
    with psycopg.connect(server) as connection:
        query = "SELECT 1 FROM pg_namespace WHERE nspname = %s"
        assert connection.execute(query, (schema,)).fetchall() == []
    assert away.snapshot(LOG, 0, 5) is None
    assert "cannot be used" in away.why_none()
    assert "open-sesame" not in away.why_none()
