"""What commands read of a store that they do not open."""

from __future__ import annotations

from pathlib import Path

from penstock.server.store import SqliteStore
from penstock.server.store.recorded import Recorded
from penstock.server.store.records import SnapshotRecord

LOG = bytes(32)
URL = "sqlite:///penstock.db"


async def test_a_store_is_read_while_a_node_has_it_and_after(tmp_path: Path) -> None:
    """The nearest whole snapshot, ends of all lanes, libraries; nothing is locked or written."""
    store = SqliteStore(tmp_path / "penstock.db")
    await store.open()
    await store.put_snapshots([SnapshotRecord(LOG, 0, offset, b"s") for offset in (0, 9)])
    await store.put_snapshots([SnapshotRecord(LOG, 0, 3, b"whole")])
    await store.add_lane_ends(LOG, {0: 4, 1: 5})
    await store.note_libraries(LOG, {"numpy": "2.1"})
    await store.run(lambda db: db.execute("UPDATE bodies SET data = x'00' WHERE id = 2"))

    for _ in range(2):
        found = Recorded(URL, tmp_path)
        assert found.snapshot(LOG, 0, 20) == b"whole", "that at 9 is damaged"
        assert found.snapshot(LOG, 0, 2) == b"s"
        assert found.snapshot(LOG, 1, 20) is None
        assert found.lane_ends(LOG, 2) == [4, 5]
        assert found.lane_ends(LOG, 3) is None
        assert found.libraries(LOG) == {"numpy": "2.1"}
        assert found.problem == ""
        await store.close()


def test_what_is_not_a_store_is_said(tmp_path: Path) -> None:
    """And where there is none, there is nothing."""
    assert Recorded(URL, tmp_path).libraries(LOG) == {}
    assert Recorded(URL, tmp_path).why_none() == "there is no store to look for a snapshot in"
    (tmp_path / "penstock.db").write_bytes(b"SQLite format 3\0" + bytes(5000))

    found = Recorded(URL, tmp_path)

    assert found.snapshot(LOG, 0, 1) is None
    assert "cannot be read (file is not a database)" in found.why_none()
